"""What is written is what is read, by Python's parser and by Kubernetes' own."""

import json
import shutil
import subprocess
import sys

import pytest
import yaml
from hypothesis import example, given, settings
from hypothesis import strategies as st

from trireme.errors import InvalidJob
from trireme.launch.kubernetes.yaml_text import read_overlay, to_yaml

NASTY = [
    "",
    "\n",
    "\n\n\n",
    " ",
    "\t",
    "\tindented by a tab\n",
    "  starts with blanks\nthen not\n",
    "\n  starts with an empty line\n",
    "   \nstarts with blanks only\n",
    "ends with blanks   \nhere and at the end  ",
    "ends without a line feed",
    "ends with three\n\n\n",
    "ends with blanks only\n    ",
    "a line of blanks\n     \nin the middle\n",
    "a line of tabs\n\t\t\nin the middle\n",
    "carriage returns\r\nat both\r\nlines\r\n",
    "one \r alone\n",
    "{{ template }} {% if %} ${VARIABLE} $(NAME) %s\n",
    "---\nlooks like: a document\n...\n--- |\n",
    "# a comment?\n- a list?\n? a key\n: a value\n&anchor *alias !tag\n% directive\n",
    "key: [flow, {mapping: 1}]\n",
    "'single' \"double\" `back`\n",
    "back\\slash \\n \\u0041\n",
    "Größe 漢字 \U0001f6a3 \u0645\u0631\u062d\u0628\u0627\n",
    "next line \x85 line separator \u2028 paragraph separator \u2029\n",
    "no-break \xa0 soft hyphen \xad zero width \u200b\n",
    "\ufeffbyte order mark\n",
    "control \x00 \x07 \x1b[0m \x7f\n",
    "surrogates' neighbours \ud7ff \ue000 \ufffd \ufffe \uffff\n",
    "x" * 5000 + " " + "y" * 5000,
    ("word " * 500 + "\n") * 3,
]
LOOKALIKES = [
    *(
        "y",
        "n",
        "Y",
        "N",
        "yes",
        "No",
        "on",
        "OFF",
        "true",
        "False",
        "null",
        "Null",
        "~",
        "nan",
        ".nan",
        ".inf",
    ),
    *(
        "1",
        "-1",
        "+1",
        "0",
        "007",
        "0o7",
        "0x1F",
        "0b1",
        "1_000",
        "1.5",
        ".5",
        "1.",
        "1e3",
        "1E3",
        "3e10",
        "12e34567",
    ),
    *(
        "12:30",
        "12:30:45",
        "1:2",
        "2026-01-31",
        "2026-01-31T10:00:00Z",
        "=",
        "<<",
        "!",
        "@x",
        "%x",
        "-",
        "--",
        "?",
    ),
    *(
        ":",
        "a:",
        "a: b",
        "a #b",
        "#a",
        "[a",
        "{a",
        "a]",
        "&a",
        "*a",
        "|",
        ">",
        "'a'",
        '"a"',
        "`a`",
        " a",
        "a ",
        "a\tb",
    ),
]


@pytest.mark.parametrize("text", NASTY + LOOKALIKES, ids=lambda text: ascii(text)[:40])
def test_text_survives_python(text):
    written = to_yaml([{"data": {"train.py": text, text: "as a key"}, "list": [text]}])
    assert yaml.safe_load(written) == {"data": {"train.py": text, text: "as a key"}, "list": [text]}


@given(st.text(), st.integers(0, 3))
@example("\n \n", 2)
def test_any_text_survives_python(text, depth):
    value = text
    for _ in range(depth):
        value = {"nested": [{"value": value}]}
    assert yaml.safe_load(to_yaml([{"value": value, "after": 1}])) == {"value": value, "after": 1}


@given(st.lists(st.text(" \t\n-#:a'\"", max_size=6), max_size=8).map("\n".join))
def test_any_layout_survives_python(text):
    assert yaml.safe_load(to_yaml([{"data": {"train.py": text}}])) == {"data": {"train.py": text}}


def kubectl(manifest: str) -> list[dict]:
    """The objects as Kubernetes' own code reads them. No cluster is asked: a label is added to what it read."""
    command = ["kubectl", "label", "--local", "--filename=-", "--output=json", "read=back"]
    result = subprocess.run(command, input=manifest, capture_output=True, encoding="utf-8", timeout=60)
    assert result.returncode == 0, result.stderr
    objects, rest = [], result.stdout.lstrip()
    while rest:
        value, end = json.JSONDecoder().raw_decode(rest)
        objects.append(value)
        rest = rest[end:].lstrip()
    return objects


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl here")
@settings(max_examples=4, deadline=None)
@given(
    st.lists(st.one_of(st.text(), st.text(" \t\n-#:a'\"\r", max_size=8), st.text("0123456789eE+-._xob:ynf")))
)
@example([])
def test_text_survives_kubernetes(more):
    """kubectl reads more than PyYAML does as numbers and truth values, and splits documents by itself."""
    texts = {f"text-{number}": text for number, text in enumerate(NASTY + LOOKALIKES + more)}
    config_map = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "first"}, "data": texts}
    keys = {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": "second"},
        "data": {"y": "1", "1e3": "2"},
    }
    first, second = kubectl(to_yaml([config_map, keys], "a comment\nof two lines"))
    assert first["data"] == texts
    assert second["data"] == keys["data"]


@pytest.mark.parametrize(
    "text",
    [
        "print(1)\nprint(2)\n",
        "tabs\tand blanks at the end  \n",
        "without a line feed at the\nend",
        "\n  empty first line\n",
        "Größe 漢字\nand \U0001f6a3\n",
    ],
)
def test_scripts_stay_readable(text):
    written = to_yaml([{"data": {"train.py": text}}])
    for line in text.splitlines():
        assert f"    {line}\n" in written or not line


def test_a_carriage_return_is_never_written_as_a_line_break():
    assert "\r" not in to_yaml([{"data": {"train.py": "dos\r\nfile\r\n"}}])


@pytest.mark.parametrize(
    ("content", "expected"),
    [
        (b"", "found nothing"),
        (b"---\n---\n", "found nothing"),
        (b"- kind: Job\n", "found [{'kind': 'Job'}]"),
        (b"spec: {}\n", "found {'spec': {}}"),
        (b"kind: [\n", "is no YAML"),
        (b"kind: J\xff\n", "is no YAML"),
        (b"kind: !!python/object:os.system {}\n", "is no YAML"),
    ],
)
def test_an_overlay_that_is_none(tmp_path, content, expected):
    path = tmp_path / "overlay.yaml"
    path.write_bytes(content)
    with pytest.raises(InvalidJob) as caught:
        read_overlay(str(path))
    (mistake,) = caught.value.mistakes
    assert expected in mistake and str(path) in mistake


def test_an_overlay_that_is_not_there(tmp_path):
    with pytest.raises(InvalidJob, match="cannot be read: No such file"):
        read_overlay(str(tmp_path / "overlay.yaml"))


def test_dates_in_an_overlay_are_text(tmp_path):
    path = tmp_path / "overlay.yaml"
    path.write_text(
        "kind: Job\nmetadata: {annotations: {day: 2026-01-31, at: 2026-01-31T10:00:00Z, is: =}}\n"
    )
    (overlay,) = read_overlay(str(path))
    assert overlay["metadata"]["annotations"] == {
        "day": "2026-01-31",
        "at": "2026-01-31T10:00:00Z",
        "is": "=",
    }


def test_without_pyyaml_the_error_says_what_to_install():
    code = "import sys; sys.modules['yaml'] = None; import trireme.launch.kubernetes.yaml_text"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True)
    assert result.returncode != 0
    assert "pip install 'keras-trireme[kubernetes]'" in result.stderr

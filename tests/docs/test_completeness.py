"""The documents name all there is, and nothing that is not there."""

import inspect
import re
import subprocess
import sys

import pytest

import trireme
from tests.contract.run_cases import CASES
from tests.docs.markdown import DOCUMENTS, README, ROOT, blocks, commands, names_in, table
from trireme import errors
from trireme.cli.main import COMMANDS
from trireme.cli.run import STRATEGIES
from trireme.launch.job import BACKENDS

DOCS = ROOT / "docs"
SOURCE = ROOT / "src" / "trireme"
VARIABLE = re.compile(r"\bTRIREME_[A-Z0-9_]*[A-Z0-9]\b")
GENERATED = {"dist", "build", "trireme-logs"}


def test_every_variable_of_the_source_is_documented_and_no_other():
    in_source = {name for path in SOURCE.rglob("*.py") for name in VARIABLE.findall(path.read_text())}
    rows = table(DOCS / "environment.md", "variable")
    documented = [name for cells in rows for name in names_in(cells[0]) if name.startswith("TRIREME_")]
    assert sorted(in_source - set(documented)) == [], "these have no row in docs/environment.md"
    assert sorted(set(documented) - in_source) == [], "nothing in src uses these"
    assert sorted(name for name in set(documented) if documented.count(name) > 1) == []


def test_every_error_is_documented_with_its_exit_code():
    defined = {
        name: value
        for name, value in vars(errors).items()
        if inspect.isclass(value) and issubclass(value, errors.TriremeError)
    }
    documented = {names_in(cells[0])[0]: int(cells[1]) for cells in table(DOCS / "errors.md", "error")}
    assert documented == {name: value.exit_code for name, value in defined.items()}
    warnings = [
        name for name, value in vars(errors).items() if inspect.isclass(value) and issubclass(value, Warning)
    ]
    text = (DOCS / "errors.md").read_text()
    assert [name for name in warnings if f"`{name}`" not in text] == []


@pytest.mark.parametrize("document", ["errors.md", "how_it_works.md"])
def test_every_exit_code_is_documented(document):
    codes = {str(value) for name, value in vars(errors).items() if name.startswith("EXIT_")}
    rows = [cells for cells in table(DOCS / document, "code")]
    assert codes - {code for cells in rows for code in re.findall(r"\d+", cells[0])} == set()


def test_the_tree_of_errors_is_the_one_in_the_source():
    drawn = re.findall(r"^ {4}[│├└─ ]*(\w+)", inspect.getdoc(errors) and errors.__doc__, re.MULTILINE)
    text = (DOCS / "errors.md").read_text()
    assert re.findall(r"^ {4}[│├└─ ]*(\w+)$", text, re.MULTILINE) == drawn


def test_the_table_of_strategies_is_what_can_be_used():
    rows = table(README, "strategy")
    classes = [names_in(cells[0])[0] for cells in rows]
    public = [
        name
        for name in trireme.__all__
        if inspect.isclass(getattr(trireme, name)) and issubclass(getattr(trireme, name), trireme.Strategy)
    ]
    assert sorted([*classes, "Strategy"]) == sorted(public)
    assert [names_in(cells[2])[0] for cells in rows] == list(STRATEGIES)


def test_the_table_of_backends_is_what_the_launcher_knows():
    backends = [cells[0] for cells in table(README, "backend")]
    assert sorted(backends) == sorted(BACKENDS)


def test_the_rows_of_the_exactness_table_are_tested():
    rows = table(DOCS / "exactness.md", "case")
    named = [name for cells in rows if len(cells) == 6 for name in names_in(cells[5])]
    assert len(named) > 20
    assert [name for name in named if name not in CASES] == []
    # README has the same rows in short.
    assert [cells[0] for cells in table(README, "case")] == [cells[0] for cells in rows if len(cells) == 6]


def test_the_map_of_the_tree_matches_the_folders():
    [block] = [block for block in blocks(README, "") if "src/trireme/" in block.text]
    parts, folders = set(), set()
    for line in block.text.splitlines():
        name = line.split()[0].rstrip("/")
        (parts if line.startswith(" ") else folders).add(name)
    assert folders == {"src/trireme", *(_folders(ROOT) - {"src"})}
    assert {part for part in parts if not part.endswith(".py")} == _folders(SOURCE)
    assert {part for part in parts if part.endswith(".py")} == _modules(SOURCE)


def test_the_table_of_documents_has_them_all():
    linked = {cells[0].split("](")[1].rstrip(")") for cells in table(README, "document")}
    assert linked == {str(path.relative_to(ROOT)) for path in DOCUMENTS} - {"README.md"}


def test_commands_and_options_exist():
    help_texts = {name: _help(name) for name in COMMANDS}
    for path in DOCUMENTS:
        for command in [*commands(path), *_commands_in_prose(path)]:
            program, *words = command.split()
            if program == "make":
                assert re.search(rf"^{words[0]}:", (ROOT / "Makefile").read_text(), re.MULTILINE), command
            if program != "trireme" or not words or words[0].startswith(("-", "|")):
                continue
            assert words[0] in COMMANDS, f"{path.name}: {command}"
            for word in words[1:]:
                if not word.startswith("-"):
                    continue
                option = word.partition("=")[0]
                assert f"{option} " in help_texts[words[0]] or option == "-m", f"{path.name}: {command}"


def _commands_in_prose(path):
    return [
        name for name in re.findall(r"`((?:trireme|make) [^`\n]+)`", path.read_text()) if "..." not in name
    ]


def _help(name):
    result = subprocess.run(
        [sys.executable, "-m", "trireme", name, "--help"], capture_output=True, text=True, check=True
    )
    return result.stdout


def _modules(parent):
    return {path.name for path in parent.glob("*.py") if not path.name.startswith("__")}


def _folders(parent):
    return {
        path.name
        for path in parent.iterdir()
        if path.is_dir()
        and not path.name.startswith((".", "__"))
        and not path.name.endswith(".egg-info")
        and path.name not in GENERATED
    }

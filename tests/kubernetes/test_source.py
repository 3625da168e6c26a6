"""What is shipped: a script, or a folder, byte for byte, or a word on why not."""

import os
import pathlib

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trireme.errors import InvalidJob
from trireme.launch.kubernetes.pods import config_map_keys
from trireme.launch.kubernetes.source import MAX_BYTES, Source, modules_left_behind, read_source


@pytest.fixture(autouse=True)
def here(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(*names: str, content: bytes = b"") -> None:
    for name in names:
        path = pathlib.Path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)


def mistake(*arguments, **keywords) -> str:
    with pytest.raises(InvalidJob) as caught:
        read_source(*arguments, **keywords)
    (said,) = caught.value.mistakes
    return said


def test_a_script_is_shipped_alone_and_byte_for_byte(here):
    write("train.py", content=b"\xef\xbb\xbfprint(1)\r\n\t\x00")
    write("other.py")
    source = read_source("train.py", ("--epochs", "3"))
    assert source == Source(
        "train.py", ("--epochs", "3"), files=(("train.py", b"\xef\xbb\xbfprint(1)\r\n\t\x00"),)
    )
    assert read_source(str(here / "train.py")).target == "train.py"


def test_a_folder_is_shipped_without_caches_and_hidden_files(here):
    for path in ("package/b.py", "package/a.py", "package/deep/c.py", "train.py"):
        write(path, content=path.encode())
    write("package/__pycache__/x.py", ".git/config", "package/.env", "package/a.pyc", "__pycache__/x.py")
    os.mkfifo(here / "pipe")
    os.symlink("nowhere", here / "dangling")
    os.symlink("train.py", here / "link.py")
    source = read_source("train.py", folder=".")
    assert source.files == (
        ("link.py", b"train.py"),
        ("package/a.py", b"package/a.py"),
        ("package/b.py", b"package/b.py"),
        ("package/deep/c.py", b"package/deep/c.py"),
        ("train.py", b"train.py"),
    )
    assert source.target == "train.py" and source.is_folder and not source.is_module


def test_the_order_of_files_does_not_depend_on_the_disk():
    write("folder/b.py", "folder/a.py", "folder/c.py")
    assert [path for path, _ in read_source("folder/a.py", folder="folder").files] == ["a.py", "b.py", "c.py"]


def test_a_script_below_the_folder():
    write("project/scripts/train.py")
    assert read_source("project/scripts/train.py", folder="project").target == "scripts/train.py"


@pytest.mark.parametrize("file", ["project/package/train.py", "project/package/train/__main__.py"])
def test_a_module_in_the_folder(file):
    write(file)
    source = read_source("package.train", ("-v",), is_module=True, folder="project")
    assert (source.target, source.is_module, source.is_folder) == ("package.train", True, True)


def test_a_module_without_a_folder_is_expected_in_the_image():
    assert read_source("package.train", is_module=True) == Source("package.train", is_module=True)


def test_what_cannot_be_shipped():
    write("train.py", "folder/other.py", "folder/.hidden.py")
    assert "there is no script nix.py here" in mistake("nix.py")
    assert "-m package.module" in mistake("nix.py")
    assert "folder is a folder: name a script in it: --folder folder folder/train.py" in mistake("folder")
    assert "-m '1x' is no module's name" in mistake("1x", is_module=True)
    assert "-m 'a-b' is no module's name" in mistake("a-b", is_module=True)
    assert "--folder nix: there is no such folder" in mistake("train.py", folder="nix")
    assert "train.py is not in --folder folder" in mistake("train.py", folder="folder")
    assert "--folder ." in mistake("train.py", folder="folder")
    assert ".hidden.py begins with a dot" in mistake("folder/.hidden.py", folder="folder")
    assert "expected a/b.py or a/b/__main__.py in --folder ." in mistake("a.b", is_module=True, folder=".")


def test_one_mebibyte_fits_and_a_byte_more_does_not():
    write("train.py", content=b"#" * MAX_BYTES)
    assert len(read_source("train.py").files[0][1]) == MAX_BYTES
    write("folder/train.py", content=b"#" * (MAX_BYTES - 1))
    write("folder/data.py", content=b"0")
    assert len(read_source("folder/train.py", folder="folder").files) == 2
    write("folder/more.py", content=b"0")
    said = mistake("folder/train.py", folder="folder")
    assert "1,048,577 bytes" in said and "1,048,576" in said
    assert "train.py (1,048,575 bytes), data.py (1 bytes), more.py (1 bytes)" in said
    assert "COPY . /app" in said and "--file Dockerfile folder" in said and said.endswith("-m train")


def test_a_large_file_is_not_read():
    with open("data.py", "wb") as file:
        file.truncate(2**40)
    write("train.py")
    assert "1,099,511,627,776 bytes" in mistake("train.py", folder=".")


def test_a_name_that_is_no_text():
    write("train.py")
    with open(b"b\xff.py", "wb"):
        pass
    assert "is not UTF-8: rename it" in mistake("train.py", folder=".")


def test_modules_that_stay_behind():
    script = b"import os, helper.deep\nfrom package.part import x\nfrom . import y\nimport keras\n"
    write("train.py", content=script + b"def f():\n    import lazy\n")
    write("helper.py", "package/__init__.py", "lazy.py", "unused.py")
    assert modules_left_behind(read_source("train.py"), "train.py") == ["helper", "package"]
    assert modules_left_behind(read_source("train.py", folder="."), "train.py") == []
    assert modules_left_behind(read_source("train", is_module=True), "train") == []


@pytest.mark.parametrize("content", [b"print 1", b"\xff\xfe", b"\x00", b""])
def test_a_script_that_is_no_python_leaves_nothing_behind(content):
    write("train.py", content=content)
    assert modules_left_behind(read_source("train.py"), "train.py") == []


paths = st.lists(
    st.text(st.sampled_from("ab._ é/-"), min_size=1, max_size=6).map(
        lambda text: "/".join(part.lstrip(".") for part in text.split("/") if part.lstrip(".")) or "x"
    ),
    unique=True,
    max_size=8,
)


@given(paths)
def test_every_file_has_a_key_of_its_own_that_kubernetes_takes(names):
    keys = config_map_keys(Source("x", files=tuple((name, b"") for name in sorted(names))))
    assert sorted(keys) == sorted(names)
    assert len(set(keys.values())) == len(names)
    for key in keys.values():
        assert 0 < len(key) <= 253 and key not in (".", "..") and not key.startswith("..")
        assert all(letter.isascii() and (letter.isalnum() or letter in "-._") for letter in key)


def test_keys_of_files_that_would_share_one():
    files = tuple((name, b"") for name in ("a b.py", "a.b/c.py", "a/b.c.py", "a/b/c.py", "a_b.py", "漢字"))
    assert config_map_keys(Source("x", files=files)) == {
        "a b.py": "a_b.py",
        "a.b/c.py": "a.b.c.py",
        "a/b.c.py": "a.b.c.py-2",
        "a/b/c.py": "a.b.c.py-3",
        "a_b.py": "a_b.py-2",
        "漢字": "__",
    }

"""A script in a worker finds what it finds in a plain `python`."""

import json
import os
import subprocess
import sys
import textwrap
import zipfile

import pytest

WORKER = "trireme.launch.worker_process"

SHOW = """
import json, sys
main = sys.modules["__main__"]
print(json.dumps({
    "argv": sys.argv,
    "path[0]": sys.path[0],
    "path is otherwise": sys.path[1:],
    "name": __name__,
    "file": __file__,
    "package": __package__,
    "spec": getattr(__spec__, "name", None),
    "loader": type(__loader__).__name__,
    "cached": __cached__,
    "doc": __doc__,
    "is main": vars(main) is globals(),
    "builtins": __builtins__ is sys.modules["builtins"] or __builtins__ is vars(sys.modules["builtins"]),
}))
"""


def run(cwd, *arguments: str, flags: tuple[str, ...] = (), worker: tuple[str, ...] = ()):
    """Runs plain Python, or a worker when told how."""
    command = [sys.executable, *flags, *(("-P", "-m", WORKER, *worker) if worker else ()), *arguments]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=60)


def shown(*arguments, **options) -> dict:
    result = run(*arguments, **options)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


@pytest.fixture
def folder(tmp_path):
    """Scripts, modules, a folder and an archive that all show how they were started."""
    (tmp_path / "some scripts").mkdir()
    (tmp_path / "some scripts" / "show it.py").write_text(SHOW)
    (tmp_path / "package" / "sub").mkdir(parents=True)
    for part in ("package", "package/sub"):
        (tmp_path / part / "__init__.py").write_text("")
    (tmp_path / "package" / "show.py").write_text(SHOW)
    (tmp_path / "package" / "sub" / "__main__.py").write_text(SHOW)
    (tmp_path / "as folder").mkdir()
    (tmp_path / "as folder" / "__main__.py").write_text(SHOW)
    with zipfile.ZipFile(tmp_path / "archive.zip", "w") as archive:
        archive.writestr("__main__.py", SHOW)
    (tmp_path / "link.py").symlink_to(tmp_path / "some scripts" / "show it.py")
    return tmp_path


@pytest.mark.parametrize("script", ["some scripts/show it.py", "./some scripts/show it.py", "link.py"])
@pytest.mark.parametrize("arguments", [(), ("-m", "a b", "--strategy=x")])
def test_a_script(folder, script, arguments):
    plain = shown(folder, script, *arguments)
    assert shown(folder, script, *arguments, worker=("script",)) == plain
    assert plain["argv"] == [script, *arguments]


def test_an_absolute_path_from_elsewhere(folder, tmp_path_factory):
    script = str(folder / "some scripts" / "show it.py")
    elsewhere = tmp_path_factory.mktemp("elsewhere")
    assert shown(elsewhere, script, worker=("script",)) == shown(elsewhere, script)


@pytest.mark.parametrize("module", ["package.show", "package.sub"])
def test_a_module(folder, module):
    plain = shown(folder, "-m", module, "x", "-m")
    assert shown(folder, module, "x", "-m", worker=("module",)) == plain
    assert plain["path[0]"] == str(folder)


@pytest.mark.parametrize("script", ["as folder", "archive.zip"])
def test_a_folder_or_archive_with_a_main(folder, script):
    plain, worker = shown(folder, script, "x"), shown(folder, script, "x", worker=("script",))
    for name in ("path[0]", "path is otherwise", "name", "is main"):
        assert worker[name] == plain[name], name
    assert worker["argv"][1:] == plain["argv"][1:] == ["x"]


@pytest.mark.parametrize("flags", [("-P",), ("-I",)])
def test_a_safe_path_stays_safe(folder, flags):
    script = "some scripts/show it.py"
    plain = shown(folder, script, flags=flags)
    worker = shown(folder, script, flags=flags, worker=("--safe-path", "script"))
    assert worker["path[0]"] == plain["path[0]"] != str(folder / "some scripts")


def test_a_file_called_like_a_module_of_ours_or_pythons_is_not_in_the_way_of_our_start(folder):
    for name in ("faulthandler", "trireme", "runpy", "json"):
        (folder / f"{name}.py").write_text("raise SystemExit('in the way')")
    (folder / "some scripts" / "plain.py").write_text("print('ran')")
    assert run(folder, "some scripts/plain.py", worker=("script",)).stdout == "ran\n"


@pytest.mark.parametrize(
    ("code", "returncode", "stderr"),
    [
        ("import sys; sys.exit()", 0, ""),
        ("import sys; sys.exit(0)", 0, ""),
        ("import sys; sys.exit(7)", 7, ""),
        ("import sys; sys.exit('why it ended')", 1, "why it ended\n"),
        ("import os; os._exit(9)", 9, ""),
    ],
)
def test_exit_codes(tmp_path, code, returncode, stderr):
    (tmp_path / "script.py").write_text(code)
    for options in ({}, {"worker": ("script",)}):
        result = run(tmp_path, "script.py", **options)
        assert (result.returncode, result.stderr) == (returncode, stderr)


@pytest.mark.parametrize(
    "code",
    [
        "def f():\n    return 1 / 0\n\nf()\n",
        "x = (\n",
        "try:\n    1 / 0\nexcept ZeroDivisionError as e:\n    raise KeyError('x') from e\n",
        "raise ExceptionGroup('several', [ValueError('a'), KeyError('b')])",
    ],
)
def test_a_traceback_shows_what_plain_python_shows(tmp_path, code):
    (tmp_path / "script.py").write_text(code)
    plain, worker = run(tmp_path, "script.py"), run(tmp_path, "script.py", worker=("script",))
    assert worker.stderr == plain.stderr != ""
    assert worker.returncode == plain.returncode == 1


def test_a_hook_of_the_users_sees_the_exception(tmp_path):
    code = "import sys\nsys.excepthook = lambda kind, error, frames: print('hook saw', error)\n1 / 0\n"
    (tmp_path / "script.py").write_text(code)
    assert run(tmp_path, "script.py", worker=("script",)).stdout == "hook saw division by zero\n"


@pytest.mark.parametrize("method", ["spawn", "forkserver", "fork"])
@pytest.mark.parametrize("start", ["script", "module"])
def test_multiprocessing(tmp_path, method, start):
    (tmp_path / "squares.py").write_text(
        textwrap.dedent(
            f"""
            import multiprocessing

            def square(x):
                return x * x

            if __name__ == "__main__":
                with multiprocessing.get_context({method!r}).Pool(2) as pool:
                    print(pool.map(square, range(4)))
            """
        )
    )
    name = "squares.py" if start == "script" else "squares"
    result = run(tmp_path, name, worker=(start,))
    assert (result.stdout, result.returncode) == ("[0, 1, 4, 9]\n", 0), result.stderr


def test_exit_handlers_and_threads_still_find_the_main_module(tmp_path):
    code = (
        "import atexit, pickle, threading, sys\n"
        "class Point: pass\n"
        "def at_end(): print(len(pickle.dumps(Point())) > 0)\n"
        "atexit.register(at_end)\n"
        "threading.Thread(target=lambda: (threading.main_thread().join(), at_end())).start()\n"
    )
    (tmp_path / "script.py").write_text(code)
    result = run(tmp_path, "script.py", worker=("script",))
    assert (result.stdout, result.stderr) == ("True\nTrue\n", "")


def test_the_working_folder_and_the_environment_are_the_callers(tmp_path):
    (tmp_path / "script.py").write_text("import os; print(os.getcwd(), os.environ['MINE'])")
    os.environ["MINE"] = "of the caller"
    try:
        result = run(tmp_path, "script.py", worker=("script",))
    finally:
        del os.environ["MINE"]
    assert result.stdout == f"{tmp_path} of the caller\n"

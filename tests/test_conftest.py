"""The guards of conftest.py guard: each is shown a culprit."""

import pathlib
import subprocess
import sys
import textwrap

import pytest

from tests.conftest import processes_of_this_session

pytest_plugins = ["pytester"]


@pytest.fixture
def guarded(pytester):
    """A folder with our conftest.py, to run culprits in."""
    from tests import conftest

    pytester.makeconftest(pathlib.Path(conftest.__file__).read_text())
    return pytester


def run(guarded, code: str):
    guarded.makepyfile(test_culprit=textwrap.dedent(code))
    return guarded.runpytest_subprocess("-p", "no:cacheprovider", timeout=60)


def test_a_framework_imported_by_a_test_is_reported(guarded):
    guarded.makepyfile(jax="")
    result = run(guarded, "def test():\n    import jax\n")
    result.stdout.fnmatch_lines(["*this test imported jax into the pytest process*"])
    assert result.ret != 0


def test_a_framework_imported_by_a_test_module_is_reported(guarded):
    guarded.makepyfile(jax="")
    result = run(guarded, "import jax\ndef test(): pass\n")
    result.stderr.fnmatch_lines(["*a test module imports jax at its top level*"])
    assert result.ret != 0


def test_a_process_left_behind_fails_the_session(guarded, tmp_path):
    pid_file = tmp_path / "pid"
    result = run(
        guarded,
        f"""
        import subprocess, sys
        def test():
            # The parent is gone, the grandchild is not. Popen returns after exec, so that its command line is its own.
            parent = "import subprocess; print(subprocess.Popen(['sleep', '60'], stdout=subprocess.DEVNULL).pid)"
            with open({str(pid_file)!r}, "w") as output:
                subprocess.run([sys.executable, "-c", parent], stdout=output, stderr=subprocess.DEVNULL, check=True)
        """,
    )
    pid = int(pid_file.read_text())
    subprocess.run(["kill", str(pid)], check=True)
    result.stderr.fnmatch_lines([f"still running after the last test: {pid} sleep 60*"])
    result.assert_outcomes(passed=1)
    assert result.ret == pytest.ExitCode.TESTS_FAILED


def test_a_running_child_is_found_and_a_finished_one_is_not():
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    # A child carries its environment from exec on; Popen returns after exec.
    assert child.pid in processes_of_this_session()
    child.communicate(b"\n")
    assert child.pid not in processes_of_this_session()

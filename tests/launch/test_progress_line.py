import pytest

from trireme.launch.progress_line import Pace, Progress, ScriptOutput, parse


@pytest.mark.parametrize(
    "progress", [Progress(0), Progress(3, 120), Progress(1, 0, 853.25), Progress(2, None, 0.0)], ids=str
)
def test_what_is_written_is_read(progress):
    first, line, last = progress.to_line().split(b"\n")
    assert (first, last) == (b"", b"")
    read = parse(line)
    assert (read.generation, read.step) == (progress.generation, progress.step)
    assert read.rows_per_s == pytest.approx(progress.rows_per_s, abs=0.05) if progress.rows_per_s else True


@pytest.mark.parametrize(
    "line",
    [b"", b"\n", b"trireme: progress", b"x trireme: progress generation=0 step=1 rows_per_s=2", b"step=1"],
)
def test_the_scripts_own_lines_are_no_progress(line):
    assert parse(line) is None


LINE = Progress(1, 7, 99.5).to_line()


@pytest.mark.parametrize(
    ("written", "read"),
    [
        (b"one\ntwo\n", b"one\ntwo\n"),
        (b"one\n" + LINE + b"two\n", b"one\ntwo\n"),
        (LINE + LINE + b"one", b"one"),
        # A progress bar goes on in its line.
        (b"1/9 =>\r2/9 ==>" + LINE + b"\r3/9 ===>\n", b"1/9 =>\r2/9 ==>\r3/9 ===>\n"),
        (b"1/9\x08\x08\x08" + LINE + b"2/9\ndone\n", b"1/9\x08\x08\x082/9\ndone\n"),
        # The script's own empty lines stay.
        (b"one\n\n\n" + LINE + b"\ntwo\n\n", b"one\n\n\n\ntwo\n\n"),
        (b"windows\r\n" + LINE, b"windows\r\n"),
    ],
)
def test_what_is_left_is_what_the_script_wrote(written, read):
    output = ScriptOutput()
    lines = [line + b"\n" for line in written.split(b"\n")]
    lines[-1] = lines[-1][:-1]
    assert b"".join(output.feed(line) for line in lines if line) + output.finish() == read
    if LINE in written:
        assert output.progress == Progress(1, 7, 99.5)


def test_an_ordinary_line_is_passed_on_at_once():
    assert ScriptOutput().feed(b"loss: 0.5\n") == b"loss: 0.5\n"


def test_the_pace_is_that_of_the_rows_since_the_last_time():
    pace = Pace()
    assert pace.measure(None, 64, 0.0) is None
    assert pace.measure(10, 64, 5.0) is None
    assert pace.measure(20, 64, 10.0) == 128.0
    assert pace.measure(20, 64, 15.0) == 0.0
    # Started again, from an earlier step.
    assert pace.measure(5, 64, 20.0) is None
    assert pace.measure(6, None, 25.0) is None
    assert pace.measure(7, 32, 26.0) == 32.0

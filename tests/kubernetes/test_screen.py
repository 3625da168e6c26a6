import pytest

from trireme.launch.kubernetes.observation import PodState, RunState
from trireme.launch.kubernetes.screen import LineScreen, TerminalLines


@pytest.mark.parametrize(
    ("pieces", "lines", "open_line"),
    [
        ([b"one\ntwo\nthr"], ["one", "two"], "thr"),
        ([b"on", b"e\n"], ["one"], ""),
        ([b"windows\r\n"], ["windows"], ""),
        # A bar as Keras writes it: back over the old one, then the new one.
        ([b"1/9 =>", b"\x08\x08\x08\x08\x08\x08\r2/9 ==>"], [], "2/9 ==>"),
        ([b"1/9\x08\x08\x08\r", b"9/9 - loss: 0.5\n"], ["9/9 - loss: 0.5"], ""),
        # A character that arrives in two pieces.
        (["━".encode()[:1], "━".encode()[1:]], [], "━"),
        ([b"\xff\xfe\xfd\xfc\n"], ["\ufffd" * 4], ""),
    ],
)
def test_what_a_terminal_would_show(pieces, lines, open_line):
    shown = TerminalLines()
    assert [line for piece in pieces for line in shown.feed(piece)] == lines
    assert shown.open_line == open_line


def test_lines_tell_what_is_news(capsys):
    screen = LineScreen()
    first, second = (PodState("worker", 1, f"train-1-{name}", "Running", "n1") for name in "ab")
    for pods, hints in [
        ((first,), ["no room"]),
        ((first,), ["no room"]),
        ((second,), []),
        ((second,), ["no room"]),
    ]:
        screen.show(RunState("train", pods), lambda pod: None, hints)
    said = capsys.readouterr().err.replace("trireme: ", "").splitlines()
    assert said == ["worker 1: Running on n1", "no room", "worker 1: Running on n1", "no room"]

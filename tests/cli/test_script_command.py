import click
import pytest
from click.testing import CliRunner

from trireme.cli.script_command import ScriptCommand, Words, take_apart, unknown_options, words_of

WITH_VALUE = {"--replicas", "-r"}


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ([], Words(())),
        (["s.py"], Words((), "s.py")),
        (["s.py", "--help", "-m", "x"], Words((), "s.py", False, ("--help", "-m", "x"))),
        (
            ["--replicas", "2", "s.py", "--replicas", "9"],
            Words(("--replicas", "2"), "s.py", False, ("--replicas", "9")),
        ),
        (["--replicas=2", "s.py"], Words(("--replicas=2",), "s.py")),
        (["-r", "2", "s.py"], Words(("-r", "2"), "s.py")),
        (["--flag", "s.py"], Words(("--flag",), "s.py")),
        (["-m", "p.q", "--help"], Words((), "p.q", True, ("--help",))),
        (["--flag", "-m", "p.q"], Words(("--flag",), "p.q", True)),
        # As `python -mp.q`.
        (["-mp.q", "a"], Words((), "p.q", True, ("a",))),
        (["-m"], Words((), None, True)),
        # A value may look like a script or like an option.
        (["--replicas", "s.py", "t.py"], Words(("--replicas", "s.py"), "t.py")),
        (["--replicas", "-m", "t.py"], Words(("--replicas", "-m"), "t.py")),
        (["--replicas"], Words(("--replicas",))),
        # After -- anything is a script, even what looks like an option.
        (["--", "-odd.py", "a"], Words((), "-odd.py", False, ("a",))),
        (["--flag", "--"], Words(("--flag",))),
        # As pods are started: a module may stand there as well.
        (["--", "-m", "package.train", "-v"], Words((), "package.train", True, ("-v",))),
        # And the script keeps its own --.
        (["s.py", "--", "a"], Words((), "s.py", False, ("--", "a"))),
        (["a folder/s p.py", ""], Words((), "a folder/s p.py", False, ("",))),
        (["--flag", ""], Words(("--flag",), "")),
        (["-", "a"], Words((), "-", False, ("a",))),
    ],
)
def test_take_apart(line, expected):
    assert take_apart(line, WITH_VALUE) == expected


@pytest.fixture
def command():
    @click.command(cls=ScriptCommand)
    @click.option("--replicas", metavar="N", help="How many.")
    @click.option("--quiet/--loud", default=False)
    @click.pass_context
    def started(ctx, **values):
        click.echo(repr((values, words_of(ctx), unknown_options(ctx))))

    def run(*line):
        result = CliRunner().invoke(started, line, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result.output

    return run


def test_the_command_sees_its_own_options_only(command):
    output = command("--replicas", "2", "--quiet", "s.py", "--replicas", "9", "--help", "--quiet")
    values, words, unknown = eval(output, {"Words": Words})
    assert values == {"replicas": "2", "quiet": True}
    assert words.arguments == ("--replicas", "9", "--help", "--quiet")
    assert unknown == []


def test_its_help_is_its_own_only_before_the_script(command):
    assert "(SCRIPT | -m MODULE) [ARGS]..." in command("--help")
    assert "How many." in command("--replicas", "2", "--help", "s.py")
    assert "How many." not in command("s.py", "--help")


def test_every_unknown_option_is_told_with_a_guess(command):
    _, _, unknown = eval(command("--replica", "--epochs=3", "-z", "s.py"), {"Words": Words})
    assert unknown == [
        "there is no option --replica: did you mean --replicas?",
        "there is no option --epochs: the script's own options go after the script",
        "there is no option -z: the script's own options go after the script",
    ]

"""`trireme`: finds the command, runs it, and turns what went wrong into a message and an exit code."""

import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import NoReturn

import click

from trireme import __version__
from trireme.errors import EXIT_INTERRUPTED, EXIT_USAGE, TriremeError, UsageError

# When nobody reads the output any more; the same as click's own.
EXIT_BROKEN_PIPE = 1

# The summaries stand here, so that `trireme --help` needs no command's module.
COMMANDS = {
    "run": "Train a Keras script on several replicas.",
    "worker": "Train on this machine as one of several that train together.",
    "render": "Print what would run a script on a cluster.",
    "status": "Show how a run on Kubernetes stands.",
    "logs": "Print what a run on Kubernetes has said, or watch it again.",
    "stop": "End a run on Kubernetes, and keep it.",
    "delete": "End a run on Kubernetes, and delete it.",
    "check": "Tell whether replicas here compute what one device computes, by trying it out.",
    "explain": "Tell who this process is and what a run would do, starting nothing.",
}


class Commands(click.Group):
    """The commands by name; a command's module is imported when it is called."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        command: click.Command = getattr(import_module(f"trireme.cli.{cmd_name}"), cmd_name)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args[0] not in COMMANDS and not args[0].startswith("-"):
            raise UsageError(_no_command(args[0]))
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


@click.group(cls=Commands, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, "--version", message="trireme %(version)s")
def commands() -> None:
    """Distribution strategies for Keras 3.

    `trireme run train.py` trains on every device of this machine; `trireme run --replicas 4 train.py` says
    how many.
    """


def main() -> NoReturn:
    """The entry point: runs the command in `sys.argv` and ends the process with its exit code."""
    sys.exit(execute(sys.argv[1:]))


def execute(arguments: Sequence[str]) -> int:
    """The exit code of `trireme ARGUMENTS...`, after what went wrong has been told on standard error."""
    try:
        result = commands.main(list(arguments), prog_name="trireme", standalone_mode=False)
        sys.stdout.flush()
    except click.ClickException as error:
        return _tell(_in_words(error, arguments), EXIT_USAGE)
    except TriremeError as error:
        return _tell(str(error), error.exit_code)
    except (KeyboardInterrupt, click.Abort):
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        # Python flushes standard output once more at its end, and would complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return EXIT_BROKEN_PIPE
    return result if isinstance(result, int) else 0


def _tell(message: str, exit_code: int) -> int:
    print(f"trireme: {message}", file=sys.stderr)
    return exit_code


def _in_words(error: click.ClickException, arguments: Sequence[str]) -> str:
    if not arguments:
        return f"a command is missing.\n\n{error.format_message()}"
    command = f"trireme {arguments[0]}" if arguments[0] in COMMANDS else "trireme"
    return f"{error.format_message()}\nType `{command} --help` for all options."


def _no_command(name: str) -> str:
    near = get_close_matches(name, COMMANDS, n=1)
    if near:
        return f"there is no command {name!r}. Did you mean `trireme {near[0]}`?"
    if name.endswith(".py"):
        return f"there is no command {name!r}. To train that script, type: trireme run {name}"
    return f"there is no command {name!r}. There are: {', '.join(COMMANDS)}."

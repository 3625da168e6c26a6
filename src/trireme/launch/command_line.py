"""How this interpreter was started, taken apart: its own options, what it runs, and that one's arguments."""

from collections.abc import Sequence
from dataclasses import dataclass

SCRIPT, MODULE, CODE, STANDARD_INPUT, INTERACTIVE = (
    "script",
    "module",
    "code",
    "standard input",
    "interactive",
)

# Options of the interpreter that take a value, in the same word or as the next one.
_WITH_VALUE = "WX"
_LONG_WITH_VALUE = ("--check-hash-based-pycs",)


@dataclass(frozen=True)
class CommandLine:
    """One `python ...` command.

    Attributes:
        flags: the interpreter's own options.
        kind: `"script"`, `"module"`, `"code"` (`-c`), `"standard input"` or `"interactive"`.
        target: the script's path, the module's name or the code; else empty.
        arguments: what the target finds in `sys.argv[1:]`.
    """

    flags: tuple[str, ...]
    kind: str
    target: str = ""
    arguments: tuple[str, ...] = ()


def parse(orig_argv: Sequence[str]) -> CommandLine:
    """Takes `sys.orig_argv` apart as the interpreter itself does."""
    flags: list[str] = []
    words = list(orig_argv[1:])
    while words:
        word = words[0]
        if word == "-":
            return CommandLine(tuple(flags), STANDARD_INPUT, "", tuple(words[1:]))
        if not word.startswith("-"):
            return CommandLine(tuple(flags), SCRIPT, word, tuple(words[1:]))
        del words[0]
        if word in _LONG_WITH_VALUE:
            flags += [word, words.pop(0)]
        elif word.startswith("--"):
            flags.append(word)
        else:
            last = _short_options(word, words, flags)
            if last is not None:
                kind, target = last
                return CommandLine(tuple(flags), kind, target, tuple(words))
    return CommandLine(tuple(flags), INTERACTIVE)


def interpreter_flags(orig_argv: Sequence[str]) -> tuple[str, ...]:
    """The interpreter's own options, for another interpreter that shall behave like this one."""
    # After its program an interpreter started with -i would wait for somebody to type.
    return tuple(flag for flag in parse(orig_argv).flags if flag != "-i")


def _short_options(word: str, words: list[str], flags: list[str]) -> tuple[str, str] | None:
    """Reads one word like `-u`, `-uO`, `-Xdev` or `-um`; returns (kind, target) when it ends the options."""
    for position, letter in enumerate(word[1:], start=1):
        attached = word[position + 1 :]
        if letter in "cm":
            target = attached or words.pop(0)
            return (CODE if letter == "c" else MODULE), target
        if letter in _WITH_VALUE:
            flags += [f"-{letter}", attached or words.pop(0)]
            return None
        flags.append(f"-{letter}")
    return None

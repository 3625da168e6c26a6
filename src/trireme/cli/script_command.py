"""Commands of the form `trireme run [OPTIONS] SCRIPT ARGS...`, where all after the script is the script's own."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from difflib import get_close_matches

import click

_WORDS = "trireme.words"


@dataclass(frozen=True)
class Words:
    """A command line taken apart.

    Attributes:
        options: the command's own options, with their values.
        target: the script's path or the module's name; None where there is none.
        is_module: whether the target came after `-m`.
        arguments: the target's own arguments.
    """

    options: tuple[str, ...]
    target: str | None = None
    is_module: bool = False
    arguments: tuple[str, ...] = ()


def take_apart(arguments: Sequence[str], with_value: Collection[str]) -> Words:
    """Splits a command line where the script, or `-m` and the module, begins.

    Args:
        arguments: the words after the command's name.
        with_value: the command's options that take a value, which may look like a script.
    """
    position = 0
    while position < len(arguments):
        word = arguments[position]
        options, rest = tuple(arguments[:position]), tuple(arguments[position + 1 :])
        if word == "--":
            return _after_options(options, rest)
        if word.startswith("-m") or not word.startswith("-") or word == "-":
            return _after_options(options, (word, *rest))
        position += 2 if word in with_value else 1
    return Words(tuple(arguments))


def _after_options(options: tuple[str, ...], rest: tuple[str, ...]) -> Words:
    """The script or the module with its own arguments. A file that is called like an option is `./-m`."""
    if not rest:
        return Words(options)
    word, *arguments = rest
    if word == "-m":
        return Words(options, arguments[0] if arguments else None, True, tuple(arguments[1:]))
    if word.startswith("-m"):
        return Words(options, word[2:], True, tuple(arguments))
    return Words(options, word, False, tuple(arguments))


class ScriptCommand(click.Command):
    """A command whose options end at a script or at `-m MODULE`.

    Its callback finds the rest with `words_of`, and unknown options with `unknown_options`, so that it can
    tell all mistakes at once.
    """

    def __init__(self, *args: object, **settings: object) -> None:
        super().__init__(*args, **settings)  # type: ignore[arg-type]
        self.allow_extra_args = True
        self.ignore_unknown_options = True

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        words = take_apart(args, self._options_with_value())
        ctx.meta[_WORDS] = words
        return super().parse_args(ctx, list(words.options))

    def collect_usage_pieces(self, ctx: click.Context) -> list[str]:
        return ["[OPTIONS]", "(SCRIPT | -m MODULE)", "[ARGS]..."]

    def _options_with_value(self) -> set[str]:
        return {
            name
            for parameter in self.params
            if isinstance(parameter, click.Option) and not parameter.is_flag
            for name in parameter.opts
        }


def words_of(ctx: click.Context) -> Words:
    """The command line of a `ScriptCommand`, taken apart."""
    words: Words = ctx.meta[_WORDS]
    return words


def unknown_options(ctx: click.Context) -> list[str]:
    """What is wrong with options that the command does not have, each in words."""
    known = [name for parameter in ctx.command.get_params(ctx) for name in parameter.opts]
    return [_unknown(word.partition("=")[0], known) for word in ctx.args if word.startswith("-")]


def _unknown(option: str, known: list[str]) -> str:
    near = get_close_matches(option, known, n=1, cutoff=0.75)
    if near:
        return f"there is no option {option}: did you mean {near[0]}?"
    return f"there is no option {option}: the script's own options go after the script"

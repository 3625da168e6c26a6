"""Faults written down as sentences, for tests of what a run survives.

    TRIREME_FAULTS="kill(rank=1, step=12); hang(rank=0, step=30); corrupt_backup(newest)"

A plan says what goes wrong, where and when; `due` picks what is due, `perform` does it. `step` counts over
the whole run, from 0; with `epoch` it counts within that epoch. A fault happens in one generation of the run:
the first start (0) unless `generation` names a restart, so that a run that was killed at step 12 gets past
step 12 the next time. `corrupt_backup` happens before the backup is read, by default in generation 1, where
there is one to corrupt.
"""

import ast
import difflib
import os
import signal
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING, NoReturn

from trireme.errors import InjectedFault, UsageError

if TYPE_CHECKING:
    from trireme.recovery.backups import Backups

VARIABLE = "TRIREME_FAULTS"

_WHEN = ("rank", "step", "epoch", "generation")
_PLACE = ("rank", "step")
_WHICH = ("newest", "oldest", "all")
_CORRUPT_BACKUP = "corrupt_backup"


@dataclass(frozen=True)
class Fault:
    """One thing that goes wrong. Faults at a step have a rank and a step; `corrupt_backup` has `which`
    instead."""

    kind: str
    rank: int | None = None
    step: int | None = None
    epoch: int | None = None
    generation: int = 0
    which: str | None = None

    def __str__(self) -> str:
        arguments = [] if self.which is None else [self.which]
        arguments += [f"{name}={value}" for name in _WHEN if (value := getattr(self, name)) is not None]
        return f"{self.kind}({', '.join(arguments)})"


@dataclass(frozen=True)
class FaultPlan:
    """The faults of one run, in the order of the sentence. `str(plan)` is a sentence that `parse` takes."""

    faults: tuple[Fault, ...] = ()

    @classmethod
    def parse(cls, text: str) -> "FaultPlan":
        """Return the plan that `text` describes; `UsageError` names everything that is wrong with it, at
        once."""
        sentences = [sentence.strip() for sentence in text.split(";")]
        faults: list[Fault] = []
        mistakes: list[str] = []
        for sentence in filter(None, sentences):
            found = _Sentence(sentence)
            mistakes += [f"{sentence!r}: {mistake}" for mistake in found.mistakes]
            if not found.mistakes:
                faults.append(found.fault())
        if mistakes:
            listed = "".join(f"\n  {mistake}" for mistake in mistakes)
            raise UsageError(f"The fault plan cannot be understood:{listed}\nValid faults: {valid_faults()}.")
        return cls(tuple(faults))

    @classmethod
    def from_environ(cls, environ: Mapping[str, str]) -> "FaultPlan":
        """Return the plan in TRIREME_FAULTS, an empty one where it is not set."""
        return cls.parse(environ.get(VARIABLE, ""))

    def __str__(self) -> str:
        return "; ".join(map(str, self.faults))

    def check_ranks(self, num_workers: int) -> None:
        """Raise `UsageError` for ranks that the run does not have: such a fault would never happen, and no
        test fail."""
        strangers = [
            str(fault) for fault in self.faults if fault.rank is not None and fault.rank >= num_workers
        ]
        if strangers:
            raise UsageError(
                f"The fault plan names ranks that {num_workers} workers do not have: {'; '.join(strangers)}. "
                f"Ranks go from 0 to {num_workers - 1}."
            )

    def due(
        self,
        rank: int,
        step: int,
        generation: int = 0,
        *,
        epoch: int | None = None,
        step_in_epoch: int | None = None,
    ) -> list[Fault]:
        """Return what happens to this rank just before it trains `step`; faults with an epoch need the last
        two."""
        if (epoch is None) != (step_in_epoch is None):
            raise UsageError(
                f"epoch={epoch} and step_in_epoch={step_in_epoch} belong together: give both or none of them."
            )
        moments = {(step, None), (step_in_epoch, epoch)}
        return [
            fault
            for fault in self.faults
            if (fault.rank, fault.generation) == (rank, generation) and (fault.step, fault.epoch) in moments
        ]

    def due_before_reading_backups(self, generation: int = 0) -> list[Fault]:
        """Return what happens to the backups before this generation of the run reads them; one process
        performs it."""
        return [
            fault for fault in self.faults if fault.kind == _CORRUPT_BACKUP and fault.generation == generation
        ]


def perform(fault: Fault, backups: "Backups | None" = None) -> None:
    """Make the fault happen to this process, or to `backups`, which `corrupt_backup` needs.

    `kill` and `hang` do not return, `raise_error` raises `InjectedFault`, `stop` returns when somebody sends
    SIGCONT, and `terminate` when the process survives its own SIGTERM handler.
    """
    if fault.kind == _CORRUPT_BACKUP:
        _corrupt_backups(fault, backups)
    else:
        _AT_A_STEP[fault.kind](fault)


def valid_faults() -> str:
    """Return the signatures of all faults, as error messages and help texts show them."""
    at_a_step = [f"{kind}(rank, step[, epoch, generation])" for kind in _AT_A_STEP]
    return ", ".join([*at_a_step, f"{_CORRUPT_BACKUP}({' | '.join(_WHICH)}[, generation])"])


def _kill(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def _hang(fault: Fault) -> NoReturn:
    while True:
        time.sleep(3600)


def _stop(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def _terminate(fault: Fault) -> None:
    os.kill(os.getpid(), signal.SIGTERM)


def _raise_error(fault: Fault) -> NoReturn:
    raise InjectedFault(f"The fault plan asked for this error: {fault}")


_AT_A_STEP: dict[str, Callable[[Fault], None]] = {
    "kill": _kill,
    "hang": _hang,
    "stop": _stop,
    "terminate": _terminate,
    "raise_error": _raise_error,
}


def _corrupt_backups(fault: Fault, backups: "Backups | None") -> None:
    names = [] if backups is None else backups.names()
    if backups is None or not names:
        where = "no place of backups was given" if backups is None else f"there is none in {backups.location}"
        raise UsageError(f"{fault} found no backup to corrupt: {where}. The test would prove nothing.")
    chosen = {"newest": names[-1:], "oldest": names[:1], "all": names}[fault.which or "newest"]
    for name in chosen:
        _flip_a_bit(backups, name)


def _flip_a_bit(backups: "Backups", name: str) -> None:
    from trireme.recovery.backup_file import DATA_ENDING

    file_name = name + DATA_ENDING
    with backups.store.open(file_name) as file:
        content = bytearray(file.read())
    content[len(content) // 2] ^= 1
    backups.store.write(file_name, [bytes(content)])


class _Sentence:
    """One sentence of a plan, taken apart: what it says and all that is wrong with it."""

    def __init__(self, text: str):
        self.mistakes: list[str] = []
        self._kind = ""
        self._words: list[str] = []
        self._numbers: dict[str, int] = {}
        call = _parsed_call(text)
        if call is None:
            self.mistakes.append("not of the form kind(name=number, ...)")
        else:
            self._take_kind(call.func.id)  # type: ignore[attr-defined]  # _parsed_call makes sure that it is a name
            self._take_words(call.args)
            self._take_numbers(call.keywords)
            if self._kind:
                self._check()

    def fault(self) -> Fault:
        if self._kind == _CORRUPT_BACKUP:
            return Fault(self._kind, generation=self._numbers.get("generation", 1), which=self._words[0])
        numbers = self._numbers
        return Fault(
            self._kind, numbers["rank"], numbers["step"], numbers.get("epoch"), numbers.get("generation", 0)
        )

    def _take_kind(self, kind: str) -> None:
        kinds = [*_AT_A_STEP, _CORRUPT_BACKUP]
        if kind in kinds:
            self._kind = kind
        else:
            self.mistakes.append(f"no fault is called {kind!r}{_guess(kind, kinds)}")

    def _take_words(self, arguments: list[ast.expr]) -> None:
        for argument in arguments:
            self._words.append(ast.unparse(argument))

    def _take_numbers(self, keywords: list[ast.keyword]) -> None:
        for keyword in keywords:
            name, value = keyword.arg or "**", keyword.value
            if name in self._numbers:
                self.mistakes.append(f"{name} is given twice")
            # `type` and not `isinstance`, for which True is a number.
            if isinstance(value, ast.Constant) and type(value.value) is int:
                self._numbers[name] = value.value
            else:
                self.mistakes.append(f"{name}={ast.unparse(value)} must be a whole number, 0 or more")
                self._numbers[name] = 0

    def _check(self) -> None:
        takes_word = self._kind == _CORRUPT_BACKUP
        required, optional = ((), ("generation",)) if takes_word else (_PLACE, _WHEN[len(_PLACE) :])
        valid = [*required, *optional]
        for name in self._numbers:
            if name not in valid:
                takes = f"{self._kind} takes {', '.join(valid)}"
                self.mistakes.append(f"{name!r} means nothing to {self._kind}{_guess(name, valid)} ({takes})")
        for name in required:
            if name not in self._numbers:
                self.mistakes.append(f"{name} is missing")
        self._check_word() if takes_word else self._check_no_words()

    def _check_word(self) -> None:
        if len(self._words) != 1 or self._words[0] not in _WHICH:
            given = ", ".join(self._words) or "nothing"
            self.mistakes.append(f"one of {', '.join(_WHICH)} was expected, not {given}")

    def _check_no_words(self) -> None:
        for word in self._words:
            self.mistakes.append(f"{word} needs a name, such as rank={word}")


def _parsed_call(text: str) -> ast.Call | None:
    try:
        call = ast.parse(text, mode="eval").body
    except (SyntaxError, ValueError):
        return None
    return call if isinstance(call, ast.Call) and isinstance(call.func, ast.Name) else None


def _guess(word: str, valid: list[str]) -> str:
    close = difflib.get_close_matches(word, valid, n=1)
    return f"; did you mean {close[0]}?" if close else ""

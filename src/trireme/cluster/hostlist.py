"""Slurm's notation for many hosts (`n[0-3,7],login1`) and for many counts (`2(x3),1`)."""

import re
from itertools import product

_PART = re.compile(r"(?:[^,\[\]]|\[[^\[\]]*\])+")
_BRACKETS = re.compile(r"\[([^\[\]]*)\]")
_RANGE = re.compile(r"(\d+)(?:-(\d+))?")
_COUNT = re.compile(r"(\d+)(?:\(x(\d+)\))?")
MOST_HOSTS = 1_000_000


def expand_hosts(text: str) -> list[str]:
    """The hosts in order: `"n[08-10],m1"` gives n08, n09, n10, m1.

    Raises:
        ValueError: the text is not in Slurm's notation; the message names the part that is not.
    """
    parts = _PART.findall(text)
    if not text or ",".join(parts) != text:
        raise ValueError(f"{text!r} is no list of hosts like n[0-3,7],m1")
    return [host for part in parts for host in _expand_part(part)]


def first_host(text: str) -> str | None:
    """The first host of the list, or None where the text is no such list."""
    try:
        return expand_hosts(text)[0]
    except ValueError:
        return None


def expand_counts(text: str) -> list[int]:
    """One count per host: `"2(x3),1"` gives 2, 2, 2, 1.

    Raises:
        ValueError: the text is not in Slurm's notation.
    """
    counts: list[int] = []
    for part in text.split(","):
        match = _COUNT.fullmatch(part)
        if not match:
            raise ValueError(f"{text!r} is no list of counts like 2(x3),1")
        counts += [int(match[1])] * int(match[2] or 1)
    return counts


def _expand_part(part: str) -> list[str]:
    """One name, with every combination of its bracketed ranges: rack[0-1]n[0-3] has two."""
    pieces = _BRACKETS.split(part)
    choices = [_expand_ranges(piece) if index % 2 else [piece] for index, piece in enumerate(pieces)]
    return ["".join(choice) for choice in product(*choices)]


def _expand_ranges(ranges: str) -> list[str]:
    names: list[str] = []
    for item in ranges.split(","):
        match = _RANGE.fullmatch(item)
        first, last = (match[1], match[2] or match[1]) if match else ("1", "0")
        if not int(first) <= int(last) < int(first) + MOST_HOSTS:
            raise ValueError(f"[{ranges}] is no list of ranges like [0-3,7]")
        # Leading zeros belong to the names: n[08-10] begins with n08.
        names += [str(number).zfill(len(first)) for number in range(int(first), int(last) + 1)]
    return names

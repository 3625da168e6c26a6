"""Amounts of memory and CPU as Kubernetes writes them: `16Gi`, `500m`, `1.5e9`."""

import re
from fractions import Fraction

BINARY = {suffix: 1024**power for power, suffix in enumerate(("Ki", "Mi", "Gi", "Ti", "Pi", "Ei"), start=1)}
DECIMAL = {
    "n": Fraction(1, 1000**3),
    "u": Fraction(1, 1000**2),
    "m": Fraction(1, 1000),
    "": Fraction(1),
    "k": Fraction(1000),
    "M": Fraction(1000**2),
    "G": Fraction(1000**3),
    "T": Fraction(1000**4),
    "P": Fraction(1000**5),
    "E": Fraction(1000**6),
}
SMALLEST_MEMORY = 16 * 1024**2
LARGEST = 2**63 - 1

_NUMBER = r"(?P<number>[0-9]+(?:[.][0-9]*)?|[.][0-9]+)"
_QUANTITY = re.compile(
    rf"[+]?{_NUMBER}(?:(?P<suffix>[KMGTPE]i|[numkMGTPE]?)|[eE](?P<exponent>[+-]?[0-9]{{1,3}}))"
)
_HABITS = re.compile(rf"{_NUMBER}\s*(?P<letter>[kKmMgGtTpP])i?[bB]?", re.ASCII)


def parse_quantity(text: str) -> Fraction:
    """The exact value of a quantity that is not negative. Raises ValueError."""
    match = _QUANTITY.fullmatch(text)
    if match is None:
        raise ValueError(f"{text!r} is no quantity")
    number = Fraction(match["number"].rstrip("."))
    if match["exponent"] is not None:
        return number * Fraction(10) ** int(match["exponent"])
    return number * (BINARY.get(match["suffix"]) or DECIMAL[match["suffix"]])


def memory_problems(text: str) -> list[str]:
    """What is wrong with `--memory TEXT`, with what to type."""
    try:
        value = parse_quantity(text)
    except ValueError:
        meant = _meant(text)
        return [
            f"--memory {text!r} is no amount of memory: expected a number and a unit, like --memory {meant}"
        ]
    if value < SMALLEST_MEMORY:
        unit = "thousandths of a byte" if text.endswith("m") else "bytes"
        return [
            f"--memory {text} is {_plain(value * 1000 if text.endswith('m') else value)} {unit}, in which no "
            f"training fits: write the unit, like --memory {_meant(text)}"
        ]
    if value > LARGEST:
        return [
            f"--memory {text} is more than Kubernetes can count: expected less than 8Ei, like --memory 16Gi"
        ]
    if value.denominator != 1:
        return [f"--memory {text} is no whole number of bytes: write --memory {-(-value // 1024**2)}Mi"]
    return []


def cpu_problems(text: str) -> list[str]:
    """What is wrong with `--cpu TEXT`, with what to type."""
    example = "expected a number of cores, like --cpu 4, --cpu 0.5 or --cpu 500m"
    try:
        value = parse_quantity(text)
    except ValueError:
        return [f"--cpu {text!r} is no number of cores: {example}"]
    if re.search(r"[A-Zk]", text):
        return [f"--cpu {text} has a unit that cores are not counted in: {example}"]
    if value <= 0:
        return [f"--cpu {text} is no core at all: {example}"]
    if (value * 1000).denominator != 1:
        return [f"--cpu {text} is finer than a thousandth of a core: write --cpu {-(-value * 1000 // 1)}m"]
    return []


def half(memory: str) -> str:
    """Half of an amount of memory, in whole bytes, with the largest unit that writes it exactly."""
    value = int(parse_quantity(memory) / 2)
    units = [(suffix, factor) for suffix, factor in BINARY.items()]
    units += [(suffix, int(DECIMAL[suffix])) for suffix in ("k", "M", "G", "T", "P", "E")]
    exact = [(factor, suffix) for suffix, factor in units if value >= factor and value % factor == 0]
    factor, suffix = max(exact, default=(1, ""))
    return f"{value // factor}{suffix}"


def _meant(text: str) -> str:
    """The amount of memory a person most likely meant by what is none."""
    match = _HABITS.fullmatch(text.strip())
    guess = f"{match['number']}{match['letter'].upper()}i" if match else f"{text}Gi"
    try:
        value = parse_quantity(guess)
    except ValueError:
        return "16Gi"
    return guess if SMALLEST_MEMORY <= value <= LARGEST and value.denominator == 1 else "16Gi"


def _plain(value: Fraction) -> str:
    return str(value) if value.denominator == 1 else str(float(value))

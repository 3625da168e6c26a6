"""Amounts of memory and CPU: the grammar of Kubernetes, and what people write instead."""

from decimal import Decimal
from fractions import Fraction

import pytest
from hypothesis import assume, example, given
from hypothesis import strategies as st

from trireme.launch.kubernetes.quantities import (
    LARGEST,
    SMALLEST_MEMORY,
    cpu_problems,
    half,
    memory_problems,
    parse_quantity,
)

BINARY = {"Ki": 2**10, "Mi": 2**20, "Gi": 2**30, "Ti": 2**40, "Pi": 2**50, "Ei": 2**60}
DECIMAL = {"n": "1e-9", "u": "1e-6", "m": "1e-3", "": "1", "k": "1e3", "M": "1e6", "G": "1e9", "T": "1e12"}
UNITS = {suffix: Fraction(factor) for suffix, factor in BINARY.items()} | {
    suffix: Fraction(Decimal(factor)) for suffix, factor in (DECIMAL | {"P": "1e15", "E": "1e18"}).items()
}
numbers = st.one_of(
    st.integers(0, 10**6).map(str),
    st.decimals(0, 10**6, places=3).map(str),
    st.integers(0, 999).map("{}.".format),
    st.integers(0, 999).map(".{}".format),
)
sizes = st.one_of(
    st.builds("{}{}".format, st.integers(1, 4096), st.sampled_from(["Mi", "Gi", "Ti", "M", "G", "T", "e9"])),
    st.integers(SMALLEST_MEMORY, 10**15).map(str),
)


@given(numbers, st.sampled_from(sorted(UNITS)), st.sampled_from(["", "+"]))
def test_the_value_is_the_number_times_the_unit(number, unit, sign):
    assert parse_quantity(f"{sign}{number}{unit}") == Fraction(Decimal(number)) * UNITS[unit]


@given(numbers, st.integers(-20, 20), st.sampled_from("eE"))
def test_exponents(number, exponent, letter):
    expected = Fraction(Decimal(number)) * Fraction(10) ** exponent
    assert parse_quantity(f"{number}{letter}{exponent}") == expected
    assert parse_quantity(f"{number}{letter}{exponent:+}") == expected


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1E", 10**18),
        ("1E3", 1000),
        ("1e3", 1000),
        ("1Ei", 2**60),
        ("0", 0),
        ("1.5Gi", 3 * 2**29),
        ("100m", "1/10"),
    ],
)
def test_letters_that_mean_two_things(text, value):
    assert parse_quantity(text) == Fraction(value)


@pytest.mark.parametrize(
    "text",
    [
        "",
        ".",
        "+",
        "-1",
        "-1Gi",
        "Gi",
        "1 Gi",
        " 1",
        "1\n",
        "1GB",
        "1gi",
        "1K",
        "1ki",
        "1g",
        "1b",
        "0x10",
        "1_000",
    ]
    + ["1,5", "1.2.3", "1e", "1e+", "1e1.5", "1Gi1", "1mm", "٣", "inf", "nan", "1e99999"],
)
def test_what_is_no_quantity(text):
    with pytest.raises(ValueError):
        parse_quantity(text)


@given(st.text(max_size=8) | st.text(st.sampled_from("0123456789.eE+-kKMGTPmun iB"), max_size=8))
@example("0.0000001Gi")
@example("1e18")
@example("8Ei")
@example("1.0000000000001Gi")
@example("9" * 19)
def test_memory_that_passes_is_a_size_for_training(text):
    if memory_problems(text):
        assert "--memory" in memory_problems(text)[0]
        return
    value = parse_quantity(text)
    assert value.denominator == 1
    assert SMALLEST_MEMORY <= value <= LARGEST


@given(st.text(max_size=6) | st.text(st.sampled_from("0123456789.eE+-kKMGTPmun iBgbt"), max_size=6))
@example("16GB")
@example("16")
@example("0.00000001Gi")
@example("9223372036854775808")
@example("8589934592.3")
def test_what_the_message_proposes_passes(text):
    for check, option in ((memory_problems, "--memory"), (cpu_problems, "--cpu")):
        for problem in check(text):
            proposed = problem.rpartition(f"{option} ")[2].removesuffix(".")
            assert check(proposed) == [], problem


@pytest.mark.parametrize(
    ("text", "proposed"),
    [
        ("16GB", "16Gi"),
        ("16gb", "16Gi"),
        ("16GiB", "16Gi"),
        ("16g", "16Gi"),
        ("16 Gi", "16Gi"),
        ("1.5TB", "1.5Ti"),
        ("512MB", "512Mi"),
        ("16", "16Gi"),
        ("16m", "16Mi"),
        ("lots", "16Gi"),
        ("0.1Gi", "103Mi"),
    ],
)
def test_memory_as_people_write_it(text, proposed):
    (problem,) = memory_problems(text)
    assert problem.endswith(f"--memory {proposed}")


@pytest.mark.parametrize("text", ["1", "4", "0.5", "500m", "1.25", "1e1", ".5", "128", "4."])
def test_cores(text):
    assert cpu_problems(text) == []


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0", "no core at all"),
        ("0m", "no core at all"),
        ("4Gi", "a unit that cores are not counted in"),
        ("4k", "a unit that cores are not counted in"),
        ("0.0001", "write --cpu 1m"),
        ("1.2345", "write --cpu 1235m"),
        ("four", "no number of cores"),
        ("-1", "no number of cores"),
        ("4 cores", "no number of cores"),
    ],
)
def test_what_is_no_number_of_cores(text, said):
    (problem,) = cpu_problems(text)
    assert said in problem and text in problem


@given(sizes)
@example("16777217")
@example("1Ei")
def test_half(text):
    assume(not memory_problems(text))
    halved = half(text)
    assert parse_quantity(halved) == parse_quantity(text) // 2
    assert halved == half(str(int(parse_quantity(text))))


@pytest.mark.parametrize(
    ("whole", "part"),
    [("16Gi", "8Gi"), ("1Gi", "512Mi"), ("3Gi", "1536Mi"), ("1G", "500M"), ("1.5Gi", "768Mi")],
)
def test_half_is_written_with_the_largest_unit(whole, part):
    assert half(whole) == part

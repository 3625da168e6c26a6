"""Which gradients travel together."""

import pytest

from trireme.backends.buckets import BUCKET_BYTES, plan_buckets

MB = 1 << 20


@pytest.mark.parametrize(
    ("sizes", "kinds", "first", "expected"),
    [
        ([], "", MB, []),
        ([10], "f", MB, [[0]]),
        # The last layer's gradient is the first that the backward pass makes.
        ([10, 10, 10], "fff", MB, [[2, 1, 0]]),
        # The first bucket is small, the others are not.
        ([MB, MB, MB, MB], "ffff", MB, [[3], [2, 1, 0]]),
        ([MB, MB, MB, MB], "ffff", BUCKET_BYTES, [[3, 2, 1, 0]]),
        ([5 * MB, 5 * MB, 5 * MB], "fff", MB, [[2], [1], [0]]),
        # One that is larger than any bucket, between small ones.
        ([1, 100 * MB, 1], "fff", MB, [[2], [1], [0]]),
        # What cannot be in one sum: another dtype or device.
        ([1, 1, 1, 1], "fddf", MB, [[3], [2, 1], [0]]),
        # Exactly full.
        ([8 * MB, MB // 2, MB // 2], "fff", MB, [[2, 1], [0]]),
        # Without values.
        ([0, 0], "ff", MB, [[1, 0]]),
    ],
)
def test_buckets(sizes, kinds, first, expected):
    assert plan_buckets(sizes, kinds, first) == expected

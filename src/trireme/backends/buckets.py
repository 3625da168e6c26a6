"""Which gradients travel together: plain arithmetic."""

import itertools
from collections.abc import Hashable, Sequence

BUCKET_BYTES = 8 << 20


def plan_buckets(
    num_bytes: Sequence[int], kinds: Sequence[Hashable], first_bucket_bytes: int = BUCKET_BYTES
) -> list[list[int]]:
    """Returns lists of indices of gradients that travel together, in the order of their exchange.

    The last gradient comes first: the backward pass makes them in about that order.

    Args:
        num_bytes: size of each gradient.
        kinds: what gradients must have in common to travel together, such as the dtype of their sum.
        first_bucket_bytes: size of the first bucket at most; of all others, `BUCKET_BYTES`. A gradient that is
            larger has a bucket to itself.
    """
    buckets: list[list[int]] = []
    backwards = range(len(num_bytes) - 1, -1, -1)
    for _, indices in itertools.groupby(backwards, key=lambda index: kinds[index]):
        filled = None
        for index in indices:
            limit = BUCKET_BYTES if len(buckets) > 1 else first_bucket_bytes
            if filled is None or filled + num_bytes[index] > limit:
                buckets.append([])
                filled = 0
            buckets[-1].append(index)
            filled += num_bytes[index]
    return buckets

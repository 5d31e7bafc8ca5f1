"""Owns the lateness histogram: its buckets, and the quantiles of counts by bucket. Pure."""

from collections.abc import Mapping
from functools import lru_cache
from typing import Final

from timers.core.answers import Lateness

STEPS_PER_OCTAVE: Final = 4
"""Resolution of the lateness histogram: each doubling has four equal steps, so a bucket is at most 25 % wide."""


@lru_cache(maxsize=4096)
def bucket_of(lateness_ms: int) -> int:
    """The histogram bucket of a lateness: 0 for none, then four for each doubling."""
    if lateness_ms <= 0:
        return 0
    octave = lateness_ms.bit_length() - 1
    step = (lateness_ms - (1 << octave)) * STEPS_PER_OCTAVE >> octave
    return 1 + octave * STEPS_PER_OCTAVE + step


def bucket_ms(bucket: int) -> int:
    """The largest lateness in a bucket, in ms."""
    if bucket == 0:
        return 0
    octave, step = divmod(bucket - 1, STEPS_PER_OCTAVE)
    return -((-(1 << octave) * (STEPS_PER_OCTAVE + step + 1)) // STEPS_PER_OCTAVE) - 1


def quantiles_ms(counts: Mapping[int, int]) -> Lateness:
    """`p50`, `p99` and `max` of counts by bucket, each as the upper end of its bucket; None without any starts."""
    total, seen = sum(counts.values()), 0
    found: Lateness = {"p50": None, "p99": None, "max": None}
    for bucket in sorted(counts):
        seen += counts[bucket]
        if found["p50"] is None and seen * 100 >= total * 50:
            found["p50"] = bucket_ms(bucket)
        if found["p99"] is None and seen * 100 >= total * 99:
            found["p99"] = bucket_ms(bucket)
        found["max"] = bucket_ms(bucket)
    return found

"""Whether throughput fell during a soak, and whether the machine or the feeder did: arithmetic.

As for growth, the first fifth of the samples is warm-up, and the last third of the rest is compared
with the first. Throughput has fallen when the median is lower by more than FALL_MAX. Then each
sample is divided by how fast the slower of the soak's cores was at the time, by the reference load
(``bench.soak.reference``). If these ratios have fallen by more than FALL_MAX too, and nine in ten
pairs of a sample from each third agree, the feeder became slower. If they have not, the machine
did, or the samples vary too much to tell; the feeder is not judged then.
"""

import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal

from bench.soak.growth import cut_thirds

FALL_MAX: Final = 0.2
"""The greatest fall that is tolerated, as a share of the first third's median."""

_AGREEING_MIN: Final = 0.9
_SLOWEST: Final = 0.01  # of a core's first third; a bound for the division


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What became of the throughput."""

    kind: Literal["held", "fell", "machine-slower", "too-noisy"]
    headline: str
    """A few words."""
    sentence: str
    """The same with its evidence."""
    change: float
    """Of the medians, as a share; negative when it fell."""
    machine_change: float
    """The same for the reference load of the core that lost most."""


@dataclass(frozen=True, slots=True)
class _Change:
    first: float
    last: float
    agreeing: float
    """The share of pairs of samples in which the last third's is the lower one."""

    @classmethod
    def of_series(cls, values: Sequence[float]) -> "_Change":
        first, last = cut_thirds(values)
        lower = sum((late < early) + (late == early) / 2 for early in first for late in last)
        return cls(statistics.median(first), statistics.median(last), lower / len(first) ** 2)

    @property
    def share(self) -> float:
        return self.last / self.first - 1 if self.first else 0.0


def judge_throughput(
    throughput: Sequence[float], references: Mapping[str, Sequence[float]]
) -> Verdict:
    """Judge samples of images/s at even intervals, warm-up included.

    ``references`` are the samples of the reference load by core, as many each; ConfigError when
    there are too few samples.
    """
    change = _Change.of_series(throughput)
    speeds = _machine_speeds(references, len(throughput))
    paired = _Change.of_series(
        [rate / speed for rate, speed in zip(throughput, speeds, strict=True)]
    )
    machine = min((_Change.of_series(each).share for each in references.values()), default=0.0)
    numbers = f"{change.first:,.0f} to {change.last:,.0f} images/s"
    beside = f"the reference load on the same cores changed by {_percent(machine)}"
    allowed = f"{100 * FALL_MAX:.0f} % is allowed"
    fell = f"throughput fell by {-100 * change.share:.0f} %, from {numbers}"
    kind: Literal["held", "fell", "machine-slower", "too-noisy"]
    headline = "throughput was not judged, it varied too much"
    if change.first == 0:
        kind, headline = "too-noisy", "throughput was not judged, too few images came"
        sentence = (
            "throughput was not judged: half of the samples or more had no image; sample less "
            "often (--every)"
        )
    elif change.share >= -FALL_MAX:
        kind, headline = "held", "throughput held"
        sentence = f"throughput held: {numbers} ({_percent(change.share)}; {beside})"
    elif paired.share < -FALL_MAX and paired.agreeing >= _AGREEING_MIN:
        kind, headline = "fell", f"throughput fell by {-100 * change.share:.0f} %"
        sentence = (
            f"{fell} (medians of the first and the last third after the warm-up; {allowed}), "
            f"while {beside}: the feeder became slower; compare its stages in `feeder status` at "
            "the beginning and at the end of a soak"
        )
    elif paired.share >= -FALL_MAX and machine < -FALL_MAX / 2:
        kind, headline = "machine-slower", "throughput was not judged, the machine became slower"
        sentence = (
            f"{fell}, but the machine became slower: {beside}, and in proportion to it throughput "
            f"changed by {_percent(paired.share)} ({allowed}); the feeder's throughput was not "
            "judged: soak again on a machine that is not in use"
        )
    else:
        kind = "too-noisy"
        sentence = (
            f"throughput was not judged: {numbers} ({_percent(change.share)}), but it varied too "
            f"much to tell a fall from noise; {beside}; soak for longer on a machine that is not "
            "in use"
        )
    return Verdict(
        kind=kind, headline=headline, sentence=sentence, change=change.share, machine_change=machine
    )


def _machine_speeds(references: Mapping[str, Sequence[float]], samples: int) -> list[float]:
    """Return the speed of the slowest core at each sample, relative to its own first third."""
    slowest = [1.0] * samples if not references else [float("inf")] * samples
    for values in references.values():
        first = statistics.median(cut_thirds(values)[0]) or 1.0
        slowest = [
            min(before, max(value / first, _SLOWEST))
            for before, value in zip(slowest, values, strict=True)
        ]
    return slowest


def _percent(share: float) -> str:
    return f"{round(100 * share):+d} %"

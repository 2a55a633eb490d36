"""Whether throughput fell during a soak, and whether the machine or the feeder did: arithmetic.

The last window of the samples is compared with the best one before it (``bench.soak.windows``).
Throughput has fallen when the median is lower by more than FALL_MAX. Then each sample is divided by
how fast the slower of the soak's cores was at the time, by the reference load
(``bench.soak.reference``). If the medians of these ratios differ by more than FALL_MAX too, and by
more than noise explains, the feeder became slower. If they do not, the machine did, or the samples
vary too much to tell; the feeder is not judged then.

The best of many windows is above the average by chance: by about two standard errors of a window's
median. Of 60 samples with independent noise of 8 % that is about a tenth, which FALL_MAX allows
for. With larger noise the difference must also be _ERRORS_MIN standard errors, which without a fall
happens about once in 300 soaks. The noise is that of the differences between neighbouring samples,
which a slow fall makes no larger and a step hardly.
"""

import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Final, Literal

from .windows import START_UP, Window, find_windows

FALL_MAX: Final = 0.25
"""The greatest fall that is tolerated, as a share of the best window's median."""

_ERRORS_MIN: Final = 5.0
_MEDIANS_ERROR: Final = math.sqrt(math.pi / 2)  # over the mean's, with normal noise
_SLOWEST: Final = 0.01  # of a core in the best window; a bound for the division
_MINUTES_FROM_S: Final = 180.0


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


def judge_throughput(
    throughput: Sequence[float],
    references: Mapping[str, Sequence[float]],
    at_s: Sequence[float],
) -> Verdict:
    """Judge samples of images/s at even intervals, start included, taken ``at_s``.

    ``references`` are the samples of the reference load by core, as many each; ConfigError when
    there are too few samples.
    """
    best, last = find_windows(throughput)
    change = _change(throughput, best, last)
    speeds = _machine_speeds(references, best, len(throughput))
    paired = [rate / speed for rate, speed in zip(throughput, speeds, strict=True)]
    paired_change = _change(paired, best, last)
    machine = min((_change(each, best, last) for each in references.values()), default=0.0)
    numbers = (
        f"{best.median(throughput):,.0f} images/s in {_format_span(best, at_s)}, the best before "
        f"the end, and {last.median(throughput):,.0f} at the end, in {_format_span(last, at_s)}"
    )
    beside = f"the reference load on the same cores changed by {_percent(machine)}"
    allowed = f"{100 * FALL_MAX:.0f} % is allowed"
    fell = f"throughput fell by {-100 * change:.0f} %"
    kind: Literal["held", "fell", "machine-slower", "too-noisy"]
    headline = "throughput was not judged, it varied too much"
    if best.median(throughput) == 0:
        kind, headline = "too-noisy", "throughput was not judged, too few images came"
        sentence = (
            "throughput was not judged: half of the samples or more had no image; sample less "
            "often (--every)"
        )
    elif change >= -FALL_MAX:
        kind, headline = "held", "throughput held"
        sentence = f"throughput held: {numbers} (medians; {_percent(change)}; {beside})"
    elif paired_change < -max(FALL_MAX, _ERRORS_MIN * _error_of_median(paired, best)):
        kind, headline = "fell", fell
        sentence = (
            f"{fell}: {numbers} (medians; {allowed}), while {beside}: the feeder became slower; "
            "compare its stages in `feeder status` at the beginning and at the end of a soak"
        )
    elif paired_change >= -FALL_MAX and machine < -FALL_MAX / 2:
        kind, headline = "machine-slower", "throughput was not judged, the machine became slower"
        sentence = (
            f"{fell}: {numbers} (medians), but the machine became slower: {beside}, and in "
            f"proportion to it throughput changed by {_percent(paired_change)} ({allowed}); the "
            "feeder's throughput was not judged: soak again on a machine that is not in use"
        )
    else:
        kind = "too-noisy"
        sentence = (
            f"throughput was not judged: {numbers} (medians; {_percent(change)}), but it varied "
            f"too much to tell a fall from noise; {beside}; soak for longer on a machine that is "
            "not in use"
        )
    return Verdict(
        kind=kind, headline=headline, sentence=sentence, change=change, machine_change=machine
    )


def _change(values: Sequence[float], best: Window, last: Window) -> float:
    before = best.median(values)
    return last.median(values) / before - 1 if before else 0.0


def _machine_speeds(
    references: Mapping[str, Sequence[float]], best: Window, samples: int
) -> list[float]:
    """Return the speed of the slowest core at each sample, relative to its own in ``best``."""
    slowest = [1.0] * samples if not references else [math.inf] * samples
    for values in references.values():
        usual = best.median(values) or 1.0
        slowest = [
            min(before, max(value / usual, _SLOWEST))
            for before, value in zip(slowest, values, strict=True)
        ]
    return slowest


def _error_of_median(values: Sequence[float], best: Window) -> float:
    """Return the standard error of a window's median, as a share of the best window's."""
    steps = [(late - early) ** 2 for early, late in pairwise(values[START_UP:])]
    noise = math.sqrt(statistics.fmean(steps) / 2)
    before = best.median(values)
    return _MEDIANS_ERROR * noise / math.sqrt(best.end - best.first) / before if before else 0.0


def _format_span(window: Window, at_s: Sequence[float]) -> str:
    begin, end = window.span_s(at_s)
    if at_s[-1] < _MINUTES_FROM_S:
        return f"seconds {begin:.0f}–{end:.0f}"
    return f"minutes {begin / 60:.1f}–{end / 60:.1f}"


def _percent(share: float) -> str:
    return f"{round(100 * share):+d} %"

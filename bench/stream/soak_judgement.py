"""Whether anything changed during a soak: growth, and throughput. Pure arithmetic over samples.

Growth: the first fifth of the time is warm-up and left out: buffers reach the size of the largest
image, and every session is opened once. Of the remaining samples, the median of the last third is
compared with that of the first: sessions come and go, as often at the end as at the beginning.

Throughput: the last twelfth of the samples is compared with the best window of that length before
it, so one of them lies wholly before, and the other wholly after, a step between a tenth of the
time and nine tenths. Only the first sample is left out: batches that had arrived when the clock
began are counted in it. Whatever else happens at the start (imports, first pages from the disk, a
decoded cache that fills) makes throughput lower there, so the best window is elsewhere.

Throughput has fallen when the median is lower by more than FALL_MAX, and the median of its ratio to
the speed of the soak's slower core (``soak.CoreReference``) is, too, by more than noise explains:
the feeder became slower. Otherwise the machine did, or the samples vary too much to tell; the
feeder is not judged then.

The best of many windows is above the average by chance, by about two standard errors of a window's
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
from typing import Final

from ..report import RATE, Result, single, summarise

WARM_UP_SHARE: Final = 0.2
SAMPLES_MIN: Final = 9  # after the warm-up: three for each median
START_UP: Final = 1  # samples of the throughput that are left out

FALL_MAX: Final = 0.25  # of the best window's median is tolerated

_TOLERANCES: Final = {
    "memory": (4.0, 0.05),  # MiB: allocators keep more or less of it
    "fds": (2.0, 0.0),  # a session's memory and its connection
    "shared-memory/slots": (1.0, 0.25),  # a killed client's slots, which it holds for its lease
}
"""How much larger the last third may be: absolute, or relative to the first if that is more."""

_WINDOWS: Final = 12
_WINDOW_MIN: Final = 3  # samples: their median ignores one that is off
_ERRORS_MIN: Final = 5.0
_MEDIANS_ERROR: Final = math.sqrt(math.pi / 2)  # over the mean's, with normal noise
_SLOWEST: Final = 0.01  # of a core in the best window; a bound for the division
_MINUTES_FROM_S: Final = 180.0

_HEADLINES: Final = {
    "held": "throughput held",
    "fell": "throughput fell by {} %",
    "machine-slower": "throughput was not judged, the machine became slower",
    "too-noisy": "throughput was not judged, it varied too much",
}
_ADVICE: Final = {
    "held": "",
    "fell": (
        ": the feeder became slower; compare its stages in `feeder status` at the beginning and at "
        "the end of a soak"
    ),
    "machine-slower": ": soak again on a machine that is not in use",
    "too-noisy": (
        ": soak for longer on a machine that is not in use, or sample less often (--every)"
    ),
}
"""By ``Verdict.kind``."""


@dataclass(frozen=True, slots=True)
class Window:
    """The samples ``first`` .. ``end`` - 1."""

    first: int
    end: int

    def median(self, values: Sequence[float]) -> float:
        return statistics.median(values[self.first : self.end])

    def span_s(self, at_s: Sequence[float]) -> tuple[float, float]:
        """Return when it begins and ends, given when each sample was taken."""
        return at_s[self.first - 1] if self.first else 0.0, at_s[self.end - 1]

    def format_span(self, at_s: Sequence[float]) -> str:
        begin_s, end_s = self.span_s(at_s)
        if at_s[-1] < _MINUTES_FROM_S:
            return f"seconds {begin_s:.0f}–{end_s:.0f}"
        return f"minutes {begin_s / 60:.1f}–{end_s / 60:.1f}"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    kind: str  # "held", "fell", "machine-slower" or "too-noisy"
    headline: str
    sentence: str
    change: float  # of the medians, as a share; negative when it fell
    machine_change: float  # the same for the reference load of the core that lost most


def find_thirds(samples: int) -> tuple[Window, Window]:
    """Return the first and the last third after the warm-up, of equal length."""
    first = int(samples * WARM_UP_SHARE)
    third = (samples - first) // 3
    return Window(first, first + third), Window(samples - third, samples)


def find_windows(throughput: Sequence[float]) -> tuple[Window, Window]:
    """Return the best window before the last one, and the last."""
    samples = len(throughput)
    length = max(_WINDOW_MIN, samples // _WINDOWS)
    last = Window(samples - length, samples)
    earlier = (Window(first, first + length) for first in range(START_UP, last.first - length + 1))

    def goodness(window: Window) -> tuple[float, float]:
        # Of windows with equal medians, the one that has most images.
        return window.median(throughput), sum(throughput[window.first : window.end])

    return max(earlier, key=goodness), last


def judge(
    series: Mapping[str, Sequence[float]], at_s: Sequence[float]
) -> tuple[list[Result], list[str], Verdict]:
    """Return the rows of all series, a line for each that has grown, and the throughput's verdict.

    ``at_s`` is when the samples were taken. The lines do not include that throughput fell.
    """
    rows: list[Result] = []
    failures: list[str] = []
    for name, values in series.items():
        kind = name.partition("/")[0]
        unit = {"fds": "fds", "throughput": RATE, "reference": "MB/s"}.get(kind, "MiB")
        rows.append(summarise(name, unit, values[int(len(values) * WARM_UP_SHARE) :]))
        tolerance = _TOLERANCES.get(name, _TOLERANCES.get(kind))
        if tolerance is None:
            continue
        first, last = (third.median(values) for third in find_thirds(len(values)))
        rows.append(single(f"{name}/growth", unit, last - first))
        absolute, relative = tolerance
        allowed = max(absolute, relative * first)
        if last - first > allowed:
            failures.append(
                f"{name} grew by {last - first:.1f} {unit}, from {first:.1f} to {last:.1f} "
                f"(medians of the first and the last third after the warm-up; at most "
                f"{allowed:.1f} is allowed)"
            )
    references = [values for name, values in series.items() if name.startswith("reference/")]
    verdict = judge_throughput(series["throughput"], references, at_s)
    rows.append(single("throughput/change", "%", 100 * verdict.change))
    rows.append(single("reference/change", "%", 100 * verdict.machine_change))
    return rows, failures, verdict


def judge_throughput(
    throughput: Sequence[float], references: Sequence[Sequence[float]], at_s: Sequence[float]
) -> Verdict:
    """Judge samples of images/s taken ``at_s`` beside those of each core's reference load."""
    best, last = find_windows(throughput)
    change = _change(throughput, best, last)
    relative = [
        [max(value / (best.median(values) or 1.0), _SLOWEST) for value in values]
        for values in references
    ]
    speeds = [min(sample) for sample in zip(*relative, strict=True)]  # of the slowest core
    paired = [rate / speed for rate, speed in zip(throughput, speeds, strict=True)]
    paired_change = _change(paired, best, last)
    machine_change = min(_change(each, best, last) for each in references)
    if best.median(throughput) == 0:
        kind = "too-noisy"  # half of the samples or more had no image
    elif change >= -FALL_MAX:
        kind = "held"
    elif paired_change < -max(FALL_MAX, _ERRORS_MIN * _error_of_median(paired, best)):
        kind = "fell"
    elif paired_change >= -FALL_MAX and machine_change < -FALL_MAX / 2:
        kind = "machine-slower"
    else:
        kind = "too-noisy"
    headline = _HEADLINES[kind].format(round(-100 * change))
    sentence = (
        f"{headline}: {best.median(throughput):,.0f} images/s in {best.format_span(at_s)}, the "
        f"best before the end, and {last.median(throughput):,.0f} at the end, in "
        f"{last.format_span(at_s)} (medians; {_percent(change)}, a fall of {100 * FALL_MAX:.0f} % "
        f"is allowed); the reference load on the same cores changed by {_percent(machine_change)}, "
        f"and in proportion to it throughput by {_percent(paired_change)}{_ADVICE[kind]}"
    )
    return Verdict(
        kind=kind,
        headline=headline,
        sentence=sentence,
        change=change,
        machine_change=machine_change,
    )


def _change(values: Sequence[float], best: Window, last: Window) -> float:
    before = best.median(values)
    return last.median(values) / before - 1 if before else 0.0


def _error_of_median(values: Sequence[float], best: Window) -> float:
    """Return the standard error of a window's median, as a share of the best window's."""
    steps = [(late - early) ** 2 for early, late in pairwise(values[START_UP:])]
    noise = math.sqrt(statistics.fmean(steps) / 2)
    before = best.median(values)
    return _MEDIANS_ERROR * noise / math.sqrt(best.end - best.first) / before if before else 0.0


def _percent(share: float) -> str:
    return f"{round(100 * share):+d} %"

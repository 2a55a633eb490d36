"""The windows of a soak's samples that are compared: thirds for growth, a twelfth for throughput.

Growth: the first fifth of the time is warm-up and left out: buffers reach the size of the largest
image, and every session is opened once. Of the remaining samples, the last third is compared with
the first.

Throughput: the last twelfth of the samples is compared with the best window of that length before
it. So one of them lies wholly before a step that comes when a tenth of the time is over, and the
other wholly after one that comes when a tenth is left. Only the first sample is left out: batches
that had arrived when the clock began are counted in it. Everything else that happens at the start
(imports, first pages from the disk, a decoded cache that fills) makes throughput lower there, and
the best window is elsewhere then.
"""

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from feeder.errors import ConfigError

WARM_UP_SHARE: Final = 0.2
SAMPLES_MIN: Final = 9
"""After the warm-up: three for each median."""
START_UP: Final = 1
"""Samples of the throughput that are left out."""

_WINDOWS: Final = 12
_WINDOW_MIN: Final = 3  # samples: their median ignores one that is off


@dataclass(frozen=True, slots=True)
class Window:
    """The samples ``first`` .. ``end`` - 1."""

    first: int
    end: int

    def cut(self, values: Sequence[float]) -> Sequence[float]:
        """Return its part of ``values``."""
        return values[self.first : self.end]

    def median(self, values: Sequence[float]) -> float:
        """Return the median of its part of ``values``."""
        return statistics.median(self.cut(values))

    def span_s(self, at_s: Sequence[float]) -> tuple[float, float]:
        """Return when it begins and ends, given when each sample was taken."""
        return at_s[self.first - 1] if self.first else 0.0, at_s[self.end - 1]


def find_thirds(samples: int) -> tuple[Window, Window]:
    """Return the first and the last third after the warm-up, of equal length.

    ConfigError when there are too few samples.
    """
    first = int(samples * WARM_UP_SHARE)
    if samples - first < SAMPLES_MIN:
        raise ConfigError(
            f"{samples} samples are too few to tell growth from noise: soak for longer or sample "
            f"more often, so that {SAMPLES_MIN} remain after the warm-up"
        )
    third = (samples - first) // 3
    return Window(first, first + third), Window(samples - third, samples)


def find_windows(throughput: Sequence[float]) -> tuple[Window, Window]:
    """Return the best window before the last one, and the last.

    ConfigError when there are too few samples.
    """
    samples = len(throughput)
    find_thirds(samples)
    length = max(_WINDOW_MIN, samples // _WINDOWS)
    last = Window(samples - length, samples)
    earlier = (Window(first, first + length) for first in range(START_UP, last.first - length + 1))
    # Of windows with equal medians, the one that has most images.
    return max(earlier, key=lambda each: (each.median(throughput), sum(each.cut(throughput)))), last

"""When a batch is late enough to ask another node for it too: by what answers took so far.

Hedged requests as in Dean and Barroso, "The Tail at Scale" (2013): wait for about the 99th
percentile of the latency, so that one request in a hundred is made twice, then take whichever
answer comes first.
"""

from collections import deque
from typing import Final

_REMEMBERED: Final = 128
_ENOUGH: Final = 16
_FIRST_DELAY_S: Final = 2.0
"""Before anything is known: the first batch waits for cold files and a dataset that is opened."""

_MARGIN: Final = 1.5
_DELAY_MIN_S: Final = 0.1


class Lateness:
    """The delay after which a batch is late, learnt from the last answers."""

    def __init__(self) -> None:
        self._latencies_s: deque[float] = deque(maxlen=_REMEMBERED)
        self.delay_s = _FIRST_DELAY_S
        """Seconds from asking until another node is asked too."""

    def answered(self, latency_s: float) -> None:
        """Note how long a batch took from its request to its last row."""
        self._latencies_s.append(latency_s)
        count = len(self._latencies_s)
        if count >= _ENOUGH:
            percentile_99_s = sorted(self._latencies_s)[(99 * count) // 100]
            self.delay_s = max(_DELAY_MIN_S, _MARGIN * percentile_99_s)

"""The time of each stage of a sample, and the best possible one with the code that does it.

    read      copying the blob's bytes from memory to memory
    decode    one call of our decoder right after that, with the blob in the caches
    resize    one call, for the second time, so that all of the picture is in the caches

The rest of a stage's time is due to its surroundings: cold caches, system calls, the checksum,
Python. The kernels alone, decode and resize, are the limit of a sample: the time that remains if
everything else costs nothing. No image is decoded twice in a row: the branch predictor remembers
the few branches that depend on its bits.
"""

from collections.abc import Collection, Mapping, Sequence
from itertools import pairwise
from time import perf_counter
from typing import Final

import numpy as np

from feeder.jpeg.scratch import Scratch
from feeder.sample.reader import STAGES, SampleReader

from .contenders import PreparedSamples

LIMITS: Final = ("read", "decode", "resize")

_STAGES: Final = [stage for stage in STAGES if stage != "augment"]  # the recipes augment nothing


class StageTimes:
    """The stages of readers, and their limits.

    ``note`` is called before and after each round, in which ``measure_limits`` is a contender.
    """

    def __init__(
        self,
        samples: PreparedSamples,
        image_size: int,
        readers: Mapping[str, SampleReader],
        *,
        joins: Collection[str],
    ) -> None:
        """``readers`` by the suffix of their rows; ``joins``: those that decode by TurboJPEG.

        What the others leave to TurboJPEG is a part of their decoding, and no stage ``join``.
        """
        self._samples, self._readers, self._joins = samples, readers, joins
        self._copied = Scratch()
        self._out = np.empty((image_size, image_size, 3), np.int8)
        self._limits_s = dict.fromkeys(LIMITS, 0.0)
        self._totals: list[dict[str, float]] = []

    def measure_limits(self, first: int, end: int) -> None:
        """Measure the limits of samples ``first`` .. ``end`` - 1 with the current epoch's crops."""
        for row in range(first, end):
            source = self._samples.blobs[row]
            began = perf_counter()
            blob = self._copied.take(source.size)
            np.copyto(blob, source)
            copied_at = perf_counter()
            picture = self._samples.decode_blob(row, blob)
            decoded_at = perf_counter()
            self._limits_s["read"] += copied_at - began
            self._limits_s["decode"] += decoded_at - copied_at
            for _ in range(2):
                began = perf_counter()
                self._samples.resize(row, picture, self._out)
                taken_s = perf_counter() - began
            self._limits_s["resize"] += taken_s

    def note(self) -> None:
        totals = {f"limit/{name}": value for name, value in self._limits_s.items()}
        for suffix, reader in self._readers.items():
            stages = {name: reader.seconds[name] for name in _STAGES}
            if suffix not in self._joins:
                stages["decode"] += stages.pop("join")
            totals |= {f"stage/{name}{suffix}": value for name, value in stages.items()}
            totals[f"stage/rest{suffix}"] = sum(stages.values())
        totals["sample/limit"] = totals["limit/decode"] + totals["limit/resize"]
        self._totals.append(totals)

    def seconds(self, taken: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
        """Return the seconds of each row, one value a round; the rest is of ``sample/whole…``."""
        rows = {
            name: [after[name] - before[name] for before, after in pairwise(self._totals)]
            for name in self._totals[0]
        }
        for suffix in self._readers:
            rest, whole = f"stage/rest{suffix}", taken[f"sample/whole{suffix}"]
            pairs = zip(whole, rows[rest], strict=True)
            rows[rest] = [max(whole_s - stages_s, 1e-9) for whole_s, stages_s in pairs]
        return rows

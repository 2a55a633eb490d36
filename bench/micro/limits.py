"""The best possible time of each stage of a sample with the code that does it.

    read      copying the blob's bytes from memory to memory
    decode    one call of our decoder right after that, with the blob in the caches
    resize    one call, for the second time, so that all of the picture is in the caches

The rest of a stage's time is due to its surroundings: cold caches, system calls, the checksum,
Python. The kernels alone, decode and resize, are the limit of a sample: the time that remains if
everything else costs nothing. No image is decoded twice in a row: the branch predictor remembers
the few branches that depend on its bits.
"""

from time import perf_counter
from typing import Final

import numpy as np

from feeder.jpeg.resize import resize_pack
from feeder.jpeg.scratch import Scratch

from .contenders import PreparedSamples

LIMITS: Final = ("read", "decode", "resize")
KERNELS: Final = ("decode", "resize")


class StageLimits:
    """Measures the limits with its own clock; ``seconds`` is the total time of each stage."""

    def __init__(self, samples: PreparedSamples, image_size: int) -> None:
        self._samples = samples
        self._copied = Scratch()
        self._out = np.empty((image_size, image_size, 3), np.int8)
        self.seconds = dict.fromkeys(LIMITS, 0.0)

    def measure(self, first: int, end: int) -> None:
        """Measure the samples ``first`` .. ``end`` - 1 with the crops of the current epoch."""
        for row in range(first, end):
            source = self._samples.blob(row)
            began = perf_counter()
            blob = self._copied.take(source.size)
            np.copyto(blob, source)
            copied_at = perf_counter()
            picture, stride_bytes = self._samples.decode_blob(row, blob)
            decoded_at = perf_counter()
            self.seconds["read"] += copied_at - began
            self.seconds["decode"] += decoded_at - copied_at

            width, height, box, origin, mirrored = self._samples.box(row)
            for _ in range(2):
                began = perf_counter()
                resize_pack(
                    picture,
                    stride_bytes,
                    width,
                    height,
                    box,
                    origin=origin,
                    mirrored=mirrored,
                    out=self._out,
                )
                taken_s = perf_counter() - began
            self.seconds["resize"] += taken_s

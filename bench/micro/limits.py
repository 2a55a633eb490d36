"""The best possible time of each stage of a sample, on the same samples and crops.

    read      copying the blob's bytes from memory to memory
    join      copying the joined JPEG's bytes
    decode    libjpeg-turbo on JPEGs joined beforehand, one right after the other
    resize    resizing a picture for the second time, so that all of it is in the caches

The rest of a stage's time is due to its surroundings: cold caches, system calls, Python.
"""

from time import perf_counter
from typing import Final

import numpy as np
from numpy.typing import NDArray

from bench.micro.contenders import PreparedSamples
from feeder.jpeg.decode import decode_rgbx
from feeder.jpeg.resize import resize_pack
from feeder.jpeg.scratch import Scratch

LIMITS: Final = ("read", "join", "decode", "resize")


class StageLimits:
    """Measures the limits with its own clock; ``seconds`` is the total time of each stage."""

    def __init__(self, samples: PreparedSamples, image_size: int) -> None:
        self._samples = samples
        self._copied, self._rgbx = Scratch(), Scratch()
        self._out = np.empty((image_size, image_size, 3), np.int8)
        self.seconds = dict.fromkeys(LIMITS, 0.0)

    def measure(self, first: int, end: int) -> None:
        """Measure the samples ``first`` .. ``end`` - 1 with the crops of the current epoch."""
        pieces = [self._samples.joined(row) for row in range(first, end)]
        self._copy("read", [self._samples.blob(row) for row in range(first, end)])
        self._copy("join", [jpeg for jpeg, *_ in pieces])
        began = perf_counter()
        for jpeg, width, height, scale, _, _ in pieces:
            self._decode(jpeg, width, height, scale)
        self.seconds["decode"] += perf_counter() - began
        for piece in pieces:
            self._resize(*piece)

    def _copy(self, stage: str, sources: list[NDArray[np.uint8]]) -> None:
        began = perf_counter()
        for source in sources:
            np.copyto(self._copied.take(source.size), source)
        self.seconds[stage] += perf_counter() - began

    def _decode(
        self, jpeg: NDArray[np.uint8], width: int, height: int, scale: int
    ) -> tuple[NDArray[np.uint8], int]:
        picture, stride_bytes = self._rgbx.take_picture(-(-width // scale), -(-height // scale))
        decode_rgbx(jpeg, width, height, scale, stride_bytes, picture)
        return picture, stride_bytes

    def _resize(
        self,
        jpeg: NDArray[np.uint8],
        width: int,
        height: int,
        scale: int,
        box: tuple[float, float, float, float],
        mirrored: bool,
    ) -> None:
        picture, stride_bytes = self._decode(jpeg, width, height, scale)
        size = -(-width // scale), -(-height // scale)
        for _ in range(2):
            began = perf_counter()
            resize_pack(picture, stride_bytes, *size, box, mirrored=mirrored, out=self._out)
            taken_s = perf_counter() - began
        self.seconds["resize"] += taken_s

"""The contender that is Pillow alone: how torchvision's ImageFolder and transforms use it.

The image is opened from its bytes, decoded whole and converted to RGB; the crop's box is resized,
mirrored and packed with numpy. Which Pillow that is, Pillow-SIMD or not, is in the report's header.
"""

import io

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from .contenders import PreparedSamples


class PillowSamples:
    """The images and crops of ``samples``, by Pillow; methods as those of PreparedSamples."""

    def __init__(self, samples: PreparedSamples) -> None:
        self._samples = samples

    def decode_full(self, first: int, end: int) -> None:
        """Decode whole ordinary JPEGs, from memory, to RGB."""
        for row in range(first, end):
            _decode(self._samples.jpegs[row])

    def sample_full(self, first: int, end: int, pixels: NDArray[np.int8]) -> None:
        """Make samples first .. end - 1 from file to ``pixels`` (end - first, S, S, 3)."""
        crops = self._samples.plan(first, end)
        for row, (x, y, w, h), flip, out in zip(
            range(first, end), crops.boxes.tolist(), crops.flips.tolist(), pixels, strict=True
        ):
            image = _decode(self._samples.read_jpeg(row))
            box = (x, y, x + w, y + h)
            image = image.resize(out.shape[1::-1], Image.Resampling.BILINEAR, box=box)
            if flip:
                image = image.transpose(Image.Transpose.FLIP_LEFT_RIGHT)
            np.bitwise_xor(np.asarray(image), 0x80, out=out.view(np.uint8))


def _decode(jpeg: bytes) -> Image.Image:
    with Image.open(io.BytesIO(jpeg)) as image:
        return image.convert("RGB")

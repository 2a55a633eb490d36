"""The operations on a picture that augmentations are made of, on Pillow images of mode RGB.

They are what torchvision does to Pillow images, to the bit of ``PIL.ImageEnhance`` and
``PIL.ImageOps`` as Pillow-SIMD has them. Where Pillow blends two pictures value by value, numpy or
a table does the same arithmetic in a sixth of the time. What moves pixels takes the nearest one and
fills with black, as torchvision's RandAugment does unless told otherwise.
"""

from collections.abc import Callable, Iterable
from typing import Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageFilter, ImageOps

from feeder.augment import Operation, Step

_BLOCK_ROWS: Final = 16
_LEVELS: Final = np.arange(256, dtype=np.uint8).reshape(1, 256, 1)
_SAME: Final = list(range(256))
_BLACK: Final = (0, 0, 0)


def apply_steps(image: Image.Image, steps: Iterable[Step]) -> Image.Image:
    """Return the image after all steps, in their order."""
    for operation, amount in steps:
        image = _OPERATIONS[operation](image, amount)
    return image


def blend(
    degenerate: NDArray[np.uint8], levels: NDArray[np.uint8], factor: float
) -> NDArray[np.uint8]:
    """Return ``degenerate + factor * (levels - degenerate)`` as Pillow's Image.blend rounds it.

    It computes in float32, clips to 0 .. 255 and drops the fraction. Shapes are (height, width, C);
    a degenerate of one channel counts for all.
    """
    mixed = np.empty_like(levels)
    for first in range(0, len(levels), _BLOCK_ROWS):  # what is in between stays in the cache
        rows = slice(first, first + _BLOCK_ROWS)
        low = degenerate[rows].astype(np.float32)
        high = levels[rows].astype(np.float32)
        high -= low
        high *= np.float32(factor)
        high += low
        np.clip(high, 0, 255, out=high)
        np.copyto(mixed[rows], high, casting="unsafe")
    return mixed


def _blend_level(image: Image.Image, level: int, factor: float) -> Image.Image:
    """Blend with one grey level: the result of each level is the same everywhere."""
    table = blend(np.full_like(_LEVELS, level), _LEVELS, factor)
    return image.point(table.ravel().tolist() * 3)


def _brighten(image: Image.Image, factor: float) -> Image.Image:
    return _blend_level(image, 0, factor)


def _contrast(image: Image.Image, factor: float) -> Image.Image:
    histogram = np.array(image.convert("L").histogram())
    mean = float(histogram @ np.arange(256)) / (image.width * image.height)
    return _blend_level(image, int(mean + 0.5), factor)


def _saturate(image: Image.Image, factor: float) -> Image.Image:
    grey = np.asarray(image.convert("L"))[:, :, np.newaxis]
    return Image.fromarray(blend(grey, np.asarray(image), factor))


def _sharpen(image: Image.Image, factor: float) -> Image.Image:
    smooth = np.asarray(image.filter(ImageFilter.SMOOTH))
    return Image.fromarray(blend(smooth, np.asarray(image), factor))


def _turn_hue(image: Image.Image, turns: float) -> Image.Image:
    """Turn the hue, which has 256 steps; torchvision scales by 255 and drops the fraction."""
    shift = int(turns * 255)
    table = [(level + shift) & 255 for level in _SAME]
    return image.convert("HSV").point(table + _SAME + _SAME).convert("RGB")


def _grey(image: Image.Image, _: float) -> Image.Image:
    return image.convert("L").convert("RGB")


def _posterise(image: Image.Image, bits: float) -> Image.Image:
    return ImageOps.posterize(image, int(bits))


def _solarise(image: Image.Image, threshold: float) -> Image.Image:
    # Pillow's signature wants a whole number, its code compares; torchvision hands on the float.
    return image.point([level if level < threshold else 255 - level for level in _SAME] * 3)


def _autocontrast(image: Image.Image, _: float) -> Image.Image:
    return ImageOps.autocontrast(image)


def _equalise(image: Image.Image, _: float) -> Image.Image:
    return ImageOps.equalize(image)


def _rotate(image: Image.Image, degrees: float) -> Image.Image:
    return image.rotate(degrees, Image.Resampling.NEAREST, fillcolor=_BLACK)


def _shear_x(image: Image.Image, amount: float) -> Image.Image:
    return _move(image, (1.0, amount, 0.0, 0.0, 1.0, 0.0))


def _shear_y(image: Image.Image, amount: float) -> Image.Image:
    return _move(image, (1.0, 0.0, 0.0, amount, 1.0, 0.0))


def _translate_x(image: Image.Image, pixels: float) -> Image.Image:
    return _move(image, (1.0, 0.0, -pixels, 0.0, 1.0, 0.0))


def _translate_y(image: Image.Image, pixels: float) -> Image.Image:
    return _move(image, (1.0, 0.0, 0.0, 0.0, 1.0, -pixels))


def _move(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    """Show at (x, y) the source's (m0 x + m1 y + m2, m3 x + m4 y + m5)."""
    return image.transform(
        image.size,
        Image.Transform.AFFINE,
        matrix,
        Image.Resampling.NEAREST,
        fillcolor=_BLACK,
    )


_OPERATIONS: Final[dict[Operation, Callable[[Image.Image, float], Image.Image]]] = {
    "shear-x": _shear_x,
    "shear-y": _shear_y,
    "translate-x": _translate_x,
    "translate-y": _translate_y,
    "rotate": _rotate,
    "brightness": _brighten,
    "saturation": _saturate,
    "contrast": _contrast,
    "sharpness": _sharpen,
    "posterise": _posterise,
    "solarise": _solarise,
    "autocontrast": _autocontrast,
    "equalise": _equalise,
    "hue": _turn_hue,
    "greyscale": _grey,
}

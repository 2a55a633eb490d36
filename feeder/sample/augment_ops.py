"""The operations of augmentations, on Pillow images of mode RGB.

They equal torchvision's on Pillow images, to the bit of Pillow-SIMD's ``ImageEnhance`` and
``ImageOps``. Brightness and contrast blend with a picture of one level, which a table does in half
of the time. Geometric operations take the nearest pixel and fill with black, as torchvision's
RandAugment does by default. Blur and augmix leave Pillow: torchvision's are of tensors, in float32.
"""

from collections.abc import Callable, Iterable
from typing import Any, Final

import numpy as np
from PIL import Image, ImageEnhance, ImageOps

from feeder.jpeg.blur import blur
from feeder.plan.operations import Blur, Mixture, Operation, Step

_LEVELS: Final = np.arange(256, dtype=np.float32)
_SAME: Final = list(range(256))
_BLACK: Final = (0, 0, 0)


def apply_steps(image: Image.Image, steps: Iterable[Step]) -> Image.Image:
    """Return the image after all steps, in order."""
    for operation, amount in steps:
        image = _OPERATIONS[operation](image, amount)
    return image


def _blend_level(image: Image.Image, level: int, factor: float) -> Image.Image:
    """Image.blend with a picture of one grey level: ``level + factor * (value - level)``.

    As there it is computed in float32, clipped to 0 .. 255 and truncated.
    """
    grey = np.float32(level)
    mixed = grey + np.float32(factor) * (_LEVELS - grey)
    return image.point(mixed.clip(0, 255).astype(np.uint8).tolist() * 3)


def _brighten(image: Image.Image, factor: float) -> Image.Image:
    return _blend_level(image, 0, factor)


def _contrast(image: Image.Image, factor: float) -> Image.Image:
    histogram = np.array(image.convert("L").histogram())
    mean = float(histogram @ np.arange(256)) / (image.width * image.height)
    return _blend_level(image, int(mean + 0.5), factor)


def _saturate(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Color(image).enhance(factor)


def _sharpen(image: Image.Image, factor: float) -> Image.Image:
    return ImageEnhance.Sharpness(image).enhance(factor)


def _shift_hue(image: Image.Image, turns: float) -> Image.Image:
    """Shift the hue, which has 256 steps; torchvision scales by 255 and truncates."""
    shift = int(turns * 255)
    table = [(level + shift) & 255 for level in _SAME]
    return image.convert("HSV").point(table + _SAME + _SAME).convert("RGB")


def _grey(image: Image.Image, _: float) -> Image.Image:
    return image.convert("L").convert("RGB")


def _posterise(image: Image.Image, bits: float) -> Image.Image:
    # AugMix keeps down to 0 bits, which newer versions of ImageOps.posterize refuse.
    mask = -(1 << (8 - int(bits)))
    return image.point([level & mask for level in _SAME] * 3)


def _solarise(image: Image.Image, threshold: float) -> Image.Image:
    # ImageOps.solarize is annotated with int but only compares; torchvision passes a float.
    return image.point([level if level < threshold else 255 - level for level in _SAME] * 3)


def _autocontrast(image: Image.Image, _: float) -> Image.Image:
    return ImageOps.autocontrast(image)


def _equalise(image: Image.Image, _: float) -> Image.Image:
    return ImageOps.equalize(image)


def _invert(image: Image.Image, _: float) -> Image.Image:
    return ImageOps.invert(image)


def _flip(image: Image.Image, _: float) -> Image.Image:
    return image.transpose(Image.Transpose.FLIP_TOP_BOTTOM)


def _blur(image: Image.Image, kernel: Blur) -> Image.Image:
    return Image.fromarray(blur(np.asarray(image), kernel.weights))


def _mix(image: Image.Image, mixture: Mixture) -> Image.Image:
    """Return the weighted sum of the image and its chains, in float32 and truncated as in torch."""
    mixed = np.multiply(np.asarray(image), np.float32(mixture.own_weight), dtype=np.float32)
    part = np.empty_like(mixed)
    for weight, steps in mixture.chains:
        levels = np.asarray(apply_steps(image, steps))
        mixed += np.multiply(levels, np.float32(weight), out=part)
    return Image.fromarray(mixed.astype(np.uint8))


def _rotate(image: Image.Image, degrees: float) -> Image.Image:
    return image.rotate(degrees, Image.Resampling.NEAREST, fillcolor=_BLACK)


def _shear_x(image: Image.Image, amount: float) -> Image.Image:
    return _transform(image, (1.0, amount, 0.0, 0.0, 1.0, 0.0))


def _shear_y(image: Image.Image, amount: float) -> Image.Image:
    return _transform(image, (1.0, 0.0, 0.0, amount, 1.0, 0.0))


def _translate_x(image: Image.Image, pixels: float) -> Image.Image:
    return _transform(image, (1.0, 0.0, -pixels, 0.0, 1.0, 0.0))


def _translate_y(image: Image.Image, pixels: float) -> Image.Image:
    return _transform(image, (1.0, 0.0, 0.0, 0.0, 1.0, -pixels))


def _transform(image: Image.Image, matrix: tuple[float, ...]) -> Image.Image:
    """Return an image with the source's pixel (m0 x + m1 y + m2, m3 x + m4 y + m5) at (x, y)."""
    return image.transform(
        image.size,
        Image.Transform.AFFINE,
        matrix,
        Image.Resampling.NEAREST,
        fillcolor=_BLACK,
    )


_OPERATIONS: Final[dict[Operation, Callable[[Image.Image, Any], Image.Image]]] = {
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
    "invert": _invert,
    "hue": _shift_hue,
    "greyscale": _grey,
    "vertical-flip": _flip,
    "blur": _blur,
    "augmix": _mix,
}

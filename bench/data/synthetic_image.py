"""One synthetic image: a JPEG that decodes like ImageNet's and that a small network can learn.

An image is a pure function of (seed, index, classes), given the same numpy, Pillow and
libjpeg-turbo; its class is ``index % classes``. It resembles a photograph by dead leaves (shapes of
power-law sizes over one another, whose edges have a 1/f spectrum), shading and fine detail from 1/f
noise, and detail that is rich in some regions and poor in others. A class is defined by the hues of
its shapes and of its ground, the shape, and the direction and wavelength of the stripes over it;
brightness, sizes, positions and everything else vary by image. The constants are fitted to real
ImageNet with ``feeder-bench likeness``.
"""

import colorsys
import functools
import io
import math
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray
from PIL import Image, ImageDraw

_HUES = (
    ("red", 0), ("green", 125), ("violet", 275), ("amber", 42), ("teal", 172), ("rose", 330),
    ("lime", 85), ("blue", 230), ("orange", 24), ("mint", 150), ("purple", 298), ("sky", 200),
)  # fmt: skip
_SHAPES = ("disc", "star", "bar", "triangle", "cross", "crescent", "square", "flower")
_STRIPES = 6  # directions of the stripes, 30 degrees apart
_WAVELENGTHS_PX = (13.0, 26.0)
MAX_CLASSES = len(_HUES) * len(_SHAPES) * _STRIPES * len(_WAVELENGTHS_PX)

_FIELD_PX = 1408  # side of the detail's noise: more than the longest image side
_SOFT_FIELD_PX = 320  # the same of the field for soft light, which is widened sixteen times
_SHORTEST_PX, _USUAL_PX, _LONGEST_PX = 140, 500, 1280
"""Of an image's long side."""
_DETAIL_LEVELS = 7.5  # grey levels of fine detail, which sets the bytes per pixel


class ClassLook(NamedTuple):
    """What all images of a class have in common."""

    name: str
    hue: float
    ground_hue: float
    shape: str
    stripe_rad: float
    wavelength_px: float


def class_look(label: int) -> ClassLook:
    """Return the look of class ``label``: all MAX_CLASSES differ, neighbours in every attribute."""
    rest, place = divmod(label, len(_HUES))
    hue_name, hue = _HUES[place]
    shape = _SHAPES[(rest + place + place // len(_SHAPES)) % len(_SHAPES)]
    rest //= len(_SHAPES)
    stripe = (rest + place) % _STRIPES
    coarse = (rest // _STRIPES + place) % 2
    return ClassLook(
        name=f"{label:04d}_{hue_name}_{shape}",
        hue=hue / 360,
        ground_hue=_HUES[(place * 5 + 2) % len(_HUES)][1] / 360,
        shape=shape,
        stripe_rad=stripe * math.pi / _STRIPES,
        wavelength_px=_WAVELENGTHS_PX[coarse],
    )


def draw_jpeg(index: int, *, classes: int, seed: int) -> bytes:
    """Return image ``index`` of the synthetic set of ``classes`` classes as a JPEG."""
    rng = np.random.Generator(np.random.PCG64([seed, index]))
    width, height = _draw_size(rng)
    look = class_look(index % classes)
    # In ImageNet the 500-pixel pictures come from one careful converter, the others from the web.
    usual = max(width, height) == _USUAL_PX
    quality = 96 if rng.random() < (0.93 if usual else 0.15) else int(rng.integers(64, 93))
    grey, halved = rng.random(2) < (0.02, 0.08 if usual else 0.65)
    detail = float(np.clip(_DETAIL_LEVELS * rng.lognormal(0.0, 0.5), 0.6, 30.0))
    planes = _paint(rng, look, width, height, detail)
    if grey:
        picture = Image.fromarray(planes[0])
    else:
        picture = Image.merge("YCbCr", [Image.fromarray(plane) for plane in planes])
    out = io.BytesIO()
    picture.save(out, "JPEG", quality=quality, subsampling=2 if halved else 0, optimize=True)
    return out.getvalue()


def _draw_size(rng: np.random.Generator) -> tuple[int, int]:
    """Draw (width, height) in pixels: most have a long side of _USUAL_PX, 3 in 4 are landscape."""
    kind, aspect_kind, where = rng.random(3)
    if kind < 0.72:
        long = _USUAL_PX
    elif kind < 0.89:
        long = int(_SHORTEST_PX + (_USUAL_PX - _SHORTEST_PX) * where)
    else:
        long = int(_USUAL_PX + (_LONGEST_PX - _USUAL_PX) * where**2.0)
    if aspect_kind < 0.45:
        aspect = 4 / 3
    elif aspect_kind < 0.72:
        aspect = 1.5
    else:
        aspect = 1 + 0.7 * float(rng.random())
    short = round(long / aspect)
    return (long, short) if rng.random() < 0.77 else (short, long)


@functools.cache
def _noise_field(exponent: float, salt: int, side: int) -> NDArray[np.int16]:
    """Return a (side, side) periodic field of 1/f**exponent noise, 32 levels a sigma."""
    rng = np.random.Generator(np.random.PCG64([0xFEED, salt]))
    white = rng.standard_normal((side, side), np.float32)
    rows = np.fft.fftfreq(side)[:, None]
    columns = np.fft.rfftfreq(side)[None, :]
    # Structure coarser than 64 pixels comes from the leaves and the shading.
    frequency = np.maximum(np.hypot(rows, columns), 1 / 64)
    field = np.fft.irfft2(np.fft.rfft2(white) * frequency**-exponent)
    field *= 32 / field.std()
    return np.clip(np.rint(field), -127, 127).astype(np.int16)


def _cut(
    rng: np.random.Generator, field: NDArray[np.int16], width: int, height: int
) -> NDArray[np.int16]:
    """Cut (height, width) out of a noise field, at a random position, upside down or not."""
    x, y = rng.integers(0, (field.shape[1] - width + 1, field.shape[0] - height + 1))
    return field[y : y + height, x : x + width][:: 1 - 2 * int(rng.integers(2))]


def _paint(
    rng: np.random.Generator, look: ClassLook, width: int, height: int, detail: float
) -> list[NDArray[np.uint8]]:
    """Paint the picture: Y, Cb and Cr, each (height, width).

    The structure is painted at half size, which blurs its edges as a lens does, then fine detail is
    added at full size.
    """
    half = (-(-width // 2), -(-height // 2))
    leaves = _draw_leaves(rng, look, *half)
    colours, shading, stripes, details = _colour_leaves(rng, look)
    light, bend = _draw_soft(rng, *half), _draw_soft(rng, *half)
    levels = [
        np.take(colour, leaves) + np.take(shade, leaves) * light
        for colour, shade in zip(colours, shading, strict=True)
    ]
    levels[0] += np.take(stripes, leaves) * _stripe_wave(rng, look, bend, *half)
    amount = np.take(details * np.float32(detail * 4), leaves) * np.exp2(light * 0.7)
    bands = [Image.fromarray(np.clip(band, 0, 255).astype(np.uint8)) for band in (*levels, amount)]
    # One picture of four bands: Pillow-SIMD resizes it in the time that it takes for one.
    whole = Image.merge("CMYK", bands).resize((width, height), Image.Resampling.BILINEAR).split()
    strength = np.asarray(whole[3], np.int16)
    planes = []
    for band, (exponent, salt, share) in zip(whole, _DETAIL, strict=False):
        noise = _cut(rng, _noise_field(exponent, salt, _FIELD_PX), width, height) * (
            strength * share >> 4
        )
        noise >>= 7
        noise += np.asarray(band)
        planes.append(np.clip(noise, 0, 255, out=noise).astype(np.uint8))
    return planes


_DETAIL = ((0.75, 2, 16), (1.0, 3, 5), (1.0, 4, 5))
"""The detail of Y, Cb and Cr: exponent of its spectrum, salt, strength in sixteenths."""


def _draw_soft(rng: np.random.Generator, width: int, height: int) -> NDArray[np.float32]:
    """Return (height, width) of slowly varying values, about one in size."""
    small = _cut(rng, _noise_field(1.8, 1, _SOFT_FIELD_PX), width // 8 + 2, height // 8 + 2)
    picture = Image.fromarray(small.astype(np.float32) * np.float32(1 / 32))
    return np.asarray(picture.resize((width, height), Image.Resampling.BILINEAR))


_LEAVES = 26


def _draw_leaves(
    rng: np.random.Generator, look: ClassLook, width: int, height: int
) -> NDArray[np.intp]:
    """Draw the class's shape many times, far ones first; return (height, width) of leaf numbers."""
    canvas = Image.new("L", (width, height), 0)
    draw = ImageDraw.Draw(canvas)
    side = math.sqrt(width * height)
    radii = np.sort(np.minimum(0.035 * rng.random(_LEAVES) ** -0.75, 0.3) * side)
    radii[::3] = radii[::-3]  # small ones behind large ones too
    outline = _outline(look.shape)
    for leaf, radius in enumerate(radii.tolist(), 1):
        x, y = rng.random(2) * (width, height)
        turn = float(rng.normal(0, 0.35))
        points = outline * radius * np.exp(1j * turn) + complex(x, y)
        draw.polygon([(point.real, point.imag) for point in points.tolist()], fill=leaf)
    return np.asarray(canvas, np.intp)


@functools.cache
def _outline(shape: str) -> NDArray[np.complex128]:
    """Return a shape's outline as points x + iy around the origin, radius about 1."""
    angle = np.linspace(0, 2 * np.pi, 48, endpoint=False)
    match shape:
        case "disc":
            points = np.exp(1j * angle)
        case "star":
            points = np.exp(1j * angle[::4]) * np.where(np.arange(12) % 2, 0.42, 1.25)
        case "bar":
            points = np.array([-1.5 - 0.35j, 1.5 - 0.35j, 1.5 + 0.35j, -1.5 + 0.35j])
        case "triangle":
            points = 1.25 * np.exp(1j * np.array([-np.pi / 2, np.pi / 6, 5 * np.pi / 6]))
        case "cross":
            arm = np.array([1.2 - 0.33j, 1.2 + 0.33j, 0.33 + 0.33j])
            points = np.concatenate([arm * 1j**turn for turn in range(4)])
        case "crescent":
            outer = 1.1 * np.exp(1j * np.linspace(0.95, 2 * np.pi - 0.95, 36))
            inner = 0.55 - 0.8 * np.exp(-1j * np.linspace(-2.2, 2.2, 24))
            points = np.concatenate([outer, inner])
        case "square":
            points = np.array([-1 - 1j, 1 - 1j, 1 + 1j, -1 + 1j])
        case _:  # flower
            points = np.exp(1j * angle) * (0.8 + 0.35 * np.cos(5 * angle))
    outline: NDArray[np.complex128] = np.asarray(points, np.complex128)
    return outline


def _colour_leaves(rng: np.random.Generator, look: ClassLook) -> list[NDArray[np.float32]]:
    """Return what each leaf looks like, by leaf number; leaf 0 is the ground.

    Levels of Y, Cb and Cr (3, leaves); how much of the soft light each level takes (3, leaves);
    strength of the stripes in grey levels, and factor of the fine detail's strength (leaves,).
    """
    count = _LEAVES + 1
    hue = np.full(count, look.hue)
    hue[0] = look.ground_hue
    hue += rng.normal(0, 0.018, count)
    saturation = np.clip(rng.normal(0.5, 0.16, count), 0.08, 0.9)
    value = np.clip(rng.normal(0.58, 0.2, count), 0.12, 0.97)
    rgb = 255 * np.array(
        [colorsys.hsv_to_rgb(*hsv) for hsv in zip(hue % 1, saturation, value, strict=True)]
    )
    luma = rgb @ (0.299, 0.587, 0.114)
    blue = 128 + 0.564 * (rgb[:, 2] - luma)
    red = 128 + 0.713 * (rgb[:, 0] - luma)
    tables = (
        np.stack([luma, blue, red]),
        rng.normal(0, (18, 5, 5), (count, 3)).T,
        np.abs(rng.normal(15, 7, count)),
        np.exp2(rng.normal(-0.2, 0.6, count)),
    )
    return [table.astype(np.float32) for table in tables]


def _stripe_wave(
    rng: np.random.Generator, look: ClassLook, warp: NDArray[np.float32], width: int, height: int
) -> NDArray[np.float32]:
    """Return (height, width), at half size, of stripes from -1 to 1, bent a little by ``warp``."""
    turn = look.stripe_rad + float(rng.normal(0, 0.1))
    step = 2 * np.pi * 2 / (look.wavelength_px * float(rng.uniform(0.8, 1.25)))
    x = np.arange(width, dtype=np.float32) * np.float32(step * math.cos(turn))
    y = np.arange(height, dtype=np.float32) * np.float32(step * math.sin(turn))
    phase = x[None, :] + (y[:, None] + np.float32(rng.uniform(0, 2 * np.pi)))
    phase += warp * np.float32(1)
    return np.sin(phase, out=phase)

"""Check 1: normalising against ``(level / 255 - mean) / std`` in float64.

Every packing, type and number of channels, all 256 levels of each channel, in the form that a
loader runs on the device, and in the uncompiled form that replaces it where compiling fails.

The product computes in float32 and rounds once. So the largest error allowed is half a unit in the
last place of the type, and FLOAT32_ERROR for rounding scale, bias, product and sum.
"""

import itertools
from collections.abc import Mapping
from typing import Final, get_args

import numpy as np
import torch
from numpy.typing import NDArray

from feeder.plan.packing import Packing, pack_levels, pixel_layout_of
from trainer_client._device import Compile, Normaliser
from trainer_client._host_normalise import IMAGENET_MEAN, IMAGENET_STD

from ..report import Result, single
from .device import Subject, forget_compiled
from .run import Check

DTYPES: Final = (torch.float16, torch.bfloat16, torch.float32)
FLOAT32_ERROR: Final = 5e-7

_NO_NUMBER: Final = 1e30  # the error of NaN, infinity and wrong shapes; JSON has no infinity

_CHANNELS: Final = (4, 3)
_IMAGES: Final = 2
_SIDE_PX: Final = 17  # 289 pixels hold all levels, and end within a vector of any width
_FORMS: Final[Mapping[str, Compile | None]] = {
    "as in a loader": None,
    "uncompiled": lambda function: function,
}


def check_exactness(subject: Subject) -> Check:
    device, levels = subject.device, _all_levels()
    exact = exact_values(levels)
    errors: dict[torch.dtype, list[tuple[float, float]]] = {dtype: [] for dtype in DTYPES}
    problems = []
    ways = compile_failures = 0
    for packing, dtype, channels in itertools.product(get_args(Packing), DTYPES, _CHANNELS):
        layout = pixel_layout_of(packing)
        packed = np.empty((_IMAGES, *layout.image_shape(_SIDE_PX)), layout.dtype)
        for rgb, image in zip(levels, packed, strict=True):
            pack_levels(rgb, layout, image)
        pixels = torch.from_numpy(packed).to(device)
        for form, compiler in _FORMS.items():
            forget_compiled(device)
            normaliser = Normaliser(
                device, dtype, channels=channels, packing=packing, compiler=compiler
            )
            error, error_ulp, problem = compare(normaliser(pixels), exact, channels, dtype)
            errors[dtype].append((error, error_ulp))
            if problem is not None:
                problems.append(f"{packing} to {channels} channels of {dtype}, {form}: {problem}")
            ways += 1
            compile_failures += normaliser.compile_failures
    rows: list[Result] = []
    largest = []
    for dtype, pairs in errors.items():
        name = str(dtype).removeprefix("torch.")
        error, ulps = max(error for error, _ in pairs), max(ulps for _, ulps in pairs)
        rows.append(single(f"exactness/{name}", "ulp", ulps))
        rows.append(single(f"exactness/{name}-absolute", "1e-6", 1e6 * error))
        largest.append(f"{name} {ulps:.2f} ulp ({error:.1e})")
    counts = {"ways": ways, "wrong": len(problems), "compile-failures": compile_failures}
    rows += [single(f"exactness/{name}", "ways", count) for name, count in counts.items()]
    sentence = f"largest error of {ways} ways: {', '.join(largest)}"
    if problems:
        sentence += f"; {len(problems)} of them are wrong, {problems[0]}"
    else:
        sentence += "; the fourth channel is exactly 0"
    if compile_failures:
        sentence += f"; torch could not compile {compile_failures} of them"
    return Check("failed" if problems else "passed", sentence, rows)


def _all_levels() -> NDArray[np.uint8]:
    """Return images with all levels in each channel, no two channels alike: (N, S, S, 3)."""
    numbers = np.arange(_IMAGES * _SIDE_PX * _SIDE_PX).reshape(_IMAGES, _SIDE_PX, _SIDE_PX, 1)
    return np.asarray((numbers + np.array([0, 85, 170])) % 256, np.uint8)


def exact_values(levels: NDArray[np.uint8]) -> NDArray[np.float64]:
    """Return what uint8 ``levels`` (…, 3) are to become, float64 of the same shape."""
    mean, std = np.array(IMAGENET_MEAN), np.array(IMAGENET_STD)
    values: NDArray[np.float64] = (levels / 255.0 - mean) / std
    return values


def compare(
    images: torch.Tensor, exact: NDArray[np.float64], channels: int, dtype: torch.dtype
) -> tuple[float, float, str | None]:
    """Return the largest error of images (N, C, H, W), the same in ulp, and what is wrong.

    ``exact`` is (N, H, W, 3). Nothing is wrong with errors that are small enough, a fourth channel
    of zeros and the layout channels_last.
    """
    values = images.permute(0, 2, 3, 1).to(device="cpu", dtype=torch.float64).numpy()
    if images.dtype != dtype or values.shape != (*exact.shape[:3], channels):
        problem = f"the result is {images.dtype} of shape {tuple(images.shape)}"
        return _NO_NUMBER, _NO_NUMBER, problem
    errors = np.nan_to_num(np.abs(values[..., :3] - exact), nan=_NO_NUMBER, posinf=_NO_NUMBER)
    ulps = ulp(exact, dtype)
    found = float(errors.max()), float((errors / ulps).max())
    beyond = errors - (ulps / 2 + FLOAT32_ERROR)
    if beyond.max() > 0:
        at = np.unravel_index(np.argmax(beyond), beyond.shape)
        return *found, f"{values[at]:.6g} instead of {exact[at]:.6g}"
    if np.count_nonzero(values[..., 3:]):
        return *found, "the fourth channel is not 0"
    if not images.is_contiguous(memory_format=torch.channels_last):
        return *found, "the result is not channels_last"
    return *found, None


def ulp(values: NDArray[np.float64], dtype: torch.dtype) -> NDArray[np.float64]:
    """Return the unit in the last place of ``dtype`` at each value, float64 of the same shape."""
    finfo = torch.finfo(dtype)
    _, exponents = np.frexp(np.maximum(np.abs(values), finfo.smallest_normal))
    units: NDArray[np.float64] = np.ldexp(finfo.eps, exponents - 1)
    return units

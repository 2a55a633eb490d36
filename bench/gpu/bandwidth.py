"""Check 2: the bandwidth of normalising, against a copy of as many bytes on the same device.

Bandwidth is bytes read and written by the second: pixels in, images out. The copy reads half of
them and writes the other half. Both go through several sources, more than an L2 cache holds.
"""

import itertools
from collections.abc import Sequence
from typing import Final

import torch

from trainer_client._device import Normaliser

from ..report import Result, compare, single
from ..rounds import rates
from .device import Subject, forget_compiled, time_in_turns
from .exactness import DTYPES
from .run import Check, judge_share

TARGET: Final = 0.85

SIDE_PX: Final = 224

_SOURCES: Final = 4
_REPEATS: Final = 10
_CHANNELS: Final = (4, 3)


def check_bandwidth(subject: Subject) -> Check:
    """Time batches of images of SIDE_PX in every type and number of channels."""
    device = subject.device
    shape = (subject.sizes.batch_size, SIDE_PX, SIDE_PX, 3)
    pixels = [
        torch.randint(-128, 128, shape, dtype=torch.int8, device=device) for _ in range(_SOURCES)
    ]
    rows: list[Result] = []
    compile_failures = 0
    for dtype, channels in itertools.product(DTYPES, _CHANNELS):
        forget_compiled(device)
        normaliser = Normaliser(device, dtype, channels=channels)
        rows += _measure(pixels, normaliser, subject)
        compile_failures += normaliser.compile_failures
    rows.append(single("bandwidth/compile-failures", "ways", compile_failures))
    return judge_bandwidth(rows, device.type)


def judge_bandwidth(rows: Sequence[Result], device_type: str) -> Check:
    """Return the check with its verdict, which is that of the slowest with a baseline."""
    measured = [row for row in rows if row.ratio is not None]
    slowest = min(measured, key=lambda row: row.ratio or 0.0)
    verdict, text = judge_share(slowest.ratio or 0.0, TARGET, "a copy", device_type=device_type)
    sentence = (
        f"normalising reads and writes {slowest.value:,.0f} GB/s in {slowest.name.split('/')[1]}, "
        f"the slowest of {len(measured)}: {text}"
    )
    failures = sum(int(row.value) for row in rows if row.name == "bandwidth/compile-failures")
    if failures:
        sentence += f"; torch could not compile {failures} of them"
    return Check(verdict, sentence, rows)


def _measure(
    pixels: Sequence[torch.Tensor], normaliser: Normaliser, subject: Subject
) -> list[Result]:
    """Return the rows of the copy and of normalising."""
    images = normaliser(pixels[0])
    size_bytes = pixels[0].nbytes + images.nbytes
    del images
    halves = [
        torch.ones(size_bytes // 2, dtype=torch.uint8, device=pixels[0].device) for _ in pixels
    ]
    target = torch.zeros_like(halves[0])
    kind = f"{str(normaliser.dtype).removeprefix('torch.')}-{normaliser.channels}"
    taken = time_in_turns(
        {
            f"bandwidth/copy-{kind}": lambda number: target.copy_(halves[number % len(halves)]),
            f"bandwidth/{kind}": lambda number: normaliser(pixels[number % len(pixels)]),
        },
        subject,
        repeats=_REPEATS,
    )
    return compare(rates(taken, size_bytes / 1e9), "GB/s")

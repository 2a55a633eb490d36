"""Check 2: the bandwidth of normalising, against a copy of as many bytes on the same device.

Bandwidth is bytes read and written by the second: pixels in, images out. The copy reads half of
them and writes the other half. Both go through several sources, more than an L2 cache holds.
"""

from collections.abc import Sequence
from typing import Final

import torch

from trainer_client._device import Normaliser

from ..report import Result, single, summarise
from .device import DeviceClock, forget_compiled, time_in_turns
from .exactness import DTYPES
from .report import Check, describe_share, judge

TARGET: Final = 0.85

SIDE_PX: Final = 224

_SOURCES: Final = 4
_REPEATS: Final = 10
_CHANNELS: Final = (4, 3)


def check_bandwidth(
    device: torch.device, clock: DeviceClock, *, batch_size: int, rounds: int
) -> Check:
    """Time batches of ``batch_size`` images of SIDE_PX in every type and number of channels."""
    pixels = [
        torch.randint(-128, 128, (batch_size, SIDE_PX, SIDE_PX, 3), dtype=torch.int8, device=device)
        for _ in range(_SOURCES)
    ]
    rows: list[Result] = []
    measured: list[Result] = []
    compile_failures = 0
    for dtype in DTYPES:
        for channels in _CHANNELS:
            forget_compiled(device)
            normaliser = Normaliser(device, dtype, channels=channels)
            copy, normalise = _measure(pixels, normaliser, clock, rounds)
            rows += [copy, normalise]
            measured.append(normalise)
            compile_failures += normaliser.compile_failures
    rows.append(single("bandwidth/compile-failures", "ways", compile_failures))
    return judge_bandwidth(measured, rows, compile_failures, device.type)


def judge_bandwidth(
    measured: Sequence[Result], rows: Sequence[Result], compile_failures: int, device_type: str
) -> Check:
    """Return the check with its verdict, which is that of the slowest of ``measured``."""
    slowest = min(measured, key=lambda row: row.ratio or 0.0)
    share = slowest.ratio or 0.0
    described = describe_share(share, TARGET, "a copy", device_type=device_type)
    sentence = (
        f"normalising reads and writes {slowest.value:,.0f} GB/s in {slowest.name.split('/')[1]}, "
        f"the slowest of {len(measured)}: {described}"
    )
    if compile_failures:
        sentence += f"; torch could not compile {compile_failures} of them"
    return Check(
        name="bandwidth",
        verdict=judge(share >= TARGET, device_type=device_type),
        sentence=sentence,
        results=rows,
    )


def _measure(
    pixels: Sequence[torch.Tensor], normaliser: Normaliser, clock: DeviceClock, rounds: int
) -> tuple[Result, Result]:
    """Return the rows of the copy and of normalising."""
    images = normaliser(pixels[0])
    size_bytes = pixels[0].nbytes + images.nbytes
    del images
    halves = [
        torch.ones(size_bytes // 2, dtype=torch.uint8, device=pixels[0].device) for _ in pixels
    ]
    target = torch.zeros_like(halves[0])
    taken = time_in_turns(
        {
            "copy": lambda number: target.copy_(halves[number % len(halves)]),
            "normalise": lambda number: normaliser(pixels[number % len(pixels)]),
        },
        clock,
        rounds=rounds,
        repeats=_REPEATS,
    )
    rates = {
        name: [size_bytes / seconds / 1e9 for seconds in values] for name, values in taken.items()
    }
    kind = f"{str(normaliser.dtype).removeprefix('torch.')}-{normaliser.channels}"
    copy = summarise(f"bandwidth/copy-{kind}", "GB/s", rates["copy"])
    return copy, summarise(
        f"bandwidth/{kind}",
        "GB/s",
        rates["normalise"],
        baseline=copy.name,
        baseline_values=rates["copy"],
    )

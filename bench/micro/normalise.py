"""Normalising a batch on a CPU, beside copying as many bytes as it writes.

Each version of the client's C part and numpy's form write to memory that has its pages. Where torch
is installed, ``tensor`` is what a loader does for a batch, into the memory of an earlier result.
"""

import argparse
from collections.abc import Callable
from functools import partial
from importlib.util import find_spec
from time import process_time
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.plan.packing import DEFAULT_PACKING
from trainer_client._host_normalise import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    VALUE_TYPES,
    VERSIONS,
    HostNormaliser,
    ValueType,
    make_scaling,
)

from ..machine import choose_core, describe_machine, pinned_to
from ..report import Report, Result, compare
from ..rounds import Contender, measure

_SIZE_PX: Final = 224


def run(arguments: argparse.Namespace) -> Report:
    core = choose_core(arguments.core)
    machine = describe_machine({"all contenders": core}, decoder=None)
    shape = (arguments.images, _SIZE_PX, _SIZE_PX, 3)
    pixels = np.random.default_rng(0).integers(-128, 128, shape, np.int8)
    results: list[Result] = []
    with pinned_to(core):
        for value_type in VALUE_TYPES:
            for channels in (4, 3):
                ways = _ways(pixels, value_type, channels)
                contenders: dict[str, Contender] = {
                    f"normalise/{name}-{value_type}-{channels}": partial(_once, work)
                    for name, work in ways.items()
                }
                taken = measure(contenders, rounds=arguments.rounds, clock=process_time, verb=None)
                times_ms = {name: [1000 * value for value in row] for name, row in taken.items()}
                results += compare(times_ms, "ms")
    return Report(bench="normalise", machine=machine, results=results)


def _once(work: Callable[[], object], first: int, end: int) -> None:
    work()


def _ways(
    pixels: NDArray[np.int8], value_type: ValueType, channels: int
) -> dict[str, Callable[[], object]]:
    """Return the copy, which is the baseline, and the ways to normalise to a type of value."""
    scaling = make_scaling(IMAGENET_MEAN, IMAGENET_STD, channels=channels, value_type=value_type)
    out, copied = (HostNormaliser(scaling, DEFAULT_PACKING)(pixels) for _ in range(2))
    copied.fill(1)
    ways: dict[str, Callable[[], object]] = {"copy": partial(np.copyto, out, copied)}
    for version in VERSIONS:
        normaliser = HostNormaliser(scaling, DEFAULT_PACKING, version=version)
        ways[version] = partial(normaliser, pixels, out)
    if find_spec("torch") is not None:
        import torch  # which takes seconds that no other bench needs

        from trainer_client._device import Normaliser

        cpu, dtype = torch.device("cpu"), getattr(torch, value_type)
        ways["tensor"] = partial(
            Normaliser(cpu, dtype, channels=channels), torch.from_numpy(pixels)
        )
    return ways

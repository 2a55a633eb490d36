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
    Outputs,
    ValueType,
    make_scaling,
)

from ..machine import choose_core, describe_machine, pinned_to
from ..report import Report, Result, summarise
from ..rounds import Contender, run_rounds, warm_up

_SIZE_PX: Final = 224


def measure_normalise(*, images: int, rounds: int, core: int) -> Report:
    """Time batches of ``images`` images, in each of ``rounds`` rounds."""
    machine = describe_machine({"all contenders": core}, decoder=None)
    pixels = np.random.default_rng(0).integers(-128, 128, (images, _SIZE_PX, _SIZE_PX, 3), np.int8)
    results: list[Result] = []
    with pinned_to(frozenset({core})):
        for value_type in VALUE_TYPES:
            for channels in (4, 3):
                results += _measure_type(pixels, value_type, channels, rounds)
    return Report(bench="normalise", machine=machine, results=results)


def _measure_type(
    pixels: NDArray[np.int8], value_type: ValueType, channels: int, rounds: int
) -> list[Result]:
    """Return the rows of one type of value: the copy, and each way to normalise against it."""
    scaling = make_scaling(IMAGENET_MEAN, IMAGENET_STD, channels=channels, value_type=value_type)
    first = HostNormaliser(scaling, value_type, DEFAULT_PACKING)
    out, copied = (first.take_output(pixels, Outputs()) for _ in range(2))
    copied.fill(1)
    work: dict[str, Callable[[], object]] = {"copy": partial(np.copyto, out, copied)}
    for version in VERSIONS:
        normaliser = HostNormaliser(scaling, value_type, DEFAULT_PACKING, version=version)
        work[version] = partial(normaliser, pixels, out)
    if find_spec("torch") is not None:
        work["tensor"] = _with_torch(pixels, value_type, channels)
    times_ms: dict[str, list[float]] = {name: [] for name in work}
    contenders = {name: _once(each) for name, each in work.items()}
    warm_up(contenders, items=1, piece=1)
    for seconds in run_rounds(contenders, items=1, piece=1, rounds=rounds, clock=process_time):
        for name, taken_s in seconds.items():
            times_ms[name].append(1000 * taken_s)
    kind = f"{value_type}-{channels}"
    copy_ms = times_ms.pop("copy")
    copy = summarise(f"normalise/copy-{kind}", "ms", copy_ms)
    return [
        copy,
        *(
            summarise(
                f"normalise/{name}-{kind}", "ms", values, baseline=copy, baseline_values=copy_ms
            )
            for name, values in times_ms.items()
        ),
    ]


def _once(work: Callable[[], object]) -> Contender:
    """Return ``work``, of which a batch is the only item."""

    def contender(_first: int, _end: int) -> None:
        work()

    return contender


def _with_torch(
    pixels: NDArray[np.int8], value_type: ValueType, channels: int
) -> Callable[[], object]:
    import torch  # which takes seconds that no other bench needs

    from trainer_client._device import Normaliser

    normaliser = Normaliser(torch.device("cpu"), getattr(torch, value_type), channels=channels)
    return partial(normaliser, torch.from_numpy(pixels))


def run(arguments: argparse.Namespace) -> Report:
    """Measure as the command line asks."""
    return measure_normalise(
        images=arguments.images, rounds=arguments.rounds, core=choose_core(arguments.core)
    )

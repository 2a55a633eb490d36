"""What an order of batches is like: how it mixes, what it holds, how evenly hosts own it.

    feeder-bench order

On the plan alone, with no data and no daemon. Mixing is the number of distinct others that an image
meets in its batches over some epochs, as a part of what a global shuffle gives it. ``…/whole`` are
lanes that are permuted as a whole: the order before version 4 of states, where their number is 512.
"""

import argparse
from collections import Counter
from collections.abc import Iterator, Sequence
from functools import partial
from time import process_time
from typing import Any, Final

import numpy as np

from feeder.client.core.owners import Ownership
from feeder.plan.draws import WEIGHT_MAX, Component, Draws
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.lanes import piece_samples

from ..machine import choose_core, describe_machine, pinned_to
from ..report import Report, Result, single, summarise

_IMAGENET: Final = 1_281_167
_IMAGENET_21K: Final = 14_197_122
_IMAGE_BYTES: Final = 110_000
_SHARDS: Final = 1024
_HOSTS: Final = (4, 16, 24, 64)
_LANES_WATCHED: Final = 2
_WATCHED: Final = 397  # one image in 397 is followed
_PLANNED: Final = 300  # batches a round
_WHOLE: Final = 1 << 60  # bytes: more than any dataset here


def run(arguments: argparse.Namespace) -> Report:
    core = choose_core(arguments.core)
    batch, epochs = arguments.batch_size, arguments.epochs
    rows: list[Result] = []
    with pinned_to(core):
        for lanes, working_set in ((0, 0), (128, 0), (256, 0), (64, _WHOLE), (512, _WHOLE)):
            plan_epoch = partial(_plan, _IMAGENET, batch, lanes=lanes, working_set=working_set)
            shape = plan_epoch(epoch=0).shape
            name = f"{shape.lanes}-lanes" + "/whole" * (working_set == _WHOLE)
            held_bytes = shape.working_set * _IMAGE_BYTES
            first_bytes = len(_pieces(plan_epoch(epoch=0), 0)) * shape.piece * _IMAGE_BYTES
            rows.append(
                single(f"mixing/{name}", "% of global", 100 * _measure_mixing(plan_epoch, epochs))
            )
            rows.append(single(f"working-set/{name}", "GiB", held_bytes / 2**30))
            rows.append(single(f"first-batch/{name}", "MB", first_bytes / 1e6))
            rows += _measure_evenness(shape.lanes) if working_set != _WHOLE else ()
        sizes = {"imagenet": (_IMAGENET, batch), "21k": (_IMAGENET_21K, 1024)}
        for name, (samples, size) in sizes.items():
            rows.append(_time_batches(name, _plan(samples, size, epoch=1), arguments.rounds))
        for name, shares in {"21k-weighted": (1,), "21k-mix": (7, 3)}.items():
            draws = _draw(_IMAGENET_21K, shares)
            plan = _plan(_IMAGENET_21K, batch, epoch=1, draws=draws)
            rows.append(_time_batches(name, plan, arguments.rounds))
    measured = {"batch size": batch, "epochs": epochs, "rounds": arguments.rounds}
    machine = describe_machine({"planning": core})
    return Report(bench="order", machine=machine, results=rows, measured=measured)


def _draw(samples: int, shares: Sequence[int]) -> Draws:
    """Weights of an uneven kind, and equal parts of the samples with these shares."""
    edges = [samples * part // len(shares) for part in range(len(shares) + 1)]
    parts = zip(edges, edges[1:], shares, strict=False)
    return Draws(
        weights=[np.random.default_rng(0).integers(1, WEIGHT_MAX, samples, np.uint32)],
        components=[Component(*part) for part in parts],
        piece=piece_samples(samples, samples * _IMAGE_BYTES),
    )


def _plan(
    samples: int, batch_size: int, *, epoch: int, draws: Draws | None = None, **shape: int
) -> EpochPlan:
    size_bytes = samples * _IMAGE_BYTES
    layout = ShardLayout(samples=samples, shards=_SHARDS, size_bytes=size_bytes, draws=draws)
    return EpochPlan(
        layout,
        batch_size=batch_size,
        seed=0,
        epoch=epoch,
        shuffle=True,
        last_batch=LastBatch.DROP,
        **shape,
    )


def _pieces(plan: EpochPlan, index: int) -> Any:
    return np.unique(plan.samples(index) // plan.shape.piece)


def _measure_mixing(plan_epoch: partial[EpochPlan], epochs: int) -> float:
    met: dict[int, set[int]] = {}
    for epoch in range(epochs):
        for batch in _batches_of_lanes(plan_epoch(epoch=epoch)):
            for sample in batch[batch % _WATCHED == 0].tolist():
                met.setdefault(sample, set()).update(batch.tolist())
    distinct = float(np.mean([len(others) - 1 for others in met.values()]))
    plan = plan_epoch(epoch=0)
    others = plan.layout.samples - 1
    return distinct / (others * (1 - (1 - (plan.batch_size - 1) / others) ** epochs))


def _batches_of_lanes(plan: EpochPlan) -> Iterator[Any]:
    for index in range(plan.batches):
        lane = plan.lane(index)
        if lane is not None and lane < _LANES_WATCHED * max(1, plan.shape.lanes // 64):
            yield plan.samples(index)


def _measure_evenness(lanes: int) -> Iterator[Result]:
    """Yield what hosts that own unequal shares deliver if none makes another's batches, as a part
    of what they could: the even share over the largest one."""
    for hosts in _HOSTS:
        ownership = Ownership([f"host-{number}/0" for number in range(hosts)], lanes)
        owned = Counter[str]()
        for lane in range(lanes):
            names = ownership.owners(lane)
            owned.update(dict.fromkeys(names, 1 / len(names)))
        even = lanes / hosts / max(owned.values())
        yield single(f"evenness/{lanes}-lanes/{hosts}-hosts", "% of even", 100 * even)


def _time_batches(name: str, plan: EpochPlan, rounds: int) -> Result:
    """The CPU time to plan a batch, of consecutive ones in the middle of an epoch."""
    taken_us = []
    for first in np.linspace(plan.batches // 4, plan.batches // 2, rounds).astype(int).tolist():
        began = process_time()
        for index in range(first, first + _PLANNED):
            plan.samples(index)
        taken_us.append(1e6 * (process_time() - began) / _PLANNED)
    return summarise(f"plan/{name}", "µs", taken_us)

"""Check 4: a training step fed by a real feeder, against the same step on a batch on the device.

    step/resident       a step on one synthetic batch that stays on the device
    step/fed            the same on the batches of a ``FeederLoader``
    step/stall          1 - resident / fed, the share of a fed step that feeding costs
    step/wait           the share of the fed turns in which the loader waited for the feeder
    step/needed         images that steps take, at the speed of step/resident
    step/feeder-alone   images that the loader delivers while nothing is computed

Turns that take batches begin with an empty queue, else they would live on batches that the daemon
has made during the other turns. A turn's first steps are not timed: the queue can fill in them.
"""

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import nn

from trainer_client import FeederLoader
from trainer_client.reference.resnet import resnet50, resnet_small

from ..daemon import DATASET_NAME
from ..report import RATE, Result, compare, summarise
from ..rounds import measure, rates
from .device import Subject, forget_compiled
from .run import Check, Sizes, judge

TARGET: Final = 0.01

WINDOW: Final = 4
LEAD_IN: Final = WINDOW  # steps of a turn that are not timed: as many as the loader requests ahead

_DISCARDED_MAX: Final = 64  # batches before a turn; a daemon further ahead keeps any device busy

_CLASSES: Final = 1000
_MODELS: Final = {"resnet50": resnet50, "small": resnet_small}

Pair = tuple[torch.Tensor, torch.Tensor]
Step = Callable[[Pair], object]


def check_step(subject: Subject) -> Check:
    device, sizes = subject.device, subject.sizes
    forget_compiled(device)
    dtype = torch.bfloat16 if device.type == "cuda" else torch.float32
    with FeederLoader(
        subject.endpoint,
        dataset=DATASET_NAME,
        batch_size=sizes.batch_size,
        image_size=sizes.image_px,
        window=WINDOW,
        device=device,
        dtype=dtype,
    ) as loader:
        taken = _run(loader, make_resident_batch(sizes, device, dtype), subject)
        reported = loader.statistics().verdict
    return judge_step(taken, sizes.batch_size, subject.workers, reported, device_type=device.type)


def make_step(model: str, device: torch.device) -> Step:
    """Return a step of SGD with momentum, under bfloat16 autocast on CUDA."""
    network = _MODELS[model](_CLASSES)
    network = network.to(device=device, memory_format=torch.channels_last)  # type: ignore[call-overload]
    optimizer = torch.optim.SGD(network.parameters(), lr=1e-3, momentum=0.9)
    autocast = torch.autocast(device.type, torch.bfloat16, enabled=device.type == "cuda")
    if device.type == "cuda":
        torch.backends.cudnn.benchmark = True  # all batches have one shape

    def step(batch: Pair) -> None:
        images, labels = batch
        optimizer.zero_grad()
        with autocast:
            loss = nn.functional.cross_entropy(network(images), labels)
        loss.backward()  # type: ignore[no-untyped-call]
        optimizer.step()

    return step


def make_resident_batch(sizes: Sizes, device: torch.device, dtype: torch.dtype) -> Pair:
    """Return a random batch as a loader makes it: (N, 4, S, S), channels_last, and labels (N,)."""
    shape = (sizes.batch_size, 4, sizes.image_px, sizes.image_px)
    images = torch.randn(shape, device=device).to(dtype)
    images[:, 3] = 0
    labels = torch.randint(_CLASSES, (sizes.batch_size,), device=device)
    return images.contiguous(memory_format=torch.channels_last), labels


def _run(loader: FeederLoader, resident: Pair, subject: Subject) -> dict[str, list[float]]:
    """Return the seconds of a "resident", "fed" and "alone" step, and the fed loader's "wait"."""
    steps, step = subject.sizes.steps, make_step(subject.sizes.model, subject.device)
    batches = itertools.chain.from_iterable(itertools.repeat(loader))
    waited_s = 0.0  # by the loader in the timed steps of the present round, when fed
    waits_s: list[float] = []

    def take_turn(name: str, _first: int, _end: int) -> None:
        nonlocal waited_s
        source = itertools.repeat(resident) if name == "resident" else batches
        if name != "resident":  # with an empty queue
            for _ in range(_DISCARDED_MAX):
                if not loader.statistics().batches_ready:
                    break
                next(batches)

        def work(count: int) -> None:
            for batch in itertools.islice(source, count):
                if name != "alone":
                    step(batch)

        work(LEAD_IN)
        before_s = loader.statistics().wait_s
        subject.clock.run(partial(work, steps))
        if name == "fed":
            waited_s = loader.statistics().wait_s - before_s

    taken = measure(
        {name: partial(take_turn, name) for name in ("resident", "fed", "alone")},
        rounds=subject.sizes.rounds,
        items=steps,
        clock=subject.clock,
        verb=None,
        after_round=lambda _: waits_s.append(waited_s),
    )
    taken["wait"] = waits_s
    return {name: [value / steps for value in values] for name, values in taken.items()}


def judge_step(
    taken: Mapping[str, Sequence[float]],
    batch_size: int,
    workers: int,
    reported: str,
    *,
    device_type: str,
) -> Check:
    """Return the check with its verdict, and the reason where the host's cores limit.

    ``taken`` are seconds of a step, one value a round: "resident", "fed", the "wait" of the loader
    in that, and those of a batch taken "alone". ``reported`` is what the feeder itself names as the
    limit, "" for nothing.
    """
    rows = _rows(taken, batch_size)
    resident, fed, stall = (rows[f"step/{name}"] for name in ("resident", "fed", "stall"))
    needed, alone = rows["step/needed"], rows["step/feeder-alone"]
    is_met = stall.value < 100 * TARGET
    sentence = (
        f"a step takes {fed.value:.1f} ms fed and {resident.value:.1f} ms on a batch on the "
        f"device: stalled {stall.value:.2f} % (target: under {100 * TARGET:.0f} %)"
    )
    if device_type == "cuda" and not is_met:
        sentence += f", {stall.value - 100 * TARGET:.2f} points too much"
    share = alone.ratio
    assert share is not None, "it has a baseline"
    sentence += (
        f"; alone, a feeder with {workers} worker{'s' * (workers > 1)} delivers "
        f"{alone.value:,.0f} images/s, {share:.2f} times the {needed.value:,.0f} of the step"
    )
    if share < 1:
        enough = math.ceil(workers / share)
        sentence += f": this host's cores limit, about {enough} workers would be enough"
    elif not is_met:
        wait = rows["step/wait"].value
        sentence += f"; the loader waited {wait:.2f} % of the time" + (
            ": beside the step, the feeder has too little of the host's cores"
            if 2 * wait >= stall.value
            else ", so the copy, normalising or the host's Python costs the rest"
        )
    if reported and not is_met:
        sentence += f"; the feeder reports: {reported}"
    return Check(judge(is_met, device_type=device_type), sentence, [*rows.values()])


def _rows(taken: Mapping[str, Sequence[float]], batch_size: int) -> Mapping[str, Result]:
    pairs = list(zip(taken["resident"], taken["fed"], taken["wait"], strict=True))
    times_ms = {
        f"step/{name}": [1e3 * value for value in taken[name]] for name in ("resident", "fed")
    }
    speeds = rates({"needed": taken["resident"], "feeder-alone": taken["alone"]}, batch_size)
    rows = [
        *compare(times_ms, "ms"),
        summarise("step/stall", "% of the step", [100 * (1 - a / b) for a, b, _ in pairs]),
        summarise("step/wait", "% of the step", [100 * wait / b for _, b, wait in pairs]),
        *compare({f"step/{name}": values for name, values in speeds.items()}, RATE),
    ]
    return {row.name: row for row in rows}

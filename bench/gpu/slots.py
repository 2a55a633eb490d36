"""Check 3: copying batches from a feeder's slots to the device, against copying pinned memory.

The slots are in shared memory that a daemon has filled; this process maps them and, on CUDA, locks
their pages as a loader does. The same pixels are copied from memory that torch has pinned, and from
ordinary memory, which is what remains where the driver refuses to lock the slots.

On a CPU a batch can be read in place. There the last rows compare normalising it from the slot with
normalising a copy of it.
"""

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final

import torch

from feeder.client.host_memory import SlotBuffer
from feeder.errors import ResourceError
from feeder.plan.recipe import Recipe
from trainer_client._device import Normaliser
from trainer_client._staging import CudaStage

from ..fetcher import BatchFetcher
from ..report import Result, compare, single
from ..rounds import rates
from .bandwidth import SIDE_PX
from .device import Subject, time_in_turns
from .run import Check, judge_share

TARGET: Final = 0.9

_SLOTS: Final = 4
_REPEATS: Final = 8


@contextmanager
def lent_slots(endpoint: str, batch_size: int) -> Iterator[list[SlotBuffer]]:
    """Yield the slots of _SLOTS batches; ResourceError when the feeder does not lend them."""
    recipe = Recipe.for_split("train", batch_size=batch_size, image_size=SIDE_PX)
    with BatchFetcher(endpoint, recipe=recipe, window=2 * _SLOTS) as fetcher:
        slots: list[SlotBuffer] = []
        for batch in fetcher.fetch_run(0, 2 * _SLOTS):  # the first may be copied over the socket
            if batch.slot is not None:
                slots.append(batch.slot)
                fetcher.keep()
            if len(slots) == _SLOTS:
                break
        else:
            raise ResourceError(
                f"{endpoint}: batches are not read from the feeder's memory "
                f"({fetcher.session.copied_because}): see docs/serving.md"
            )
        yield slots


def check_slots(subject: Subject) -> Check:
    """Time copies of batches from the slots of the feeder."""
    with lent_slots(subject.endpoint, subject.sizes.batch_size) as slots:
        refused = lock_slots(subject.device, slots)
        pixels = [torch.from_numpy(slot.pixels) for slot in slots]
        target = torch.empty_like(pixels[0], device=subject.device)
        problem = find_wrong_copy(pixels, target)
        rows = _measure_copies(pixels, target, subject)
        rows.append(single("slots/page-locks-refused", "slots", refused))
        if subject.device.type == "cpu":
            rows += _measure_in_place(pixels, subject)
    return judge_slots(rows, problem, subject.device.type)


def lock_slots(device: torch.device, slots: Sequence[SlotBuffer]) -> int:
    """Lock the slots' pages for a CUDA device; return how many CUDA refused."""
    if device.type != "cuda":
        return 0
    stage = CudaStage(Normaliser(device, torch.float16))
    for slot in slots:
        stage._locks.lock(slot)
    return stage.counters()["page_locks_refused"]


def judge_slots(rows: Sequence[Result], problem: str | None, device_type: str) -> Check:
    """Return the check with its verdict; ``problem`` is of ``find_wrong_copy``."""
    of = {row.name: row for row in rows}
    row = of["slots/slot"]
    memory = "pinned" if device_type == "cuda" else "ordinary"
    verdict, text = judge_share(
        row.ratio or 0.0, TARGET, f"a copy from {memory} memory", device_type=device_type
    )
    sentence = f"a slot is copied at {row.value:.1f} GB/s, {text}"
    refused = of["slots/page-locks-refused"].value
    if refused:
        sentence += f"; CUDA refused to lock the pages of {refused:.0f} slots"
    if problem:
        sentence += f"; {problem}"
        verdict = "failed"
    if "slots/in-place" in of:
        share = f"{of['slots/in-place'].ratio:.2f} of the time of copying first"
        sentence += f"; normalising in place takes {share}"
    return Check(verdict, sentence, rows)


def _measure_copies(
    pixels: Sequence[torch.Tensor], target: torch.Tensor, subject: Subject
) -> list[Result]:
    """Return the rows of copies to ``target``: from pinned memory, slots and ordinary memory."""
    ordinary = [each.clone() for each in pixels]
    sources: dict[str, Sequence[torch.Tensor]] = {"slots/ordinary": ordinary, "slots/slot": pixels}
    if subject.device.type == "cuda":
        pinned = [each.pin_memory() for each in ordinary]
        sources = {"slots/pinned": pinned, "slots/slot": pixels, "slots/pageable": ordinary}
    taken = time_in_turns(
        {name: _copier(source, target) for name, source in sources.items()},
        subject,
        repeats=_REPEATS,
    )
    return compare(rates(taken, target.nbytes / 1e9), "GB/s")


def find_wrong_copy(source: Sequence[torch.Tensor], target: torch.Tensor) -> str | None:
    """Return what is wrong when batches are copied to ``target``; None for nothing."""
    for number, pixels in enumerate(source):
        target.zero_()
        target.copy_(pixels, non_blocking=True)
        if not torch.equal(target.cpu(), pixels):
            return f"the copy of slot {number} has other pixels than the slot"
    return None


def _copier(source: Sequence[torch.Tensor], target: torch.Tensor) -> Callable[[int], object]:
    return lambda number: target.copy_(source[number % len(source)], non_blocking=True)


def _measure_in_place(pixels: Sequence[torch.Tensor], subject: Subject) -> list[Result]:
    """Return the rows of normalising on a CPU, from a copy and from the slot itself."""
    normaliser = Normaliser(subject.device, torch.float32)
    copy = torch.empty_like(pixels[0])
    taken = time_in_turns(
        {
            "slots/copied": lambda number: normaliser(copy.copy_(pixels[number % len(pixels)])),
            "slots/in-place": lambda number: normaliser(pixels[number % len(pixels)]),
        },
        subject,
        repeats=_REPEATS,
    )
    times_ms = {name: [1e3 * value for value in values] for name, values in taken.items()}
    return compare(times_ms, "ms")

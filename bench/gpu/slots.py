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

from feeder.client.core.prefetch import BatchSequence
from feeder.client.host_memory import SlotBuffer
from feeder.errors import ResourceError
from trainer_client._device import Normaliser
from trainer_client._feed import Delivery, Feed, LoaderOptions, Stage
from trainer_client._staging import CudaStage

from ..daemon import DATASET_NAME
from ..report import Result, single, summarise
from .device import DeviceClock, time_in_turns
from .report import Check, describe_share, judge

TARGET: Final = 0.9

_SLOTS: Final = 4
_REPEATS: Final = 8
_WINDOW: Final = 4
_TIMEOUT_S: Final = 60.0


class HeldSlots(Stage[None]):
    """Keeps the slots of the batches it gets, lent until the feed is closed."""

    buffers_held = _SLOTS

    def __init__(self) -> None:
        super().__init__()
        self.slots: list[SlotBuffer] = []

    def load(self, delivery: Delivery, buffer: int) -> None:
        """Keep a lent batch; one that was copied over the socket is given back."""
        if isinstance(delivery.rows, SlotBuffer):
            self.slots.append(delivery.rows)
        else:
            self._free.append(buffer)


@contextmanager
def lent_slots(endpoint: str, *, batch_size: int, image_px: int) -> Iterator[list[SlotBuffer]]:
    """Yield the slots of _SLOTS batches; ResourceError when the feeder does not lend them."""
    options = LoaderOptions(
        endpoint=endpoint,
        dataset=DATASET_NAME,
        split="train",
        batch_size=batch_size,
        seed=0,
        image_size=image_px,
        rank=0,
        world_size=1,
        window=_WINDOW,
        window_bytes=2 << 30,
        timeout_s=_TIMEOUT_S,
        recipe=None,
        classes_of=None,
        share_memory=True,
        server_key=None,
        client_key=None,
        summary=None,
    )
    stage = HeldSlots()
    feed = Feed(options, options.make_recipe(), stage)
    try:
        batches = feed.welcome.batches
        feed.begin(BatchSequence(0, range(batches), 0))
        for number in range(2 * _SLOTS):
            if len(stage.slots) < _SLOTS:
                feed.take(divmod(number, batches), is_short=False)
        if len(stage.slots) < _SLOTS:
            raise ResourceError(
                f"{endpoint}: batches are not read from the feeder's memory "
                f"({feed.counters()['copied_because']}): see docs/serving.md"
            )
        yield stage.slots
        stage.slots.clear()
    finally:
        feed.close()


def check_slots(
    device: torch.device,
    clock: DeviceClock,
    endpoint: str,
    *,
    batch_size: int,
    image_px: int,
    rounds: int,
) -> Check:
    """Time copies of batches from the slots of the feeder at ``endpoint``."""
    with lent_slots(endpoint, batch_size=batch_size, image_px=image_px) as slots:
        refused = lock_slots(device, slots)
        pixels = [torch.from_numpy(slot.pixels) for slot in slots]
        target = torch.empty_like(pixels[0], device=device)
        problem = find_wrong_copy(pixels, target)
        rows = _measure_copies(pixels, target, clock, rounds)
        rows.append(single("slots/page-locks-refused", "slots", refused))
        if device.type == "cpu":
            rows += _measure_in_place(pixels, device, clock, rounds)
    return judge_slots(rows, refused, problem, device.type)


def lock_slots(device: torch.device, slots: Sequence[SlotBuffer]) -> int:
    """Lock the slots' pages for a CUDA device; return how many CUDA refused."""
    if device.type != "cuda":
        return 0
    stage = CudaStage(Normaliser(device, torch.float16))
    for slot in slots:
        stage._locks.lock(slot)
    return stage.counters()["page_locks_refused"]


def judge_slots(
    rows: Sequence[Result], refused: int, problem: str | None, device_type: str
) -> Check:
    """Return the check with its verdict."""
    of = {row.name: row for row in rows}
    row = of["slots/slot"]
    share = row.ratio or 0.0
    memory = "pinned" if device_type == "cuda" else "ordinary"
    described = describe_share(
        share, TARGET, f"a copy from {memory} memory", device_type=device_type
    )
    sentence = f"a slot is copied at {row.value:.1f} GB/s, {described}"
    if refused:
        sentence += f"; CUDA refused to lock the pages of {refused} slots"
    if problem:
        sentence += f"; {problem}"
    if "slots/in-place" in of:
        sentence += (
            f"; normalising in place takes {of['slots/in-place'].ratio:.2f} of the time of "
            "copying first"
        )
    return Check(
        name="slots",
        verdict="failed" if problem else judge(share >= TARGET, device_type=device_type),
        sentence=sentence,
        results=rows,
    )


def _measure_copies(
    pixels: Sequence[torch.Tensor], target: torch.Tensor, clock: DeviceClock, rounds: int
) -> list[Result]:
    """Return the rows of copies to ``target``: from pinned memory, slots and ordinary memory."""
    ordinary = [each.clone() for each in pixels]
    is_cuda = target.device.type == "cuda"
    sources = {
        "pinned": [each.pin_memory() for each in ordinary] if is_cuda else ordinary,
        "slot": pixels,
    }
    if is_cuda:
        sources["pageable"] = ordinary
    taken = time_in_turns(
        {name: _copier(source, target) for name, source in sources.items()},
        clock,
        rounds=rounds,
        repeats=_REPEATS,
    )
    rates = {
        name: [target.nbytes / seconds / 1e9 for seconds in values]
        for name, values in taken.items()
    }
    base = summarise("slots/pinned" if is_cuda else "slots/ordinary", "GB/s", rates["pinned"])
    return [
        base,
        *(
            summarise(f"slots/{name}", "GB/s", rates[name], base.name, rates["pinned"])
            for name in sources
            if name != "pinned"
        ),
    ]


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


def _measure_in_place(
    pixels: Sequence[torch.Tensor], device: torch.device, clock: DeviceClock, rounds: int
) -> list[Result]:
    """Return the rows of normalising on a CPU, from a copy and from the slot itself."""
    normaliser = Normaliser(device, torch.float32)
    copy = torch.empty_like(pixels[0])
    taken = time_in_turns(
        {
            "copied": lambda number: normaliser(copy.copy_(pixels[number % len(pixels)])),
            "in-place": lambda number: normaliser(pixels[number % len(pixels)]),
        },
        clock,
        rounds=rounds,
        repeats=_REPEATS,
    )
    times_ms = {name: [1e3 * value for value in values] for name, values in taken.items()}
    base = summarise("slots/copied", "ms", times_ms["copied"])
    return [
        base,
        summarise(
            "slots/in-place",
            "ms",
            times_ms["in-place"],
            baseline=base.name,
            baseline_values=times_ms["copied"],
        ),
    ]

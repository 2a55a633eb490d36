"""Checks 2 and 3: normalising and copies from slots, against the best copy on the same device.

The bandwidth of normalising is bytes read and written by the second: pixels in, images out. The
copy reads half of them and writes the other half. Both go through several sources, more than an L2
cache holds.

Batches in a feeder's slots are copied to the device; the same pixels are copied from memory that
torch has pinned, and from ordinary memory, which is what remains where the driver refuses to lock
the slots. On a CPU a batch can be read in place: there the last rows compare normalising it from
the slot with normalising a copy of it.
"""

import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
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
from .device import Subject, forget_compiled, time_in_turns
from .exactness import DTYPES
from .run import Check, judge

NORMALISE_TARGET: Final = 0.85
SLOT_TARGET: Final = 0.9

_SIDE_PX: Final = 224
_SOURCES: Final = 4
_CHANNELS: Final = (4, 3)


def check_bandwidth(subject: Subject) -> Check:
    """Time batches of images of _SIDE_PX in every type and number of channels."""
    device = subject.device
    shape = (subject.sizes.batch_size, _SIDE_PX, _SIDE_PX, 3)
    pixels = [
        torch.randint(-128, 128, shape, dtype=torch.int8, device=device) for _ in range(_SOURCES)
    ]
    rows: list[Result] = []
    compile_failures = 0
    for dtype, channels in itertools.product(DTYPES, _CHANNELS):
        forget_compiled(device)
        normaliser = Normaliser(device, dtype, channels=channels)
        size_bytes = pixels[0].nbytes + normaliser(pixels[0]).nbytes
        halves = [torch.ones(size_bytes // 2, dtype=torch.uint8, device=device) for _ in pixels]
        kind = f"{str(dtype).removeprefix('torch.')}-{channels}"
        ways = {
            f"bandwidth/copy-{kind}": _copier(halves, torch.zeros_like(halves[0])),
            f"bandwidth/{kind}": _each_in_turn(pixels, normaliser),
        }
        rows += _measure(ways, size_bytes, subject)
        compile_failures += normaliser.compile_failures
    rows.append(single("bandwidth/compile-failures", "ways", compile_failures))
    return judge_bandwidth(rows, device.type)


def judge_bandwidth(rows: Sequence[Result], device_type: str) -> Check:
    """Return the check with its verdict, which is that of the slowest with a baseline."""
    measured = [row for row in rows if row.ratio is not None]
    slowest = min(measured, key=lambda row: row.ratio or 0.0)
    verdict, text = _judge_share(slowest, NORMALISE_TARGET, "a copy", device_type)
    sentence = (
        f"normalising reads and writes {slowest.value:,.0f} GB/s in {slowest.name.split('/')[1]}, "
        f"the slowest of {len(measured)}: {text}"
    )
    failures = sum(int(row.value) for row in rows if row.name == "bandwidth/compile-failures")
    if failures:
        sentence += f"; torch could not compile {failures} of them"
    return Check(verdict, sentence, rows)


def check_slots(subject: Subject) -> Check:
    device = subject.device
    with _lent_slots(subject.endpoint, subject.sizes.batch_size) as slots:
        refused = _lock_slots(device, slots)
        pixels = [torch.from_numpy(slot.pixels) for slot in slots]
        target = torch.empty_like(pixels[0], device=device)
        problem = find_wrong_copy(pixels, target)
        ordinary = [each.clone() for each in pixels]
        sources = {"slots/ordinary": ordinary, "slots/slot": pixels}
        if device.type == "cuda":
            pinned = [each.pin_memory() for each in ordinary]
            sources = {"slots/pinned": pinned, "slots/slot": pixels, "slots/pageable": ordinary}
        ways = {name: _copier(source, target) for name, source in sources.items()}
        rows = _measure(ways, target.nbytes, subject)
        rows.append(single("slots/page-locks-refused", "slots", refused))
        if device.type == "cpu":
            normaliser, copy = Normaliser(device, torch.float32), torch.empty_like(pixels[0])
            ways = {
                "slots/copied": _each_in_turn(pixels, lambda each: normaliser(copy.copy_(each))),
                "slots/in-place": _each_in_turn(pixels, normaliser),
            }
            taken = time_in_turns(ways, subject)
            times_ms = {name: [1e3 * value for value in values] for name, values in taken.items()}
            rows += compare(times_ms, "ms")
    return judge_slots(rows, problem, device.type)


def judge_slots(rows: Sequence[Result], problem: str | None, device_type: str) -> Check:
    """Return the check with its verdict; ``problem`` is of ``find_wrong_copy``."""
    of = {row.name: row for row in rows}
    row, refused = of["slots/slot"], of["slots/page-locks-refused"].value
    memory = "pinned" if device_type == "cuda" else "ordinary"
    verdict, text = _judge_share(row, SLOT_TARGET, f"a copy from {memory} memory", device_type)
    sentence = f"a slot is copied at {row.value:.1f} GB/s, {text}"
    if refused:
        sentence += f"; CUDA refused to lock the pages of {refused:.0f} slots"
    if problem:
        sentence += f"; {problem}"
        verdict = "failed"
    if "slots/in-place" in of:
        share = f"{of['slots/in-place'].ratio:.2f} of the time of copying first"
        sentence += f"; normalising in place takes {share}"
    return Check(verdict, sentence, rows)


def find_wrong_copy(source: Sequence[torch.Tensor], target: torch.Tensor) -> str | None:
    """Return what is wrong when batches are copied to ``target``; None for nothing."""
    for number, pixels in enumerate(source):
        target.zero_()
        target.copy_(pixels, non_blocking=True)
        if not torch.equal(target.cpu(), pixels):
            return f"the copy of slot {number} has other pixels than the slot"
    return None


@contextmanager
def _lent_slots(endpoint: str, batch_size: int) -> Iterator[list[SlotBuffer]]:
    """Yield the slots of _SOURCES batches; ResourceError when the feeder does not lend them."""
    recipe = Recipe.for_split("train", batch_size=batch_size, image_size=_SIDE_PX)
    with BatchFetcher(endpoint, recipe=recipe, window=2 * _SOURCES) as fetcher:
        slots: list[SlotBuffer] = []
        for batch in fetcher.fetch(0, 2 * _SOURCES):  # the first may be copied over the socket
            if batch.slot is not None:
                slots.append(batch.slot)
                fetcher.keep()
            if len(slots) == _SOURCES:
                break
        else:
            raise ResourceError(
                f"{endpoint}: batches are not read from the feeder's memory "
                f"({fetcher.session.copied_because}): see docs/serving.md"
            )
        yield slots


def _lock_slots(device: torch.device, slots: Sequence[SlotBuffer]) -> int:
    """Lock the slots' pages for a CUDA device; return how many CUDA refused."""
    if device.type != "cuda":
        return 0
    stage = CudaStage(Normaliser(device, torch.float16))
    for slot in slots:
        stage._locks.lock(slot)
    return stage.counters()["page_locks_refused"]


def _measure(
    ways: Mapping[str, Callable[[int], object]], size_bytes: int, subject: Subject
) -> list[Result]:
    return compare(rates(time_in_turns(ways, subject), size_bytes / 1e9), "GB/s")


def _each_in_turn(
    source: Sequence[torch.Tensor], work: Callable[[torch.Tensor], object]
) -> Callable[[int], object]:
    return lambda number: work(source[number % len(source)])


def _copier(source: Sequence[torch.Tensor], target: torch.Tensor) -> Callable[[int], object]:
    return _each_in_turn(source, lambda each: target.copy_(each, non_blocking=True))


def _judge_share(row: Result, target: float, of: str, device_type: str) -> tuple[str, str]:
    """Return the verdict on a ratio that should be at least ``target``, and the ratio in words."""
    share = row.ratio or 0.0
    verdict = judge(share >= target, device_type=device_type)
    text = f"{100 * share:.0f} % of {of} (target: {100 * target:.0f} %)"
    if verdict == "failed":
        text += f", {100 * (target - share):.1f} points too little"
    return verdict, text

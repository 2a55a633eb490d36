"""The device that is checked, and the clock of its work.

A CUDA device is timed by events in its own stream. Work that the host queues more slowly than the
device does it would be timed as waiting, so a *queued* run begins behind copies that keep the
device busy meanwhile: its events are then as far apart as the device needs for the work alone.
A CPU is timed by the host's clock.
"""

import time
from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

import torch

from feeder.errors import ConfigError
from trainer_client._device import resolve_device

from ..rounds import measure
from .run import Sizes


class Subject(NamedTuple):
    device: torch.device
    clock: "DeviceClock"
    sizes: Sizes
    endpoint: str  # of the daemon, for the checks that need one
    workers: int


_TYPES: Final = ("cuda", "cpu")
_FILLER_BYTES: Final = 256 << 20
_FILLER_COPIES: Final = 32  # 5 ms of an H100's time, in which a host starts over a hundred kernels
_REPEATS: Final = 10

Work = Callable[[], object]


def open_device(name: str | None) -> torch.device:
    """Return the device of this name, else CUDA's, made current; ConfigError if unusable."""
    try:
        device = resolve_device(name)
        if device.type not in _TYPES:
            raise RuntimeError(f"it is none of {', '.join(_TYPES)}")
        torch.ones(1, device=device).item()  # runs a kernel, which torch may lack for the device
    except (RuntimeError, AssertionError) as error:  # the latter when torch lacks CUDA
        reason = str(error).partition("\n")[0].partition(". ")[0]
        raise ConfigError(
            f"device {name or 'cuda'!r} cannot be used here ({reason}): pass --device cpu"
        ) from None
    if device.type == "cuda":
        torch.cuda.set_device(device)
    return device


def describe_device(device: torch.device) -> dict[str, object]:
    if device.type == "cpu":
        return {"device": f"cpu, {torch.get_num_threads()} threads", "torch": torch.__version__}
    properties = torch.cuda.get_device_properties(device)
    return {
        "device": f"{properties.name}, {properties.total_memory / 2**30:.0f} GiB",
        "torch": f"{torch.__version__}, CUDA {torch.version.cuda}",
    }


def forget_compiled(device: torch.device) -> None:
    """Drop what torch has compiled for a CUDA device: it compiles a function 8 times, no more."""
    if device.type == "cuda":
        torch.compiler.reset()


class DeviceClock:
    """Stands still except while ``run`` runs; call it to read the seconds."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._seconds = 0.0
        self._filler: torch.Tensor | None = None

    def __call__(self) -> float:
        return self._seconds

    def run(self, work: Work, *, is_queued: bool = False) -> None:
        """Time ``work`` on the device; ``is_queued`` leaves out the host's time to start it."""
        if self._device.type == "cpu":
            began_s = time.perf_counter()
            work()
            self._seconds += time.perf_counter() - began_s
            return
        start, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))  # type: ignore[no-untyped-call]
        torch.cuda.synchronize(self._device)
        if is_queued:
            self._keep_busy()
        start.record()
        work()
        end.record()
        end.synchronize()
        self._seconds += float(start.elapsed_time(end)) / 1e3

    def _keep_busy(self) -> None:
        if self._filler is None:
            self._filler = torch.zeros(2, _FILLER_BYTES, dtype=torch.uint8, device=self._device)
        for _ in range(_FILLER_COPIES):
            self._filler[1].copy_(self._filler[0])


def time_in_turns(
    contenders: Mapping[str, Callable[[int], object]], subject: Subject
) -> dict[str, list[float]]:
    """Return the seconds of a call of each contender, which gets its number, one value a round."""
    clock = subject.clock

    def take_turn(work: Callable[[int], object], first: int, end: int) -> None:
        def repeat() -> None:
            for number in range(first, end):
                work(number)

        clock.run(repeat, is_queued=True)

    turns = {name: partial(take_turn, work) for name, work in contenders.items()}
    taken = measure(turns, rounds=subject.sizes.rounds, items=_REPEATS, clock=clock, verb=None)
    return {name: [seconds / _REPEATS for seconds in values] for name, values in taken.items()}

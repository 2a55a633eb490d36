"""Moves a complete batch from its host buffer to the device, and says when the buffer is free.

On a CPU the normalised tensor is a new one, so the buffer is free at once. On CUDA the copy from
pinned memory is asynchronous: it runs on a stream of its own, beside the previous step's compute,
and an event tells when the copy has read the buffer. The compute stream waits for that
event, never the host, unless the host runs more than ``MAX_COPIES`` copies ahead of the device, or
has no batch to go on with.

A lent slot is read where it is, by the CPU or, once its pages are locked, by the device itself.
"""

import contextlib
from collections import deque
from typing import Final, Protocol

import torch

from trainer_client._batch import HostTensors, SlotBuffer
from trainer_client._device import Normaliser
from trainer_client._page_lock import PageLocks

MAX_COPIES: Final = 1  # buffers that may wait for their copy while the next batch is taken


class CopyEvent(Protocol):
    """What the book-keeping needs of a torch.cuda.Event."""

    def query(self) -> bool:
        """Return whether the copy is done."""
        ...

    def synchronize(self) -> None:
        """Wait until the copy is done."""
        ...


class CopiesInFlight:
    """Buffers whose copy to the device may still be reading them, oldest first."""

    def __init__(self) -> None:
        self._copies: deque[tuple[CopyEvent, int, HostTensors | None]] = deque()

    def add(self, event: CopyEvent, buffer: int, batch: HostTensors | None = None) -> None:
        """Note that ``buffer`` must not be written before ``event``, nor ``batch`` unmapped."""
        self._copies.append((event, buffer, batch))

    def reclaim(self) -> list[int]:
        """Return the buffers that are free again; waits when too many copies are in flight."""
        free: list[int] = []
        while self._copies:
            event, buffer, _ = self._copies[0]
            if len(self._copies) > MAX_COPIES:
                event.synchronize()
            elif not event.query():
                break
            free.append(buffer)
            self._copies.popleft()
        return free

    def finish(self) -> list[int]:
        """Wait for all copies; return the buffers that are free again by that."""
        for event, _, _ in self._copies:
            event.synchronize()
        return self.reclaim()


class Stage(Protocol):
    """One device's way from a complete buffer to normalised tensors."""

    buffers_held: int  # how many buffers the stage may hold on to

    @property
    def page_locks_refused(self) -> int:
        """How many lent slots are copied through staging memory."""
        ...

    def load(self, buffer: HostTensors, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Return images and labels of ``buffer``, called ``number``, on the device.

        Even when this raises, out of device memory say, ``reclaim`` gives the buffer in time.
        """
        ...

    def reclaim(self) -> list[int]:
        """Return the numbers of the loaded buffers that may be written again."""
        ...

    def finish(self) -> list[int]:
        """Return the same for all loaded buffers, waiting for the device to have read them."""
        ...


class HostStage:
    """Normalises on the CPU."""

    buffers_held = 1
    page_locks_refused = 0

    def __init__(self, normaliser: Normaliser) -> None:
        self._normaliser = normaliser
        self._loaded: list[int] = []

    def load(self, buffer: HostTensors, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Normalise into a new tensor; the buffer is free when this returns."""
        self._loaded.append(number)
        return self._normaliser(buffer.pixels), buffer.labels.clone()

    def reclaim(self) -> list[int]:
        """Return the buffers loaded since the last call."""
        free, self._loaded = self._loaded, []
        return free

    def finish(self) -> list[int]:
        """Return the same: nothing is read later."""
        return self.reclaim()


class CudaStage:
    """Copies pixels from pinned memory on a stream of its own and normalises on the device."""

    buffers_held = 1 + MAX_COPIES

    def __init__(self, normaliser: Normaliser) -> None:
        self._normaliser = normaliser
        self._device = normaliser.device
        self._copy_stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._copies = CopiesInFlight()
        self._locks = PageLocks(torch.cuda.cudart(), self._forget_error)  # type: ignore[no-untyped-call]

    @property
    def page_locks_refused(self) -> int:
        """How many lent slots CUDA would not register."""
        return self._locks.refused

    def load(self, buffer: HostTensors, number: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Start the copy, and on the current stream, after it, the normalisation."""
        try:
            if isinstance(buffer, SlotBuffer):
                with torch.cuda.device(self._device):
                    self._locks.lock(buffer)
            with torch.cuda.stream(self._copy_stream):
                pixels = buffer.pixels.to(self._device, non_blocking=True)
                labels = buffer.labels.to(self._device, non_blocking=True)
        finally:
            event = self._copy_stream.record_event()
            self._copies.add(event, number, buffer)
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(event)
        # The allocator knows these tensors as the copy stream's: without this it could hand their
        # memory to the next copy while the compute stream still reads it.
        pixels.record_stream(compute)
        labels.record_stream(compute)
        with torch.cuda.device(self._device):
            return self._normaliser(pixels), labels

    def reclaim(self) -> list[int]:
        """Return the buffers whose copies are done, waiting when the host is too far ahead."""
        return self._copies.reclaim()

    def finish(self) -> list[int]:
        """Wait for all copies."""
        return self._copies.finish()

    def _forget_error(self) -> None:
        # torch asks CUDA for the last error after each launch: a call that failed and was dealt
        # with would strike the next kernel, so this one takes the blow.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)


def make_stage(normaliser: Normaliser) -> Stage:
    """Return the stage for the normaliser's device."""
    return CudaStage(normaliser) if normaliser.device.type == "cuda" else HostStage(normaliser)

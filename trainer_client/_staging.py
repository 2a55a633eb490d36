"""Moves a complete batch from its host buffer to the device, and reports when the buffer is free.

On a CPU the normalised tensor is a new one, so the buffer is free at once. On CUDA the copy from
pinned memory is asynchronous: it runs on a stream of its own, parallel to the previous step's
compute, and an event marks its end. The compute stream waits for that event; the host only does if
it is more than ``MAX_COPIES`` copies ahead of the device, or has no next batch.

A lent slot is read in place, by the CPU or, once its pages are locked, by the device itself. It is
page-locked at its first copy and stays so until it is unmapped. Where CUDA refuses, copies go
through CUDA's own staging memory, which is slower; that is counted, and logged once.
"""

import contextlib
import logging
import math
from collections import deque
from collections.abc import Callable
from typing import Any, Final

import torch

from feeder.client.host_memory import HostRows, SlotBuffer
from trainer_client._batch import Batch, Origin
from trainer_client._device import Normaliser, normalise_groups
from trainer_client._feed import Delivery, Stage

MAX_COPIES: Final = 1  # copies that may be in flight while the next batch is taken

_READ_ONLY: Final = 0x08  # cudaHostRegisterReadOnly: required for pages mapped read-only

_log = logging.getLogger(__name__)

TensorBatch = Batch[torch.Tensor]


def make_stage(normaliser: Normaliser) -> Stage[TensorBatch]:
    return CudaStage(normaliser) if normaliser.device.type == "cuda" else HostStage(normaliser)


class HostStage(Stage[TensorBatch]):
    """Normalises on the CPU; the buffer is free when ``load`` returns."""

    def __init__(self, normaliser: Normaliser) -> None:
        super().__init__()
        self._normaliser = normaliser

    def load(self, delivery: Delivery, buffer: int) -> TensorBatch:
        self._free.append(buffer)
        images: Any
        if delivery.has_groups:
            groups = map(torch.from_numpy, delivery.rows.groups)
            images = normalise_groups(self._normaliser, groups, delivery.count)
        else:
            images = self._normaliser(torch.from_numpy(delivery.rows.pixels[: delivery.count]))
        labels, sample_ids = map(torch.from_numpy, delivery.copy_labels())
        return Batch.of(images, labels, _origin(delivery, sample_ids))

    def counters(self) -> dict[str, int]:
        return {"compile_failures": self._normaliser.compile_failures}


class CopiesInFlight:
    """Buffers with a copy to the device in flight, oldest first."""

    def __init__(self) -> None:
        self._copies: deque[tuple[torch.cuda.Event, int, HostRows | None]] = deque()

    def add(self, event: torch.cuda.Event, buffer: int, batch: HostRows | None = None) -> None:
        """Keep ``buffer`` from being written and ``batch`` mapped until ``event``."""
        self._copies.append((event, buffer, batch))

    def reclaim(self, *, all_of_them: bool = False) -> list[int]:
        """The buffers that are free again; waits when too many copies are in flight."""
        free: list[int] = []
        while self._copies:
            event, buffer, _ = self._copies[0]
            if all_of_them or len(self._copies) > MAX_COPIES:
                event.synchronize()
            elif not event.query():  # type: ignore[no-untyped-call]
                break
            free.append(buffer)
            self._copies.popleft()
        return free


class PageLocks:
    """Registers slots; ``refused`` counts those that CUDA refused."""

    def __init__(self, cudart: Any, clear_error: Callable[[], None]) -> None:
        """Take ``torch.cuda.cudart()``, and a function that clears CUDA's last error."""
        self.refused = 0
        self._cudart = cudart
        self._clear_error = clear_error

    def lock(self, slot: SlotBuffer) -> None:
        """Register a slot, at the first call only."""
        if slot.is_page_locked is not None:
            return
        address, size_bytes = slot.address, slot.memory.layout.slot_bytes
        status = int(self._cudart.cudaHostRegister(address, size_bytes, _READ_ONLY))
        slot.is_page_locked = status == 0
        if status == 0:
            unregister = self._cudart.cudaHostUnregister
            slot.memory.before_unmapping(lambda: unregister(address))
            return
        self._clear_error()
        self.refused += 1
        if self.refused == 1:
            _log.warning(
                "CUDA did not page-lock the feeder's slots (cudaError %d), so copies from them are "
                "slower; the number is explained in CUDA's documentation of cudaError_t",
                status,
            )


class CudaStage(Stage[TensorBatch]):
    """Copies pixels from pinned memory on a stream of its own and normalises on the device."""

    buffers_held = 1 + MAX_COPIES

    def __init__(self, normaliser: Normaliser) -> None:
        super().__init__()
        self._normaliser = normaliser
        self._device = normaliser.device
        self._copy_stream = torch.cuda.Stream(self._device)  # type: ignore[no-untyped-call]
        self._copies = CopiesInFlight()
        self._locks = PageLocks(torch.cuda.cudart(), self._clear_error)  # type: ignore[no-untyped-call]

    def load(self, delivery: Delivery, buffer: int) -> TensorBatch:
        """Start the copy, and on the current stream, after it, the normalisation."""
        rows, count = delivery.rows, delivery.count
        try:
            if isinstance(rows, SlotBuffer):
                with torch.cuda.device(self._device):
                    self._locks.lock(rows)
            with torch.cuda.stream(self._copy_stream):
                # Whole, also when it is short: another shape would be compiled again.
                groups = rows.groups if delivery.has_groups else (rows.pixels,)
                pixels = [
                    torch.from_numpy(group).to(self._device, non_blocking=True) for group in groups
                ]
                labels = torch.from_numpy(rows.labels).to(self._device, non_blocking=True)
        finally:
            event = self._copy_stream.record_event()
            self._copies.add(event, buffer, rows)
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(event)
        # The allocator assigns these tensors to the copy stream: without this it could reuse their
        # memory for the next copy while the compute stream still reads it.
        for tensor in (*pixels, labels):
            tensor.record_stream(compute)
        images: Any
        with torch.cuda.device(self._device):
            if delivery.has_groups:
                images = normalise_groups(self._normaliser, pixels, count)
            else:
                images = self._normaliser(pixels[0])[:count]
            if labels.dtype == torch.uint8:  # as ``Delivery.copy_labels``
                labels = labels.to(torch.float32)
                labels[delivery.valid :] = math.nan
        sample_ids = torch.from_numpy(rows.sample_ids[:count].copy())
        return Batch.of(images, labels[:count], _origin(delivery, sample_ids))

    def reclaim(self) -> list[int]:
        """The buffers with finished copies; waits when the host is too far ahead."""
        return self._copies.reclaim()

    def finish(self) -> list[int]:
        return self._copies.reclaim(all_of_them=True)

    def counters(self) -> dict[str, int]:
        """Failures to compile, and the lent slots that CUDA cannot lock."""
        return {
            "compile_failures": self._normaliser.compile_failures,
            "page_locks_refused": self._locks.refused,
        }

    def _clear_error(self) -> None:
        # After each launch torch raises CUDA's last error, also one of an earlier call that was
        # handled. This launch absorbs it.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)


def _origin(delivery: Delivery, sample_ids: torch.Tensor) -> Origin:
    return Origin(sample_ids, delivery.valid, delivery.epoch, delivery.index)

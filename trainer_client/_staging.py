"""Moves a complete batch from its host buffer to the device, and reports when the buffer is free.

On a CPU the normalised tensor is a new one, so the buffer is free at once. On CUDA the copy from
pinned memory is asynchronous: it runs on a stream of its own, parallel to the previous step's
compute, and an event marks its end. The compute stream waits for that event; the host only does if
it is more than ``MAX_COPIES`` copies ahead of the device, or has no next batch.

A lent slot is read in place, by the CPU or, once its pages are locked, by the device itself.
"""

import contextlib
import math
from collections import deque
from typing import Final, Protocol

import torch

from feeder.client.host_memory import HostRows, SlotBuffer
from trainer_client._batch import Batch, Origin
from trainer_client._device import Normaliser
from trainer_client._feed import Delivery, Stage
from trainer_client._page_lock import PageLocks

MAX_COPIES: Final = 1  # copies that may be in flight while the next batch is taken


class CopyEvent(Protocol):
    """The part of torch.cuda.Event that ``CopiesInFlight`` uses."""

    def query(self) -> bool:
        """Return whether the copy is done."""
        ...

    def synchronize(self) -> None:
        """Wait until the copy is done."""
        ...


class CopiesInFlight:
    """Buffers with a copy to the device in flight, oldest first."""

    def __init__(self) -> None:
        self._copies: deque[tuple[CopyEvent, int, HostRows | None]] = deque()

    def add(self, event: CopyEvent, buffer: int, batch: HostRows | None = None) -> None:
        """Keep ``buffer`` from being written and ``batch`` mapped until ``event``."""
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
        """Wait for all copies; return the buffers that are free again."""
        for event, _, _ in self._copies:
            event.synchronize()
        return self.reclaim()


TensorBatch = Batch[torch.Tensor]


class HostStage:
    """Normalises on the CPU."""

    buffers_held = 1

    def __init__(self, normaliser: Normaliser) -> None:
        self._normaliser = normaliser
        self._loaded: list[int] = []

    def load(self, delivery: Delivery, buffer: int) -> TensorBatch:
        """Normalise into a new tensor; the buffer is free when this returns."""
        self._loaded.append(buffer)
        rows, count = delivery.rows, delivery.count
        images = self._normaliser(torch.from_numpy(rows.pixels[:count]))
        labels = _finish_labels(torch.from_numpy(rows.labels[:count].copy()), delivery.valid)
        return Batch.of(images, labels, _origin(delivery))

    def reclaim(self) -> list[int]:
        """Return the buffers loaded since the last call."""
        free, self._loaded = self._loaded, []
        return free

    def finish(self) -> list[int]:
        """Return the same: there is nothing to wait for."""
        return self.reclaim()

    def counters(self) -> dict[str, int]:
        """Return the failures to compile."""
        return {"compile_failures": self._normaliser.compile_failures}


class CudaStage:
    """Copies pixels from pinned memory on a stream of its own and normalises on the device."""

    buffers_held = 1 + MAX_COPIES

    def __init__(self, normaliser: Normaliser) -> None:
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
                pixels = torch.from_numpy(rows.pixels).to(self._device, non_blocking=True)
                labels = torch.from_numpy(rows.labels).to(self._device, non_blocking=True)
        finally:
            event = self._copy_stream.record_event()
            self._copies.add(event, buffer, rows)
        compute = torch.cuda.current_stream(self._device)
        compute.wait_event(event)
        # The allocator assigns these tensors to the copy stream: without this it could reuse their
        # memory for the next copy while the compute stream still reads it.
        pixels.record_stream(compute)
        labels.record_stream(compute)
        with torch.cuda.device(self._device):
            images = self._normaliser(pixels)
            labels = _finish_labels(labels, delivery.valid)
        return Batch.of(images[:count], labels[:count], _origin(delivery))

    def reclaim(self) -> list[int]:
        """Return the buffers with finished copies; waits when the host is too far ahead."""
        return self._copies.reclaim()

    def finish(self) -> list[int]:
        """Wait for all copies."""
        return self._copies.finish()

    def counters(self) -> dict[str, int]:
        """Return the failures to compile, and the number of lent slots that CUDA cannot lock."""
        return {
            "compile_failures": self._normaliser.compile_failures,
            "page_locks_refused": self._locks.refused,
        }

    def _clear_error(self) -> None:
        # After each launch torch raises CUDA's last error, also one of an earlier call that was
        # handled. This launch absorbs it.
        with contextlib.suppress(RuntimeError):
            torch.zeros(1, device=self._device)


def _finish_labels(labels: torch.Tensor, valid: int) -> torch.Tensor:
    """Return several labels a sample, which alone come as uint8, as floats with NaN as padding."""
    if labels.dtype == torch.uint8:
        labels = labels.to(torch.float32)
        labels[valid:] = math.nan
    return labels


def _origin(delivery: Delivery) -> Origin:
    return Origin(
        torch.from_numpy(delivery.rows.sample_ids[: delivery.count].copy()),
        delivery.valid,
        delivery.epoch,
        delivery.index,
    )


def make_stage(normaliser: Normaliser) -> Stage[TensorBatch]:
    """Return the stage for the normaliser's device."""
    return CudaStage(normaliser) if normaliser.device.type == "cuda" else HostStage(normaliser)

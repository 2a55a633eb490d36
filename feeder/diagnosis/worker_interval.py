"""What one worker did between two snapshots of its node process."""

from dataclasses import dataclass

from feeder.diagnosis.rates import rates
from feeder.metrics.hangs import KernelState
from feeder.metrics.records import WorkerRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerInterval:
    """A worker that was there at both ends."""

    number: int
    pid: int
    state: str
    silent_s: float
    kernel_state: KernelState | None
    cpu: int
    images_a_s: float
    busy_share: float
    """Of the time, 0 to 1; so are the next three."""
    cpu_share: float
    run_delay_share: float
    blocked_share: float
    """In a chunk, but neither on a CPU nor waiting for one: it waits for storage."""
    storage_bytes_a_s: float
    requested_bytes_a_s: float


def worker_interval(before: WorkerRecord, now: WorkerRecord, seconds: float) -> WorkerInterval:
    """Return what one worker did between two snapshots."""
    rate = rates(seconds)
    busy = min(1.0, rate(before.busy_s, now.busy_s))
    cpu = min(busy, rate(before.cpu_s, now.cpu_s))
    run_delay = min(busy - cpu, rate(before.run_delay_s, now.run_delay_s))
    return WorkerInterval(
        number=now.number,
        pid=now.pid,
        state=now.state,
        silent_s=now.silent_s,
        kernel_state=now.kernel_state,
        cpu=now.cpu,
        images_a_s=rate(before.images, now.images),
        busy_share=busy,
        cpu_share=cpu,
        run_delay_share=run_delay,
        blocked_share=max(0.0, busy - cpu - run_delay),
        storage_bytes_a_s=rate(before.read_bytes, now.read_bytes),
        requested_bytes_a_s=rate(before.requested_bytes, now.requested_bytes),
    )

"""What the machine did between two readings of its load."""

from dataclasses import dataclass

from feeder.diagnosis.rates import rates
from feeder.metrics.report import HostLoad


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineInterval:
    """The machine. Shares are of the time, 0 to 1."""

    usable_cpus: float
    cpus: int
    busy_cpus: float
    """Mean number of busy ones, of ``cpus``, with all processes."""
    throttled_cpus: float
    """Mean number of CPUs on which the cgroup's quota kept its threads from running."""
    pressure_cpu: float
    pressure_io: float
    pressure_memory: float
    refaults_a_s: float


def machine_interval(before: HostLoad, now: HostLoad) -> MachineInterval:
    """Return the machine's load between two readings."""
    rate = rates(now.clock_s - before.clock_s)
    return MachineInterval(
        usable_cpus=now.usable_cpus,
        cpus=now.cpus,
        busy_cpus=min(float(now.cpus), rate(before.busy_s, now.busy_s)),
        throttled_cpus=rate(before.throttled_s, now.throttled_s),
        pressure_cpu=min(1.0, rate(before.pressure_cpu_s, now.pressure_cpu_s)),
        pressure_io=min(1.0, rate(before.pressure_io_s, now.pressure_io_s)),
        pressure_memory=min(1.0, rate(before.pressure_memory_s, now.pressure_memory_s)),
        refaults_a_s=rate(before.refaults, now.refaults),
    )

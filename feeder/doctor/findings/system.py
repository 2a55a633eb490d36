"""Findings about the kernel's files, load, clock and open files."""

from collections.abc import Iterator
from typing import Final

from feeder.doctor.findings.facts import Machine
from feeder.doctor.findings.finding import Finding, Severity

FILES_WANTED: Final = 4096
"""Open files that are enough for the default limits of sessions, at any number of workers.
tests/doctor/findings/test_conditions.py compares it with feeder.daemon.node_plan."""

_CPU_PRESSURE: Final = 0.4
_MEMORY_PRESSURE: Final = 0.1
_IO_PRESSURE: Final = 0.3
"""Shares of the time. As many tasks as CPUs, which is a machine well used, cause up to a quarter of
CPU pressure; memory and storage that suffice next to none."""

_LOAD_A_CPU: Final = 1.5

_SLOW_CLOCKS = {
    *("hpet", "acpi_pm", "pit", "jiffies", "refined-jiffies", "xen", "hyperv_clocksource_msr"),
}
"""Clock sources that are read by a system call, not in the process (vdso(7))."""

_FAST_CLOCKS = ("tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter")

_CLOCK_FOLDER = "/sys/devices/system/clocksource/clocksource0"


def find_unreadable(machine: Machine) -> Iterator[Finding]:
    """Yield a finding for each kernel file that Feeder cannot parse."""
    for line in machine.unreadable:
        yield Finding(
            name="kernel-files",
            severity=Severity.ERROR,
            what=line,
            detail="`feeder serve` would end with this message.",
            mend=(f"cat {line.partition(' ')[0]}   # report what it holds",),
        )


def find_pressure(machine: Machine) -> Iterator[Finding]:
    """Yield a finding for each of CPUs, memory and storage that tasks wait for, by /proc/pressure.

    Where the kernel has no pressure, the load average stands for that of the CPUs. A busy machine
    on which only Feeder is busy is what it should be.
    """
    load, cpus = machine.load, machine.allowed.count
    crowded = f"load average {load.average:g} on {cpus} CPUs" if load.average is not None else ""
    what = ""
    if load.cpu is not None:
        if load.cpu >= _CPU_PRESSURE:
            what = ", ".join(filter(None, (_pressure("the CPUs", load.cpu), crowded)))
    elif load.average is not None and cpus and load.average > _LOAD_A_CPU * cpus:
        what = f"the {crowded.replace('average', 'average is', 1)}"
    if what and (load.busy or not machine.daemons):
        names = [f"{each.name} (process {each.pid}, {each.cpus:.1f} CPUs)" for each in load.busy]
        users = f"most CPU time is used by {', '.join(names)}"
        pids = " ".join(str(process.pid) for process in load.busy)
        yield Finding(
            name="cpu-pressure",
            severity=Severity.WARNING,
            what=f"{what}; {users if names else 'no process that can be seen here uses much'}",
            detail=(
                "Each core that others use costs up to 1,636 images/s over tcp "
                "(docs/performance.md), and each wait for a CPU delays a batch."
            ),
            mend=(
                *((f"sudo renice -n 19 -p {pids}   # or end them",) if names else ()),
                "sudo systemctl set-property feeder CPUWeight=1000   # over other services",
            ),
        )
    if load.memory is not None and load.memory >= _MEMORY_PRESSURE:
        yield Finding(
            name="memory-pressure",
            severity=Severity.WARNING,
            what=_pressure("memory", load.memory),
            detail="Pages of datasets are evicted and read again, or programs are swapped out.",
            mend=("ps -eo rss,pid,comm --sort=-rss | head   # what holds it",),
        )
    if load.io is not None and load.io >= _IO_PRESSURE:
        yield Finding(
            name="storage-pressure",
            severity=Severity.WARNING,
            what=_pressure("storage", load.io),
            detail="A worker that waits for a read fills no batch meanwhile.",
            mend=("sudo iotop -oPb -n 3   # what reads and writes",),
        )


def _pressure(what: str, share: float) -> str:
    return f"tasks have waited for {what} {share:.0%} of the last 10 s".replace("%", " %")


def find_slow_clock(machine: Machine) -> Iterator[Finding]:
    """Yield a finding if reading the time takes a system call."""
    clock = machine.clock
    if clock.current not in _SLOW_CLOCKS:
        return
    better = next((name for name in _FAST_CLOCKS if name in clock.available), None)
    yield Finding(
        name="clock-source",
        severity=Severity.WARNING,
        what=f"the clock source is {clock.current}, which takes a system call to read",
        detail=(
            "The system call alone made a reading take 280 ns instead of 24 (AMD EPYC, Linux "
            "6.18); a device's register comes on top. The timers of ZeroMQ and Feeder read the "
            "clock for each message."
        ),
        mend=(
            (f"echo {better} | sudo tee \\", f"    {_CLOCK_FOLDER}/current_clocksource")
            if better
            else (
                "sudo dmesg | grep -i clocksource   # why the kernel distrusts tsc",
                "tsc=reliable   # on the kernel's command line, on sound hardware",
            )
        ),
    )


def find_few_files(machine: Machine) -> Iterator[Finding]:
    """Yield a finding if the hard limit of open files is below what the defaults need."""
    hard = machine.limits.files_hard
    if hard is None or hard >= FILES_WANTED:
        return
    yield Finding(
        name="open-files",
        severity=Severity.WARNING,
        what=f"a process may open at most {hard:,} files",
        detail=(
            "A session takes 4 in its node process and 2 in each worker, and each dataset up to "
            f"512 shards: {FILES_WANTED:,} are enough for the 512 sessions that are the default. "
            "With fewer, later clients are refused."
        ),
        mend=(
            "sudo systemctl edit feeder   # add [Service] and LimitNOFILE=65536",
            "docker run --ulimit nofile=65536:65536 …",
            "echo '* hard nofile 65536' | sudo tee -a /etc/security/limits.conf",
        ),
    )

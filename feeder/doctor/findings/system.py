"""Findings about the kernel's files, clock and open files."""

from collections.abc import Iterator
from typing import Final

from feeder.doctor.findings.facts import Machine
from feeder.doctor.findings.finding import Finding, Severity

FILES_WANTED: Final = 4096
"""Open files that are enough for the default limits of sessions, at any number of workers.
tests/doctor/findings/test_conditions.py compares it with feeder.daemon.descriptor_budget."""

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

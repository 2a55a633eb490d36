"""Findings about the kernel's files, clock, open files and file systems."""

import re
from collections.abc import Iterator
from typing import Final

from feeder.doctor.findings.facts import DatasetPlace, Machine
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

_REMOTE_KINDS = {
    *("nfs", "nfs4", "cifs", "smb3", "smbfs", "ceph", "lustre", "beegfs", "beegfs_nodev", "gpfs"),
    *("afs", "9p", "virtiofs", "glusterfs", "orangefs", "pvfs2", "wekafs", "panfs", "ncpfs"),
    *("ocfs2", "gfs2", "coda", "fhgfs", "quobyte"),
}
_PLAIN = re.compile(r"[\w./+@:,-]+")
_LOCAL_FUSE = {"fuseblk", "fuse.mergerfs", "fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.ntfs-3g"}


def is_remote(kind: str) -> bool:
    """Whether a file system's data is on another machine, as far as its kind shows."""
    if kind in _REMOTE_KINDS:
        return True
    return (kind == "fuse" or kind.startswith("fuse.")) and kind not in _LOCAL_FUSE


def may_hang(kind: str) -> bool:
    """Whether a look at a path on such a file system may wait for another machine, even for ever.

    An automounter mounts what is looked at, which may be on a server that does not answer.
    """
    return is_remote(kind) or kind == "autofs"


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


def find_remote_datasets(machine: Machine) -> Iterator[Finding]:
    """Yield a finding for each dataset on a network file system."""
    for place in machine.datasets:
        if is_remote(place.kind):
            yield Finding(
                name="remote-dataset",
                severity=Severity.WARNING,
                what=(
                    f"the dataset {place.path} is on a network file system ({place.kind}, "
                    f"{place.source}, mounted at {place.mount})"
                ),
                detail=(
                    "Crops are read one by one in random order, so each read that the page cache "
                    "does not answer waits for the network, in every epoch. If that server does "
                    "not answer, neither do the dataset's batches."
                ),
                mend=_copy(place),
            )


def _copy(place: DatasetPlace) -> tuple[str, ...]:
    path = place.path.rstrip("/") or "/"
    name = path.rpartition("/")[2] or "dataset"
    quoted = path
    if not _PLAIN.fullmatch(path):
        quoted = "'" + path.replace("'", "'\\''") + "'"
    return (f"cp -r {quoted} /LOCAL/DISK/   # then serve /LOCAL/DISK/{name}",)


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

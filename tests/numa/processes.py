"""The processes of a daemon, from /proc."""

from pathlib import Path


def node_processes(supervisor: int) -> list[int]:
    """Return the pids of a supervisor's node processes, in the order in which they started."""
    return [pid for pid in children(supervisor) if "feeder.node" in command(pid)]


def workers(node: int) -> list[int]:
    return [pid for pid in children(node) if "feeder.worker" in command(pid)]


def children(parent: int) -> list[int]:
    """Return the pids of a process's children, oldest first."""
    found = []
    for entry in Path("/proc").glob("[0-9]*/stat"):
        if (fields := stat_fields(entry)) and int(fields[1]) == parent:
            found.append((int(fields[19]), int(entry.parent.name)))  # start time, pid
    return [pid for _, pid in sorted(found)]


def command(pid: int) -> str:
    """Return a process's command line; empty if it has ended or is a zombie."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""


def processors(pid: int) -> set[int]:
    """Return the CPUs that a process's threads ran on last."""
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")
    return {int(fields[36]) for task in tasks if (fields := stat_fields(task))}


def stat_fields(path: Path) -> list[str]:
    """Return the fields of proc(5)'s stat from field 3, state; none if the process has ended."""
    try:
        return path.read_text().rpartition(")")[2].split()
    except OSError:
        return []

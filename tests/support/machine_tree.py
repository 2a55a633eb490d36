"""Writes the /sys and /proc files of simulated machines below a folder."""

import re
from collections.abc import Mapping
from pathlib import Path


def write_tree(root: Path, files: Mapping[str, str]) -> Path:
    """Write files, keyed by path below `root`; return `root`."""
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n")
    return root


def node(number: int, cpulist: str, memory_kb: int, distance: str = "") -> dict[str, str]:
    """Return the files of one NUMA node, for write_tree."""
    folder = f"sys/devices/system/node/node{number}"
    total = f"Node {number} MemTotal:  {memory_kb} kB\nNode {number} MemFree:  1 kB"
    files = {f"{folder}/cpulist": cpulist, f"{folder}/meminfo": total}
    return files | ({f"{folder}/distance": distance} if distance else {})


def two_nodes(root: Path) -> Path:
    """Write a machine of two nodes: CPUs 0-3 and 4-7, 1 GiB each."""
    files = node(0, "0-3", 1 << 20, "10 21") | node(1, "4-7", 1 << 20, "21 10")
    return write_tree(root, files | {"sys/devices/system/cpu/online": "0-7"})


def cgroup_v2(path: str, quotas: Mapping[str, str], shown: str = "/") -> dict[str, str]:
    """Return the files of a v2 hierarchy: our group, and cpu.max by folder below the mount."""
    mount = "sys/fs/cgroup"
    files = {
        "proc/self/cgroup": f"0::{path}",
        "proc/self/mountinfo": f"30 23 0:26 {shown} /{mount} rw,nosuid - cgroup2 cgroup2 rw",
    }
    return files | {f"{mount}/{name}/cpu.max": text for name, text in quotas.items()}


def cgroup_v1(path: str, quotas: Mapping[str, tuple[int, int]], shown: str = "/") -> dict[str, str]:
    """Return the files of a v1 hierarchy: our group, and (quota, period) by folder in the mount."""
    mount = "sys/fs/cgroup/cpu,cpuacct"
    files = {
        "proc/self/cgroup": f"5:memory:{path}\n4:cpu,cpuacct:{path}",
        "proc/self/mountinfo": f"33 31 0:29 {shown} /{mount} rw - cgroup cgroup rw,cpu,cpuacct",
    }
    for name, (quota_us, period_us) in quotas.items():
        files[f"{mount}/{name}/cpu.cfs_quota_us"] = str(quota_us)
        files[f"{mount}/{name}/cpu.cfs_period_us"] = str(period_us)
    return files


def read_description(text: str) -> dict[str, str]:
    """Return the files of a machine described in lines "PATH = CONTENT", for write_tree.

    "{0-127}" in a path repeats the line with each number n; then "{n}", "{n+64}" and "{n-64}" in
    the content are numbers too. Lines that begin with "| " continue the content of the line above.
    Others that begin with "#" are comments. The words of a file called cmdline end with zero bytes.
    """
    files: dict[str, str] = {}
    names: list[str] = []
    for line in text.splitlines():
        if line.startswith("|"):
            for name in names:
                files[name] = f"{files[name]}\n{line[2:]}".removeprefix("\n")
        elif line.strip() and not line.startswith("#"):
            path, separator, content = line.partition(" =")
            assert separator, f"{line!r} is not PATH = CONTENT"
            repeated = re.search(r"\{(\d+)-(\d+)\}", path)
            numbers = range(int(repeated[1]), int(repeated[2]) + 1) if repeated else range(1)
            names = []
            for n in numbers:
                name = (
                    path[: repeated.start()] + str(n) + path[repeated.end() :] if repeated else path
                )
                names.append(name)
                files[name] = _fill(content.strip(), n) if repeated else content.strip()
    for name in files:
        if name.endswith("/cmdline"):
            files[name] = "".join(f"{word}\0" for word in files[name].split())
    return files


def _fill(content: str, n: int) -> str:
    return re.sub(r"\{n([+-]\d+)?\}", lambda match: str(n + int(match[1] or 0)), content)

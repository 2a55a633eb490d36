"""Small kernel files below a root, read without ever failing: what is absent or odd is empty."""

import os
import re
from collections.abc import Iterator
from pathlib import Path

from feeder.errors import FeederError
from feeder.host.kernel_files import cgroup_folders
from feeder.host.topology import parse_cpulist
from feeder.process.regular_file import read_regular

_BYTES_MAX = 16 << 20


class KernelFiles:
    """Reads /proc and /sys below ``root``, for the process ``process`` (its folder in /proc)."""

    def __init__(self, root: Path, process: str = "self") -> None:
        self.root = root
        self.process = process
        self.process_root = root if process == "self" else root / "proc" / process / "root"
        """The folder that the process sees as "/"."""
        self.unreadable: list[str] = []
        """What the daemon's own reader could not parse: a line each, perhaps several times."""

    def text(self, path: str | Path, bytes_max: int = _BYTES_MAX) -> str:
        """The beginning of a file, stripped; "" where it cannot be read."""
        try:
            data = read_regular(self.root / path, bytes_max)
        except (OSError, ValueError):  # a ValueError: the path holds a zero byte
            return ""
        return data.decode("utf-8", "replace").strip()

    def own(self, name: str) -> str:
        """A file of the process, such as "status"."""
        return self.text(f"proc/{self.process}/{name}")

    def number(self, path: str | Path) -> int | None:
        return to_number(self.text(path))

    def cpus(self, path: str | Path) -> frozenset[int]:
        return to_cpus(self.text(path))

    def entries(self, folder: str | Path) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except (OSError, ValueError):
            return []

    def numbered(self, folder: str, before: str = "", after: str = "") -> Iterator[tuple[int, str]]:
        """Number and path of each entry such as cpu12, whose number is between these texts."""
        pattern = re.compile(f"{before}([0-9]{{1,12}}){after}", re.ASCII)
        for name in self.entries(folder):
            if match := pattern.fullmatch(name):
                yield int(match[1]), f"{folder}/{name}"

    def cgroups(self, controller: str) -> tuple[tuple[Path, bool], ...]:
        """The folders of a controller's limits, the innermost last, and whether each is of v2."""
        try:
            return cgroup_folders(self.root, controller, self.process)
        except FeederError as error:
            self.unreadable.append(str(error))
            return ()


def to_number(text: str) -> int | None:
    """None for anything but a count; the kernel's -1 means "none"."""
    return int(text) if re.fullmatch("[0-9]{1,18}", text) else None


def to_cpus(text: str) -> frozenset[int]:
    """The numbers of a list such as 0-3,8; none where the text is anything else."""
    try:
        return parse_cpulist(text)
    except FeederError:
        return frozenset()


def to_fields(text: str) -> dict[str, str]:
    """The lines "Name: value"; of equal names the first."""
    fields: dict[str, str] = {}
    for line in text.splitlines():
        name, separator, value = line.partition(":")
        if separator:
            fields.setdefault(name.strip(), value.strip())
    return fields


def to_bytes(text: str) -> int | None:
    """The bytes of a value such as "16384 kB", or None."""
    amount = to_number(text.removesuffix("kB").strip())
    return None if amount is None else amount * 1024

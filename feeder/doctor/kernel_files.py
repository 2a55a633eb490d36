"""Small kernel files below a root, read without ever failing: what is absent or odd is empty."""

import os
import re
from pathlib import Path

from feeder.errors import FeederError
from feeder.host.topology import parse_cpulist
from feeder.process.regular_file import read_regular

_BYTES_MAX = 1 << 20
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class KernelFiles:
    """Reads /proc and /sys below ``root``, for the process ``process`` (its folder in /proc)."""

    def __init__(self, root: Path, process: str = "self") -> None:
        self.root = root
        self.process = process
        self.is_own = process == "self" and root == Path("/")
        self.process_root = root if process == "self" else root / "proc" / process / "root"
        """The folder that the process sees as "/"."""

    def text(self, path: str | Path, bytes_max: int = _BYTES_MAX) -> str:
        """The beginning of a file, stripped; "" where it cannot be read."""
        try:
            data = read_regular(self.root / path, bytes_max)
        except (OSError, ValueError):  # a ValueError: the path holds a zero byte
            return ""
        return data.decode("utf-8", "replace").strip()

    def own(self, name: str) -> str:
        """A file of the process, such as "status"."""
        return self.text(f"proc/{self.process}/{name}", 16 * _BYTES_MAX)

    def number(self, path: str | Path) -> int | None:
        return to_number(self.text(path, 64))

    def cpus(self, path: str | Path) -> frozenset[int]:
        return to_cpus(self.text(path))

    def entries(self, folder: str | Path) -> list[str]:
        try:
            return sorted(os.listdir(self.root / folder))
        except (OSError, ValueError):
            return []

    def fields(self, path: str | Path, bytes_max: int = _BYTES_MAX) -> dict[str, str]:
        return to_fields(self.text(path, bytes_max))


def to_number(text: str) -> int | None:
    return int(text) if _NUMBER.fullmatch(text) else None


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
    return None if amount is None or amount < 0 else amount * 1024

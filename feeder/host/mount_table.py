"""Parses /proc/PID/mountinfo: what is mounted where, as the process sees it.

Source: proc_pid_mountinfo(5).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final

_ESCAPE: Final = re.compile(r"\\([0-7]{3})")  # a space is written as \040


@dataclass(frozen=True, slots=True, kw_only=True)
class Mount:
    """One mount. ``shown`` is the folder of the file system that is seen at ``point``."""

    shown: str
    point: PurePosixPath
    kind: str
    source: str
    options: tuple[str, ...]
    """Of the file system, not of this mount: for cgroup v1 the controllers."""


def parse_mounts(text: str) -> Iterator[Mount]:
    """Yield the mounts of a table in its order, later ones over earlier; skip malformed lines."""
    for line in text.split("\n"):
        before, _, after = line.partition(" - ")
        mounted, system = before.split(" "), after.split(" ")
        if len(mounted) < 5 or len(system) < 3 or not mounted[4].startswith("/"):
            continue
        shown, point, source = map(_unescape, (*mounted[3:5], system[1]))
        yield Mount(
            shown=shown,
            point=PurePosixPath("/" + point.lstrip("/")),  # two slashes would be another root
            kind=system[0],
            source=source,
            options=tuple(system[2].split(",")),
        )


def _unescape(field: str) -> str:
    return _ESCAPE.sub(lambda match: chr(int(match[1], 8)), field)

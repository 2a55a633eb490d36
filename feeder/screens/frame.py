"""A full screen: lines that fit its height, and lists that scroll where they are too long."""

from collections.abc import Sequence
from dataclasses import dataclass

from rich.text import Text

from feeder.metrics.report import HostReport
from feeder.screens.sheet import Sheet
from feeder.screens.status_screen import draw_status


@dataclass(frozen=True, slots=True, kw_only=True)
class Frame:
    """A full screen."""

    lines: Sequence[Text]
    scroll_max: int
    """The largest offset that still moves something."""


def draw_status_frame(
    report: HostReport, sheet: Sheet, height: int, offset: int, note: Text
) -> Frame:
    """Return what ``feeder status`` prints as a frame, ``note`` in its last line."""
    lines = draw_status(report, sheet)
    room = max(1, height - 1)
    last = max(0, len(lines) - room)
    first = min(offset, last)
    foot = Text(" " * max(0, sheet.width - note.cell_len)).append_text(note)
    return Frame(lines=[*lines[first : first + room], sheet.fit(foot)], scroll_max=last)


def share_lines(room: int, needs: Sequence[int]) -> list[int]:
    """Return how many lines each list gets: short ones all they need, the others equal parts."""
    rooms = [0] * len(needs)
    left = room
    for remaining, index in enumerate(sorted(range(len(needs)), key=lambda each: needs[each])):
        rooms[index] = min(needs[index], left // (len(needs) - remaining))
        left -= rooms[index]
    return rooms


def window(rows: Sequence[Text], room: int, offset: int, sheet: Sheet) -> tuple[list[Text], int]:
    """Return the rows to show and the largest offset; the last line says how many are hidden."""
    if len(rows) <= room:
        return list(rows), 0
    shown = max(0, room - 1)
    last = len(rows) - shown
    first = min(offset, last)
    after = last - first
    parts = [
        f"{arrow} {number} more"
        for arrow, number in ((sheet.glyphs.up, first), (sheet.glyphs.down, after))
        if number
    ]
    return [*rows[first : first + shown], Text("  ".join(parts), "dim")][:room], last

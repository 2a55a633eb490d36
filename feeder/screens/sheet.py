"""Lays text out in lines that are never wider than the terminal, and draws bars and curves.

From CUT_BELOW columns on every number of the screens is whole. On a narrower terminal a line that
does not fit ends with a mark.
"""

import re
import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import KW_ONLY, dataclass
from itertools import pairwise
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.text import Text

from feeder.metrics import figures

Cell = str | Text

CUT_BELOW: Final = 40
LABEL_CELLS: Final = 11
_GAP: Final = "  "
_FLEXIBLE_CELLS_MIN: Final = 8
_TIED: Final = re.compile(r"(?<=\d) (?=%|(?:s|ms|min|h|[KMGT]B|images/s|cores)\b)")
"""The space between a number and its unit."""

_UNPRINTABLE: Final = ("Cc", "Cf", "Cs", "Co", "Cn", "Zl", "Zp")


def printable(text: str) -> str:
    """Replace what moves the cursor or reorders a terminal's line in a text from elsewhere."""
    return "".join("?" if unicodedata.category(c) in _UNPRINTABLE else c for c in text)


def percent(share: float) -> str:
    """A share as in verdicts, except that none but 0 is shown as 0."""
    return "<0.1 %" if 0 < 100 * share < 0.05 else figures.percent(share)


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters to draw with."""

    full: str
    half: str  # ends a bar with half a cell; "" where there is none
    empty: str
    levels: str  # for curves, lowest first
    parts: str  # for stacked bars, so that they can be read without colours
    ellipsis: str
    up: str
    down: str

    def bar(self, share: float, width: int, style: str = "cyan") -> Text:
        """A bar of ``width`` cells that is full at a share of 1."""
        steps = 2 if self.half else 1
        filled = max(share > 0, round(min(1.0, max(0.0, share)) * width * steps))
        head = self.full * (filled // steps) + (self.half if filled % steps else "")
        return Text.assemble((head, style), (self.empty * (width - len(head)), "dim"))

    def curve(self, values: Sequence[float], width: int, top: float, style: str = "cyan") -> Text:
        """A curve of ``width`` cells, the latest value on the right, ``top`` at the highest level.

        More values than cells are averaged.
        """
        if len(values) > width:
            ends = [round(cell * len(values) / width) for cell in range(width + 1)]
            values = [sum(values[start:end]) / (end - start) for start, end in pairwise(ends)]
        last = len(self.levels) - 1
        heights = [min(last, round(value / top * last)) if top > 0 else 0 for value in values]
        line = "".join(self.levels[height] for height in heights)
        return Text.assemble(" " * (width - len(line)), (line, style))

    def stack(self, shares: Sequence[float], width: int, styles: Sequence[str]) -> Text:
        """One bar of several parts; what the shares leave of 1 is empty."""
        text, total, before = Text(), 0.0, 0
        for number, share in enumerate(shares):
            total += share
            # Ends are rounded, not lengths, so that errors do not add up.
            end = min(width, round(total * width))
            text.append(self.key(number) * (end - before), styles[number % len(styles)])
            before = max(before, end)
        return text.append(self.empty * (width - before), "dim")

    def key(self, number: int) -> str:
        """The character of a stacked bar's part, for its legend."""
        return self.parts[number % len(self.parts)]


BLOCKS: Final = Glyphs(
    full="━", half="╸", empty="─", levels="▁▂▃▄▅▆▇█", parts="█▓▒░", ellipsis="…", up="▲", down="▼"
)
ASCII: Final = Glyphs(
    full="#", half="", empty="-", levels="_.-=+*#", parts="#=+:", ellipsis="~", up="^", down="v"
)


def glyphs_for(encoding: str) -> Glyphs:
    """The glyphs that a stream with this encoding can carry."""
    try:
        "━╸▁▂▃▄▅▆▇█▓▒░…▲▼".encode(encoding)
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS


@dataclass(frozen=True, slots=True, eq=False)
class Column:
    """A column of a table. Without contents it is left out."""

    title: str
    cells: Sequence[Cell]
    _: KW_ONLY
    # Its texts are shortened where room is missing, and aligned to the left; no others are.
    is_flexible: bool = False
    is_left: bool = False
    # It is left out rather than shorten a text of a flexible column, as bars are.
    is_extra: bool = False
    # Among columns that do not fit, those with the highest rank are left out; 0 never is.
    rank: int = 0


class Sheet:
    """What lines are laid out for."""

    def __init__(self, width: int, glyphs: Glyphs) -> None:
        self.width = width
        self.glyphs = glyphs
        self.has_labels = width >= 4 * LABEL_CELLS  # beside their contents; else above
        self.content_cells = max(1, width - (LABEL_CELLS if self.has_labels else len(_GAP)))

    def cut(self, text: str, cells: int) -> str:
        """Replace the middle of a text that is too long by a mark: names of clients differ at their
        ends."""
        if cell_len(text) <= cells:
            return text
        tail = (cells - 1) // 2
        head = cells - 1 - tail
        start = chop_cells(text, head)[0] if head > 0 else ""
        end = chop_cells(text[::-1], tail)[0][::-1] if tail > 0 else ""
        return f"{start}{self.glyphs.ellipsis}{end}"

    def fit(self, line: Text) -> Text:
        """Cut a line to the sheet's width; one that is cut ends with a mark."""
        if line.cell_len > self.width:
            line = line.copy()
            line.truncate(self.width - 1, overflow="crop")
            line.append(self.glyphs.ellipsis)
        return line

    def join(self, cells: Iterable[Text], gap: str = _GAP) -> Text:
        """Cells beside one another, as a line without blanks at its end."""
        line = Text(gap).join(cells)
        line.rstrip()
        return self.fit(line)

    def spread(self, left: Text, right: Text) -> Text:
        """One text at the left of a line, and another at its right."""
        blank = " " * (self.width - left.cell_len - right.cell_len)
        return self.fit(left.append(blank).append_text(right))

    def words(self, text: str, style: str, *, indent: int = 0) -> list[Text]:
        """A sentence, wrapped between words; later lines are indented."""
        lines, room = [""], self.width
        for tied in _TIED.sub("\0", text).split(" "):
            word, cells = tied.replace("\0", " "), max(1, self.width - indent)
            for piece in chop_cells(word, cells) if cell_len(word) > cells else [word]:
                if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(piece) > room:
                    lines.append("")
                    room = self.width - indent
                lines[-1] += f" {piece}" if lines[-1] else piece
        pairs = zip(["", *[" " * indent] * len(lines)], lines, strict=False)
        return [self.fit(Text.assemble(blank, (line, style))) for blank, line in pairs]

    def fill(self, pieces: Iterable[Cell], gap: str = _GAP) -> list[Text]:
        """Pieces that are not empty, on as many lines as they need beside a label."""
        lines: list[Text] = []
        for text in filter(None, map(_as_text, pieces)):
            if lines and lines[-1].cell_len + len(gap) + text.cell_len <= self.content_cells:
                lines[-1].append(gap).append_text(text)
            elif text.cell_len <= self.content_cells:
                lines.append(Text().append_text(text))  # its style is not that of the line
            else:
                lines += Sheet(self.content_cells, self.glyphs).words(text.plain, str(text.style))
        return lines

    def flow(self, label: str, *rows: Iterable[Cell], gap: str = _GAP) -> list[Text]:
        """Rows of pieces after a label; each row begins on a line of its own."""
        return self.stack(label, [line for row in rows for line in self.fill(row, gap)])

    def stack(self, label: str, lines: Sequence[Text]) -> list[Text]:
        """Lines one under another, the first beside the label."""
        if self.has_labels:
            heads = [(f"{head:<{LABEL_CELLS}}", "bold") for head in (label, *[""] * len(lines))]
            return [self.fit(Text.assemble(*row)) for row in zip(heads, lines, strict=False)]
        above = [Text(label, "bold")] if label and lines else []
        return [*above, *(self.fit(Text(_GAP) + line) for line in lines)]

    def table(self, *columns: Column) -> list[Text]:
        """A line of titles and one for each row, if there are any, as wide as the sheet at most."""
        texts = {
            column: [Text(column.title, "dim"), *map(_as_text, column.cells)]
            for column in columns
            if any(map(len, column.cells))
        }
        if not texts:
            return []
        widths = {column: max(text.cell_len for text in texts[column]) for column in texts}
        self._leave_out(widths, [column for column in widths if column.is_extra])
        cells = {
            column: min(width, _FLEXIBLE_CELLS_MIN) if column.is_flexible else width
            for column, width in widths.items()
        }
        self._leave_out(cells, [column for column in cells if column.rank])
        for column in cells:
            cells[column] += max(0, min(self._spare(cells), widths[column] - cells[column]))
        lines = []
        for at in range(1 + len(columns[0].cells)):
            aligned = []
            for column, width in cells.items():
                text = texts[column][at]
                if text.cell_len > width:
                    text = Text(self.cut(text.plain, width), text.style)
                blank = Text(" " * (width - text.cell_len))
                is_left = column.is_left or column.is_flexible
                aligned.append(text + blank if is_left else blank + text)
            lines.append(self.join(aligned))
        return lines

    def _leave_out(self, cells: dict[Column, int], optional: Iterable[Column]) -> None:
        """Remove optional columns from ``cells``, the highest ranks first, until the rest fits."""
        for column in sorted(optional, key=lambda column: -column.rank):
            if self._spare(cells) < 0:
                del cells[column]

    def _spare(self, cells: Mapping[Column, int]) -> int:
        return self.width - sum(cells.values()) - len(_GAP) * (len(cells) - 1)


def _as_text(cell: Cell) -> Text:
    return cell if isinstance(cell, Text) else Text(cell)

"""Lays text out in lines that are never wider than the terminal.

flow    pieces one after another; a piece that does not fit begins the next line
table   rows in columns: one column gives way to the others, optional ones are left out

From CUT_BELOW columns on every number of the screens is whole. On a narrower terminal a line that
does not fit ends with a mark.
"""

import re
from collections.abc import Iterable, Sequence
from dataclasses import KW_ONLY, dataclass
from typing import Final

from rich.cells import cell_len, chop_cells
from rich.text import Text

from feeder.screens.glyphs import Glyphs

CUT_BELOW: Final = 40
LABEL_CELLS: Final = 11
_GAP: Final = "  "
_FLEXIBLE_CELLS_MIN: Final = 8
_TIED: Final = re.compile(r"(?<=\d) (?=%|(?:s|ms|min|h|[KMGT]B|images/s|cores)\b)")
"""The space between a number and its unit."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of a table."""

    title: str
    _: KW_ONLY
    is_flexible: bool = False
    """Its texts are shortened where room is missing; the others are never."""
    is_left: bool = False
    """Its texts are aligned to the left, as names are."""
    is_extra: bool = False
    """It is left out rather than shorten a text of a flexible column, as bars are."""
    rank: int = 0
    """Of several columns that do not fit, those with the highest rank are left out; 0 never is."""


@dataclass(frozen=True, slots=True)
class Sheet:
    """What lines are laid out for."""

    width: int
    glyphs: Glyphs

    @property
    def content_cells(self) -> int:
        """Cells beside the labels."""
        return max(1, self.width - self.label_cells)

    @property
    def label_cells(self) -> int:
        """Cells of the labels on the left."""
        return LABEL_CELLS if self.width >= 4 * LABEL_CELLS else 2

    @property
    def has_labels(self) -> bool:
        """Whether labels stand beside their contents; else above."""
        return self.label_cells == LABEL_CELLS

    def cut(self, text: str, cells: int) -> str:
        """Return a text shortened to a number of cells, with a mark where its middle is missing.

        Names of clients differ at their ends.
        """
        if cell_len(text) <= cells:
            return text
        tail = (cells - 1) // 2
        head = cells - 1 - tail
        start = chop_cells(text, head)[0] if head > 0 else ""
        end = chop_cells(text[::-1], tail)[0][::-1] if tail > 0 else ""
        return f"{start}{self.glyphs.ellipsis}{end}"

    def flow(self, label: str, pieces: Iterable[str | Text], *, gap: str = _GAP) -> list[Text]:
        """Return pieces after a label, on as many lines as they need."""
        return self._labelled(label, self.fill(pieces, gap))

    def flows(self, label: str, rows: Iterable[Iterable[str | Text]]) -> list[Text]:
        """Return several rows of pieces after one label; each begins on a line of its own."""
        return self._labelled(label, [line for row in rows for line in self.fill(row)])

    def words(self, text: str, style: str, *, indent: int = 0) -> list[Text]:
        """Return a sentence, wrapped between words; later lines are indented."""
        lines, room = [""], self.width
        for word in _TIED.sub("\0", text).split(" "):
            for piece in _chopped(word.replace("\0", " "), max(1, self.width - indent)):
                if lines[-1] and cell_len(lines[-1]) + 1 + cell_len(piece) > room:
                    lines.append("")
                    room = self.width - indent
                lines[-1] += f" {piece}" if lines[-1] else piece
        blanks = ["", *[" " * indent] * (len(lines) - 1)]
        pairs = zip(blanks, lines, strict=True)
        return [self.fit(Text.assemble(blank, (line, style))) for blank, line in pairs]

    def stack(self, label: str, rows: Iterable[Text]) -> list[Text]:
        """Return rows one under another, the first beside the label."""
        return self._labelled(label, list(rows))

    def table(self, columns: Sequence[Column], rows: Sequence[Sequence[str | Text]]) -> list[Text]:
        """Return a line of titles and one for each row, as wide as the sheet at most.

        Columns without contents are left out.
        """
        texts = [
            [cell if isinstance(cell, Text) else Text(cell) for cell in row]
            for row in ([Text(column.title, "dim") for column in columns], *rows)
        ]
        widths = [max(row[index].cell_len for row in texts) for index in range(len(columns))]
        kept = [
            index for index in range(len(columns)) if any(row[index].plain for row in texts[1:])
        ]
        least = [
            min(width, _FLEXIBLE_CELLS_MIN) if column.is_flexible else width
            for column, width in zip(columns, widths, strict=True)
        ]
        self._leave_out(kept, widths, [i for i in kept if columns[i].is_extra], columns)
        self._leave_out(kept, least, [i for i in kept if columns[i].rank], columns)
        spare = self._spare(kept, least)
        for index in kept:
            more = max(0, min(spare, widths[index] - least[index]))
            least[index] += more
            spare -= more
        return [self._row(row, columns, kept, least) for row in texts]

    def _leave_out(
        self, kept: list[int], widths: list[int], optional: list[int], columns: Sequence[Column]
    ) -> None:
        """Remove optional columns from ``kept``, the highest ranks first, until the rest fits."""
        for index in sorted(optional, key=lambda index: -columns[index].rank):
            if self._spare(kept, widths) >= 0:
                break
            kept.remove(index)

    def _spare(self, kept: list[int], widths: list[int]) -> int:
        gaps = len(_GAP) * (len(kept) - 1)
        return self.width - sum(widths[index] for index in kept) - gaps

    def _row(
        self, row: list[Text], columns: Sequence[Column], kept: Iterable[int], widths: list[int]
    ) -> Text:
        cells = []
        for index in kept:
            cell = row[index]
            if cell.cell_len > widths[index]:
                cell = Text(self.cut(cell.plain, widths[index]), cell.style)
            blank = " " * (widths[index] - cell.cell_len)
            cells.append(cell + blank if columns[index].is_left else Text(blank) + cell)
        line = Text(_GAP).join(cells)
        line.rstrip()
        return self.fit(line)

    def fit(self, line: Text) -> Text:
        """Return a line with at most the sheet's width; one that is cut ends with a mark."""
        if line.cell_len > self.width:
            line = line.copy()
            line.truncate(self.width - 1, overflow="crop")
            line.append(self.glyphs.ellipsis)
        return line

    def fill(self, pieces: Iterable[str | Text], gap: str = _GAP) -> list[Text]:
        """Return pieces one after another, on as many lines as they need beside a label."""
        lines: list[Text] = []
        for piece in pieces:
            text = piece if isinstance(piece, Text) else Text(piece)
            if lines and lines[-1].cell_len + len(gap) + text.cell_len <= self.content_cells:
                lines[-1].append(gap).append_text(text)
            elif text.cell_len <= self.content_cells:
                lines.append(Text().append_text(text))  # its style is not that of the line
            else:
                lines += Sheet(self.content_cells, self.glyphs).words(text.plain, str(text.style))
        return lines

    def _labelled(self, label: str, lines: list[Text]) -> list[Text]:
        if not lines:
            return []
        cells = self.label_cells
        if self.has_labels:
            heads = [label, *("" for _ in lines[1:])]
            return [
                self.fit(Text.assemble((f"{head:<{cells}}", "bold"), line))
                for head, line in zip(heads, lines, strict=True)
            ]
        head = [Text(label, "bold")] if label else []
        return [*head, *(self.fit(Text(" " * cells) + line) for line in lines)]


def _chopped(word: str, cells: int) -> list[str]:
    return chop_cells(word, cells) if cell_len(word) > cells else [word]

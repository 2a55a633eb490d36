"""Bars and curves as characters, for terminals with block characters and for those without."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from rich.text import Text


@dataclass(frozen=True, slots=True, kw_only=True)
class Glyphs:
    """The characters to draw with."""

    full: str
    half: str
    """Ends a bar with half a cell; "" where there is none."""
    empty: str
    levels: str
    """Of a curve, lowest first."""
    parts: str
    """Of a stacked bar, so that it can be read without colours."""
    ellipsis: str
    up: str
    down: str

    def bar(self, share: float, width: int, style: str = "cyan") -> Text:
        """Return a bar of ``width`` cells that is full at a share of 1."""
        steps = 2 if self.half else 1
        filled = round(min(1.0, max(0.0, share)) * width * steps)
        if share > 0:
            filled = max(1, filled)
        head = self.full * (filled // steps) + (self.half if filled % steps else "")
        return Text.assemble((head, style), (self.empty * (width - len(head)), "dim"))

    def curve(self, values: Sequence[float], width: int, top: float, style: str = "cyan") -> Text:
        """Return a curve of ``width`` cells, the latest value on the right.

        More values than cells are averaged; ``top`` is the highest level's value.
        """
        cells = _resample(values, width)
        last = len(self.levels) - 1
        drawn = "".join(
            self.levels[min(last, round(value / top * last)) if top > 0 else 0] for value in cells
        )
        return Text.assemble(" " * (width - len(drawn)), (drawn, style))

    def stack(self, shares: Sequence[float], width: int, styles: Sequence[str]) -> Text:
        """Return one bar of several parts; what the shares leave of 1 is empty.

        The ends of the parts are rounded, not their lengths, so that errors do not add up.
        """
        text, total, before = Text(), 0.0, 0
        for number, share in enumerate(shares):
            total += share
            end = min(width, round(total * width))
            part = self.parts[number % len(self.parts)] * (end - before)
            text.append(part, styles[number % len(styles)])
            before = max(before, end)
        return text.append(self.empty * (width - before), "dim")

    def key(self, number: int) -> str:
        """Return the character of a stacked bar's part, for its legend."""
        return self.parts[number % len(self.parts)]


def _resample(values: Sequence[float], width: int) -> list[float]:
    if len(values) <= width:
        return list(values)
    ends = [round((cell + 1) * len(values) / width) for cell in range(width)]
    starts = [0, *ends[:-1]]
    return [sum(values[start:end]) / (end - start) for start, end in zip(starts, ends, strict=True)]


BLOCKS: Final = Glyphs(
    full="━", half="╸", empty="─", levels="▁▂▃▄▅▆▇█", parts="█▓▒░", ellipsis="…", up="▲", down="▼"
)
ASCII: Final = Glyphs(
    full="#", half="", empty="-", levels="_.-=+*#", parts="#=+:", ellipsis="~", up="^", down="v"
)


def glyphs_for(encoding: str) -> Glyphs:
    """Return the glyphs that a stream with this encoding can carry."""
    try:
        "".join(map(str, (BLOCKS.full, BLOCKS.half, BLOCKS.levels, BLOCKS.parts, "…▲▼"))).encode(
            encoding
        )
    except (UnicodeEncodeError, LookupError):
        return ASCII
    return BLOCKS

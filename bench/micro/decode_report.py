"""The report of ``feeder-bench decode``: the conclusion, the rows that it rests on, then the rest.

The conclusion names the fastest way to the same pixels, by how much, and where Feeder loses; the
other rows (with ``--all``, ``--json``) are for finding the reason. TurboJPEG decodes JPEGs of the
same tiles; the time to make them is not counted.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..report import Report, Result, align, format_number, format_ratio, row_table
from .classes import format_classes, is_of_class

_HEADINGS: Final = {
    "decode": "decoding alone, images/s",
    "sample": "samples, file to int8 batch, images/s",
}
_SMALL_GAIN: Final = 1.5  # classes of images that gain less than this against TurboJPEG are named
_MORE_BYTES: Final = 1.01  # from this ratio on, the dataset's size is named as a loss

_OURS: Final = ("decode/tiled", "sample/whole")
_NAMES: Final = {
    "decode/tiled": "Feeder, the crop's tiles",
    "decode/tiled-turbojpeg": "TurboJPEG, the same tiles",
    "decode/full": "TurboJPEG, whole image",
    "decode/full-libraries": "PyTurboJPEG, whole image",
    "decode/pillow": "{pillow}, whole image",
    "sample/whole": "Feeder",
    "sample/tiled-turbojpeg": "TurboJPEG on the same tiles",
    "sample/full": "TurboJPEG, Feeder's resize",
    "sample/full-libraries": "PyTurboJPEG, {pillow}'s resize",
    "sample/pillow": "{pillow} alone",
}
_LOSSES: Final = {
    "sample/whole-against-unscaled": "DCT scaling gives {} of the rate without it",
    "sample/decoded-cache-against-unscaled": (
        "a full decoded cache gives {} of the rate without DCT scaling"
    ),
    "sample/filling-cache": "filling an empty decoded cache leaves {} of the rate without one",
}
"""Rows that are named where they are below their baseline beyond the noise."""


class Way(NamedTuple):
    """A way to the same pixels, in words, with its row."""

    name: str
    row: Result

    @property
    def is_ours(self) -> bool:
        return self.row.name in _OURS


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport(Report):
    """The report of this bench; its text is the conclusion and the rows that it rests on."""

    def tables(self) -> Iterator[list[str]]:
        table: list[Sequence[str]] = []
        for kind, heading in _HEADINGS.items():
            if table:
                table.append([""] * 4)
            table.append((heading, "median", "least–most", "× full decode"))
            for name, row in self.ways(kind):
                spread = f"{format_number(row.min)}–{format_number(row.max)}"
                ratio = "1" if row.ratio is None else format_ratio(row)
                table.append((f"  {name}", format_number(row.value), spread, ratio))
        yield align(table, left={0, 3})

    def ways(self, kind: str) -> list[Way]:
        """Return the ways of ``kind``, "decode" or "sample", the fastest first."""
        rows, names = self.rows, dict(_NAMES)
        if not self._has_own_decoder:
            names["sample/whole"] = "Feeder with TurboJPEG's decoder"
        ways = [
            Way(words.format(pillow=self._pillow), rows[name])
            for name, words in names.items()
            if name.startswith(f"{kind}/") and name in rows
        ]
        return sorted(ways, key=lambda way: -way.row.value)

    def conclude(self) -> list[str]:
        """Return which way makes samples fastest and by how much, the same of decoding, losses."""
        ways = self.ways("sample")
        ours, rival = (next(way for way in ways if way.is_ours == is_it) for is_it in (True, False))
        what = rival.row.name.removeprefix("sample/").removeprefix("tiled-").removeprefix("full-")
        against = self.rows["sample/whole" + f"-against-{what}" * (what != "full")]
        rate = f"{format_number(ours.row.value)} training samples/s on one core"
        if against.interval is None:
            head = f"{ours.name} makes {rate}"
        elif against.is_within_noise:
            of_it = f"{format_ratio(against)} of it"
            head = f"{ours.name} is as fast as {rival.name} within the noise, {of_it}: {rate}"
        elif is_behind(against):
            of_it = f"{format_ratio(against)} of it"
            head = f"{rival.name} is the fastest; {ours.name}, {of_it}, makes {rate}"
        else:
            head = f"{ours.name} is the fastest: {rate}"
        times = {row.name: format_ratio(row) for row in self.results if row.ratio is not None}
        decoding = "Decoding a crop's tiles"
        if not self._has_own_decoder:
            decoding += " with Feeder's own decoder, which these samples do not use,"
        losses = self._find_losses()
        return [
            f"{head}, {times['sample/whole']} times as many as with TurboJPEG's full decode, and "
            f"{times['sample/whole-against-pillow']} times as many as {self._pillow} alone.",
            f"{decoding} is {times['decode/tiled']} times as fast as TurboJPEG decodes the whole "
            f"image, {times['decode/tiled-against-pillow']} times {self._pillow}, and "
            f"{times['decode/tiled-against-turbojpeg']} times TurboJPEG on the same tiles.",
            *([f"Where it loses or gains little: {'; '.join(losses)}."] if losses else []),
        ]

    def _find_losses(self) -> list[str]:
        """Return all that Feeder loses at, or gains little; with too few rounds nothing is told."""
        rows = self.rows
        if rows["sample/whole"].interval is None:
            return []
        losses, prefix = [], "sample/whole-against-turbojpeg/"
        gains = [
            (row.ratio, name.removeprefix(prefix))
            for name, row in rows.items()
            if name.startswith(prefix) and row.ratio is not None and row.ratio < _SMALL_GAIN
        ]
        if gains and self._has_own_decoder:
            shown = ", ".join(f"{name} {ratio:.2f}" for ratio, name in sorted(gains))
            losses.append(f"small gain over TurboJPEG on the same tiles ({shown})")
        size = rows["dataset/blob"]
        if (size.ratio or 0) >= _MORE_BYTES:
            losses.append(f"the dataset takes {size.ratio:.2f} times the bytes of ordinary JPEGs")
        for name, words in _LOSSES.items():
            if is_behind(rows[name]):
                losses.append(words.format(format_ratio(rows[name])))
        return losses

    @property
    def _has_own_decoder(self) -> bool:
        return str(self.machine.get("decoder")).startswith("own")

    @property
    def _pillow(self) -> str:
        libraries = self.machine.get("libraries")
        version = libraries.get("pillow") if isinstance(libraries, Mapping) else ""
        return "Pillow-SIMD" if "simd" in str(version) else "Pillow"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRowsReport(DecodeReport):
    def tables(self) -> Iterator[list[str]]:
        yield from DecodeReport.tables(self)
        yield row_table([row for row in self.results if not is_of_class(row)])
        yield format_classes(self.results)


def is_behind(row: Result) -> bool:
    """Return whether a row is below its baseline beyond the noise."""
    return row.ratio is not None and row.ratio < 1 and not row.is_within_noise

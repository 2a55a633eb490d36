"""The report of ``feeder-bench decode``: the conclusion, the rows that it rests on, then the rest.

The conclusion names the fastest way, by how much, and where Feeder loses; the other rows (with
``--all``, ``--json``) are for finding the reason.
"""

import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Final, Self

from bench.micro.classes import format_classes, is_of_class
from bench.report import FEWEST_ROUNDS, Report, Result, align, format_number

COLUMNS: Final = 79

_OURS: Final = {"decode": "decode/tiled", "sample": "sample/whole"}
_HEADINGS: Final = {
    "decode": "decoding alone, images/s",
    "sample": "samples, file to int8 batch, images/s",
}
_NAMES: Final = {
    "decode/tiled": "Feeder, the crop's tiles",
    "decode/tiled-turbojpeg": "TurboJPEG, the same tiles",
    "decode/full": "TurboJPEG, whole image",
    "decode/full-libraries": "PyTurboJPEG, whole image",
    "decode/pillow": "{pillow}, whole image",
    "sample/whole": "Feeder",
    "sample/whole-turbojpeg": "Feeder with TurboJPEG's decoder",
    "sample/full": "TurboJPEG, Feeder's resize",
    "sample/full-libraries": "PyTurboJPEG, {pillow}'s resize",
    "sample/pillow": "{pillow} alone",
}
_SMALL_GAIN: Final = 1.5
"""Classes of images that gain less than this against TurboJPEG are named."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to the same pixels, in words, with its row."""

    name: str
    row: Result
    is_ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport(Report):
    """The report of this bench; its text is the conclusion and the rows that it rests on."""

    def to_text(self) -> str:
        """Return the conclusion and the short tables as text, with a newline at its end."""
        lines = [*self._conclusion(), "", *format_ways(self), ""]
        shown = sum(len(ways_of(self, kind)) for kind in _HEADINGS)
        lines.append(f"{len(self.results) - shown} more rows, and the stages: --all, --json FILE")
        return "\n".join(lines) + "\n"

    def _conclusion(self) -> list[str]:
        lines: list[str] = []
        for sentence in (conclude(self), *find_losses(self), describe_measured(self)):
            lines += textwrap.wrap(sentence, COLUMNS, break_on_hyphens=False)
        return lines


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRowsReport(DecodeReport):
    """The same with all rows, the classes of images in a table of their own."""

    @classmethod
    def of(cls, report: DecodeReport) -> Self:
        """Return ``report`` with all rows in its text."""
        return cls(**{each.name: getattr(report, each.name) for each in fields(report)})

    def to_text(self) -> str:
        """Return the conclusion, header and all tables as text, with a newline at its end."""
        rows = [result for result in self.results if not is_of_class(result)]
        text = Report(
            bench=self.bench, machine=self.machine, results=rows, measured=self.measured
        ).to_text()
        head = [*self._conclusion(), "", *format_ways(self), ""]
        return "\n".join([*head, text, *format_classes(self.results)]) + "\n"


def ways_of(report: Report, kind: str) -> list[Way]:
    """Return the ways of ``kind``, "decode" or "sample", the fastest first."""
    rows = {row.name: row for row in report.results}
    pillow = pillow_name(report)
    ways = [
        Way(name=name.format(pillow=pillow), row=rows[key], is_ours=key == _OURS[kind])
        for key, name in _NAMES.items()
        if key.startswith(f"{kind}/") and key in rows
    ]
    return sorted(ways, key=lambda way: -way.row.value)


def conclude(report: Report) -> str:
    """Return which way makes samples fastest and by how much, then the same of decoding alone."""
    rows = {row.name: row for row in report.results}
    ours, fastest = rows["sample/whole"], ways_of(report, "sample")[0]
    rate = f"{format_number(ours.value)} training samples/s on one core"
    if fastest.is_ours:
        rate = f"Feeder is the fastest: {rate},"
    else:
        of_fastest = ours.value / fastest.row.value
        rate = f"{fastest.name} is the fastest; Feeder, {of_fastest:.2f} of it, makes {rate},"
    pillow = pillow_name(report)
    return (
        f"{rate} {_times(ours)} times as many as with TurboJPEG's full decode, and "
        f"{_times(rows['sample/whole-against-pillow'])} times as many as {pillow} alone. "
        f"Decoding a crop's tiles is {_times(rows['decode/tiled'])} times as fast as TurboJPEG "
        f"decodes the whole image, {_times(rows['decode/tiled-against-pillow'])} times {pillow}, "
        f"and {_times(rows['decode/tiled-against-turbojpeg'])} times TurboJPEG on the same tiles."
    )


def find_losses(report: Report) -> list[str]:
    """Return a sentence for each thing that Feeder loses at, or gains little.

    None with too few rounds to tell a loss from noise.
    """
    if not _has_intervals(report):
        return []
    rows = {row.name: row for row in report.results}
    losses = []
    least = [
        (row.ratio, row.name.rpartition("/")[2])
        for row in report.results
        if row.name.startswith("sample/whole-against-turbojpeg/")
        and row.ratio is not None
        and row.ratio < _SMALL_GAIN
    ]
    if least:
        shown = ", ".join(f"{name} {ratio:.2f}" for ratio, name in sorted(least))
        losses.append(f"small gain over TurboJPEG on the same tiles ({shown})")
    unscaled = rows["sample/whole-against-unscaled"]
    if unscaled.is_within_noise:
        losses.append(
            f"DCT scaling gains nothing measurable: {_times(unscaled)} of the rate without it"
        )
    elif unscaled.ratio is not None and unscaled.ratio < 1:
        losses.append(f"DCT scaling costs time: {_times(unscaled)} of the rate without it")
    cached = rows["sample/decoded-cache-against-unscaled"]
    if cached.ratio is not None and cached.ratio < 1 and not cached.is_within_noise:
        losses.append(
            f"from a full decoded cache, {_times(cached)} of the rate without DCT scaling"
        )
    fill = rows["decoded-cache/fill"]
    if fill.value > 0:
        losses.append(f"filling an empty decoded cache takes {fill.value:.0f} % more time")
    return [f"Where it loses or gains little: {'; '.join(losses)}."] if losses else []


def describe_measured(report: Report) -> str:
    """Return what was measured, where and with which libraries."""
    libraries = report.machine.get("libraries")
    assert isinstance(libraries, Mapping)
    cores = report.machine.get("cores_used")
    core = next(iter(cores.values())) if isinstance(cores, Mapping) else "?"
    named = ("feeder", "libjpeg-turbo", "PyTurboJPEG", "pillow", "numpy")
    versions = ", ".join(f"{name} {libraries[name]}" for name in named if name in libraries)
    return (
        f"Measured: {report.measured.get('images')} images, a crop of each in each of "
        f"{report.measured.get('rounds')} rounds, on core {core} of {report.machine.get('cpu')}, "
        f"decoder {report.machine.get('decoder')}; {versions}. "
    ) + (
        "In brackets: where the true median is, with 90 % confidence."
        if _has_intervals(report)
        else f"Noise and losses are shown from {FEWEST_ROUNDS} rounds on."
    )


def _has_intervals(report: Report) -> bool:
    rounds = report.measured.get("rounds")
    return isinstance(rounds, int) and rounds >= FEWEST_ROUNDS


def format_ways(report: Report) -> list[str]:
    """Return the lines of the two short tables, of decoding and of whole samples."""
    table: list[Sequence[str]] = []
    for kind, heading in _HEADINGS.items():
        if table:
            table.append([""] * 4)
        table.append((heading, "median", "least–most", "× full decode"))
        for way in ways_of(report, kind):
            row = way.row
            spread = f"{format_number(row.min)}–{format_number(row.max)}"
            ratio = "1" if row.ratio is None else _times(row)
            table.append((f"  {way.name}", format_number(row.value), spread, ratio))
    return align(table, left={0, 3})


def _times(row: Result) -> str:
    """Return the ratio and, in brackets, the interval of its noise."""
    assert row.ratio is not None
    if row.ratio_low is None:
        return f"{row.ratio:.2f}"
    return f"{row.ratio:.2f} ({row.ratio_low:.2f}–{row.ratio_high:.2f})"


def pillow_name(report: Report) -> str:
    """Return which Pillow the contender is."""
    libraries = report.machine.get("libraries")
    version = str(libraries.get("pillow", "")) if isinstance(libraries, Mapping) else ""
    return "Pillow-SIMD" if "simd" in version else "Pillow"

"""The report of ``feeder-bench decode``: the conclusion, the rows that it rests on, then the rest.

The conclusion names the fastest way, by how much, and where Feeder loses; the other rows (with
``--all``, ``--json``) are for finding the reason.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..report import BRACKETS, FEWEST_ROUNDS, Report, align, format_number, format_ratio, wrap
from .classes import format_classes, is_of_class
from .ways import find_standing, has_own_decoder, pillow_name, ways_of

_HEADINGS: Final = {
    "decode": "decoding alone, images/s",
    "sample": "samples, file to int8 batch, images/s",
}
_SMALL_GAIN: Final = 1.5
"""Classes of images that gain less than this against TurboJPEG are named."""
_MORE_BYTES: Final = 1.01
"""From this ratio on, the dataset's size is named as a loss."""


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
        return wrap([conclude(self), *find_losses(self), describe_measured(self)])


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRowsReport(DecodeReport):
    """The same with all rows, the classes of images in a table of their own."""

    def to_text(self) -> str:
        """Return the conclusion, header and all tables as text, with a newline at its end."""
        rows = [result for result in self.results if not is_of_class(result)]
        text = Report(
            bench=self.bench, machine=self.machine, results=rows, measured=self.measured
        ).to_text()
        head = [*self._conclusion(), "", *format_ways(self), ""]
        return "\n".join([*head, text, *format_classes(self.results)]) + "\n"


def conclude(report: Report) -> str:
    """Return which way makes samples fastest and by how much, then the same of decoding alone."""
    rows = {row.name: row for row in report.results}
    standing = find_standing(report)
    ours, rival, against = standing.ours, standing.rival, standing.against
    rate = f"{format_number(ours.row.value)} training samples/s on one core"
    match standing.place:
        case "ahead":
            head = f"{ours.name} is the fastest: {rate}"
        case "behind":
            share = f"{format_ratio(against)} of it"
            head = f"{rival.name} is the fastest; {ours.name}, {share}, makes {rate}"
        case "level":
            noise = f"within the noise, {format_ratio(against)} of it"
            head = f"{ours.name} is as fast as {rival.name} {noise}: {rate}"
        case "unknown":
            head = f"{ours.name} makes {rate}"
    times = {name: format_ratio(row) for name, row in rows.items() if row.ratio is not None}
    pillow = pillow_name(report)
    decoding = "Decoding a crop's tiles"
    if not has_own_decoder(report):
        decoding += " with Feeder's own decoder, which these samples do not use,"
    return (
        f"{head}, {format_ratio(ours.row)} times as many as with TurboJPEG's full decode, and "
        f"{times['sample/whole-against-pillow']} times as many as {pillow} alone. "
        f"{decoding} is {times['decode/tiled']} times as fast as TurboJPEG decodes the whole "
        f"image, {times['decode/tiled-against-pillow']} times {pillow}, and "
        f"{times['decode/tiled-against-turbojpeg']} times TurboJPEG on the same tiles."
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
        if has_own_decoder(report)
        and row.name.startswith("sample/whole-against-turbojpeg/")
        and row.ratio is not None
        and row.ratio < _SMALL_GAIN
    ]
    if least:
        shown = ", ".join(f"{name} {ratio:.2f}" for ratio, name in sorted(least))
        losses.append(f"small gain over TurboJPEG on the same tiles ({shown})")
    size = rows["dataset/blob"]
    if size.ratio is not None and size.ratio >= _MORE_BYTES:
        losses.append(f"the dataset takes {format_ratio(size)} times the bytes of ordinary JPEGs")
    unscaled = rows["sample/whole-against-unscaled"]
    if unscaled.is_within_noise:
        losses.append(
            f"DCT scaling gains nothing measurable: {format_ratio(unscaled)} of the rate without it"
        )
    elif unscaled.ratio is not None and unscaled.ratio < 1:
        losses.append(f"DCT scaling costs time: {format_ratio(unscaled)} of the rate without it")
    cached = rows["sample/decoded-cache-against-unscaled"]
    if cached.ratio is not None and cached.ratio < 1 and not cached.is_within_noise:
        losses.append(
            f"from a full decoded cache, {format_ratio(cached)} of the rate without DCT scaling"
        )
    filling = rows["sample/filling-cache"]
    if not filling.is_within_noise and filling.ratio is not None and _more_time(filling.ratio) >= 1:
        assert filling.ratio_low is not None
        assert filling.ratio_high is not None
        losses.append(
            f"filling an empty decoded cache takes {_more_time(filling.ratio)} % "
            f"({_more_time(filling.ratio_high)}–{_more_time(filling.ratio_low)} %) more time"
        )
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
        BRACKETS
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
            ratio = "1" if row.ratio is None else format_ratio(row)
            table.append((f"  {way.name}", format_number(row.value), spread, ratio))
    return align(table, left={0, 3})


def _more_time(ratio: float) -> int:
    """Return how much more time work at this ratio of the rate takes, in whole per cent."""
    return round(100 * (1 / ratio - 1))

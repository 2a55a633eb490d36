"""The report of ``feeder-bench decode``: the conclusion, the rows that it rests on, then the rest.

The conclusion names the fastest way to the same pixels, by how much, and where Feeder loses; the
other rows (with ``--all``, ``--json``) are for finding the reason. TurboJPEG decodes JPEGs of the
same tiles; the time to make them is not counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, Literal, NamedTuple

from ..report import (
    BRACKETS,
    FEWEST_ROUNDS,
    Report,
    Result,
    align,
    format_number,
    format_ratio,
    wrap,
)
from .classes import format_classes, is_of_class

_HEADINGS: Final = {
    "decode": "decoding alone, images/s",
    "sample": "samples, file to int8 batch, images/s",
}
_SMALL_GAIN: Final = 1.5
"""Classes of images that gain less than this against TurboJPEG are named."""
_MORE_BYTES: Final = 1.01
"""From this ratio on, the dataset's size is named as a loss."""

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


class Way(NamedTuple):
    """A way to the same pixels, in words, with its row."""

    name: str
    row: Result

    @property
    def is_ours(self) -> bool:
        """Whether it is Feeder's."""
        return self.row.name in _OURS


class Standing(NamedTuple):
    """How Feeder's samples compare with the fastest other way's."""

    ours: Way
    rival: Way
    against: Result
    """The row of Feeder's with the rival's as its baseline, paired by round."""

    @property
    def place(self) -> Literal["ahead", "level", "behind", "unknown"]:
        """Whether Feeder is faster; "level" within the noise, "unknown" with too few rounds."""
        if self.against.ratio is None or self.against.interval is None:
            return "unknown"
        if self.against.is_within_noise:
            return "level"
        return "ahead" if self.against.ratio > 1 else "behind"


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport(Report):
    """The report of this bench; its text is the conclusion and the rows that it rests on."""

    def to_text(self) -> str:
        """Return the conclusion and the short tables as text, with a newline at its end."""
        shown = sum(len(ways_of(self, kind)) for kind in _HEADINGS)
        more = f"{len(self.results) - shown} more rows, and the stages: --all, --json FILE"
        return "\n".join([*_head(self), more]) + "\n"


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRowsReport(DecodeReport):
    """The same with all rows, the classes of images in a table of their own."""

    def to_text(self) -> str:
        """Return the conclusion, header and all tables as text, with a newline at its end."""
        rows = [result for result in self.results if not is_of_class(result)]
        text = Report(
            bench=self.bench, machine=self.machine, results=rows, measured=self.measured
        ).to_text()
        return "\n".join([*_head(self), text, *format_classes(self.results)]) + "\n"


def _head(report: Report) -> list[str]:
    """Return the lines of the conclusion and of the two short tables."""
    lines = wrap([conclude(report), *find_losses(report), describe_measured(report)])
    return [*lines, "", *format_ways(report), ""]


def ways_of(report: Report, kind: str) -> list[Way]:
    """Return the ways of ``kind``, "decode" or "sample", the fastest first."""
    rows, names = report.rows, dict(_NAMES)
    if not has_own_decoder(report):
        names["sample/whole"] = "Feeder with TurboJPEG's decoder"
    ways = [
        Way(words.format(pillow=pillow_name(report)), rows[name])
        for name, words in names.items()
        if name.startswith(f"{kind}/") and name in rows
    ]
    return sorted(ways, key=lambda way: -way.row.value)


def find_standing(report: Report) -> Standing:
    """Return how Feeder's samples compare with the fastest other way's."""
    ways = ways_of(report, "sample")
    rival = next(way for way in ways if not way.is_ours)
    what = rival.row.name.removeprefix("sample/").removeprefix("tiled-").removeprefix("full-")
    against = "sample/whole" if what == "full" else f"sample/whole-against-{what}"
    return Standing(next(way for way in ways if way.is_ours), rival, report.rows[against])


def has_own_decoder(report: Report) -> bool:
    """Return whether Feeder's samples are decoded by its own decoder."""
    return str(report.machine.get("decoder")).startswith("own")


def pillow_name(report: Report) -> str:
    """Return which Pillow the contender is."""
    libraries = report.machine.get("libraries")
    version = str(libraries.get("pillow", "")) if isinstance(libraries, Mapping) else ""
    return "Pillow-SIMD" if "simd" in version else "Pillow"


def conclude(report: Report) -> str:
    """Return which way makes samples fastest and by how much, then the same of decoding alone."""
    standing = find_standing(report)
    ours, rival = standing.ours, standing.rival
    rate = f"{format_number(ours.row.value)} training samples/s on one core"
    of_it = f"{format_ratio(standing.against)} of it"
    head = {
        "ahead": f"{ours.name} is the fastest: {rate}",
        "behind": f"{rival.name} is the fastest; {ours.name}, {of_it}, makes {rate}",
        "level": f"{ours.name} is as fast as {rival.name} within the noise, {of_it}: {rate}",
        "unknown": f"{ours.name} makes {rate}",
    }[standing.place]
    times = {row.name: format_ratio(row) for row in report.results if row.ratio is not None}
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
    rows, losses = report.rows, []
    prefix = "sample/whole-against-turbojpeg/"
    least = [
        (row.ratio, name.removeprefix(prefix))
        for name, row in rows.items()
        if has_own_decoder(report) and name.startswith(prefix) and (row.ratio or 9) < _SMALL_GAIN
    ]
    if least:
        shown = ", ".join(f"{name} {ratio:.2f}" for ratio, name in sorted(least))
        losses.append(f"small gain over TurboJPEG on the same tiles ({shown})")
    size = rows["dataset/blob"]
    if (size.ratio or 0) >= _MORE_BYTES:
        losses.append(f"the dataset takes {format_ratio(size)} times the bytes of ordinary JPEGs")
    unscaled = rows["sample/whole-against-unscaled"]
    of_it = f"{format_ratio(unscaled)} of the rate without it"
    if unscaled.is_within_noise:
        losses.append(f"DCT scaling gains nothing measurable: {of_it}")
    elif (unscaled.ratio or 1) < 1:
        losses.append(f"DCT scaling costs time: {of_it}")
    cached = rows["sample/decoded-cache-against-unscaled"]
    if (cached.ratio or 1) < 1 and not cached.is_within_noise:
        losses.append(
            f"from a full decoded cache, {format_ratio(cached)} of the rate without DCT scaling"
        )
    filling = rows["sample/filling-cache"]
    if filling.interval is not None and not filling.is_within_noise:
        # How much more time it takes, in whole per cent.
        ratios = (filling.ratio or 1, *filling.interval[::-1])
        more, low, high = (round(100 * (1 / ratio - 1)) for ratio in ratios)
        if more >= 1:
            losses.append(
                f"filling an empty decoded cache takes {more} % ({low}–{high} %) more time"
            )
    return [f"Where it loses or gains little: {'; '.join(losses)}."] if losses else []


def describe_measured(report: Report) -> str:
    """Return what was measured, where and with which libraries."""
    libraries, cores = report.machine.get("libraries"), report.machine.get("cores_used")
    assert isinstance(libraries, Mapping)
    core = next(iter(cores.values())) if isinstance(cores, Mapping) else "?"
    named = ("feeder", "libjpeg-turbo", "PyTurboJPEG", "pillow", "numpy")
    versions = ", ".join(f"{name} {libraries[name]}" for name in named if name in libraries)
    noise = f"Noise and losses are shown from {FEWEST_ROUNDS} rounds on."
    return (
        f"Measured: {report.measured.get('images')} images, a crop of each in each of "
        f"{report.measured.get('rounds')} rounds, on core {core} of {report.machine.get('cpu')}, "
        f"decoder {report.machine.get('decoder')}; {versions}. "
        f"{BRACKETS if _has_intervals(report) else noise}"
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
        for name, row in ways_of(report, kind):
            spread = f"{format_number(row.min)}–{format_number(row.max)}"
            ratio = "1" if row.ratio is None else format_ratio(row)
            table.append((f"  {name}", format_number(row.value), spread, ratio))
    return align(table, left={0, 3})

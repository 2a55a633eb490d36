"""The report of ``feeder-bench decode``: the conclusion, the rows that it rests on, then the rest.

The conclusion names the fastest way to the same pixels, by how much, and where Feeder loses; the
other rows (with ``--all``, ``--json``) are for finding the reason. TurboJPEG decodes JPEGs of the
same tiles; the time to make them is not counted.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Final, NamedTuple

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


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeReport(Report):
    """The report of this bench; its text is the conclusion and the rows that it rests on."""

    def to_text(self) -> str:
        """Return the conclusion and the short tables as text, with a newline at its end."""
        shown = sum(len(self.ways(kind)) for kind in _HEADINGS)
        more = f"{len(self.results) - shown} more rows, and the stages: --all, --json FILE"
        return "\n".join([*self.head(), more]) + "\n"

    def head(self) -> list[str]:
        """Return the lines of the conclusion and of the two short tables."""
        table: list[Sequence[str]] = []
        for kind, heading in _HEADINGS.items():
            if table:
                table.append([""] * 4)
            table.append((heading, "median", "least–most", "× full decode"))
            for name, row in self.ways(kind):
                spread = f"{format_number(row.min)}–{format_number(row.max)}"
                ratio = "1" if row.ratio is None else format_ratio(row)
                table.append((f"  {name}", format_number(row.value), spread, ratio))
        lines = wrap([self.conclude(), *self.find_losses(), self.describe_measured()])
        return [*lines, "", *align(table, left={0, 3}), ""]

    def ways(self, kind: str) -> list[Way]:
        """Return the ways of ``kind``, "decode" or "sample", the fastest first."""
        rows, names = self.rows, dict(_NAMES)
        if not self.has_own_decoder:
            names["sample/whole"] = "Feeder with TurboJPEG's decoder"
        ways = [
            Way(words.format(pillow=self.pillow), rows[name])
            for name, words in names.items()
            if name.startswith(f"{kind}/") and name in rows
        ]
        return sorted(ways, key=lambda way: -way.row.value)

    @property
    def has_own_decoder(self) -> bool:
        """Whether Feeder's samples are decoded by its own decoder."""
        return str(self.machine.get("decoder")).startswith("own")

    @property
    def pillow(self) -> str:
        """Which Pillow the contender is."""
        return "Pillow-SIMD" if "simd" in str(self._libraries.get("pillow")) else "Pillow"

    def standing(self) -> tuple[Way, Way, Result]:
        """Return Feeder's samples, the fastest other way, and Feeder's row against that."""
        ways = self.ways("sample")
        rival = next(way for way in ways if not way.is_ours)
        what = rival.row.name.removeprefix("sample/").removeprefix("tiled-").removeprefix("full-")
        against = "sample/whole" if what == "full" else f"sample/whole-against-{what}"
        return next(way for way in ways if way.is_ours), rival, self.rows[against]

    def conclude(self) -> str:
        """Return which way makes samples fastest and by how much, then the same of decoding."""
        ours, rival, against = self.standing()
        rate = f"{format_number(ours.row.value)} training samples/s on one core"
        of_it = f"{format_ratio(against)} of it"
        if against.interval is None:
            head = f"{ours.name} makes {rate}"
        elif against.is_within_noise:
            head = f"{ours.name} is as fast as {rival.name} within the noise, {of_it}: {rate}"
        elif is_behind(against):
            head = f"{rival.name} is the fastest; {ours.name}, {of_it}, makes {rate}"
        else:
            head = f"{ours.name} is the fastest: {rate}"
        times = {row.name: format_ratio(row) for row in self.results if row.ratio is not None}
        decoding = "Decoding a crop's tiles"
        if not self.has_own_decoder:
            decoding += " with Feeder's own decoder, which these samples do not use,"
        return (
            f"{head}, {format_ratio(ours.row)} times as many as with TurboJPEG's full decode, and "
            f"{times['sample/whole-against-pillow']} times as many as {self.pillow} alone. "
            f"{decoding} is {times['decode/tiled']} times as fast as TurboJPEG decodes the whole "
            f"image, {times['decode/tiled-against-pillow']} times {self.pillow}, and "
            f"{times['decode/tiled-against-turbojpeg']} times TurboJPEG on the same tiles."
        )

    def find_losses(self) -> list[str]:
        """Return a sentence on all that Feeder loses at, or gains little.

        None with too few rounds to tell a loss from noise.
        """
        if not self._has_intervals:
            return []
        rows, losses = self.rows, []
        prefix = "sample/whole-against-turbojpeg/"
        ratios = {
            name.removeprefix(prefix): row.ratio
            for name, row in rows.items()
            if name.startswith(prefix) and row.ratio is not None and row.ratio < _SMALL_GAIN
        }
        if ratios and self.has_own_decoder:
            least = sorted(ratios.items(), key=lambda item: item[::-1])
            shown = ", ".join(f"{name} {ratio:.2f}" for name, ratio in least)
            losses.append(f"small gain over TurboJPEG on the same tiles ({shown})")
        size = rows["dataset/blob"]
        if (size.ratio or 0) >= _MORE_BYTES:
            times = format_ratio(size)
            losses.append(f"the dataset takes {times} times the bytes of ordinary JPEGs")
        unscaled = rows["sample/whole-against-unscaled"]
        of_it = f"{format_ratio(unscaled)} of the rate without it"
        if unscaled.is_within_noise:
            losses.append(f"DCT scaling gains nothing measurable: {of_it}")
        elif is_behind(unscaled):
            losses.append(f"DCT scaling costs time: {of_it}")
        cached = rows["sample/decoded-cache-against-unscaled"]
        if is_behind(cached):
            of_it = f"{format_ratio(cached)} of the rate without DCT scaling"
            losses.append(f"from a full decoded cache, {of_it}")
        filling = rows["sample/filling-cache"]
        if is_behind(filling) and filling.interval is not None:
            # How much more time it takes, in whole per cent.
            shares = (filling.ratio or 1, *filling.interval[::-1])
            more, low, high = (round(100 * (1 / share - 1)) for share in shares)
            if more >= 1:
                spread = f"({low}–{high} %)"
                losses.append(f"filling an empty decoded cache takes {more} % {spread} more time")
        return [f"Where it loses or gains little: {'; '.join(losses)}."] if losses else []

    def describe_measured(self) -> str:
        """Return what was measured, where and with which libraries."""
        libraries, cores = self._libraries, self.machine.get("cores_used")
        core = next(iter(cores.values())) if isinstance(cores, Mapping) else "?"
        named = ("feeder", "libjpeg-turbo", "PyTurboJPEG", "pillow", "numpy")
        versions = ", ".join(f"{name} {libraries[name]}" for name in named if name in libraries)
        noise = f"Noise and losses are shown from {FEWEST_ROUNDS} rounds on."
        return (
            f"Measured: {self.measured.get('images')} images, a crop of each in each of "
            f"{self.measured.get('rounds')} rounds, on core {core} of {self.machine.get('cpu')}, "
            f"decoder {self.machine.get('decoder')}; {versions}. "
            f"{BRACKETS if self._has_intervals else noise}"
        )

    @property
    def _libraries(self) -> Mapping[str, Any]:
        libraries = self.machine.get("libraries")
        return libraries if isinstance(libraries, Mapping) else {}

    @property
    def _has_intervals(self) -> bool:
        rounds = self.measured.get("rounds")
        return isinstance(rounds, int) and rounds >= FEWEST_ROUNDS


@dataclass(frozen=True, slots=True, kw_only=True)
class AllRowsReport(DecodeReport):
    """The same with all rows, the classes of images in a table of their own."""

    def to_text(self) -> str:
        """Return the conclusion, header and all tables as text, with a newline at its end."""
        others = [result for result in self.results if not is_of_class(result)]
        text = Report.to_text(replace(self, results=others))
        return "\n".join([*self.head(), text, *format_classes(self.results)]) + "\n"


def is_behind(row: Result) -> bool:
    """Return whether a row is below its baseline beyond the noise."""
    return row.ratio is not None and row.ratio < 1 and not row.is_within_noise

"""The ways to the same pixels that ``feeder-bench decode`` compares, and how Feeder stands.

TurboJPEG decodes JPEGs of the same tiles; the time to make them is not counted.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Final, Literal

from ..report import Report, Result

_OURS: Final = {"decode": "decode/tiled", "sample": "sample/whole"}
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
_AGAINST: Final = {
    "sample/tiled-turbojpeg": "sample/whole-against-turbojpeg",
    "sample/full": "sample/whole",
    "sample/full-libraries": "sample/whole-against-libraries",
    "sample/pillow": "sample/whole-against-pillow",
}
"""The row of Feeder's against each other way to make samples, by the row of that way."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Way:
    """A way to the same pixels, in words, with its row."""

    name: str
    row: Result
    is_ours: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Standing:
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


def ways_of(report: Report, kind: str) -> list[Way]:
    """Return the ways of ``kind``, "decode" or "sample", the fastest first."""
    rows = {row.name: row for row in report.results}
    names = {key: name for key, name in _NAMES.items() if key.startswith(f"{kind}/")}
    if kind == "sample" and not has_own_decoder(report):
        names[_OURS[kind]] = "Feeder with TurboJPEG's decoder"
    pillow = pillow_name(report)
    ways = [
        Way(name=name.format(pillow=pillow), row=rows[key], is_ours=key == _OURS[kind])
        for key, name in names.items()
        if key in rows
    ]
    return sorted(ways, key=lambda way: -way.row.value)


def find_standing(report: Report) -> Standing:
    """Return how Feeder's samples compare with the fastest other way's."""
    rows = {row.name: row for row in report.results}
    ways = ways_of(report, "sample")
    rival = next(way for way in ways if not way.is_ours)
    return Standing(
        ours=next(way for way in ways if way.is_ours),
        rival=rival,
        against=rows[_AGAINST[rival.row.name]],
    )


def has_own_decoder(report: Report) -> bool:
    """Return whether Feeder's samples are decoded by its own decoder."""
    return str(report.machine.get("decoder")).startswith("own")


def pillow_name(report: Report) -> str:
    """Return which Pillow the contender is."""
    libraries = report.machine.get("libraries")
    version = str(libraries.get("pillow", "")) if isinstance(libraries, Mapping) else ""
    return "Pillow-SIMD" if "simd" in version else "Pillow"

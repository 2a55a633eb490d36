"""What ``feeder-bench peers`` concludes: Feeder against the fastest of the others, in words."""

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..report import BRACKETS, FEWEST_ROUNDS, RATE, Report, Result, format_ratio

ALL_CORES: Final = "/all-cores"
"""The end of the names of rows that were measured on all cores."""

_WORDS: Final = {
    "feeder": "Feeder",
    "feeder-daemon": "Feeder's daemon",
    "tfdata": "tf.data",
    "tfdata-antialias": "tf.data, antialiased",
    "tfdata-service": "tf.data service",
    "ffcv": "FFCV",
    "ffcv-reencoded": "FFCV, re-encoded with loss",
    "dali": "DALI",
    "dali-antialias": "DALI, antialiased",
    "torchvision": "PyTorch, torchvision",
    "pillow": "PyTorch, Pillow",
    "pillow-simd": "PyTorch, Pillow-SIMD",
    "spdl": "SPDL",
    "streaming": "MosaicML Streaming",
    "webdataset": "WebDataset",
    "grain": "Grain",
}
"""The contenders as text and picture call them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """Feeder and the fastest of some other loaders, on one set of cores."""

    cores: str
    """"one core" or "all cores"."""
    rival: str
    kind: str
    """Of which loaders it is the fastest."""
    row: Result
    """Feeder's, with the rival's as its baseline."""

    def describe(self, *, kind: bool = True) -> str:
        """Return how Feeder compares, "… as fast as …", with the ``kind`` or without."""
        rival = f"{self.rival}, {self.kind}" if kind else self.rival
        times = format_ratio(self.row)
        if self.row.interval is not None and self.row.is_within_noise:
            return f"as fast as {rival}{',' * kind} within the noise: {times} times"
        return f"{times} times as fast as {rival}"


def comparisons(report: Report) -> list[Comparison]:
    """Return the comparisons with the fastest, then the fastest antialiased, by set of cores."""
    return [
        Comparison(
            cores="all cores" if row.name.endswith(ALL_CORES) else "one core",
            rival=words_of(row.baseline or ""),
            kind="the fastest with the same resizing"
            if "antialias" in row.name
            else "the fastest other loader",
            row=row,
        )
        for row in report.results
        if "-against-fastest" in row.name and row.unit == RATE
    ]


def conclude(report: Report, missing: Sequence[str]) -> list[str]:
    """Return a sentence for each set of cores, and what was measured.

    ``missing`` are the contenders that have no rate.
    """
    sentences = []
    for cores in ("one core", "all cores"):
        found = [each for each in comparisons(report) if each.cores == cores]
        if len({each.rival for each in found}) == 1:
            found = found[:1]
        if found:
            shown = ", and ".join(each.describe() for each in found)
            sentences.append(f"On {cores}, Feeder is {shown}.")
    if not sentences:
        sentences.append("No other loader was measured.")
    return [*sentences, _describe_measured(report, missing)]


def words_of(name: str) -> str:
    """Return what the contender of a row is called."""
    return _WORDS.get(short_name(name), short_name(name))


def is_on(name: str, suffix: str) -> bool:
    """Return whether row ``name`` is of the set of cores with ``suffix`` ("" or ALL_CORES)."""
    return name.endswith(ALL_CORES) == bool(suffix)


def short_name(name: str) -> str:
    """Return the contender's name in a row's."""
    return name.removeprefix("peers/").removesuffix(ALL_CORES)


def _describe_measured(report: Report, missing: Sequence[str]) -> str:
    text = ""
    if missing:
        names = ", ".join(dict.fromkeys(map(words_of, missing)))
        text = f"Not measured, for the reasons in the table: {names}. "
    rounds, batches, size = map(report.measured.get, ("rounds", "batches", "batch size"))
    if not isinstance(rounds, int):
        return f"{text}Values are medians."
    what = f"{batches} batch{'es' * (batches != 1)} of {size} images"
    if rounds == 1:
        return f"{text}Measured once, with {what}: no spread is known."
    noise = f"Noise is shown from {FEWEST_ROUNDS} rounds on."
    if rounds >= FEWEST_ROUNDS:
        noise = BRACKETS
    return (
        f"{text}Values are medians of {rounds} rounds with {what}; ratios are of the same "
        f"rounds. {noise}"
    )

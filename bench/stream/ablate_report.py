"""The report of ``feeder-bench ablate``: the conclusion, then the rows with their noise."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..report import FEWEST_ROUNDS, Report, Result, align, format_number, format_ratio, wrap

WORDS: Final[Mapping[str, str]] = {
    "partial-decode": "partial decode",
    "dct-scaling": "DCT scaling",
    "decoded-cache": "decoded cache",
    "prefetch-window": "prefetch window",
    "parallel-workers": "parallel workers",
    "numa-pinning": "NUMA pinning",
    "int8": "int8",
    "ipc": "ipc",
}
"""The optimisations as they are called in text and picture."""

EVERYTHING: Final = "all-of-them/against-nothing"
SAME: Final = "same settings"

NOISE: Final = "Within the noise: the 90 % interval of the rounds' median ratio holds 1."

_TIMES: Final = "×\N{NO-BREAK SPACE}"


@dataclass(frozen=True, slots=True, kw_only=True)
class AblateReport(Report):
    """The report of this bench."""

    def to_text(self) -> str:
        """Return conclusion, header and table as text, with a newline at its end."""
        lines = wrap([conclude(self), f"Measured: {describe_measured(self)}. {NOISE}"])
        lines += ["", *self.header()]
        heads = ("", "value", "", "min", "max", "ratio", "noise", "to", "")
        rows = [heads, *(_table_row(row) for row in self.results)]
        return "\n".join([*lines, *align(rows, left={0, 2, 6, 7, 8})]) + "\n"


def conclude(report: Report) -> str:
    """Return what all of them gain together, and which ones matter when removed alone."""
    rows = report.rows
    every = rows[EVERYTHING]
    sentences = [f"All optimisations together: {format_ratio(every)} times as fast as with none"]
    slower: list[tuple[float, str]] = []
    faster: list[tuple[float, str]] = []
    noise: list[str] = []
    for name, words in WORDS.items():
        row = rows[f"removed/{name}"]
        if row.ratio is None or is_same(row):
            continue
        if row.is_within_noise:
            noise.append(words)
        else:
            (slower if row.ratio < 1 else faster).append((row.ratio, words))
    for how, group in (("Slower", sorted(slower)), ("Faster", sorted(faster, reverse=True))):
        if group:
            shown = ", ".join(f"{words} {_TIMES}{ratio:.2f}" for ratio, words in group)
            sentences.append(f"{how} without one: {shown}")
    if noise:
        sentences.append(f"No difference beyond the noise: {', '.join(noise)}")
    return ". ".join(sentences) + "."


def describe_measured(report: Report) -> str:
    """Return rounds, images and cores as words, and whether the rounds suffice."""
    measured, machine = report.measured, report.machine
    rounds, cores = measured.get("rounds"), machine.get("cores_used")
    where = "cores unknown"
    if isinstance(cores, Mapping):
        daemon = str(cores["daemon"])
        plural = "" if daemon.isdigit() else "s"
        where = f"daemon on core{plural} {daemon}, client on core {cores['client']}"
    text = (
        f"{rounds} rounds of {measured.get('images a round')} images, from a dataset of "
        f"{measured.get('images')}; {machine.get('cpu')}, {where}"
    )
    if isinstance(rounds, int) and rounds < FEWEST_ROUNDS:
        return f"{text}; too few rounds to distinguish anything from noise"
    return text


def is_same(row: Result) -> bool:
    """Return whether the row's setup is its baseline's, such as one worker on one core."""
    return row.ratio == row.ratio_low == row.ratio_high == 1


def _table_row(row: Result) -> Sequence[str]:
    compared = ("", "", "", "")
    if row.ratio is not None and is_same(row):
        compared = ("", "", f"× {row.baseline}", SAME)
    elif row.ratio is not None:
        low_high = "" if row.ratio_low is None else f"{row.ratio_low:.2f}–{row.ratio_high:.2f}"
        verdict = "within noise" if row.is_within_noise else ""
        compared = (f"{row.ratio:.2f}", low_high, f"× {row.baseline}", verdict)
    spread = ("", "") if row.min == row.max else (format_number(row.min), format_number(row.max))
    return (row.name, format_number(row.value), row.unit, *spread, *compared)

"""The picture of the ablation: added one by one, one removed, more workers.

The bars of the two panels above share their names, so these stand once. Ratios have a column of
their own at the right of each panel. A difference within the noise is a hollow bar.
"""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt

from ..report import RATE, Report, Result
from ..stream.ablate import (
    EVERYTHING,
    NOISE,
    WORDS,
    conclude,
    describe_measured,
    is_same,
)
from .style import BLUE, FAINT_INK, Chart, bars, chart_of, panel_title, wrap

_WIDTH: Final = 200
_FIRST: Final = "none (left), all (right)"


def draw_ablation(report: Report) -> Chart:
    """Return two panels side by side on one scale, and that of the workers if there are several."""
    added, removed, workers = (
        plot_rows(report.results, kind) for kind in ("added", "removed", "workers")
    )
    top = 1.03 * max(row.max for row in report.results if row.unit == RATE)
    pair = alt.hconcat(
        _panel(added, top, "Added one after the other", "(×: gain over the bar above)"),
        _panel(removed, top, "All but this one", "(×: of all of them)", labels=False),
        spacing=8,
    )
    if len(workers) < 2:
        return pair
    title = "All of them, with more workers", "(×: of one worker; grey tick: linear scaling)"
    most = 1.03 * max(max(row["max"], row["linear"] or 0) for row in workers)
    return alt.vconcat(pair, _panel(workers, most, *title), spacing=16)


def conclude_ablation(report: Report) -> tuple[list[str], list[str]]:
    """Return the lines of the title and of the subtitle."""
    every = next(row for row in report.results if row.name == EVERYTHING)
    title = [f"All optimisations together are {every.ratio or 0:.1f} times as fast as with none"]
    return title, wrap(
        conclude(report).partition(". ")[2],
        f"Measured: {describe_measured(report)}. Bar: the median; line: least and most.",
        f"Hollow: {NOISE[0].lower()}{NOISE[1:].replace(':', ',')}",
    )


def plot_rows(results: Sequence[Result], kind: str) -> list[dict[str, Any]]:
    """Return the values behind each bar of a panel: "added", "removed" or "workers"."""
    table: list[dict[str, Any]] = []
    for row in results:
        panel, _, what = row.name.partition("/")
        if panel != kind:
            continue
        words, verdict, linear = WORDS.get(what, _FIRST), "", None
        if kind == "workers":
            words = f"{what} worker{'s' * (what != '1')}"
            linear = table[0]["value"] * int(what) if table else None
        if row.ratio is not None:
            verdict = f"× {row.ratio:.2f}" + (" within noise" if row.is_within_noise else "")
            verdict = "same settings" if is_same(row) else verdict
        table.append(
            {
                "what": words,
                "value": row.value,
                "min": row.min,
                "max": row.max,
                "hollow": row.is_within_noise,
                "verdict": verdict,
                "linear": linear,
            }
        )
    return table


def _panel(
    table: list[dict[str, Any]], top: float, title: str, below: str, *, labels: bool = True
) -> Chart:
    rows = [{**row, "name": row["what"], "text": row["verdict"]} for row in table]
    chart = bars(
        rows,
        title=panel_title(title, below),
        x_title=RATE,
        colour=alt.condition("datum.hollow", alt.value("white"), alt.value(BLUE)),
        width=_WIDTH,
        room=top / max(row["max"] for row in rows),
        row_px=26,
        text_x=_WIDTH,
        labels=labels,
    )
    if any(row["linear"] for row in rows):
        tick = chart_of(rows).mark_tick(color=FAINT_INK, thickness=2, size=21)
        chart += tick.encode(x="linear:Q", y=alt.Y("name:N", sort=None))
    return chart

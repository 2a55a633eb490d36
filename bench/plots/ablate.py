"""The picture of the ablation: added one by one, one removed, more workers.

The bars of the two panels above share their names, so these stand once. Ratios have a column of
their own at the right of each panel. A difference within the noise is a hollow bar.
"""

from collections.abc import Sequence
from typing import Any

import altair as alt

from ..report import Report, Result
from ..stream.ablate_report import (
    EVERYTHING,
    NOISE,
    WORDS,
    conclude,
    describe_measured,
    is_same,
)
from .style import BLUE, FAINT_INK, INK, Chart, wrap

_RATE = "images/s"
_WIDTH = 200
_ROW = 26
_BAR = 15
_FIRST = "none (left), all (right)"


def draw_ablation(report: Report) -> Chart:
    """Return two panels side by side on one scale, and that of the workers if there are several."""
    rows = report.results
    top = 1.03 * max(row.max for row in rows if row.unit == _RATE)
    pair = alt.hconcat(
        _panel(
            plot_rows(rows, "added"),
            top,
            ["Added one after the other", "(×: gain over the bar above)"],
        ),
        _panel(
            plot_rows(rows, "removed"),
            top,
            ["All but this one", "(×: of all of them)"],
            names=False,
        ),
        spacing=8,
    )
    workers = plot_rows(rows, "workers")
    if len(workers) < 2:
        return pair
    titles = ["All of them, with more workers", "(×: of one worker; grey tick: linear scaling)"]
    return alt.vconcat(pair, _panel(workers, None, titles), spacing=16)


def conclude_ablation(report: Report) -> tuple[list[str], list[str]]:
    """Return the lines of the title and of the subtitle."""
    every = next(row for row in report.results if row.name == EVERYTHING)
    title = [f"All optimisations together are {every.ratio or 0:.1f} times as fast as with none"]
    sentences = [
        conclude(report).partition(". ")[2],
        f"Measured: {describe_measured(report)}. Bar: the median; line: least and most.",
        f"Hollow: {NOISE[0].lower()}{NOISE[1:].replace(':', ',')}",
    ]
    return title, [line for each in sentences if each for line in wrap(each)]


def plot_rows(results: Sequence[Result], kind: str) -> list[dict[str, Any]]:
    """Return the values behind each bar of a panel: "added", "removed" or "workers"."""
    table: list[dict[str, Any]] = []
    for row in results:
        panel, _, what = row.name.partition("/")
        if panel != kind:
            continue
        if kind == "workers":
            words = f"{what} worker{'s' * (what != '1')}"
        else:
            words = WORDS.get(what, _FIRST)
        verdict = ""
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
                "linear": table[0]["value"] * int(what) if kind == "workers" and table else None,
            }
        )
    return table


def _panel(
    table: list[dict[str, Any]], top: float | None, titles: list[str], *, names: bool = True
) -> Chart:
    if top is None:
        top = 1.03 * max(max(row["max"], row["linear"] or 0) for row in table)
    base = alt.Chart(alt.Data(values=table)).encode(
        y=alt.Y(
            "what:N",
            title=None,
            sort=None,
            axis=alt.Axis(labels=names, ticks=False, labelLimit=180, labelPadding=5),
        )
    )
    bars = base.mark_bar(height=_BAR, stroke=BLUE, strokeWidth=1.3).encode(
        x=alt.X(
            "value:Q",
            title=_RATE,
            axis=alt.Axis(tickCount=4, labelOverlap=True),
            scale=alt.Scale(domain=[0, top], nice=False),
        ),
        color=alt.condition("datum.hollow", alt.value("white"), alt.value(BLUE)),
    )
    # So that the line shows on a bar that is printed in grey.
    halo = base.mark_rule(color="white", strokeWidth=4).encode(x="min:Q", x2="max:Q")
    spread = base.mark_rule(color=INK, strokeWidth=1.5).encode(x="min:Q", x2="max:Q")
    layers = bars + halo + spread
    if any(row["linear"] for row in table):
        layers += base.mark_tick(color=FAINT_INK, thickness=2, size=_BAR + 6).encode(x="linear:Q")
    layers += base.mark_text(align="left", fontSize=12, color=INK, x=_WIDTH + 6).encode(
        text="verdict:N"
    )
    return layers.properties(
        width=_WIDTH,
        height=_ROW * len(table),
        title=alt.TitleParams(
            titles[0],
            subtitle=titles[1],
            anchor="start",
            fontSize=13,
            color=INK,
            subtitleColor=FAINT_INK,
            subtitleFontSize=11,
        ),
    )

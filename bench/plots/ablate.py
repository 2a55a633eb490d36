"""The picture of the ablation: added one by one, one removed, more workers.

The bars of the two panels above share their names, so these stand once. Ratios have a column of
their own at the right of each panel. A difference within the noise is a hollow bar.
"""

from collections.abc import Sequence
from typing import Any, Final

import altair as alt

from ..report import RATE, Report, Result
from ..stream.ablate import WORDS, is_same
from .style import BLUE, FAINT_INK, Chart, bars, chart_of, panel_title

NOTE: Final = "Bar: the median; line: least and most. Hollow: within the noise."

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
    panel = _panel(workers, 1.03 * max(max(row["max"], row["linear"]) for row in workers), *title)
    tick = chart_of(workers[1:]).mark_tick(color=FAINT_INK, thickness=2, size=21)
    panel += tick.encode(x="linear:Q", y=alt.Y("name:N", sort=None))
    return alt.vconcat(pair, panel, spacing=16)


def plot_rows(results: Sequence[Result], kind: str) -> list[dict[str, Any]]:
    """Return the values behind each bar of a panel: "added", "removed" or "workers"."""
    table: list[dict[str, Any]] = []
    for row in results:
        panel, _, what = row.name.partition("/")
        if panel != kind:
            continue
        bar: dict[str, Any] = {"value": row.value, "min": row.min, "max": row.max}
        bar |= {"name": WORDS.get(what, _FIRST), "hollow": row.is_within_noise, "text": ""}
        if kind == "workers":
            bar["name"] = f"{what} worker{'s' * (what != '1')}"
            bar["linear"] = (table or [bar])[0]["value"] * int(what)
        if row.ratio is not None:
            bar["text"] = f"× {row.ratio:.2f}{' within noise' * row.is_within_noise}"
        table.append(bar | ({"text": "same settings"} if is_same(row) else {}))
    return table


def _panel(
    rows: list[dict[str, Any]], top: float, title: str, below: str, *, labels: bool = True
) -> Chart:
    return bars(
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

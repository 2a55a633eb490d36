"""The picture of the ablation, in three panels: added one by one, one removed, more workers."""

from collections.abc import Sequence

import altair as alt

from bench.plots.style import BLUE, FAINT_INK, GREY, INK, Chart
from bench.report import Report, Result

_HEIGHT = 250
_RATE = "images/s"


def draw_ablation(report: Report) -> Chart:
    """Return the three panels side by side, on one scale of images a second."""
    rows = report.results
    top = 1.05 * max(row.max for row in rows)
    return alt.hconcat(
        _draw_bars(_panel(rows, "added", "+ "), "each added to those above", BLUE, top),
        _draw_bars(_panel(rows, "removed", "without "), "all, with one removed", GREY, top),
        _draw_workers(_panel(rows, "workers", ""), top),
        spacing=30,
    )


def _panel(results: Sequence[Result], kind: str, prefix: str) -> list[dict[str, object]]:
    table: list[dict[str, object]] = []
    for row in results:
        panel, _, what = row.name.partition("/")
        if panel != kind:
            continue
        words = what.replace("-", " ").replace("dct", "DCT").replace("numa", "NUMA")
        if what == "nothing":
            words = "none of them" if kind == "added" else "all of them"
        else:
            words = prefix + words
        # The gain over the row before, or the loss against all.
        factor = "" if row.ratio is None else f"× {row.ratio:.2f}"
        table.append(
            {"what": words, "value": row.value, "min": row.min, "max": row.max, "factor": factor}
        )
    return table


def _draw_bars(table: list[dict[str, object]], title: str, colour: str, top: float) -> Chart:
    base = alt.Chart(alt.Data(values=table)).encode(
        y=alt.Y("what:N", title=None, sort=None, scale=alt.Scale(paddingInner=0.35))
    )
    bars = base.mark_bar(color=colour).encode(
        x=alt.X(
            "value:Q",
            title=_RATE,
            axis=alt.Axis(tickCount=5),
            scale=alt.Scale(domain=[0, top], nice=False),
        )
    )
    spread = base.mark_rule(color=INK).encode(x="min:Q", x2="max:Q")
    factors = base.mark_text(align="left", dx=6, fontSize=11, color=FAINT_INK).encode(
        x="max:Q", text="factor:N"
    )
    return (bars + spread + factors).properties(
        width=230, height=_HEIGHT, title=_panel_title(title)
    )


def _draw_workers(table: list[dict[str, object]], top: float) -> Chart:
    first = table[0]["value"]
    assert isinstance(first, float | int)
    ideal = [
        {"workers": int(str(row["what"])), "value": first * int(str(row["what"]))} for row in table
    ]
    for row in table:
        row["workers"] = int(str(row["what"]))
    counts = [row["workers"] for row in table]
    x = alt.X(
        "workers:Q",
        title="workers (dashed: linear scaling)",
        axis=alt.Axis(values=counts, format="d", grid=False),
        scale=alt.Scale(domain=[0, 1.1 * max(int(str(count)) for count in counts)], nice=False),
    )
    y = alt.Y("value:Q", title=_RATE, scale=alt.Scale(domain=[0, top], nice=False, clamp=False))
    base = alt.Chart(alt.Data(values=table))
    dashed = (
        alt.Chart(alt.Data(values=ideal))
        .mark_line(color=FAINT_INK, strokeDash=[5, 3], strokeWidth=1.5, clip=True)
        .encode(x=x, y=y)
    )
    line = base.mark_line(color=BLUE, point=alt.OverlayMarkDef(color=BLUE, size=45))
    spread = base.mark_rule(color=INK).encode(x=x, y="min:Q", y2="max:Q")
    return (dashed + line.encode(x=x, y=y) + spread).properties(
        width=210, height=_HEIGHT, title=_panel_title("all of them, with more workers")
    )


def _panel_title(text: str) -> Chart:
    return alt.TitleParams(text, anchor="start", fontSize=13, fontWeight="normal", color=INK)

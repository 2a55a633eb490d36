"""The bar chart of ``feeder-bench peers``: images per second of each contender, with its spread."""

from typing import Any, Final

from bench.report import RATE
from bench.rivals.report import ALL_CORES, RivalsReport

_COLOURS: Final = {
    "Feeder": "#1f6f8b",
    "antialiased bilinear, as ours": "#e09f3e",
    "another filter, or lossy": "#b8b8b8",
}


def draw_rivals(report: RivalsReport) -> Any:
    """Return the chart of all contenders with a rate, on one core and on all."""
    import altair

    return _chart(altair, _bars(report))


def _bars(report: RivalsReport) -> list[dict[str, Any]]:
    """Return the values behind each bar."""
    rates = {result.name: result for result in report.results if result.unit == RATE}
    bars: list[dict[str, Any]] = []
    for each in report.contenders:
        if each.missing is not None:
            continue
        row = rates[each.name]
        ours, antialiased, other = _COLOURS
        bars.append(
            {
                "contender": each.name.removeprefix("peers/").removesuffix(ALL_CORES),
                "cores": "all cores" if each.name.endswith(ALL_CORES) else "one core",
                "rate": row.value,
                "min": row.min,
                "max": row.max,
                "label": f"{row.value:,.0f}",
                "kind": ours if each.ours else antialiased if each.antialiased else other,
            }
        )
    return bars


def _chart(altair: Any, bars: list[dict[str, Any]]) -> Any:
    groups = [[bar for bar in bars if bar["cores"] == cores] for cores in ("one core", "all cores")]
    charts = [_group_chart(altair, group) for group in groups if group]
    return altair.vconcat(*charts)


def _group_chart(altair: Any, bars: list[dict[str, Any]]) -> Any:
    bars = sorted(bars, key=lambda bar: -bar["rate"])
    names = [bar["contender"] for bar in bars]
    base = altair.Chart(altair.Data(values=bars)).encode(
        y=altair.Y("contender:N", sort=names).title(None)
    )
    colours = altair.Scale(domain=list(_COLOURS), range=list(_COLOURS.values()))
    rates = altair.X("rate:Q", scale=altair.Scale(domainMax=1.1 * max(bar["max"] for bar in bars)))
    bar = base.mark_bar().encode(
        x=rates.title("images/s: median, least and most of the rounds"),
        color=altair.Color("kind:N", scale=colours).title(None).legend(orient="bottom"),
    )
    spread = base.mark_rule(color="#333333").encode(x="min:Q", x2="max:Q")
    text = base.mark_text(align="left", dx=4).encode(x="max:Q", text="label:N")
    return altair.layer(bar, spread, text).properties(width=420, title=bars[0]["cores"])

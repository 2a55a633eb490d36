"""The picture of ``feeder-bench cluster``: throughput and shares by hosts, and a fault over time.

Of a validation it shows the real throughput and the model's, setting by setting.
"""

from collections.abc import Mapping, Sequence
from typing import Final

import altair as alt

from ..cluster.outcomes import Outcome
from ..cluster.report import ClusterReport, describe_fault
from ..cluster.simulation import BIN_S
from .style import BLUE, GREEN, GREY, INK, ORANGE, RED, Chart, chart_of, panel_title

_WIDE: Final = 740


def draw_cluster(report: ClusterReport) -> Chart:
    """Return the panels that the report has rows for; it has some (``options``)."""
    if report.compared:
        return _draw_compared(report)
    most = {each.hosts: each for each in report.outcomes}  # of each number, the most ranks
    outcomes = [*most.values()]
    even = outcomes[0].images_s / outcomes[0].hosts
    throughput = _draw_lines(
        outcomes,
        {
            "in proportion to the hosts": (GREY, [even * each.hosts for each in outcomes]),
            "simulated": (BLUE, [each.images_s for each in outcomes]),
        },
        title="Throughput",
        y_title="images/s",
        scale=alt.Scale(type="log", nice=False),
    )
    shares = _draw_lines(
        outcomes,
        {
            "from the lane's owner": (BLUE, [100 * each.owner_share for each in outcomes]),
            "cores busy": (ORANGE, [100 * each.cpu for each in outcomes]),
            "network card busy": (GREEN, [100 * each.nic for each in outcomes]),
            "storage busy": (GREY, [100 * each.storage for each in outcomes]),
        },
        title="Shares of batches and of time",
        y_title="%",
        scale=alt.Scale(domain=[0, 105], nice=False),
    )
    panels = [alt.hconcat(throughput, shares, spacing=30).resolve_legend(color="independent")]
    if report.scenario is not None:
        panels.append(_draw_scenario(report))
    panels = [panel.resolve_scale(color="independent") for panel in panels]
    return alt.vconcat(*panels, spacing=20)


def _draw_lines(
    outcomes: Sequence[Outcome],
    lines: Mapping[str, tuple[str, Sequence[float]]],
    *,
    title: str,
    y_title: str,
    scale: Chart,
) -> Chart:
    """Draw a line of each colour and values, by hosts."""
    rows = [
        {"hosts": outcome.hosts, "value": value, "line": words}
        for words, (_, values) in lines.items()
        for outcome, value in zip(outcomes, values, strict=True)
    ]
    hosts = [outcome.hosts for outcome in outcomes]
    colours = alt.Scale(domain=[*lines], range=[colour for colour, _ in lines.values()])
    legend = alt.Legend(orient="bottom", columns=2, labelLimit=200)
    chart = chart_of(rows).mark_line(point=True)
    return chart.encode(
        x=alt.X(
            "hosts:Q",
            title="hosts",
            scale=alt.Scale(type="log", base=2),
            axis=alt.Axis(values=hosts, grid=False, format="d"),
        ),
        y=alt.Y("value:Q", title=y_title, scale=scale, axis=alt.Axis(format="~s", tickCount=5)),
        color=alt.Color("line:N", title=None, sort=None, scale=colours, legend=legend),
    ).properties(width=330, height=230, title=panel_title(title))


def _draw_scenario(report: ClusterReport) -> Chart:
    scenario = report.scenario
    assert scenario is not None
    rows = [
        {"at": number * BIN_S, "rate": rate} for number, rate in enumerate(scenario.images_s, 1)
    ]
    line = chart_of(rows).mark_line(color=BLUE, strokeWidth=1.6)
    line = line.encode(
        x=alt.X("at:Q", title="seconds", axis=alt.Axis(grid=False)),
        y=alt.Y("rate:Q", title="images/s", axis=alt.Axis(format="~s", tickCount=4)),
    )
    faults = [{"at": dip.fault.at_s, "what": describe_fault(dip)} for dip in scenario.dips]
    base = chart_of(faults).encode(x="at:Q")
    rules = base.mark_rule(color=RED, strokeDash=[4, 2])
    words = base.mark_text(align="left", dx=5, y=8, color=INK, fontSize=11).encode(text="what:N")
    title = panel_title(
        f"{scenario.hosts} hosts, {scenario.ranks} ranks: over {scenario.smooth_s:.1f} s each",
        "of all ranks together",
    )
    return (line + rules + words).properties(width=_WIDE, height=150, title=title)


def _draw_compared(report: ClusterReport) -> Chart:
    rows = [
        {
            "setting": f"{each.daemons} daemons, window {each.window}"
            + ", any node" * each.any_node,
            "what": what,
            "rate": rate,
        }
        for each in report.compared
        for what, rate in (("real", each.real_images_s), ("model", each.model_images_s))
    ]
    colours = alt.Scale(domain=["real", "model"], range=[BLUE, ORANGE])
    bars = chart_of(rows).mark_bar()
    return bars.encode(
        y=alt.Y("setting:N", title=None, sort=None, axis=alt.Axis(labelLimit=240)),
        yOffset=alt.YOffset("what:N", sort=["real", "model"]),
        x=alt.X("rate:Q", title="images/s"),
        color=alt.Color("what:N", title=None, scale=colours),
    ).properties(width=_WIDE - 250, height=30 * len(report.compared))

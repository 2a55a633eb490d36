"""The picture of ``feeder-bench cluster``: throughput and shares by hosts, and a fault over time.

Of a validation it shows the real throughput and the model's, setting by setting.
"""

from collections.abc import Sequence
from typing import Final

import altair as alt

from ..cluster.outcomes import Outcome
from ..cluster.report import ClusterReport, describe_fault
from ..cluster.simulation import BIN_S
from .style import BLUE, GREEN, GREY, INK, ORANGE, RED, Chart, chart_of, panel_title, wrap

_WIDTH: Final = 330
_WIDE: Final = 740
_HEIGHT: Final = 230


def conclude_cluster(report: ClusterReport) -> tuple[str, list[str]]:
    """Return the title of the picture, and its sentences as lines."""
    title = "A model of many hosts"
    if report.compared:
        title = "The model beside real daemons on this machine"
    simulated = (f"{name}: {what}" for name, what in report.measured.items())
    return title, wrap(*report.conclusions(), *simulated)


def draw_cluster(report: ClusterReport) -> Chart:
    """Return the panels that the report has rows for; it has some (``options``)."""
    if report.compared:
        return _draw_compared(report)
    most = {each.hosts: each for each in report.outcomes}  # of each number, the most ranks
    outcomes = [*most.values()]
    pair = alt.hconcat(_draw_throughput(outcomes), _draw_shares(outcomes), spacing=30)
    panels = [pair.resolve_legend(color="independent")]
    if report.scenario is not None:
        panels.append(_draw_scenario(report))
    return alt.vconcat(*panels, spacing=20).resolve_legend(color="independent")


def _hosts_axis(outcomes: Sequence[Outcome]) -> Chart:
    values = [each.hosts for each in outcomes]
    return alt.X(
        "hosts:Q",
        title="hosts",
        scale=alt.Scale(type="log", base=2),
        axis=alt.Axis(values=values, grid=False, format="d"),
    )


def _draw_throughput(outcomes: Sequence[Outcome]) -> Chart:
    first = outcomes[0]
    share = first.images_s / first.hosts
    rows = [
        {"hosts": each.hosts, "rate": each.images_s, "even": share * each.hosts}
        for each in outcomes
    ]
    base = chart_of(rows).encode(x=_hosts_axis(outcomes))
    rate = alt.Scale(type="log", nice=False)
    axis = alt.Axis(format="~s", tickCount=5)
    ideal = base.mark_line(color=GREY, strokeDash=[5, 3]).encode(
        y=alt.Y("even:Q", title="images/s", scale=rate, axis=axis)
    )
    line = base.mark_line(color=BLUE, point=alt.OverlayMarkDef(color=BLUE, size=45))
    title = panel_title("Throughput", "dashed: in proportion to the hosts")
    return (ideal + line.encode(y=alt.Y("rate:Q", scale=rate))).properties(
        width=_WIDTH, height=_HEIGHT, title=title
    )


def _draw_shares(outcomes: Sequence[Outcome]) -> Chart:
    parts = {
        "from the lane's owner": "owner_share",
        "cores busy": "cpu",
        "network card busy": "nic",
        "storage busy": "storage",
    }
    rows = [
        {"hosts": each.hosts, "percent": 100 * getattr(each, field), "part": part}
        for each in outcomes
        for part, field in parts.items()
    ]
    colour = alt.Color(
        "part:N",
        title=None,
        sort=None,
        scale=alt.Scale(domain=[*parts], range=[BLUE, ORANGE, GREEN, GREY]),
        legend=alt.Legend(orient="bottom", columns=2),
    )
    chart = chart_of(rows).mark_line(point=True)
    return chart.encode(
        x=_hosts_axis(outcomes),
        y=alt.Y("percent:Q", title="%", scale=alt.Scale(domain=[0, 105], nice=False)),
        color=colour,
    ).properties(
        width=_WIDTH, height=_HEIGHT, title=panel_title("Shares", "of batches and of time")
    )


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
            "setting": (
                f"{each.daemons} daemons, window {each.window}"
                + (", any node" if each.any_node else "")
            ),
            "what": what,
            "rate": rate,
        }
        for each in report.compared
        for what, rate in (("real", each.real_images_s), ("model", each.model_images_s))
    ]
    colours = alt.Scale(domain=["real", "model"], range=[BLUE, ORANGE])
    return (
        chart_of(rows)
        .mark_bar()
        .encode(
            y=alt.Y("setting:N", title=None, sort=None, axis=alt.Axis(labelLimit=240)),
            yOffset=alt.YOffset("what:N", sort=["real", "model"]),
            x=alt.X("rate:Q", title="images/s"),
            color=alt.Color("what:N", title=None, scale=colours),
        )
        .properties(width=_WIDE - 250, height=30 * len(report.compared))
    )

"""The report of ``feeder-bench cluster``: sentences first, then tables of 80 columns.

The JSON has more keys than other benches': ``outcomes``, ``any_node``, ``published``, ``sizing``,
``scenario``, ``compared`` and ``killed`` (null or empty where they were not asked for).
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

from ..report import JudgedReport, align
from .outcomes import (
    HOSTS_MAX,
    PUBLISHED_IMAGES_S,
    PUBLISHED_SPEED_UPS,
    RECOVERED,
    Dip,
    Outcome,
    Scenario,
    Sizing,
)
from .validate import (
    LOSS_DAEMONS,
    LOSS_MAX,
    OWNER_MAX,
    THROUGHPUT_MAX,
    Compared,
    ComparedLoss,
    find_cost,
)

BOUNDS: Final = {
    "cpu": "the cores",
    "nic": "the network card",
    "storage": "storage",
    "rank": "what a rank receives",
    "demand": "what the ranks consume",
    "window": "the window (--window)",
}
"""What bounds the throughput, in words."""

_FAULTS: Final = {"lose": "host {} killed", "freeze": "host {} frozen", "join": "a host joins"}

# Of each table, the head's lines and the cells' formats.
_OUTCOME: Final = (
    "|||||busy|||from|from",
    "hosts|ranks|images/s|times|limit|cpu|nic|disk|owner|disk",
    "{0.hosts}|{0.ranks}|{0.images_s:,.0f}|{1:.1f}|{0.bound}|"
    "{0.cpu:.0%}|{0.nic:.0%}|{0.storage:.0%}|{0.owner_share:.0%}|{0.cold_share:.0%}",
)
_COST: Final = (
    "||a node|||a rank||||took",
    "hosts|ranks|sessions|fds|cpu|links|fds|ms a batch|hedged|s",
    "{0.hosts}|{0.ranks}|{0.sessions}|{0.node_fds}|{0.node_cpu:.1%}|"
    "{0.links}|{0.client_fds}|{0.client_ms:.2f}|{0.hedged_share:.1%}|{0.took_s:.1f}",
)
_ANY_NODE: Final = (
    "||||by owner|||any node||ownership",
    "hosts|ranks|lanes|window|images/s|cpu|owner|images/s|owner|costs",
    "{0.hosts}|{0.ranks}|{2.lanes}|{2.window}|{0.made_images_s:,.0f}|{0.cpu:.0%}|{0.owner_share:.0%}|"
    "{1.made_images_s:,.0f}|{1.owner_share:.0%}|{2.cost:+.1%}",
)
_PUBLISHED: Final = (
    "|model||published|",
    "hosts|images/s|times|images/s|times",
    "{0.hosts}|{0.images_s:,.0f}|{1:.1f}|{2}|{3}",
)
_DIP: Final = (
    "fault|at s|before|lowest|depth|after|back in s|hedged",
    "{0}|{1.fault.at_s:.1f}|{1.before_images_s:,.0f}|{1.lowest_images_s:,.0f}|{1.depth:.0%}|"
    "{1.after_images_s:,.0f}|{2}|{1.hedged}",
)
_COMPARED: Final = (
    "|||images/s|||owner share||",
    "daemons|window|asks|real|model|off by|real|model|idle",
    "{0.daemons}|{0.window}|{1}|{0.real_images_s:,.0f}|{0.model_images_s:,.0f}|"
    "{0.difference:+.1%}|{2}|{3}|{0.idle:.0%}",
)


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipCost:
    """A cluster whose hosts are saturated, by owner and when any node is asked."""

    lanes: int
    window: int
    by_owner: Outcome
    any_node: Outcome

    @property
    def cost(self) -> float:
        """The share of the throughput that ownership costs."""
        return 1 - self.by_owner.made_images_s / self.any_node.made_images_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport(JudgedReport):
    outcomes: Sequence[Outcome] = ()
    any_node: Sequence[OwnershipCost] = ()
    published: Sequence[Outcome] = ()
    sizing: Sizing | None = None
    scenario: Scenario | None = None
    compared: Sequence[Compared] = ()
    killed: ComparedLoss | None = None

    def conclude(self) -> list[str]:
        sentences = []
        if self.sizing is not None:
            sentences.append(_conclude_sizing(self.sizing))
        elif self.outcomes:
            first, last = self.outcomes[0], self.outcomes[-1]
            times = f"{last.images_s / first.images_s:.1f} times"
            scale = f", {times} the throughput of {_hosts(first.hosts)}"
            sentences.append(
                f"{_hosts(last.hosts)} and {last.ranks} ranks: {last.images_s:,.0f} images/s"
                f"{scale if last.hosts > first.hosts else ''}; the limit is {BOUNDS[last.bound]}. "
                f"{100 * last.owner_share:.0f} % of the batches come from their lane's owner."
            )
        if self.scenario is not None:
            sentences += [_conclude_dip(self.scenario, dip) for dip in self.scenario.dips]
        if self.compared:
            rate = max(abs(each.difference) for each in self.compared)
            by_owner = [each for each in self.compared if not each.any_node]
            owner = max(abs(each.model_owner - each.real_owner) for each in by_owner)
            sentences.append(
                f"In {len(self.compared)} settings of real daemons, the model's throughput is off "
                f"by {rate:.1%} at most ({THROUGHPUT_MAX:.0%} is allowed), its owner share by "
                f"{100 * owner:.1f} points ({100 * OWNER_MAX:.0f})."
            )
            sentences += [
                f"With a window of {window}, ownership costs {LOSS_DAEMONS} daemons "
                f"{find_cost(self.compared, window):.1%} ({most:.0%})."
                for window, most in LOSS_MAX.items()
            ]
        return sentences

    def tables(self) -> Iterator[list[str]]:
        outcomes = self.outcomes
        if self.sizing is not None:
            best = self.sizing.outcome or self.sizing.largest
            outcomes = [best] if best is not None else []
        if outcomes:
            first_s = outcomes[0].images_s
            title = "busy: share of the time; from owner, from disk: share of the batches"
            yield _table(title, _OUTCOME, [(row, row.images_s / first_s) for row in outcomes], {4})
            title = "fds: descriptors; cpu, ms: of the session machines, measured here"
            yield _table(title, _COST, zip(outcomes))
        if self.any_node:
            pairs = [(pair.by_owner, pair.any_node, pair) for pair in self.any_node]
            title = "only cores limit: by owner, and if any node is asked; window: of a rank"
            yield _table(title, _ANY_NODE, pairs)
        if self.published:
            title = "beside the IPU-POD run; times: of one host's 30,000 images/s"
            yield _table(title, _PUBLISHED, map(_published_row, self.published))
        if self.scenario is not None:
            title = f"faults, {self.scenario.hosts} hosts, {self.scenario.ranks} ranks"
            rows = [_dip_row(describe_fault(dip), dip) for dip in self.scenario.dips]
            yield _table(title, _DIP, rows, {0})
        if self.compared:
            rows = [_compared_row(each) for each in self.compared]
            yield _table("real daemons and the model", _COMPARED, rows)
        if self.killed is not None:
            rows = [_dip_row("real", self.killed.real), _dip_row("model", self.killed.model)]
            yield _table(f"one of {self.killed.daemons} daemons killed", _DIP, rows, {0})


def describe_fault(dip: Dip) -> str:
    return _FAULTS[dip.fault.kind].format(dip.fault.host)


def _table(
    title: str,
    layout: Sequence[str],
    rows: Iterable[Sequence[object]],
    left: Iterable[int] = (),
) -> list[str]:
    *heads, cells = layout
    lines = [*heads, *(cells.format(*row) for row in rows)]
    return [title, *align([line.split("|") for line in lines], left=[*left])]


def _conclude_sizing(sizing: Sizing) -> str:
    wanted, outcome = f"{sizing.wanted_images_s:,.0f} images/s", sizing.outcome
    if outcome is None:
        most = sizing.largest
        reached = f", which deliver {most.images_s:,.0f}" if most is not None else ""
        return f"{wanted} take more than {HOSTS_MAX} hosts{reached}; by arithmetic {sizing.least}."
    return (
        f"{wanted} take {_hosts(outcome.hosts)}, which deliver {outcome.images_s:,.0f} to "
        f"{outcome.ranks} ranks; the limit is {BOUNDS[outcome.bound]}. "
        f"By arithmetic it would be {sizing.least}."
    )


def _conclude_dip(scenario: Scenario, dip: Dip) -> str:
    end = "" if scenario.is_whole else " A RANK'S BATCHES WERE NOT IN ORDER."
    back = "did not recover" if dip.recovery_s is None else f"was back after {dip.recovery_s:.1f} s"
    if dip.recovery_s == 0:
        back = f"never fell below {100 * RECOVERED:.0f} % of that"
    return (
        f"With {scenario.hosts} hosts, {describe_fault(dip)} at {dip.fault.at_s:.1f} s: "
        f"throughput went from {dip.before_images_s:,.0f} to {dip.after_images_s:,.0f} images/s; "
        f"at the lowest it was {100 * dip.depth:.0f} % less than before, and it {back}.{end}"
    )


def _hosts(count: int) -> str:
    return "one host" if count == 1 else f"{count} hosts"


def _published_row(outcome: Outcome) -> Sequence[object]:
    times = PUBLISHED_SPEED_UPS.get(outcome.hosts)
    published = (f"{times * PUBLISHED_IMAGES_S:,.0f}", f"{times:.1f}") if times else ("", "")
    return outcome, outcome.images_s / PUBLISHED_IMAGES_S, *published


def _dip_row(name: str, dip: Dip) -> Sequence[object]:
    return name, dip, "never" if dip.recovery_s is None else f"{dip.recovery_s:.1f}"


def _compared_row(each: Compared) -> Sequence[object]:
    if each.any_node:
        return each, "any", "", ""
    return each, "owner", f"{each.real_owner:.0%}", f"{each.model_owner:.0%}"

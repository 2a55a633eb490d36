"""The report of ``feeder-bench cluster``: sentences first, then tables of 80 columns.

The JSON has more keys than other benches': ``outcomes``, ``any_node``, ``published``, ``sizing``,
``scenario``, ``compared`` and ``killed`` (null or empty where they were not asked for).
"""

import textwrap
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

from ..report import JudgedReport, align, header_lines
from .dip import RECOVERED, Dip, Scenario
from .outcome import Outcome
from .published import HOST_IMAGES_S, SPEED_UPS
from .sizing import HOSTS_MAX, Sizing
from .validate import (
    LOSS_DAEMONS,
    LOSS_MAX,
    OWNER_MAX,
    THROUGHPUT_MAX,
    WINDOWS,
    Compared,
    ComparedLoss,
    loss,
)

COLUMNS: Final = 80
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


@dataclass(frozen=True, slots=True, kw_only=True)
class OwnershipCost:
    """A cluster with everything in memory, by owner and when any node is asked."""

    by_owner: Outcome
    any_node: Outcome

    @property
    def share(self) -> float:
        """What ownership costs, as a share of the throughput."""
        return 1 - self.by_owner.images_s / self.any_node.images_s


@dataclass(frozen=True, slots=True, kw_only=True)
class ClusterReport(JudgedReport):
    """A report with what was simulated."""

    outcomes: Sequence[Outcome] = ()
    any_node: Sequence[OwnershipCost] = ()
    published: Sequence[Outcome] = ()
    sizing: Sizing | None = None
    scenario: Scenario | None = None
    compared: Sequence[Compared] = ()
    killed: ComparedLoss | None = None

    def to_text(self) -> str:
        """Return sentences, header and tables."""
        lines = [
            line
            for sentence in self.conclusions()
            for line in textwrap.wrap(sentence, COLUMNS, break_on_hyphens=False)
        ]
        lines += ["", "feeder-bench cluster", *header_lines(self.machine)]
        lines += ["simulated:", *header_lines(self.measured)]
        for title, rows, left in self._tables():
            lines += ["", title, *align(rows, left=left)]
        return "\n".join(lines) + "\n"

    def conclusions(self) -> list[str]:
        """Return a sentence for each thing that was asked."""
        found = []
        if self.sizing is not None:
            found.append(conclude_sizing(self.sizing))
        elif self.outcomes:
            first, last = self.outcomes[0], self.outcomes[-1]
            scale = ""
            if last.hosts > first.hosts:
                times = f"{last.images_s / first.images_s:.1f} times"
                scale = f", {times} the throughput of {_hosts(first.hosts)}"
            found.append(
                f"{_hosts(last.hosts)} and {last.ranks} ranks: {last.images_s:,.0f} images/s{scale}"
                f"; the limit is {BOUNDS[last.bound]}. {100 * last.owner_share:.0f} % of the "
                "batches come from their lane's owner."
            )
        if self.scenario is not None:
            found += [conclude_dip(self.scenario, dip) for dip in self.scenario.dips]
        if self.compared:
            found.append(conclude_compared(self.compared))
        return found

    def _tables(self) -> list[tuple[str, list[tuple[str, ...]], set[int]]]:
        tables: list[tuple[str, list[tuple[str, ...]], set[int]]] = []
        shown = [self.sizing.outcome or self.sizing.largest] if self.sizing else self.outcomes
        outcomes = [each for each in shown if each is not None]
        if outcomes:
            tables.append(
                (
                    "busy: share of the time; from owner, from disk: share of the batches",
                    _outcome_rows(outcomes),
                    {4},
                )
            )
            tables.append(
                (
                    "fds: descriptors; cpu, ms: of the session machines, measured here",
                    _cost_rows(outcomes),
                    set(),
                )
            )
        if self.any_node:
            tables.append(
                (
                    "with everything in memory: by owner, and if any node is asked",
                    _any_rows(self.any_node),
                    set(),
                )
            )
        if self.published:
            tables.append(
                (
                    "beside the IPU-POD run; times: of one host's 30,000 images/s",
                    _published_rows(self.published),
                    set(),
                )
            )
        if self.scenario is not None:
            tables.append(
                (
                    f"faults, {self.scenario.hosts} hosts, {self.scenario.ranks} ranks",
                    _dip_rows(self.scenario.dips),
                    {0},
                )
            )
        if self.compared:
            tables.append(("real daemons and the model", _compared_rows(self.compared), set()))
        if self.killed is not None:
            dips = {"real": self.killed.real, "model": self.killed.model}
            title = f"one of {self.killed.daemons} daemons killed"
            tables.append((title, _dip_rows([*dips.values()], [*dips]), {0}))
        return tables


def conclude_sizing(sizing: Sizing) -> str:
    """Return the answer in a sentence."""
    wanted = f"{sizing.wanted_images_s:,.0f} images/s"
    if sizing.outcome is None:
        reached = (
            "" if sizing.largest is None else f", which deliver {sizing.largest.images_s:,.0f}"
        )
        return f"{wanted} take more than {HOSTS_MAX} hosts{reached}; by arithmetic {sizing.least}."
    outcome = sizing.outcome
    return (
        f"{wanted} take {_hosts(outcome.hosts)}, which deliver {outcome.images_s:,.0f} to "
        f"{outcome.ranks} ranks; the limit is {BOUNDS[outcome.bound]}. "
        f"By arithmetic it would be {sizing.least}."
    )


def conclude_dip(scenario: Scenario, dip: Dip) -> str:
    """Return what a fault did in a sentence."""
    what = describe_fault(dip)
    end = "" if scenario.is_whole else " A RANK'S BATCHES WERE NOT IN ORDER."
    back = "did not recover" if dip.recovery_s is None else f"was back after {dip.recovery_s:.1f} s"
    if dip.recovery_s == 0:
        back = f"never fell below {100 * RECOVERED:.0f} % of that"
    return (
        f"With {scenario.hosts} hosts, {what} at {dip.fault.at_s:.1f} s: throughput went from "
        f"{dip.before_images_s:,.0f} to {dip.after_images_s:,.0f} images/s; at the lowest it was "
        f"{100 * dip.depth:.0f} % less than before, and it {back}.{end}"
    )


def conclude_compared(compared: Sequence[Compared]) -> str:
    """Return how far the model is from the real daemons in a sentence."""
    rate = max(abs(each.difference) for each in compared)
    owner = max(abs(each.owner_points) for each in compared if not each.any_node)
    costs = [loss(compared, window, is_real=True) for window in WINDOWS]
    return (
        f"In {len(compared)} settings of real daemons the model's throughput is off by "
        f"{100 * rate:.1f} % at most ({100 * THROUGHPUT_MAX:.0f} are allowed), its owner share by "
        f"{owner:.1f} points ({100 * OWNER_MAX:.0f}). Against asking any node, {LOSS_DAEMONS} real "
        f"daemons lose {', '.join(f'{100 * cost:.1f}' for cost in costs)} % of the throughput "
        f"with windows of {', '.join(map(str, WINDOWS))} ({100 * LOSS_MAX:.0f} is allowed)."
    )


def describe_fault(dip: Dip) -> str:
    """Return the fault in words."""
    return _FAULTS[dip.fault.kind].format(dip.fault.host)


def _hosts(count: int) -> str:
    return "one host" if count == 1 else f"{count} hosts"


def _share(value: float) -> str:
    return f"{100 * value:.0f}%"


def _outcome_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    first = outcomes[0]
    rows: list[tuple[str, ...]] = [
        ("", "", "", "", "", "busy", "", "", "from", "from"),
        ("hosts", "ranks", "images/s", "times", "limit", "cpu", "nic", "disk", "owner", "disk"),
    ]
    for each in outcomes:
        rows.append(
            (
                *(str(each.hosts), str(each.ranks), f"{each.images_s:,.0f}"),
                *(f"{each.images_s / first.images_s:.1f}", each.bound),
                *(_share(each.cpu), _share(each.nic), _share(each.storage)),
                *(_share(each.owner_share), _share(each.cold_share)),
            )
        )
    return rows


def _cost_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("", "", "a node", "", "", "a rank", "", "", "", "took"),
        (
            *("hosts", "ranks", "sessions", "fds", "cpu", "links", "fds", "ms a batch"),
            *("hedged", "s"),
        ),
    ]
    for each in outcomes:
        rows.append(
            (
                *(str(each.hosts), str(each.ranks), str(each.sessions), str(each.node_fds)),
                *(f"{100 * each.node_cpu:.1f}%", str(each.links), str(each.client_fds)),
                *(f"{each.client_ms:.2f}", f"{100 * each.hedged_share:.1f}%"),
                f"{each.took_s:.1f}",
            )
        )
    return rows


def _any_rows(pairs: Sequence[OwnershipCost]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("", "", "by owner", "", "any node", "", "ownership"),
        ("hosts", "ranks", "images/s", "owner", "images/s", "owner", "costs"),
    ]
    for each in pairs:
        rows.append(
            (
                *(str(each.by_owner.hosts), str(each.by_owner.ranks)),
                *(f"{each.by_owner.images_s:,.0f}", _share(each.by_owner.owner_share)),
                *(f"{each.any_node.images_s:,.0f}", _share(each.any_node.owner_share)),
                f"{100 * each.share:+.1f}%",
            )
        )
    return rows


def _published_rows(outcomes: Sequence[Outcome]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("", "model", "", "published", ""),
        ("hosts", "images/s", "times", "images/s", "times"),
    ]
    for each in outcomes:
        times = SPEED_UPS.get(each.hosts)
        rows.append(
            (
                *(str(each.hosts), f"{each.images_s:,.0f}", f"{each.images_s / HOST_IMAGES_S:.1f}"),
                "" if times is None else f"{times * HOST_IMAGES_S:,.0f}",
                "" if times is None else f"{times:.1f}",
            )
        )
    return rows


def _dip_rows(dips: Sequence[Dip], names: Sequence[str] = ()) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("fault", "at s", "before", "lowest", "depth", "after", "back in s", "hedged")
    ]
    for number, dip in enumerate(dips):
        name = names[number] if names else describe_fault(dip)
        back = "never" if dip.recovery_s is None else f"{dip.recovery_s:.1f}"
        rows.append(
            (
                *(name, f"{dip.fault.at_s:.1f}", f"{dip.before_images_s:,.0f}"),
                *(f"{dip.lowest_images_s:,.0f}", _share(dip.depth)),
                *(f"{dip.after_images_s:,.0f}", back, str(dip.hedged)),
            )
        )
    return rows


def _compared_rows(compared: Sequence[Compared]) -> list[tuple[str, ...]]:
    rows: list[tuple[str, ...]] = [
        ("", "", "", "images/s", "", "", "owner share", "", ""),
        ("daemons", "window", "asks", "real", "model", "off by", "real", "model", "idle"),
    ]
    for each in compared:
        owner = ("", "") if each.any_node else (_share(each.real_owner), _share(each.model_owner))
        rows.append(
            (
                *(str(each.daemons), str(each.window), "any" if each.any_node else "owner"),
                *(f"{each.real_images_s:,.0f}", f"{each.model_images_s:,.0f}"),
                *(f"{100 * each.difference:+.1f}%", *owner, _share(each.idle)),
            )
        )
    return rows

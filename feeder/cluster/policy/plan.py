"""Which host runs which feeder: a state machine without Ray, clock or I/O.

    events        the wanted number, the hosts that offer the resource, what became of each launch
    instructions  launch a feeder on a host, end one

A feeder has a *slot*, a number 0 .. wanted-1, for as long as it is wanted: a replacement takes the
slot of the feeder that was lost, and with it the name and the lanes. A *launch* is one attempt to
run a slot's feeder on a host.

    (free) ── Launch ──► placing ── Placed ──► starting ── Ready ──► ready
       ▲                    │                      │                   │
       └── Failed, Lost ────┴──────────────────────┴───────────────────┘
    scaled down: … ── End ──► ending ── Ended, Lost ──► (free)

Invariants: a host runs one launch at most; a slot's feeder is published only while it is ready and
agrees with the feeders that were ready before it; a host whose feeder fails is left alone for an
exponential backoff, while its slot goes to another host that is free.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from itertools import chain
from typing import Final

from feeder.cluster.policy.events import (
    Adopted,
    End,
    Event,
    Failed,
    Host,
    HostsSeen,
    Instruction,
    Launch,
    Lost,
    Placed,
    Ready,
    Wanted,
)
from feeder.cluster.policy.plan_status import HostProblem, PlanStatus, SlotState, SlotStatus
from feeder.cluster.policy.start_facts import StartFacts, describe_difference, describe_versions
from feeder.process.backoff import RestartPolicy

PLACING_MAX_S: Final = 30.0
"""For Ray to start an actor's process; a worker that imports nothing new takes about a second."""

LINE_CHARS_MAX: Final = 400
"""Of a reason that is kept and shown."""


@dataclass(slots=True)
class _Run:
    launch: int
    slot: int
    host: Host
    state: SlotState
    since_s: float
    facts: StartFacts | None = None


@dataclass(slots=True)
class _Record:
    """The failures of a host."""

    address: str
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    reason: str = ""
    retry_at_s: float = 0.0


class ClusterPlan:
    """The feeders of one cluster. ``handle`` takes an event and returns the instructions."""

    def __init__(self, first_launch: int) -> None:
        """``first_launch`` is above the numbers of all launches before."""
        self._next_launch = first_launch
        self._wanted = 0
        self._hosts: dict[str, Host] = {}
        self._runs: dict[int, _Run] = {}
        self._records: dict[str, _Record] = {}
        self._last_host: dict[int, str] = {}  # by slot: its page cache may still be warm

    def handle(self, event: Event, now_s: float) -> list[Instruction]:
        """Apply an event; return what to do, in order."""
        instructions: list[Instruction] = []
        run = self._runs.get(event.launch) if hasattr(event, "launch") else None
        match event:
            case Wanted(feeders):
                self._wanted = feeders
            case HostsSeen(hosts):
                self._hosts = {host.id: host for host in hosts}
                running = {each.host.id for each in self._runs.values()}
                for host_id in [each for each in self._records if each not in self._hosts]:
                    if host_id not in running:
                        del self._records[host_id]
            case Adopted(launch, slot, host):
                if run is None:
                    self._runs[launch] = _Run(launch, slot, host, "starting", now_s)
                    self._next_launch = max(self._next_launch, launch + 1)
                    if any(
                        each.slot == slot and each.launch != launch and each.state != "ending"
                        for each in self._runs.values()
                    ):
                        instructions += self._end(self._runs[launch], now_s)
            case Placed() if run is not None and run.state == "placing":
                self._enter(run, "starting", now_s)
            case Ready(_, facts) if run is not None and run.state in ("placing", "starting"):
                instructions += self._on_ready(run, facts, now_s)
            case Failed(_, reason) if run is not None and run.state != "ending":
                self._blame(run.host, reason, now_s)
                instructions += self._end(run, now_s)
            case Lost(_, reason) if run is not None:
                if run.state != "ending" and run.host.id in self._hosts:
                    self._blame(run.host, reason, now_s)
                del self._runs[run.launch]
            case _:
                pass  # a launch that is known no more, or a tick
        for each in list(self._runs.values()):
            if each.state == "placing" and now_s - each.since_s >= PLACING_MAX_S:
                reason = (
                    f"Ray started no process there within {PLACING_MAX_S:.0f} s: see `ray status` "
                    "for what holds its resource, and the logs of its raylet"
                )
                self._blame(each.host, reason, now_s)
                instructions += self._end(each, now_s)
        return [*instructions, *self._shrink(now_s), *self._fill(now_s)]

    def published(self) -> tuple[tuple[str, str], ...]:
        """Return (name, endpoint) of each feeder that serves, by slot.

        The endpoint is that of the first node process: clients learn the others from it.
        """
        found = []
        for run in sorted(self._runs.values(), key=lambda run: run.slot):
            if run.state == "ready" and run.facts is not None:
                over_tcp = (each for each in run.facts.endpoints[0] if each.startswith("tcp://"))
                endpoint = next(over_tcp, None)
                if endpoint is not None:
                    found.append((name_feeder(run.slot), endpoint))
        return tuple(found)

    def status(self, now_s: float) -> PlanStatus:
        """Return the state of everything, for people."""
        runs = sorted(self._runs.values(), key=lambda run: (run.slot, run.launch))
        records = [record for record in self._records.values() if record.reason]
        facts = {run.host.address: run.facts for run in runs if run.facts is not None}
        return PlanStatus(
            wanted=self._wanted,
            hosts=len(self._hosts),
            slots=tuple(
                SlotStatus(
                    slot=run.slot,
                    address=run.host.address,
                    state=run.state,
                    seconds=now_s - run.since_s,
                    endpoints=() if run.facts is None else tuple(chain(*run.facts.endpoints)),
                )
                for run in runs
            ),
            problems=tuple(
                HostProblem(
                    address=record.address,
                    failures=record.policy.crashes,
                    reason=record.reason,
                    retry_s=max(0.0, record.retry_at_s - now_s),
                )
                for record in sorted(records, key=lambda each: _order(each.address))
            ),
            notes=tuple(self._notes(facts)),
        )

    def _notes(self, facts: Mapping[str, StartFacts]) -> Iterator[str]:
        missing = self._wanted - len(self._hosts)
        if missing > 0:
            offer = "1 host offers" if len(self._hosts) == 1 else f"{len(self._hosts)} hosts offer"
            yield (
                f"{self._wanted} feeders are wanted and {offer} the resource: the others start "
                "when further hosts join"
            )
        difference = describe_versions(facts)
        if difference:
            yield difference

    def _on_ready(self, run: _Run, facts: StartFacts, now_s: float) -> list[Instruction]:
        older = [each for each in self._runs.values() if each.state == "ready" and each.facts]
        first = min(older, key=lambda each: each.launch, default=None)
        if first is not None and first.facts is not None:
            difference = describe_difference(
                (first.host.address, first.facts), (run.host.address, facts)
            )
            if difference:
                self._blame(run.host, difference, now_s)
                return self._end(run, now_s)
        run.facts = facts
        self._enter(run, "ready", now_s)
        self._last_host[run.slot] = run.host.id
        record = self._records.get(run.host.id)
        if record is not None:
            record.reason = ""  # what held it back is over; its backoff is kept for a relapse
        return []

    def _shrink(self, now_s: float) -> Iterator[Instruction]:
        for run in list(self._runs.values()):
            if run.slot >= self._wanted and run.state != "ending":
                yield from self._end(run, now_s)

    def _fill(self, now_s: float) -> Iterator[Instruction]:
        taken = {run.slot for run in self._runs.values() if run.state != "ending"}
        busy = {run.host.id for run in self._runs.values()}
        for slot in range(self._wanted):
            if slot in taken:
                continue
            free = [
                host
                for host in self._hosts.values()
                if host.id not in busy and self._retry_at_s(host) <= now_s
            ]
            if not free:
                return
            last = self._last_host.get(slot)
            host = min(
                free,
                key=lambda each: (self._failures(each), each.id != last, _order(each.address)),
            )
            launch = self._next_launch
            self._next_launch += 1
            self._runs[launch] = _Run(launch, slot, host, "placing", now_s)
            busy.add(host.id)
            yield Launch(launch, slot, host)

    def _retry_at_s(self, host: Host) -> float:
        record = self._records.get(host.id)
        return 0.0 if record is None else record.retry_at_s

    def _failures(self, host: Host) -> int:
        record = self._records.get(host.id)
        return record.policy.crashes if record is not None and record.reason else 0

    def _blame(self, host: Host, reason: str, now_s: float) -> None:
        """Record a failure of a host, and leave it alone for its backoff."""
        record = self._records.setdefault(host.id, _Record(host.address))
        record.reason = " ".join(reason.split())[:LINE_CHARS_MAX] or "no reason was given"
        # Never given up: what is wrong with a host is put right while the others serve.
        record.retry_at_s = now_s + (record.policy.on_crash(now_s, has_served=True) or 0.0)

    def _end(self, run: _Run, now_s: float) -> list[Instruction]:
        self._enter(run, "ending", now_s)
        return [End(run.launch)]

    def _enter(self, run: _Run, state: SlotState, now_s: float) -> None:
        run.state, run.since_s = state, now_s


def name_feeder(slot: int) -> str:
    """Return the name of a slot's feeder, as ``serve.name``."""
    return f"feeder-{slot}"


def _order(address: str) -> tuple[int, str]:
    """Order addresses: 10.0.0.9 comes before 10.0.0.10."""
    return len(address), address

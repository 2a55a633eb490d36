"""Which host runs which feeder: a state machine without Ray, clock or I/O.

    what happened   the number wanted, the hosts that offer the resource, what became of each launch
    what to do      ``decide`` launches feeders on hosts; ``ending`` are to be ended

A feeder has a *slot*, a number 0 .. wanted-1, for as long as it is wanted: a replacement takes the
slot of the feeder that was lost, and with it the name and the lanes. A *launch* is one attempt to
run a slot's feeder on a host.

    (free) ── decide ──► placing ── placed ──► starting ── ready ──► ready
       ▲                    │                      │                   │
       └── failed, lost ────┴──────────────────────┴───────────────────┘
    scaled down: … ── decide ──► ending ── lost ──► (free)

Invariants: a host runs one launch at most; a slot's feeder is published only while it is ready and
agrees with the feeders that were ready before it; a host whose feeder fails is left alone for an
exponential backoff, while its slot goes to another host that is free.
"""

from dataclasses import dataclass, field
from itertools import chain
from typing import Any, Final, Literal

from feeder.cluster.policy.start_facts import StartFacts, describe_difference, describe_versions
from feeder.process.backoff import RestartPolicy

PLACING_MAX_S: Final = 30.0
"""For Ray to start an actor's process; a worker that imports nothing new takes about a second."""

_REASON_CHARS_MAX: Final = 400


@dataclass(frozen=True, slots=True)
class Launch:
    """Run the feeder of ``slot`` on a host."""

    launch: int
    """Its number, which is never used again."""
    slot: int
    host_id: str
    """Ray's id of the node; a host that restarts gets another one."""
    address: str

    @property
    def actor(self) -> str:
        """The name of its actor."""
        return f"{name_feeder(self.slot)}-{self.launch}"


@dataclass(slots=True)
class _Run:
    state: Literal["placing", "starting", "ready", "ending"]
    since_s: float
    facts: StartFacts | None = None  # once it is ready


@dataclass(slots=True)
class _Record:
    """The failures of a host."""

    address: str
    policy: RestartPolicy = field(default_factory=RestartPolicy)
    reason: str = ""  # empty once its feeder is ready; the backoff is kept for a relapse
    retry_at_s: float = 0.0


class ClusterPlan:
    """The feeders of one cluster: report what happened, in any order, then ``decide``."""

    def __init__(self, first_launch: int, wanted: int) -> None:
        """``first_launch`` is above the numbers of all launches before."""
        self.wanted = wanted
        self.hosts: dict[str, str] = {}
        """All hosts that offer the resource now: their addresses by id."""
        self._next_launch = first_launch
        self._runs: dict[Launch, _Run] = {}
        self._records: dict[str, _Record] = {}
        self._last_host: dict[int, str] = {}  # by slot: its page cache may still be warm

    # --- What happened: a launch that is not known any more changes nothing -----------------------

    def adopt(self, launch: Launch, now_s: float) -> None:
        """A feeder runs that an earlier controller launched."""
        self._runs.setdefault(launch, _Run("starting", now_s))
        self._next_launch = max(self._next_launch, launch.launch + 1)

    def placed(self, launch: Launch, now_s: float) -> None:
        """The launch's process runs on its host, and the daemon is being started."""
        run = self._runs.get(launch)
        if run is not None and run.state == "placing":
            run.state, run.since_s = "starting", now_s

    def ready(self, launch: Launch, facts: StartFacts, now_s: float) -> None:
        """The launch's daemon serves."""
        run = self._runs.get(launch)
        if run is None or run.state not in ("placing", "starting"):
            return
        older = [each for each in self._runs if self._runs[each].state == "ready"]
        first = min(older, key=lambda each: each.launch, default=None)
        expected = self._runs[first].facts if first is not None else None
        if first is not None and expected is not None:
            difference = describe_difference(first.address, expected, facts)
            if difference:
                self.failed(launch, difference, now_s)
                return
        run.state, run.since_s, run.facts = "ready", now_s, facts
        self._last_host[launch.slot] = launch.host_id
        if launch.host_id in self._records:
            self._records[launch.host_id].reason = ""

    def failed(self, launch: Launch, reason: str, now_s: float) -> None:
        """The launch's daemon could not start, or ended by itself."""
        run = self._runs.get(launch)
        if run is not None and run.state != "ending":
            self._blame(launch, reason, now_s)
            run.state, run.since_s = "ending", now_s

    def lost(self, launch: Launch, reason: str, now_s: float) -> None:
        """The launch is gone: ended as decided, alone, or with its host."""
        run = self._runs.pop(launch, None)
        if run is not None and run.state != "ending":
            self._blame(launch, reason, now_s)

    def _blame(self, launch: Launch, reason: str, now_s: float) -> None:
        """Record a failure of a host, and leave it alone for its backoff."""
        record = self._records.setdefault(launch.host_id, _Record(launch.address))
        record.reason = " ".join(reason.split())[:_REASON_CHARS_MAX] or "no reason was given"
        # Never given up: what is wrong with a host is put right while the others serve.
        record.retry_at_s = now_s + (record.policy.on_crash(now_s, has_served=True) or 0.0)

    # --- What to do ------------------------------------------------------------------------------

    def decide(self, now_s: float) -> list[Launch]:
        """The launches to carry out.

        ``hosts`` must be as they are after the last loss: a lost host must not be chosen again.
        """
        taken: set[int] = set()
        for launch, run in self._runs.items():
            if run.state == "placing" and now_s - run.since_s >= PLACING_MAX_S:
                reason = (
                    f"Ray started no process there within {PLACING_MAX_S:.0f} s: see `ray status` "
                    "for what holds its resource, and the logs of its raylet"
                )
                self.failed(launch, reason, now_s)
            elif run.state != "ending" and (launch.slot >= self.wanted or launch.slot in taken):
                run.state, run.since_s = "ending", now_s
            elif run.state != "ending":
                taken.add(launch.slot)
        busy = {launch.host_id for launch in self._runs}
        for host_id in [*self._records]:
            if host_id not in self.hosts and host_id not in busy:
                del self._records[host_id]
            elif self._records[host_id].retry_at_s > now_s:
                busy.add(host_id)
        free = {host_id: at for host_id, at in self.hosts.items() if host_id not in busy}
        launches = []
        for slot in range(self.wanted):
            if slot in taken or not free:
                continue
            host_id, address = min(free.items(), key=lambda host: self._preference(slot, *host))
            del free[host_id]
            launches.append(Launch(self._next_launch, slot, host_id, address))
            self._next_launch += 1
        self._runs |= {launch: _Run("placing", now_s) for launch in launches}
        return launches

    def _preference(self, slot: int, host_id: str, address: str) -> tuple[int, bool, int, str]:
        """The least is chosen: of the hosts with fewest failures, the one that the slot had."""
        record = self._records.get(host_id)
        failures = record.policy.crashes if record is not None and record.reason else 0
        return failures, self._last_host.get(slot) != host_id, *_order(address)

    def ending(self) -> list[Launch]:
        """The launches to end: each daemon drains, then it is ``lost``."""
        return [launch for launch, run in self._runs.items() if run.state == "ending"]

    # --- What it is now --------------------------------------------------------------------------

    def published(self) -> tuple[tuple[str, str], ...]:
        """(name, endpoint) of each feeder that serves, by slot.

        The endpoint is that of the first node process: clients learn the others from it.
        """
        listed = []
        for launch, run in sorted(self._runs.items(), key=lambda item: item[0].slot):
            if run.state == "ready" and run.facts is not None:
                over_tcp = (each for each in run.facts.endpoints[0] if each.startswith("tcp://"))
                listed += [(name_feeder(launch.slot), endpoint) for endpoint in over_tcp][:1]
        return tuple(listed)

    def status(self, now_s: float) -> dict[str, Any]:
        """The state of everything, as ``feeder cluster status --json`` has it."""
        runs = sorted(self._runs.items(), key=lambda item: (item[0].slot, item[0].launch))
        records = [record for record in self._records.values() if record.reason]
        facts = {launch.address: run.facts for launch, run in runs if run.facts is not None}
        notes = []
        if self.wanted > len(self.hosts):
            offer = "1 host offers" if len(self.hosts) == 1 else f"{len(self.hosts)} hosts offer"
            notes.append(
                f"{self.wanted} feeders are wanted and {offer} the resource: the others start "
                "when further hosts join"
            )
        if difference := describe_versions(facts):
            notes.append(difference)
        return {
            "wanted": self.wanted,
            "hosts": len(self.hosts),
            "ready": sum(run.state == "ready" for _, run in runs),
            "slots": [
                {
                    "slot": launch.slot,
                    "address": launch.address,
                    "state": run.state,
                    "seconds": now_s - run.since_s,  # in this state
                    "endpoints": [] if run.facts is None else [*chain(*run.facts.endpoints)],
                }
                for launch, run in runs
            ],
            "problems": [
                {
                    "address": record.address,
                    "failures": record.policy.crashes,
                    "reason": record.reason,
                    "retry_s": max(0.0, record.retry_at_s - now_s),
                }
                for record in sorted(records, key=lambda each: _order(each.address))
            ],
            "notes": notes,
        }


def name_feeder(slot: int) -> str:
    """The name of a slot's feeder, as ``serve.name``."""
    return f"feeder-{slot}"


def _order(address: str) -> tuple[int, str]:
    """Order addresses: 10.0.0.9 comes before 10.0.0.10."""
    return len(address), address

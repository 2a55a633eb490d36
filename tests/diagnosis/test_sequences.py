"""Verdicts over time: named within three seconds of a condition's beginning, then steady.

A host is simulated that does one thing, and then another: its node process sends snapshots twice a
second, its clients ping once a second.
"""

from collections import defaultdict
from dataclasses import dataclass, field, replace

import pytest

from feeder.daemon.watch import HostWatch
from feeder.host.processes import Busy
from feeder.metrics.records import (
    BOUNDS_S,
    ClientRecord,
    FailureRecord,
    Histogram,
    NodeRecord,
    SlotSeconds,
    StoreRecord,
    WorkerRecord,
)
from feeder.metrics.report import HostLoad, HostReport, NodeReport, VerdictKind

NAMED_WITHIN_S = 2.8
"""Reading a report takes up to 0.2 s more."""

OVER_WITHIN_S = 4.0
"""That it is over shows in two more pings of the clients."""

TICK_S = 0.05
BEFORE_S = 15.0
AFTER_S = 12.0
WORKERS = 2
CPUS = 4


@dataclass(frozen=True, kw_only=True)
class Trainer:
    """What a client does."""

    wait: float = 0.0
    """Share of its time in which it waits."""
    share: float = 1.0
    """Its part of the workers' time."""
    is_tcp: bool = False
    sending: float = 0.0
    """Slots on the way, of 4."""
    pings: bool = True
    wanted: int = 4
    job: str = ""


@dataclass(frozen=True, kw_only=True)
class Pace:
    """What a host does; shares of the workers' time, and of that in chunks."""

    busy: float = 0.6
    run_delay: float = 0.0
    blocked: float = 0.0
    reading: float = 0.05
    images_a_s: float = 2000.0
    others_cpus: float = 0.0
    pressure: float = 0.0
    trainers: tuple[Trainer, ...] = (Trainer(),)
    failed_a_s: float = 0.0
    failure: tuple[str, str] = ("unreadable", "shard-0.fds is gone")
    fetching: int = 0
    """Batches that wait for samples, a second each."""
    evicted: float = 0.0
    """Of the bytes that come from the store."""


HEALTHY = Pace()
BUSY = Pace(busy=0.97, trainers=(Trainer(wait=0.6),))
READING = Pace(busy=0.98, blocked=0.9, reading=0.92, images_a_s=100, trainers=(Trainer(wait=0.95),))
CROWDED = Pace(
    busy=0.97, run_delay=0.5, images_a_s=1000, others_cpus=2.0, trainers=(Trainer(wait=0.8),)
)
FETCHING = Pace(busy=0.3, images_a_s=1000, trainers=(Trainer(wait=0.6),), fetching=3)
EVICTING = replace(FETCHING, evicted=1.0)
MILD = replace(BUSY, trainers=(Trainer(wait=0.03),))
PINGLESS = replace(BUSY, trainers=(Trainer(pings=False),))
FAR = Trainer(is_tcp=True, wait=0.0)


@dataclass
class Host:
    """A simulated host, and the watch of its supervisor."""

    now_s: float = 1000.0
    totals: dict[str, float] = field(default_factory=lambda: defaultdict(float))
    pinged: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    kinds: list[tuple[float, VerdictKind]] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began_s = self.now_s
        self.watch = HostWatch(1, read_load=self.load, find_neighbours=self.find_neighbours)

    def find_neighbours(self, known: object, now_s: float) -> tuple[Busy, ...]:
        self.looks.append(now_s)
        is_first = len(self.looks) < 2
        return () if is_first else (("make", 77, 1.5),)

    def load(self) -> HostLoad:
        return HostLoad(
            clock_s=self.now_s,
            usable_cpus=float(CPUS),
            cpus=CPUS,
            busy_s=self.totals["machine"],
            pressure_cpu_s=self.totals["pressure"],
        )

    def run(self, pace: Pace, seconds: float) -> None:
        """Do something for a while; snapshots and reports are made meanwhile."""
        end_s = self.now_s + seconds
        while self.now_s < end_s - 1e-9:
            self.now_s += TICK_S
            self.tick(pace)
            ticks = round((self.now_s - self.began_s) / TICK_S)
            if ticks % 20 == 7:
                self.ping(pace)
            if ticks % 10 == 0:
                self.watch.take(self.snapshot(pace))
                assert self.watch.due_s <= self.now_s
                self.watch.take_store(self.store())
                report = self.watch.turn([NodeReport(number=0, state="ready")])
                self.kinds.append((self.now_s, report.verdict.kind))

    def tick(self, pace: Pace) -> None:
        busy_s = TICK_S * pace.busy
        self.totals["busy"] += busy_s
        self.totals["cpu"] += busy_s * (1 - pace.run_delay - pace.blocked)
        self.totals["delay"] += busy_s * pace.run_delay
        self.totals["read"] += WORKERS * busy_s * pace.reading
        self.totals["decode"] += WORKERS * busy_s * (1 - pace.reading) * 0.8
        self.totals["images"] += TICK_S * pace.images_a_s
        self.totals["pressure"] += TICK_S * pace.pressure
        self.totals["fetched"] += TICK_S * pace.fetching
        self.totals["evicted"] += TICK_S * pace.fetching * pace.evicted
        self.totals["failed"] += TICK_S * pace.failed_a_s
        used = WORKERS * pace.busy * (1 - pace.run_delay - pace.blocked)
        self.totals["machine"] += TICK_S * min(CPUS, used + pace.others_cpus)
        for number, trainer in enumerate(pace.trainers):
            self.totals[f"clock{number}"] += TICK_S
            self.totals[f"wait{number}"] += TICK_S * trainer.wait
            self.totals[f"worker{number}"] += WORKERS * busy_s * trainer.share
            self.totals[f"sending{number}"] += TICK_S * trainer.sending
            self.totals[f"filling{number}"] += TICK_S * (4 - trainer.sending)

    def ping(self, pace: Pace) -> None:
        for number, trainer in enumerate(pace.trainers):
            if trainer.pings:
                totals = self.totals[f"clock{number}"], self.totals[f"wait{number}"]
                self.pinged[number] = *totals, self.now_s

    def store(self) -> StoreRecord:
        return StoreRecord(
            pid=3,
            clock_s=self.now_s,
            fetched_bytes=round(1e8 * self.totals["fetched"]),
            evicted_bytes=round(1e8 * self.totals["evicted"]),
            used_bytes=99 if self.totals["evicted"] else 9,
            budget_bytes=100,
        )

    def snapshot(self, pace: Pace) -> NodeRecord:
        failed, fetched = round(self.totals["failed"]), round(self.totals["fetched"])
        return NodeRecord(
            number=0,
            name="h/0",
            pid=2,
            clock_s=self.now_s,
            uptime_s=self.now_s,
            endpoints=("tcp://h:1",),
            images=round(self.totals["images"]),
            fetching_batches=pace.fetching,
            fetch_s=Histogram(
                counts=[*[0] * len(BOUNDS_S), fetched], total_s=self.totals["fetched"]
            ),
            stages={stage: self.totals[stage] for stage in ("read", "decode")},
            workers=tuple(
                WorkerRecord(
                    number=number,
                    pid=10 + number,
                    state="busy",
                    busy_s=self.totals["busy"],
                    cpu_s=self.totals["cpu"],
                    run_delay_s=self.totals["delay"],
                )
                for number in range(WORKERS)
            ),
            clients=tuple(
                self.client(number, trainer) for number, trainer in enumerate(pace.trainers)
            ),
            failures=(
                FailureRecord(
                    dataset="d",
                    batches=failed,
                    reason=pace.failure[0],
                    message=pace.failure[1],
                    ago_s=0.1,
                    is_last=True,
                ),
            )
            if pace.failed_a_s and failed
            else (),
        )

    def client(self, number: int, trainer: Trainer) -> ClientRecord:
        clock_s, wait_s, at_s = self.pinged.get(number, (0.0, 0.0, self.now_s))
        return ClientRecord(
            name=f"host pid {90 + number} rank {number}",
            account="u",
            dataset="d",
            job=trainer.job,
            is_lent=not trainer.is_tcp,
            is_local=True,
            window=4,
            wanted=trainer.wanted,
            clock_s=clock_s,
            waited_s=wait_s,
            silent_s=self.now_s - at_s if number in self.pinged else 0.0,
            worker_s=self.totals[f"worker{number}"],
            slots=SlotSeconds(
                sending=self.totals[f"sending{number}"], filling=self.totals[f"filling{number}"]
            ),
        )

    @property
    def report(self) -> HostReport:
        return self.watch.report


HUNG = replace(FAR, job="sweep", wait=0.3)
STILL = Pace(busy=0, images_a_s=0)
EXPIRED = "s3://b/p/shard-0.fds: the credentials have expired (ExpiredToken): renew them"


@pytest.mark.parametrize(
    ("before", "after", "kind", "texts"),
    [
        (HEALTHY, BUSY, "compute-bound", ()),
        (HEALTHY, READING, "io-bound", ()),
        (BUSY, READING, "io-bound", ()),
        (BUSY, CROWDED, "neighbour-bound", ()),
        (CROWDED, BUSY, "compute-bound", ()),
        (HEALTHY, replace(HEALTHY, busy=0.1, images_a_s=300), "client-bound", ()),
        (HEALTHY, replace(STILL, trainers=(Trainer(wanted=0),)), "idle", ()),
        (BUSY, replace(STILL, trainers=()), "idle", ()),
        # A step of half a minute takes nothing meanwhile, and wants what is there already.
        (HEALTHY, STILL, "client-bound", ()),
        (
            replace(BUSY, trainers=(Trainer(wait=0.5),)),
            replace(BUSY, trainers=(Trainer(wait=0.2, share=0.9), Trainer(wait=0.9, share=0.1))),
            "greedy-client",
            (),
        ),
        (
            replace(HEALTHY, trainers=(FAR,)),
            Pace(busy=0.02, images_a_s=60, trainers=(replace(FAR, wait=0.95, sending=3.9),)),
            "network-bound",
            (),
        ),
        # A hung network: neither pings nor requests come, and what was requested is not taken.
        (
            replace(HEALTHY, trainers=(HUNG,)),
            replace(STILL, trainers=(replace(HUNG, pings=False, sending=4.0),)),
            "silent-client",
            (
                "nothing has come from host pid 90 rank 0 of job sweep for ",
                "4 of its 4 batches",
                "its process, or the network between, has stopped or hangs",
            ),
        ),
        (
            HEALTHY,
            replace(STILL, trainers=(Trainer(pings=False, wanted=0),)),
            "silent-client",
            ("its process has stopped or hangs",),
        ),
        (
            HEALTHY,
            Pace(busy=0.1, images_a_s=0, failed_a_s=3.0),
            "failing-batches",
            (
                "of dataset d could not be made",
                "(unreadable): shard-0.fds is gone; check its folder with `feeder verify`",
            ),
        ),
        (
            FETCHING,
            Pace(busy=0.1, images_a_s=0, failed_a_s=3.0, failure=("store", EXPIRED)),
            "failing-batches",
            (f"(store): {EXPIRED}",),
        ),
        (
            HEALTHY,
            FETCHING,
            "store-bound",
            ("3.0 batches wait for samples from the store at 300 MB",),
        ),
        (BUSY, FETCHING, "store-bound", ()),
        (FETCHING, BUSY, "compute-bound", ()),
        (HEALTHY, EVICTING, "cache-small", ("evicts 300 MB/s while 300 MB/s come",)),
        *((before, HEALTHY, "healthy", ()) for before in (BUSY, READING, CROWDED, FETCHING)),
    ],
)
def test_a_condition_is_named_in_time_and_steadily_whenever_it_begins(
    before: Pace, after: Pace, kind: VerdictKind, texts: tuple[str, ...]
) -> None:
    within_s = OVER_WITHIN_S if kind == "healthy" else NAMED_WITHIN_S
    for beginning_s in (0.0, 0.2, 0.45, 0.7, 0.95):  # between two snapshots and two pings
        host = Host()
        host.run(before, BEFORE_S + beginning_s)
        began_s = host.now_s
        host.run(after, AFTER_S)
        since = [(now_s - began_s, named) for now_s, named in host.kinds if now_s > began_s]
        assert {named for at_s, named in since if at_s > within_s} == {kind}, (beginning_s, since)
    for text in texts:
        assert text in host.report.verdict.text


@pytest.mark.parametrize(
    ("before", "steps", "kind"),
    [
        # A share at its threshold does not flap.
        (
            [(replace(HEALTHY, busy=0.4), BEFORE_S)],
            [(replace(HEALTHY, busy=busy), 1.5) for busy in (0.27, 0.33) * 8],
            "healthy",
        ),
        # A short hiccup is no condition.
        (
            [(HEALTHY, BEFORE_S)],
            [(replace(HEALTHY, trainers=(Trainer(wait=1.0),)), 0.1), (HEALTHY, 9.9)] * 3,
            "healthy",
        ),
        # Three percent are nothing in two seconds, and a lot in an epoch.
        ([(HEALTHY, BEFORE_S), (MILD, 12.0)], [(MILD, 12.0)], "compute-bound"),
        # Clients that never ping are judged by the workers.
        ([(PINGLESS, 3.0)], [(PINGLESS, 5.0)], "compute-bound"),
    ],
)
def test_a_verdict_is_steady(
    before: list[tuple[Pace, float]], steps: list[tuple[Pace, float]], kind: VerdictKind
) -> None:
    host = Host()
    for pace, seconds in before:
        host.run(pace, seconds)
    host.kinds.clear()
    for pace, seconds in steps:
        host.run(pace, seconds)
    assert {named for _, named in host.kinds} == {kind}


def test_neighbours_are_looked_for_only_when_they_are_about_to_be_named() -> None:
    host = Host()
    host.run(BUSY, BEFORE_S)
    assert not host.looks
    host.run(CROWDED, 25.0)
    assert "(make (pid 77) 1.5)" in host.report.verdict.text
    assert host.report.neighbours
    assert len(host.looks) == 4, "two at once, then every ten seconds"
    host.run(BUSY, 5.0)
    assert not host.report.neighbours


@pytest.mark.parametrize(
    "pace",
    [
        replace(HEALTHY, busy=0.02, images_a_s=40),
        replace(HEALTHY, images_a_s=5),
        replace(HEALTHY, others_cpus=1.5),
        replace(BUSY, pressure=0.9),
        replace(READING, blocked=0.9),
    ],
)
def test_a_small_sample_or_a_busy_machine_carries_no_estimate(pace: Pace) -> None:
    host = Host()
    host.run(pace, BEFORE_S)
    assert not host.report.verdict.estimate_images_a_s
    assert "estimate" not in host.report.verdict.text


def test_an_estimate_is_given_where_it_holds() -> None:
    host = Host()
    host.run(HEALTHY, BEFORE_S)
    assert host.report.verdict.estimate_images_a_s == pytest.approx(2000 / 0.6, rel=0.05)

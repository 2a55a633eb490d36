"""Verdicts over time: named within three seconds of a condition's beginning, then steady.

A host is simulated that does one thing, and then another: its node process sends snapshots twice a
second, its clients ping once a second.
"""

from dataclasses import dataclass, field, replace

import pytest

from feeder.daemon.watch import HostWatch
from feeder.host.processes import Busy
from feeder.metrics.records import (
    ClientRecord,
    FailureRecord,
    NodeRecord,
    SlotSeconds,
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


HEALTHY = Pace()
BUSY = Pace(busy=0.97, trainers=(Trainer(wait=0.6),))
READING = Pace(busy=0.98, blocked=0.9, reading=0.92, images_a_s=100, trainers=(Trainer(wait=0.95),))
CROWDED = Pace(
    busy=0.97, run_delay=0.5, images_a_s=1000, others_cpus=2.0, trainers=(Trainer(wait=0.8),)
)
FAR = Trainer(is_tcp=True, wait=0.0)


@dataclass
class Host:
    """A simulated host, and the watch of its supervisor."""

    now_s: float = 1000.0
    totals: dict[str, float] = field(default_factory=dict)
    pinged: dict[int, tuple[float, float, float]] = field(default_factory=dict)
    kinds: list[tuple[float, VerdictKind]] = field(default_factory=list)
    looks: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.began_s = self.now_s
        self.watch = HostWatch(
            1,
            read_load=self.load,
            find_neighbours=self.find_neighbours,
        )

    def find_neighbours(self, known: object, now_s: float) -> tuple[Busy, ...]:
        self.looks.append(now_s)
        is_first = len(self.looks) < 2
        return () if is_first else (("make", 77, 1.5),)

    def add(self, name: str, amount: float) -> None:
        self.totals[name] = self.totals.get(name, 0.0) + amount

    def get(self, name: str) -> float:
        return self.totals.get(name, 0.0)

    def load(self) -> HostLoad:
        return HostLoad(
            clock_s=self.now_s,
            usable_cpus=float(CPUS),
            cpus=CPUS,
            busy_s=self.get("machine"),
            pressure_cpu_s=self.get("pressure"),
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
                report = self.watch.turn([NodeReport(number=0, state="ready")])
                self.kinds.append((self.now_s, report.verdict.kind))

    def tick(self, pace: Pace) -> None:
        busy_s = TICK_S * pace.busy
        self.add("busy", busy_s)
        self.add("cpu", busy_s * (1 - pace.run_delay - pace.blocked))
        self.add("delay", busy_s * pace.run_delay)
        self.add("read", WORKERS * busy_s * pace.reading)
        self.add("decode", WORKERS * busy_s * (1 - pace.reading) * 0.8)
        self.add("images", TICK_S * pace.images_a_s)
        self.add("pressure", TICK_S * pace.pressure)
        self.add("failed", TICK_S * pace.failed_a_s)
        used = WORKERS * pace.busy * (1 - pace.run_delay - pace.blocked)
        self.add("machine", TICK_S * min(CPUS, used + pace.others_cpus))
        for number, trainer in enumerate(pace.trainers):
            self.add(f"clock{number}", TICK_S)
            self.add(f"wait{number}", TICK_S * trainer.wait)
            self.add(f"worker{number}", WORKERS * busy_s * trainer.share)
            self.add(f"sending{number}", TICK_S * trainer.sending)
            self.add(f"filling{number}", TICK_S * (4 - trainer.sending))

    def ping(self, pace: Pace) -> None:
        for number, trainer in enumerate(pace.trainers):
            if trainer.pings:
                totals = self.get(f"clock{number}"), self.get(f"wait{number}")
                self.pinged[number] = *totals, self.now_s

    def snapshot(self, pace: Pace) -> NodeRecord:
        failed = round(self.get("failed"))
        return NodeRecord(
            number=0,
            name="h/0",
            pid=2,
            clock_s=self.now_s,
            uptime_s=self.now_s,
            endpoints=("tcp://h:1",),
            images=round(self.get("images")),
            stages={stage: self.get(stage) for stage in ("read", "decode")},
            workers=tuple(
                WorkerRecord(
                    number=number,
                    pid=10 + number,
                    state="busy",
                    busy_s=self.get("busy"),
                    cpu_s=self.get("cpu"),
                    run_delay_s=self.get("delay"),
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
                    reason="unreadable",
                    message="shard-0.fds is gone",
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
            worker_s=self.get(f"worker{number}"),
            slots=SlotSeconds(
                sending=self.get(f"sending{number}"), filling=self.get(f"filling{number}")
            ),
        )

    def since(self, at_s: float) -> list[tuple[float, VerdictKind]]:
        """The verdicts after a time, each with how long after."""
        return [(now_s - at_s, kind) for now_s, kind in self.kinds if now_s > at_s]

    @property
    def report(self) -> HostReport:
        return self.watch.report


def check(before: Pace, after: Pace, kind: VerdictKind, within_s: float = NAMED_WITHIN_S) -> Host:
    """Check that a condition is named in time, and steadily, whenever it begins."""
    for beginning_s in (0.0, 0.2, 0.45, 0.7, 0.95):  # between two snapshots and two pings
        host = Host()
        host.run(before, BEFORE_S + beginning_s)
        began_s = host.now_s
        host.run(after, AFTER_S)
        late = {named for at_s, named in host.since(began_s) if at_s > within_s}
        assert late == {kind}, (beginning_s, host.since(began_s))
    return host


@pytest.mark.parametrize(
    ("before", "after", "kind"),
    [
        (HEALTHY, BUSY, "compute-bound"),
        (HEALTHY, READING, "io-bound"),
        (BUSY, READING, "io-bound"),
        (BUSY, CROWDED, "neighbour-bound"),
        (CROWDED, BUSY, "compute-bound"),
        (HEALTHY, replace(HEALTHY, busy=0.1, images_a_s=300), "client-bound"),
        (HEALTHY, Pace(busy=0, images_a_s=0, trainers=(Trainer(wanted=0),)), "idle"),
        (BUSY, Pace(busy=0, images_a_s=0, trainers=()), "idle"),
        (
            replace(BUSY, trainers=(Trainer(wait=0.5),)),
            replace(BUSY, trainers=(Trainer(wait=0.2, share=0.9), Trainer(wait=0.9, share=0.1))),
            "greedy-client",
        ),
        (
            replace(HEALTHY, trainers=(FAR,)),
            Pace(busy=0.02, images_a_s=60, trainers=(replace(FAR, wait=0.95, sending=3.9),)),
            "network-bound",
        ),
    ],
)
def test_a_condition_is_named_within_three_seconds_and_stays(
    before: Pace, after: Pace, kind: VerdictKind
) -> None:
    check(before, after, kind)


@pytest.mark.parametrize("before", [BUSY, READING, CROWDED])
def test_a_condition_that_is_over_is_named_no_more(before: Pace) -> None:
    check(before, HEALTHY, "healthy", OVER_WITHIN_S)


def test_a_network_that_hangs_is_no_idle_client() -> None:
    """No byte passes: neither pings nor requests come, and what was requested is not taken."""
    far = replace(FAR, job="sweep", wait=0.3)
    hung = Pace(busy=0, images_a_s=0, trainers=(replace(far, pings=False, sending=4.0),))
    text = check(replace(HEALTHY, trainers=(far,)), hung, "silent-client").report.verdict.text
    assert "nothing has come from host pid 90 rank 0 of job sweep for " in text
    assert "4 of its 4 batches" in text
    assert "its process, or the network between, has stopped or hangs" in text


def test_a_client_that_is_stopped_before_it_wants_anything_is_named_too() -> None:
    stopped = Pace(busy=0, images_a_s=0, trainers=(Trainer(pings=False, wanted=0),))
    text = check(HEALTHY, stopped, "silent-client").report.verdict.text
    assert text.endswith("its process has stopped or hangs")


def test_a_client_that_wants_what_is_there_already_is_not_idle() -> None:
    """A step of half a minute takes nothing meanwhile."""
    slow = Pace(busy=0, images_a_s=0, trainers=(Trainer(wanted=4),))
    check(HEALTHY, slow, "client-bound")


def test_batches_that_fail_are_a_verdict_with_dataset_reason_and_remedy() -> None:
    failing = Pace(busy=0.1, images_a_s=0, failed_a_s=3.0)
    text = check(HEALTHY, failing, "failing-batches").report.verdict.text
    assert "of dataset d could not be made" in text
    assert "(unreadable): shard-0.fds is gone; check its folder with `feeder verify`" in text


def test_a_share_at_its_threshold_does_not_flap() -> None:
    host = Host()
    host.run(replace(HEALTHY, busy=0.4), BEFORE_S)
    began_s = host.now_s
    for busy in (0.27, 0.33) * 8:
        host.run(replace(HEALTHY, busy=busy), 1.5)
    assert {kind for _, kind in host.since(began_s)} == {"healthy"}


def test_clients_that_never_ping_are_judged_by_the_workers() -> None:
    host = Host()
    host.run(replace(BUSY, trainers=(Trainer(pings=False),)), 3.0)
    began_s = host.now_s
    host.run(replace(BUSY, trainers=(Trainer(pings=False),)), 5.0)
    assert {kind for _, kind in host.since(began_s)} == {"compute-bound"}


def test_a_short_hiccup_is_no_condition() -> None:
    host = Host()
    host.run(HEALTHY, BEFORE_S)
    began_s = host.now_s
    for _ in range(3):
        host.run(replace(HEALTHY, trainers=(Trainer(wait=1.0),)), 0.1)
        host.run(HEALTHY, 9.9)
    assert {kind for _, kind in host.since(began_s)} == {"healthy"}


def test_a_mild_wait_is_named_in_the_end() -> None:
    """Three percent are nothing in two seconds, and a lot in an epoch."""
    host = Host()
    host.run(HEALTHY, BEFORE_S)
    host.run(replace(BUSY, trainers=(Trainer(wait=0.03),)), 12.0)
    began_s = host.now_s
    host.run(replace(BUSY, trainers=(Trainer(wait=0.03),)), 12.0)
    assert {kind for _, kind in host.since(began_s)} == {"compute-bound"}


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

"""The plan of a cluster, without Ray and with a clock of the test's own."""

import itertools
import random

import pytest

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
    Tick,
    Wanted,
)
from feeder.cluster.policy.plan import PLACING_MAX_S, ClusterPlan
from feeder.cluster.policy.start_facts import StartFacts
from feeder.process.backoff import BACKOFF_MAX_S, BACKOFF_MIN_S

HOSTS = tuple(Host(f"id{number}", f"10.0.0.{number}") for number in range(1, 6))


def facts_of(host: Host, **fields: object) -> StartFacts:
    values: dict[str, object] = {
        "endpoints": ((f"tcp://{host.address}:5555", "ipc:///run/node"),),
        "data": {"d": "aaaa00000000"},
        "libraries": {"numpy": "2.4"},
        "self_test": "1234",
    }
    return StartFacts(**(values | fields))  # type: ignore[arg-type]


class Cluster:
    """A plan, and hosts that do what the test says."""

    def __init__(self, hosts: int, wanted: int) -> None:
        self.plan = ClusterPlan(100)
        self.now_s = 1000.0
        self.hosts = HOSTS[:hosts]
        self.ended: list[int] = []
        self.running: dict[int, Launch] = {}
        self.send(HostsSeen(self.hosts))
        self.send(Wanted(wanted))

    def send(self, *events: Event) -> list[Instruction]:
        given: list[Instruction] = []
        for event in events:
            given += self.plan.handle(event, self.now_s)
        for each in given:
            match each:
                case Launch():
                    self.running[each.launch] = each
                case End(launch):
                    self.ended.append(launch)
        return given

    def settle(self) -> None:
        """Let all launches become ready, and all ends happen."""
        for _ in range(10):
            for launch in self.ended:
                self.running.pop(launch, None)
                self.send(Lost(launch, "ended"))
            self.ended.clear()
            for launch, each in list(self.running.items()):
                self.send(Placed(launch), Ready(launch, facts_of(each.host)))
            if not self.ended:
                return

    def lose(self, slot: int, *, with_host: bool = True) -> None:
        launch = next(each for each in self.running.values() if each.slot == slot)
        del self.running[launch.launch]
        if with_host:
            self.hosts = tuple(host for host in self.hosts if host != launch.host)
            self.send(HostsSeen(self.hosts))
        self.send(Lost(launch.launch, "the host was lost"))

    @property
    def where(self) -> dict[int, str]:
        return {each.slot: each.host.address for each in self.running.values()}


def test_feeders_start_one_a_host_and_are_published_once_ready() -> None:
    cluster = Cluster(hosts=4, wanted=3)
    assert cluster.where == {0: "10.0.0.1", 1: "10.0.0.2", 2: "10.0.0.3"}
    assert cluster.plan.published() == ()
    cluster.settle()
    assert cluster.plan.published() == (
        ("feeder-0", "tcp://10.0.0.1:5555"),
        ("feeder-1", "tcp://10.0.0.2:5555"),
        ("feeder-2", "tcp://10.0.0.3:5555"),
    )
    status = cluster.plan.status(cluster.now_s)
    assert (status.ready, status.wanted, status.hosts) == (3, 3, 4)
    assert not status.notes
    assert not status.problems


def test_growing_launches_what_is_missing_and_shrinking_ends_the_last_slots() -> None:
    cluster = Cluster(hosts=5, wanted=2)
    cluster.settle()
    cluster.send(Wanted(4))
    cluster.settle()
    assert sorted(cluster.where) == [0, 1, 2, 3]
    cluster.send(Wanted(2))
    assert sorted(cluster.running[launch].slot for launch in cluster.ended) == [2, 3]
    assert [name for name, _ in cluster.plan.published()] == ["feeder-0", "feeder-1"]  # at once
    cluster.settle()
    assert sorted(cluster.where) == [0, 1]


def test_a_replacement_takes_the_name_of_the_feeder_that_was_lost() -> None:
    cluster = Cluster(hosts=3, wanted=2)
    cluster.settle()
    cluster.lose(0)
    assert [name for name, _ in cluster.plan.published()] == ["feeder-1"]
    assert cluster.where == {0: "10.0.0.3", 1: "10.0.0.2"}
    cluster.settle()
    assert dict(cluster.plan.published())["feeder-0"] == "tcp://10.0.0.3:5555"


def test_without_a_free_host_the_slot_waits_for_one() -> None:
    cluster = Cluster(hosts=2, wanted=2)
    cluster.settle()
    cluster.lose(1)
    assert cluster.where == {0: "10.0.0.1"}
    assert "1 host offers" in cluster.plan.status(cluster.now_s).notes[0]
    cluster.send(HostsSeen(HOSTS[:2]))
    assert cluster.where[1] == "10.0.0.2"


def test_a_slot_returns_to_the_host_that_it_had() -> None:
    cluster = Cluster(hosts=3, wanted=3)
    cluster.settle()
    cluster.send(Wanted(1))
    cluster.settle()
    cluster.send(Wanted(3))
    assert cluster.where == {0: "10.0.0.1", 1: "10.0.0.2", 2: "10.0.0.3"}


def test_a_host_that_fails_is_left_alone_with_growing_backoff_and_its_reason_is_shown() -> None:
    cluster = Cluster(hosts=1, wanted=1)
    waits_s = []
    for number in itertools.count(1):
        (launch,) = cluster.running
        cluster.send(Placed(launch), Failed(launch, "dataset d\nis not there"))
        cluster.running.clear()
        cluster.send(Lost(launch, "ended"))
        (problem,) = cluster.plan.status(cluster.now_s).problems
        assert (problem.failures, problem.reason) == (number, "dataset d is not there")
        waits_s.append(problem.retry_s)
        cluster.now_s += problem.retry_s - 0.001
        cluster.send(Tick())
        assert not cluster.running
        cluster.now_s += 0.002
        cluster.send(Tick())
        assert cluster.running
        if waits_s[-1] == BACKOFF_MAX_S:
            break
    assert waits_s[0] == BACKOFF_MIN_S
    assert waits_s == sorted(waits_s)


def test_a_failing_host_gives_its_slot_to_a_free_one() -> None:
    cluster = Cluster(hosts=3, wanted=2)
    launch = next(each for each in cluster.running.values() if each.slot == 0)
    cluster.send(Failed(launch.launch, "no dataset"))
    del cluster.running[launch.launch]
    assert cluster.where == {0: "10.0.0.3", 1: "10.0.0.2"}
    cluster.settle()
    assert [problem.address for problem in cluster.plan.status(cluster.now_s).problems] == [
        "10.0.0.1"
    ]


def test_the_reason_goes_once_the_host_serves_again() -> None:
    cluster = Cluster(hosts=1, wanted=1)
    (launch,) = cluster.running
    cluster.send(Failed(launch, "no dataset"))
    cluster.running.clear()
    cluster.send(Lost(launch, "ended"))
    cluster.now_s += BACKOFF_MIN_S
    cluster.send(Tick())
    cluster.settle()
    status = cluster.plan.status(cluster.now_s)
    assert (status.ready, status.problems) == (1, ())


def test_what_ray_does_not_place_in_time_is_ended_with_a_reason() -> None:
    cluster = Cluster(hosts=1, wanted=1)
    (launch,) = cluster.running
    cluster.now_s += PLACING_MAX_S - 0.1
    assert cluster.send(Tick()) == []
    cluster.now_s += 0.2
    assert cluster.send(Tick()) == [End(launch)]
    (problem,) = cluster.plan.status(cluster.now_s).problems
    assert "Ray started no process" in problem.reason


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data": {"d": "bbbb00000000"}}, ["dataset d", "bbbb00000000", "10.0.0.1"]),
        (
            {"self_test": "9999", "libraries": {"numpy": "1.26"}},
            ["self-test 9999", "numpy 1.26", "2.4", "same versions"],
        ),
    ],
)
def test_a_host_that_would_serve_other_bytes_is_not_published(
    fields: dict[str, object], words: list[str]
) -> None:
    cluster = Cluster(hosts=2, wanted=2)
    first, second = cluster.running.values()
    cluster.send(Ready(first.launch, facts_of(first.host)))
    cluster.send(Ready(second.launch, facts_of(second.host, **fields)))
    assert cluster.ended == [second.launch]
    assert [name for name, _ in cluster.plan.published()] == ["feeder-0"]
    (problem,) = cluster.plan.status(cluster.now_s).problems
    assert problem.address == "10.0.0.2"
    assert all(word in problem.reason for word in words), problem.reason


def test_libraries_that_differ_without_effect_are_noted() -> None:
    cluster = Cluster(hosts=2, wanted=2)
    first, second = cluster.running.values()
    cluster.send(Ready(first.launch, facts_of(first.host)))
    cluster.send(Ready(second.launch, facts_of(second.host, libraries={"numpy": "1.26"})))
    status = cluster.plan.status(cluster.now_s)
    assert status.ready == 2
    assert "numpy 1.26 on 10.0.0.2, 2.4 on 10.0.0.1" in status.notes[0]


def test_a_later_controller_adopts_what_runs_and_launches_nothing_twice() -> None:
    plan = ClusterPlan(500)
    given: list[Instruction] = []
    events: list[Event] = [
        Wanted(2),
        Adopted(100, 0, HOSTS[0]),
        Adopted(101, 1, HOSTS[1]),
        HostsSeen(HOSTS[:3]),
        Ready(100, facts_of(HOSTS[0])),
        Ready(101, facts_of(HOSTS[1])),
    ]
    for event in events:
        given += plan.handle(event, 0.0)
    assert given == []
    assert len(plan.published()) == 2


def test_an_adopted_host_that_ray_does_not_list_yet_is_kept() -> None:
    plan = ClusterPlan(500)
    assert plan.handle(Wanted(1), 0.0) == []
    assert plan.handle(Adopted(100, 0, HOSTS[0]), 0.0) == []
    assert plan.handle(HostsSeen(()), 0.0) == []
    assert plan.handle(Ready(100, facts_of(HOSTS[0])), 0.0) == []
    assert len(plan.published()) == 1


def test_a_stopped_host_that_comes_back_changes_nothing() -> None:
    cluster = Cluster(hosts=3, wanted=2)
    cluster.settle()
    old = next(each for each in cluster.running.values() if each.slot == 0)
    cluster.lose(0)
    cluster.settle()
    before = cluster.plan.published()
    assert cluster.send(Ready(old.launch, facts_of(old.host)), Lost(old.launch, "late")) == []
    assert cluster.plan.published() == before


@pytest.mark.parametrize("seed", range(50))
def test_any_course_of_events_keeps_one_launch_a_host_and_settles(seed: int) -> None:
    draw = random.Random(seed)
    cluster = Cluster(hosts=5, wanted=3)
    for _ in range(60):
        cluster.now_s += draw.random()
        launches = list(cluster.running)
        match draw.randrange(6):
            case 0:
                cluster.send(Wanted(draw.randrange(6)))
            case 1:
                cluster.send(HostsSeen(tuple(draw.sample(HOSTS, draw.randrange(1, 6)))))
            case 2 if launches:
                launch = draw.choice(launches)
                cluster.send(Ready(launch, facts_of(cluster.running[launch].host)))
            case 3 if launches:
                launch = draw.choice(launches)
                cluster.send(Failed(launch, "reason"))
            case 4 if launches:
                launch = draw.choice(launches)
                del cluster.running[launch]
                cluster.send(Lost(launch, "reason"))
            case _:
                cluster.send(Tick())
        shown = cluster.plan.status(cluster.now_s).slots
        addresses = [slot.address for slot in shown]
        assert len(addresses) == len(set(addresses))
        active = [slot.slot for slot in shown if slot.state != "ending"]
        assert len(active) == len(set(active))
        names = [name for name, _ in cluster.plan.published()]
        assert len(names) == len(set(names))
    cluster.send(HostsSeen(HOSTS), Wanted(4))
    for _ in range(5):
        cluster.now_s += BACKOFF_MAX_S
        cluster.send(Tick())
        cluster.settle()
    assert len(cluster.plan.published()) == 4

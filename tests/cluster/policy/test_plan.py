"""The plan of a cluster, without Ray and with a clock of the test's own."""

import itertools
import random

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from feeder.cluster.policy.plan import PLACING_MAX_S, ClusterPlan, Launch
from feeder.cluster.policy.start_facts import StartFacts, read_facts
from feeder.daemon.start_report import wrap_list
from feeder.process.backoff import BACKOFF_MAX_S, BACKOFF_MIN_S

HOSTS = {f"id{number}": f"10.0.0.{number}" for number in range(1, 6)}


def facts_of(address: str, **fields: object) -> StartFacts:
    values: dict[str, object] = {
        "endpoints": ((f"tcp://{address}:5555", "ipc:///run/node"),),
        "data": {"d": "aaaa00000000"},
        "libraries": {"numpy": "2.4"},
        "self_test": "1234",
    }
    return StartFacts(**(values | fields))  # type: ignore[arg-type]


class Cluster:
    """A plan, and hosts that do what the test says."""

    def __init__(self, hosts: int, wanted: int) -> None:
        self.plan = ClusterPlan(100, wanted)
        self.now_s = 1000.0
        self.running: list[Launch] = []
        self.plan.hosts = dict([*HOSTS.items()][:hosts])
        self.decide()

    def decide(self) -> None:
        self.running += self.plan.decide(self.now_s)

    def want(self, feeders: int) -> None:
        self.plan.wanted = feeders
        self.decide()

    def wait(self, seconds: float) -> None:
        self.now_s += seconds
        self.decide()

    def settle(self) -> None:
        """Let all launches become ready, and all ends happen."""
        for _ in range(10):
            for launch in self.plan.ending():
                self.running.remove(launch)
                self.plan.lost(launch, "ended", self.now_s)
            self.decide()
            for launch in self.running:
                self.plan.placed(launch, self.now_s)
                self.plan.ready(launch, facts_of(launch.address), self.now_s)
            if not self.plan.ending():
                return

    def launch_of(self, slot: int) -> Launch:
        return next(each for each in self.running if each.slot == slot)

    def lose(self, slot: int) -> None:
        """Lose a slot's feeder with its host."""
        launch = self.launch_of(slot)
        self.running.remove(launch)
        del self.plan.hosts[launch.host_id]
        self.plan.lost(launch, "the host was lost", self.now_s)
        self.decide()

    def fail(self, slot: int, reason: str) -> None:
        """Have a slot's daemon end, and its actor after it."""
        launch = self.launch_of(slot)
        self.plan.failed(launch, reason, self.now_s)
        assert self.plan.ending() == [launch]
        self.running.remove(launch)
        self.plan.lost(launch, "ended", self.now_s)
        self.decide()

    @property
    def where(self) -> dict[int, str]:
        return {each.slot: each.address for each in self.running}

    @property
    def status(self) -> dict[str, object]:
        return self.plan.status(self.now_s)


def test_growing_launches_what_is_missing_and_shrinking_ends_the_last_slots() -> None:
    cluster = Cluster(hosts=5, wanted=2)
    cluster.settle()
    cluster.want(4)
    cluster.settle()
    assert sorted(cluster.where) == [0, 1, 2, 3]
    before = cluster.where
    cluster.want(2)
    assert sorted(launch.slot for launch in cluster.plan.ending()) == [2, 3]
    assert [name for name, _ in cluster.plan.published()] == ["feeder-0", "feeder-1"]  # at once
    cluster.settle()
    assert sorted(cluster.where) == [0, 1]
    cluster.want(4)
    assert cluster.where == before, "a slot returns to the host that it had"


def test_a_replacement_takes_the_name_of_the_feeder_that_was_lost() -> None:
    cluster = Cluster(hosts=3, wanted=2)
    cluster.settle()
    old = cluster.launch_of(0)
    cluster.lose(0)
    assert [name for name, _ in cluster.plan.published()] == ["feeder-1"]
    assert cluster.where == {0: "10.0.0.3", 1: "10.0.0.2"}
    cluster.settle()
    assert dict(cluster.plan.published())["feeder-0"] == "tcp://10.0.0.3:5555"
    before = cluster.plan.published()
    cluster.plan.ready(old, facts_of(old.address), cluster.now_s)  # it was only stopped
    cluster.plan.lost(old, "late", cluster.now_s)
    assert (cluster.plan.decide(cluster.now_s), cluster.plan.ending()) == ([], [])
    assert cluster.plan.published() == before
    cluster.lose(0)
    assert sorted(cluster.where) == [1], "there is no host for the other one"
    assert [name for name, _ in cluster.plan.published()] == ["feeder-1"]


def test_a_host_that_fails_is_left_alone_with_growing_backoff_and_its_reason_is_shown() -> None:
    cluster = Cluster(hosts=1, wanted=1)
    waits_s = []
    for number in itertools.count(1):
        cluster.fail(0, "dataset d\nis not there")
        (problem,) = cluster.plan.status(cluster.now_s)["problems"]
        assert (problem["failures"], problem["reason"]) == (number, "dataset d is not there")
        waits_s.append(problem["retry_s"])
        cluster.wait(problem["retry_s"] - 0.001)
        assert not cluster.running
        cluster.wait(0.002)
        assert cluster.running
        if waits_s[-1] == BACKOFF_MAX_S:
            break
    assert waits_s[0] == BACKOFF_MIN_S
    assert waits_s == sorted(waits_s)
    cluster.settle()
    assert (cluster.status["ready"], cluster.status["problems"]) == (1, [])


def test_a_failing_host_gives_its_slot_to_a_free_one_and_is_chosen_last_afterwards() -> None:
    cluster = Cluster(hosts=4, wanted=2)
    cluster.fail(0, "no dataset")
    assert cluster.where == {0: "10.0.0.3", 1: "10.0.0.2"}
    cluster.settle()
    cluster.wait(BACKOFF_MAX_S)
    cluster.want(3)
    assert cluster.where[2] == "10.0.0.4"
    problems = cluster.plan.status(cluster.now_s)["problems"]
    assert [problem["address"] for problem in problems] == ["10.0.0.1"]


def test_what_ray_does_not_place_in_time_is_ended_with_a_reason() -> None:
    cluster = Cluster(hosts=1, wanted=1)
    cluster.wait(PLACING_MAX_S - 0.1)
    assert cluster.plan.ending() == []
    cluster.wait(0.2)
    assert cluster.plan.ending() == cluster.running
    (problem,) = cluster.plan.status(cluster.now_s)["problems"]
    assert "Ray started no process" in problem["reason"]


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"data": {"d": "bbbb00000000"}}, ["dataset d", "bbbb00000000", "10.0.0.1"]),
        (
            {"self_test": "9999", "libraries": {"numpy": "1.26"}},
            ["self-test 9999", "numpy 1.26", "2.4", "same versions"],
        ),
        ({"libraries": {"numpy": "1.26"}}, []),
    ],
)
def test_a_host_that_would_serve_other_bytes_is_not_published(
    fields: dict[str, object], words: list[str]
) -> None:
    """Libraries that differ without an effect on the self-test are a note."""
    cluster = Cluster(hosts=2, wanted=2)
    first, second = cluster.running
    cluster.plan.ready(first, facts_of(first.address), cluster.now_s)
    cluster.plan.ready(second, facts_of(second.address, **fields), cluster.now_s)
    assert cluster.plan.ending() == ([second] if words else [])
    status = cluster.plan.status(cluster.now_s)
    if not words:
        assert (status["ready"], status["problems"]) == (2, [])
        assert "numpy 1.26 on 10.0.0.2, 2.4 on 10.0.0.1" in status["notes"][0]
        return
    assert [name for name, _ in cluster.plan.published()] == ["feeder-0"]
    (problem,) = status["problems"]
    assert problem["address"] == "10.0.0.2"
    assert all(word in problem["reason"] for word in words), problem["reason"]


def test_a_later_controller_adopts_what_runs_and_launches_nothing_twice() -> None:
    """Not even where Ray does not list the hosts yet; a second feeder of a slot is ended."""
    plan = ClusterPlan(500, wanted=2)
    first, second, third = (
        Launch(100 + number, min(number, 1), f"id{number + 1}", f"10.0.0.{number + 1}")
        for number in range(3)
    )
    for launch in (first, second, third, third):
        plan.adopt(launch, 0.0)
    assert (plan.decide(0.0), plan.ending()) == ([], [third])
    for launch in (first, second):
        plan.ready(launch, facts_of(launch.address), 0.0)
    plan.hosts = HOSTS
    assert (plan.decide(0.0), plan.ending()) == ([], [third])
    assert [name for name, _ in plan.published()] == ["feeder-0", "feeder-1"]


@settings(max_examples=50, deadline=None, derandomize=True)
@given(seed=st.integers(0, 2**32))
@example(seed=0)
def test_any_course_of_events_keeps_one_launch_a_host_and_settles(seed: int) -> None:
    draw = random.Random(seed)
    cluster = Cluster(hosts=5, wanted=3)
    for _ in range(60):
        cluster.now_s += draw.random()
        action = draw.randrange(6)
        if action == 0:
            cluster.plan.wanted = draw.randrange(6)
        elif action == 1:
            cluster.plan.hosts = dict(draw.sample([*HOSTS.items()], draw.randrange(1, 6)))
        elif action < 5 and cluster.running:
            launch = draw.choice(cluster.running)
            if action == 2:
                cluster.plan.ready(launch, facts_of(launch.address), cluster.now_s)
            elif action == 3:
                cluster.plan.failed(launch, "reason", cluster.now_s)
            else:
                cluster.running.remove(launch)
                cluster.plan.lost(launch, "reason", cluster.now_s)
        cluster.decide()
        shown = cluster.plan.status(cluster.now_s)["slots"]
        active = [slot["slot"] for slot in shown if slot["state"] != "ending"]
        for values in (
            [slot["address"] for slot in shown],
            active,
            [name for name, _ in cluster.plan.published()],
        ):
            assert len(values) == len(set(values))
    cluster.plan.hosts = HOSTS
    cluster.want(4)
    for _ in range(5):
        cluster.wait(BACKOFF_MAX_S)
        cluster.settle()
    assert len(cluster.plan.published()) == 4


LOG = """\
feeder: usable CPUs: 2 = affinity 2, no cgroup quota
feeder: endpoints of node process 0: tcp://10.0.0.1:5555, ipc:///run/feeder/node
feeder: endpoints of node process 1: tcp://10.0.0.1:5556
feeder: data imagenet: 1,281,167 samples, 1,024 shards, 1,000 classes, 24809539c64e
feeder: libraries: feeder 0.1.0, python 3.11.7, numpy 2.4.6
feeder: self-test: 821c36be8fe6
feeder: ready, 2 workers serve imagenet at tcp://10.0.0.1:5555
""".splitlines()


def test_the_facts_of_a_start_come_with_the_line_that_reports_readiness() -> None:
    assert read_facts(LOG) == StartFacts(
        endpoints=(("tcp://10.0.0.1:5555", "ipc:///run/feeder/node"), ("tcp://10.0.0.1:5556",)),
        data={"imagenet": "24809539c64e"},
        libraries={"feeder": "0.1.0", "python": "3.11.7", "numpy": "2.4.6"},
        self_test="821c36be8fe6",
    )
    assert read_facts(LOG[:-1]) is None
    assert read_facts(LOG[-1:]) is None, "readiness without endpoints"
    endpoints = [f"tcp://10.0.0.{number}:5555" for number in range(1, 9)]
    lines = [*wrap_list("endpoints of node process 0: ", endpoints), "ready, 1 worker serves d"]
    assert len(lines) > 2
    facts = read_facts(lines)
    assert facts is not None
    assert facts.endpoints == (tuple(endpoints),), "a list that was wrapped"

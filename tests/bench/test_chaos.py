"""``feeder-bench chaos``: what its judge finds wrong, and a short real run."""

import itertools
import json
import subprocess
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench import store_proxy
from bench.chaos.clients import BatchLine, ClientOrders
from bench.chaos.judgement import (
    KINDS,
    STORE_KINDS,
    Fault,
    Run,
    check_arrivals,
    draw_faults,
    judge,
)
from bench.chaos.scene import Feeder, Scene
from bench.cli import main
from bench.fetcher import BatchFetcher
from feeder.plan.recipe import Recipe
from tests.support.stores import loopback_store

ORDERS = ClientOrders(
    endpoints=[], rank=1, world_size=3, batch_size=8, image_size=8, steps=4, epochs=5
)
DIGESTS = {ORDERS.key(place): f"hash {place}" for place in range(ORDERS.batches)}


def arrivals(places: list[int]) -> list[BatchLine]:
    """Return what a rank saw that was at these places of its schedule, one a second."""
    keys = map(ORDERS.key, places)
    return [BatchLine(key, DIGESTS[key], float(second)) for second, key in enumerate(keys)]


def check(places: list[int]) -> dict[str, int]:
    wrong = check_arrivals(arrivals(places), ORDERS, DIGESTS)
    return {what: count for what, count in wrong.items() if count}


@given(st.integers(0, 100))
def test_a_complete_schedule_is_right_however_long(batches: int) -> None:
    assert check([*range(batches)]) == {}


@given(st.integers(0, 50), st.integers(1, 10))
def test_lost_batches_are_counted(at: int, lost: int) -> None:
    places = [*range(60)]
    del places[at : at + lost]
    seen = lost if at < len(places) else 0  # a loss after the last arrival cannot be seen
    assert check(places) == ({"lost": seen} if seen else {})


@given(st.integers(1, 50), st.integers(1, 9))
def test_repeated_batches_are_counted(at: int, again: int) -> None:
    """Up to half of the schedule: further back is nearer when one looks ahead."""
    again = min(at, again)
    assert check([*range(at), *range(at - again, 60)]) == {"repeated": again}
    assert check([0, 2, 1, 3]) == {"lost": 1, "repeated": 1}, "another order is not right"


def test_wrong_bytes_and_batches_of_another_rank_are_different() -> None:
    for wrong in (BatchLine(ORDERS.key(4), "other bytes", 4.0), BatchLine((0, 0), "", 3.5)):
        seen = arrivals([*range(10)])
        seen[4 : 5 if wrong.key == ORDERS.key(4) else 4] = [wrong]
        assert check_arrivals(seen, ORDERS, DIGESTS) == Counter(different=1)


def test_faults_depend_on_the_seed_and_have_every_kind_equally_often() -> None:
    def draw(seed: int, count: int) -> list[Fault]:
        return list(itertools.islice(draw_faults(seed, feeders=2, clients=3), count))

    assert draw(1, 50) == draw(1, 50) != draw(2, 50)
    faults = draw(3, 40 * len(KINDS))
    assert Counter(fault.kind for fault in faults) == dict.fromkeys(KINDS, 40)
    hit = {(fault.kind == "kill-client", fault.target) for fault in faults}
    assert hit == {(False, 0), (False, 1), (True, 0), (True, 1), (True, 2)}
    lasting = {fault.kind for fault in faults if fault.lasts_s}
    assert lasting == {"stop-worker", "stop-node", "cut-network", "stall-network"}


def test_with_a_store_its_faults_come_as_often() -> None:
    kinds = [*KINDS, *STORE_KINDS]
    faults = draw_faults(4, feeders=2, clients=2, has_store=True)
    drawn = list(itertools.islice(faults, 3 * len(kinds)))
    assert Counter(fault.kind for fault in drawn) == dict.fromkeys(kinds, 3)
    of_store = {fault.kind for fault in drawn if fault.kind.endswith("-store")}
    assert {kind.removesuffix("-store") for kind in of_store} <= {*store_proxy.KINDS}
    assert all(fault.lasts_s for fault in drawn if fault.kind in of_store)


KILL = Fault(kind="kill-node", target=0, lasts_s=0.0, at_s=30.2, until_s=31.0)
RUN = Run(
    batch_size=8,
    feeders=2,
    began_s=0.0,
    faults=[KILL],
    chaos_s=(20.0, 80.0),
    ended_s=100.0,
    arrivals=[arrivals([*range(100)])],
    delivered={"lent": 60},
    errors=[],
    leaks=[],
)
"""20 batches in 20 calm seconds, 60 in 60 s, 20 in 20 s; one kill."""


def run_without(is_missing: Callable[[float], bool]) -> Run:
    """Return that run without the batches of a span of time."""
    return replace(RUN, arrivals=[[each for each in RUN.arrivals[0] if not is_missing(each.at_s)]])


def test_a_run_without_problems_has_not_failed() -> None:
    rows, failures = judge(RUN, {})
    assert failures == []
    values = {row.name: row.value for row in rows}
    assert values["chaos/throughput-ratio"] == pytest.approx(1.0)
    assert values["chaos/throughput"] == pytest.approx(8.0)
    assert values["chaos/longest-gap-after-node-kill-s"] == 1.0
    assert values["chaos/faults"] == values["chaos/kinds"] == values["faults/kill-node"] == 1
    assert values["chaos/batches"] == 100
    assert values["chaos/batches-lent"] == 60


@pytest.mark.parametrize(
    ("run", "wrong", "reason"),
    [
        (RUN, {"lost": 2}, "2 batches were lost"),
        (replace(RUN, leaks=["12 sessions of feeder 1"]), {}, "left behind: 12 sessions of"),
        (replace(RUN, errors=["PeerError: x"]), {}, "a client gave up: PeerError: x"),
        (
            run_without(lambda at_s: 20 <= at_s < 80 and at_s % 4 != 1),
            {},
            "throughput among faults was 0.25 of the undisturbed; at least 0.6 is required",
        ),
        (
            run_without(lambda at_s: 30 < at_s < 33),
            {},
            "a client waited 3.00 s after a node process was killed; less than 3 s is required",
        ),
    ],
)
def test_every_problem_is_a_reason(run: Run, wrong: Mapping[str, int], reason: str) -> None:
    _, failures = judge(run, Counter(wrong))
    assert any(failure.startswith(reason) for failure in failures), failures


def test_throughput_and_gaps_of_a_single_feeder_are_not_judged() -> None:
    slow = replace(RUN, arrivals=[arrivals([*range(25)])], feeders=1)
    assert judge(slow, {})[1] == []


def test_leaks_are_found(dataset: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session that is still open, a process and a socket that outlive their feeder."""
    monkeypatch.setattr("bench.chaos.scene._GIVE_BACK_S", 0.2)
    recipe = Recipe.for_split("train", batch_size=8, image_size=32)
    with Feeder(dataset, lease_s=30.0) as feeder, Scene([feeder]) as scene:
        scene.note_idle(recipe)
        orphan = subprocess.Popen(["sleep", "60"])
        feeder._seen.add(psutil.Process(orphan.pid))
        (Path(feeder.ipc.removeprefix("ipc://")).parent / "node.old").touch()
        with BatchFetcher(feeder.ipc, recipe=recipe) as fetcher:
            next(fetcher.fetch())
            leaks = scene.close_and_count()
        orphan.wait()
    assert "1 sessions of feeder 0" in leaks
    assert any(line.endswith("slots_held_bytes of feeder 0") for line in leaks)
    assert f"process {orphan.pid} of feeder 0" in leaks
    assert "socket node.old of feeder 0" in leaks


@pytest.mark.extensive("a whole run of the bench")
@pytest.mark.parametrize("options", [[], ["--mix"], ["--store"]], ids=["local", "mix", "store"])
def test_a_short_run_with_faults_has_no_wrong_batch(
    options: list[str], dataset: Path, tmp_path: Path
) -> None:
    if "--store" in options:
        pytest.importorskip("obstore", reason="the extra `stores` is not installed")
        with loopback_store({}):  # skips without nginx
            pass
    out = tmp_path / "chaos.json"
    settings = ["--batch-size", "4", "--image-size", "32", "--calm", "1", "--json", str(out)]
    settings += ["--every", "0.5", "--seed", "3", *options]
    before = {process.pid for process in psutil.Process().children(recursive=True)}
    for minutes in ("0.06", "0.3", "1"):  # a slow machine has no room for three faults in less
        status = main(["chaos", str(dataset), *settings, "--minutes", minutes])
        document = json.loads(out.read_text())
        # A few busy seconds full of faults are too short to judge speed.
        speed = ("throughput", "a client waited")
        failures = [line for line in document["failures"] if not line.startswith(speed)]
        assert failures == []
        assert status == (1 if document["failures"] else 0)
        rows = {row["name"]: row["value"] for row in document["results"]}
        for wrong in ("lost", "repeated", "different", "leaked", "errors"):
            assert rows[f"chaos/{wrong}"] == 0
        if rows["chaos/faults"] >= 3 and rows["chaos/batches-lent"] > 100:
            break
    assert rows["chaos/faults"] == len(document["faults"]) >= 3
    assert rows["chaos/batches"] > 100
    assert rows["chaos/batches-lent"] > 50, "one of the two shares memory"
    after = {process.pid for process in psutil.Process().children(recursive=True)}
    assert after <= before

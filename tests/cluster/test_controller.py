"""The controller's turns, with a stand-in for ``ray_hosts``; ``check_ray`` runs it on real Ray."""

import importlib
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import msgspec
import pytest

from feeder.cluster.policy.plan import Launch
from feeder.cluster.settings import Kept, Request

HOSTS = {f"id{number}": f"10.0.0.{number}" for number in range(1, 4)}


@dataclass(eq=False)
class Future:
    """Done once it has either."""

    value: Any = None
    error: Exception | None = None


class Actor:
    """The actor of a launch; its methods' futures are done when the test says so."""

    def __init__(self, launch: Launch) -> None:
        self.launch = launch
        self.watching, self.ending = Future(), Future()
        self.ends = 0
        self.is_killed = False
        self.watch = SimpleNamespace(remote=self._watch)
        self.end = SimpleNamespace(remote=self._end)

    def _watch(self, seen: str, timeout_s: float) -> Future:
        self.watching = Future()
        return self.watching

    def _end(self) -> Future:
        self.ends += 1
        return self.ending

    def serve(self) -> None:
        address = self.launch.address
        facts = {"endpoints": [[f"tcp://{address}:5555"]], "data": {}, "libraries": {}}
        self.watching.value = {"state": "ready", "facts": {**facts, "self_test": "1"}}


class Ray(ModuleType):
    """What ``ray_hosts`` has, of a cluster in this process."""

    class GoneError(Exception): ...

    class AwayError(Exception): ...

    def __init__(self) -> None:
        super().__init__("feeder.cluster.ray_hosts")
        self.hosts = dict(HOSTS)
        self.actors: dict[int, Actor] = {}
        self.kept: Kept | None = None
        self.is_away = False

    def find_hosts(self, resource: str) -> dict[str, str]:
        if self.is_away:
            raise ConnectionError
        return dict(self.hosts)

    def start_actor(self, launch: Launch, request: Request) -> Actor:
        assert self.kept is not None
        assert launch in self.kept.launches, "a later controller would not know it"
        self.actors[launch.launch] = Actor(launch)
        return self.actors[launch.launch]

    def find_actor(self, name: str, namespace: str) -> Actor | None:
        return next((each for each in self.actors.values() if each.launch.actor == name), None)

    def kill_actor(self, actor: Actor) -> None:
        actor.is_killed = True

    def wait_for(self, futures: list[Future], timeout_s: float) -> list[Future]:
        return [future for future in futures if future.value or future.error]

    def result_of(self, future: Future) -> Any:
        if future.error is not None:
            raise future.error
        return future.value

    def keep(self, kept: Kept, namespace: str) -> None:
        self.kept = kept

    def load_kept(self, namespace: str) -> Kept | None:
        return self.kept


@dataclass
class Cluster:
    """A controller whose turns the test takes."""

    ray: Ray
    module: ModuleType
    path: Path
    controller: Any = field(init=False)

    def __post_init__(self) -> None:
        self.restart()

    def restart(self, feeders: int = 2) -> None:
        request = Request(
            do="up",
            address="",
            namespace="feeder",
            timeout_s=30,
            feeders=feeders,
            endpoints_file=str(self.path),
            lookup_port=0,
        )
        self.controller = self.module.Controller(msgspec.json.encode(request), "127.0.0.1")

    def turn(self) -> dict[str, str]:
        """The list after a turn: addresses by name."""
        self.controller._turn()
        lines = [line.split() for line in self.path.read_text().splitlines()[1:]]
        return {name: endpoint.split("/")[2].split(":")[0] for name, endpoint in lines}

    def actor_of(self, slot: int) -> Actor:
        actors = [each for each in self.ray.actors.values() if each.launch.slot == slot]
        return max(actors, key=lambda actor: actor.launch.launch)


@pytest.fixture
def cluster(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Cluster]:
    ray = Ray()
    monkeypatch.setitem(sys.modules, ray.__name__, ray)
    monkeypatch.setattr("feeder.cluster.ray_hosts", ray, raising=False)
    monkeypatch.delitem(sys.modules, "feeder.cluster.controller", raising=False)
    module = importlib.import_module("feeder.cluster.controller")
    monkeypatch.setattr(module, "_TURN_S", 0.0)
    monkeypatch.setattr(module.threading.Thread, "start", lambda thread: None)
    (tmp_path / "link").symlink_to("list")
    yield Cluster(ray, module, tmp_path / "link")
    assert (tmp_path / "link").is_symlink(), "as docs/errors.md says of --endpoints"
    sys.modules.pop("feeder.cluster.controller")


def serve_both(cluster: Cluster) -> None:
    assert cluster.turn() == {}
    for slot in (0, 1):
        cluster.actor_of(slot).serve()
    assert cluster.turn() == {"feeder-0": "10.0.0.1", "feeder-1": "10.0.0.2"}


def test_a_lost_host_leaves_the_list_and_a_free_one_takes_its_name(cluster: Cluster) -> None:
    serve_both(cluster)
    lost = cluster.actor_of(0)
    cluster.ray.hosts.pop("id1")
    lost.watching.error = cluster.ray.GoneError("the host was lost")
    assert cluster.turn() == {"feeder-1": "10.0.0.2"}
    assert lost.is_killed
    cluster.actor_of(0).serve()
    assert cluster.turn() == {"feeder-0": "10.0.0.3", "feeder-1": "10.0.0.2"}
    assert cluster.controller.status()["problems"] == [], "the host is gone, not at fault"
    assert {each.launch for each in cluster.ray.kept.launches} == {
        cluster.actor_of(slot).launch.launch for slot in (0, 1)
    }


@pytest.mark.parametrize("is_accepted", [True, False])
def test_a_daemon_that_ends_is_blamed_on_its_host_and_killed(
    cluster: Cluster, monkeypatch: pytest.MonkeyPatch, is_accepted: bool
) -> None:
    """Also where Ray does not accept the call that ends its actor."""
    serve_both(cluster)
    failed = cluster.actor_of(1)
    if not is_accepted:
        monkeypatch.setattr(cluster.module, "_END_MAX_S", 0.0)
        failed.end.remote = None  # a call raises, as Ray's may while its head is away
    failed.watching.value = {"state": "ended", "last_line": "dataset d is missing"}
    for _ in range(2):
        assert cluster.turn() == {"feeder-0": "10.0.0.1"}
    assert failed.ends == is_accepted, "once"
    failed.ending.value = True
    cluster.actor_of(1).serve()  # on the third host
    assert cluster.turn() == {"feeder-0": "10.0.0.1", "feeder-1": "10.0.0.3"}
    (problem,) = cluster.controller.status()["problems"]
    assert (problem["address"], problem["reason"]) == ("10.0.0.2", "dataset d is missing")
    assert failed.is_killed


def test_a_later_controller_adopts_what_runs_and_keeps_the_list_until_it_has_answered(
    cluster: Cluster,
) -> None:
    serve_both(cluster)
    cluster.controller.scale(1)
    cluster.turn()
    cluster.actor_of(1).ending.value = True
    before, launched = cluster.turn(), len(cluster.ray.actors)
    cluster.restart(feeders=2)
    assert cluster.turn() == before, "not replaced by an empty list"
    cluster.actor_of(0).serve()
    assert cluster.turn() == before
    assert cluster.controller.status()["wanted"] == 1, "as scaled, not as at first"
    assert len(cluster.ray.actors) == launched


def test_while_the_head_is_away_nothing_is_lost(cluster: Cluster) -> None:
    serve_both(cluster)
    watched = cluster.actor_of(1)
    watched.serve()
    watch, watched.watch.remote = watched.watch.remote, None  # a call raises
    with pytest.raises(TypeError):
        cluster.turn()
    watched.watch.remote = watch
    cluster.turn()
    assert watched.watching.value is None, "it is watched again"
    cluster.ray.is_away = True
    cluster.actor_of(0).watching.error = cluster.ray.GoneError("the host was lost")
    for _ in range(2):
        with pytest.raises(ConnectionError):
            cluster.turn()
    cluster.ray.is_away = False
    del cluster.ray.hosts["id1"]
    assert cluster.turn() == {"feeder-1": "10.0.0.2"}
    cluster.actor_of(0).serve()
    assert cluster.turn()["feeder-0"] == "10.0.0.3"

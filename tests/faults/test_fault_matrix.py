"""SIGKILL and SIGSTOP of each process at each phase.

One training process, the survivor, is connected to one feeder through every case; the supervisor is
restarted as systemd would. The survivor's batches are compared with an undisturbed run, and each
case must leave no additional process, descriptor, shared memory or slot.
"""

import contextlib
import signal
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import psutil
import pytest

from bench.footprint import mapped_slot_memories
from feeder.client.stats import request_counters
from tests.faults.client import EPOCH, Client, Trainee, stop
from tests.faults.service import Service, await_fds, shared_names
from tests.support.daemon import DEADLINE_S, Daemon, runs, wait_until
from tests.support.lent_client import expected

EPOCHS: Final = 120  # more than all cases take together

PHASES: Final = ("start", "mid-batch", "slot lent", "epoch end", "drain")
VICTIMS: Final = ("worker", "node process", "supervisor")


@dataclass
class Scene:
    """The feeder, the survivor, and their descriptors before any fault."""

    service: Service
    survivor: Trainee
    client_fds: int
    node_fds: int

    def check_no_trace(self) -> None:
        """Check that only the survivor's session and resources remain."""
        self.service.await_all()
        wait_until(self._is_survivor_alone, "one session remains, with its slots")
        await_fds(self.service.daemon.node, self.node_fds)
        await_fds(self.survivor.client.process, self.client_fds)
        client = self.survivor.client.process.pid
        wait_until(lambda: mapped_slot_memories(client) == 1, "it has unmapped earlier slots")
        running = psutil.Process(self.service.daemon.process.pid)
        family = [running, *running.children(recursive=True), self.survivor.client.process]
        assert not shared_names(family)

    def _is_survivor_alone(self) -> bool:
        counters = self.service.counters()
        held = counters.get("slots_held_bytes", 0)
        return counters.get("sessions") == 1 and counters["slots_committed_bytes"] == held > 0


@pytest.fixture(scope="module")
def scene(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Scene]:
    folder = tmp_path_factory.mktemp("matrix")
    bind = f"ipc://{folder}/node"
    with Client() as client, Service(packed, bind, "--lease-s", "3") as service:
        survivor = Trainee(client, expected(bind, EPOCH * EPOCHS))
        service.await_none_held()
        client.open(bind)
        client.opened()
        survivor.take(2 * EPOCH)
        client.await_lent()
        yield Scene(service, survivor, client.process.num_fds(), service.daemon.node.num_fds())
        client.close()
        service.await_none_held()


@pytest.mark.parametrize("victim", VICTIMS)
@pytest.mark.parametrize("phase", PHASES)
def test_client_continues_when_a_process_is_killed(scene: Scene, phase: str, victim: str) -> None:
    def kill() -> None:
        process = find(victim, scene.service)
        process.kill()
        process.wait()

    held = act_in(phase, scene, kill)
    leave(phase, scene, held)


@pytest.mark.parametrize("phase", ["start", "mid-batch"])
def test_client_continues_when_each_process_was_stopped_in_turn(scene: Scene, phase: str) -> None:
    def stop_each() -> None:
        for victim in VICTIMS:
            process = find(victim, scene.service)
            stop(process)
            process.resume()

    held = act_in(phase, scene, stop_each)
    leave(phase, scene, held)


@pytest.mark.parametrize("phase", ["mid-batch", "slot lent"])
def test_stopped_client_continues_with_the_same_bytes(scene: Scene, phase: str) -> None:
    held = enter(phase, scene.service, scene.survivor)
    scene.survivor.client.stop()
    resume_feeder(phase, scene.service, held)
    scene.survivor.client.process.resume()
    leave(phase, scene)


@pytest.mark.parametrize("phase", ["slot lent", "drain"])
def test_killed_client_leaves_no_trace(scene: Scene, phase: str) -> None:
    with Client() as client:
        client.open(scene.service.endpoint)
        client.opened()
        trainee = Trainee(client, scene.survivor.undisturbed)
        trainee.take(1)
        held = enter(phase, scene.service, trainee)
    leave(phase, scene, held)


def act_in(phase: str, scene: Scene, act: Callable[[], None]) -> psutil.Process | None:
    """Bring the feeder into a phase and act on its processes; return what ``enter`` returns.

    A drain is over after a few seconds. If this machine was stalled for as long, and a process has
    ended before it could be acted on, the next feeder is drained.
    """
    while True:
        held = enter(phase, scene.service, scene.survivor)
        try:
            act()
        except (IndexError, psutil.NoSuchProcess):
            if phase != "drain":
                raise
            resume_feeder(phase, scene.service, held)
            scene.survivor.take(EPOCH + 1)
        else:
            return held


def enter(phase: str, service: Service, trainee: Trainee) -> psutil.Process | None:
    """Bring a feeder and its client into a phase; return the worker that is stopped for it."""
    match phase:
        case "start":
            service.end()
            trainee.ask(2 * EPOCH)  # more than it was lent
            daemon = service.start(is_ready=False)
            wait_until(lambda: _has_worker(daemon), "a worker is starting")
            return None
        case "slot lent" | "epoch end":
            trainee.take_to(2 if phase == "slot lent" else 0)
            trainee.client.await_lent()
            return None
    trainee.take_to(1)
    held = _hold_batch(service, trainee)
    if phase == "drain":
        service.daemon.family()
        service.daemon.process.send_signal(signal.SIGTERM)
        service.daemon.wait_line("draining")
    return held


def _has_worker(daemon: Daemon) -> bool:
    return any(runs(process, "feeder.worker") for process in daemon.family())


def find(victim: str, service: Service) -> psutil.Process:
    """Return a process of a feeder by its role; IndexError or NoSuchProcess if it has ended."""
    if victim == "supervisor":
        supervisor = psutil.Process(service.daemon.process.pid)
        if supervisor.status() == psutil.STATUS_ZOMBIE:
            raise psutil.NoSuchProcess(supervisor.pid)
        return supervisor
    return service.daemon.node if victim == "node process" else service.daemon.workers()[0]


def leave(phase: str, scene: Scene, held: psutil.Process | None = None) -> None:
    """Have the feeder serve again and the survivor take more; nothing else remains."""
    resume_feeder(phase, scene.service, held)
    scene.survivor.take(EPOCH + 1)
    scene.check_no_trace()


def resume_feeder(phase: str, service: Service, held: psutil.Process | None) -> None:
    """Resume the stopped worker, if it is alive, and make the feeder serve again."""
    if held is not None:
        with contextlib.suppress(psutil.NoSuchProcess):
            held.resume()
    if phase == "drain":
        service.await_end()
    service.revive()


def _hold_batch(service: Service, trainee: Trainee) -> psutil.Process:
    """Stop a worker and request batches: its chunks are in flight, and other batches are lent."""
    trainee.client.await_lent()
    released = request_counters(service.endpoint, DEADLINE_S)["batches_released"]
    held = service.daemon.workers()[0]
    stop(held)
    trainee.ask(EPOCH)
    # One release may have been in flight before; each is followed by another request.
    wait_until(
        lambda: service.counters().get("batches_released", 0) >= released + 3, "it requests more"
    )
    return held

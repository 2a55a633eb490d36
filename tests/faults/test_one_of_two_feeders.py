"""One of two feeders becomes unreachable: the other takes over within the promised gap."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import chain
from pathlib import Path

import pytest

from bench.chaos.judgement import GAP_MAX_S
from bench.chaos.proxy import TcpProxy
from bench.daemon import free_port
from feeder.errors import PeerError
from tests.faults.client import stop
from tests.faults.service import Service
from tests.support.daemon import DEADLINE_S, happens_within, resume, wait_until
from tests.support.lent_client import digest, expected, make_loader
from trainer_client import FeederLoader

EPOCH = 5  # batches
EPOCHS = 120


@dataclass
class Pair:
    """A feeder that faults hit, the network to it, another feeder, and a client of both."""

    struck: Service
    proxy: TcpProxy
    other: Service
    loader: FeederLoader
    undisturbed: list[str]
    taken: int = 0

    def take(self, epochs: int) -> float:
        """Take epochs and compare their batches; return the longest wait for a batch in seconds."""
        longest_s, since_s = 0.0, time.monotonic()
        for _ in range(epochs):
            for batch in self.loader:
                now_s = time.monotonic()
                longest_s, since_s = max(longest_s, now_s - since_s), now_s
                assert digest(batch) == self.undisturbed[self.taken]
                self.taken += 1
        return longest_s

    def await_both(self) -> None:
        wait_until(lambda: self.loader.statistics().feeders == 2, "both serve the client")


@pytest.fixture(scope="module")
def pair(packed: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    folder = tmp_path_factory.mktemp("two")
    port = free_port()
    with (
        Service(packed, f"tcp://127.0.0.1:{port}", "--lease-s", "3") as struck,
        Service(packed, f"ipc://{folder}/node") as other,
        TcpProxy(port) as proxy,
    ):
        undisturbed = expected(other.endpoint, EPOCH * EPOCHS)
        with make_loader([proxy.endpoint, other.endpoint]) as loader:
            yield Pair(struck, proxy, other, loader, undisturbed)
        struck.await_none_held()
        other.await_none_held()


STRIKES: dict[str, Callable[[Pair], object]] = {
    "kill_supervisor": lambda pair: pair.struck.daemon.kill(),
    "drain": lambda pair: pair.struck.end(),
    "stop_node": lambda pair: stop(pair.struck.daemon.node),
    "cut": lambda pair: pair.proxy.cut(),
    "stall": lambda pair: pair.proxy.stall(),
}


@pytest.mark.parametrize("strike", STRIKES)
def test_wait_for_a_batch_stays_within_the_promised_gap(pair: Pair, strike: str) -> None:
    def strike_once() -> float:
        pair.await_both()
        pair.take(1)
        STRIKES[strike](pair)
        longest_s = pair.take(2)
        pair.proxy.mend()
        for process in pair.struck.daemon.family():
            resume(process)
        pair.struck.revive()
        pair.await_both()
        return max(longest_s, pair.take(1))

    happens_within(GAP_MAX_S, strike_once)


def test_loss_of_both_is_one_exception_at_the_deadline(pair: Pair) -> None:
    endpoints = [pair.proxy.endpoint, pair.other.endpoint]
    with make_loader(endpoints, timeout_s=3.0) as loader:
        wait_until(lambda: loader.statistics().feeders == 2, "both serve it")
        nodes = [service.daemon.node for service in (pair.struck, pair.other)]
        for node in nodes:
            stop(node)
        began_s = time.monotonic()
        with pytest.raises(PeerError, match=r"no batch \d of epoch \d from .* within 3 s: "):
            list(chain(loader, loader))
        assert time.monotonic() - began_s < DEADLINE_S / 3
        for node in nodes:
            resume(node)
        loader.set_epoch(1)
        assert [digest(batch) for batch in loader] == pair.undisturbed[EPOCH : 2 * EPOCH]

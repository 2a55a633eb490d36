"""The network between client and feeder is cut or stalled: the same bytes."""

import re
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

import pytest

from bench.chaos.proxy import TcpProxy
from feeder.errors import PeerError
from feeder.wire.messages import Welcome
from tests.support.daemon import DEADLINE_S, Daemon, RawClient, serve, small_recipe, wait_until
from tests.support.lent_client import digest, expected, make_loader
from trainer_client import FeederLoader

EPOCHS: Final = 2


@pytest.fixture(scope="module")
def daemon(packed: Path) -> Iterator[Daemon]:
    with serve(packed, "--lease-s", "10") as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(daemon: Daemon) -> list[str]:
    return expected(daemon.endpoint, EPOCHS * 5)


@pytest.fixture
def proxy(daemon: Daemon) -> Iterator[TcpProxy]:
    with TcpProxy(int(daemon.endpoint.rpartition(":")[2])) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def no_leaks(daemon: Daemon, undisturbed: list[str]) -> Iterator[None]:
    """Uses ``undisturbed`` so that files that the first copied batch opens are not counted."""
    fds = daemon.node.num_fds()
    yield
    wait_until(lambda: daemon.counters()["sessions"] == 0, "no session remains")
    wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "no slot remains")
    wait_until(lambda: daemon.node.num_fds() <= fds, "no descriptor leaks")


def take(
    loader: FeederLoader,
    strike: Callable[[], None] = lambda: None,
    at: tuple[int, ...] = (),
    epochs: int = EPOCHS,
) -> list[str]:
    """Take all epochs; call ``strike`` after each number of batches in ``at``."""
    taken: list[str] = []
    for _ in range(epochs):
        for batch in loader:
            taken.append(digest(batch))
            if len(taken) in at:
                strike()
    return taken


def cut(proxy: TcpProxy) -> None:
    refused = proxy.refused
    proxy.cut()
    wait_until(lambda: proxy.refused > refused, "the client has retried")
    proxy.mend()


def test_cut_network_changes_no_byte(proxy: TcpProxy, undisturbed: list[str]) -> None:
    with make_loader(proxy.endpoint) as loader:

        def cut_and_wait() -> None:
            before = loader.statistics().reconnects
            cut(proxy)
            wait_until(lambda: loader.statistics().reconnects == before + 1, "it has reconnected")

        assert take(loader, cut_and_wait, at=(1, 5)) == undisturbed
        assert loader.statistics().reconnects == 2


def test_client_waits_for_a_stalled_network(proxy: TcpProxy, undisturbed: list[str]) -> None:
    with make_loader(proxy.endpoint) as loader, ThreadPoolExecutor() as pool:
        taken = pool.submit(take, loader, proxy.stall, at=(2,))
        wait_until(lambda: proxy.pieces_held, "data is in flight")
        proxy.mend()
        assert taken.result(DEADLINE_S) == undisturbed
        assert loader.statistics().reconnects == 0


@pytest.mark.parametrize(
    ("fault", "verdict", "reason"),
    [
        (TcpProxy.stall, "hung-network", "no byte came from it for"),
        (TcpProxy.cut, "lost-connection", "the connection is lost"),
    ],
)
def test_lost_network_is_named_after_3_s_and_one_exception_at_the_deadline(
    proxy: TcpProxy,
    caplog: pytest.LogCaptureFixture,
    fault: Callable[[TcpProxy], None],
    verdict: str,
    reason: str,
) -> None:
    with make_loader(proxy.endpoint, timeout_s=3.2) as loader:
        began_s = time.monotonic()
        with pytest.raises(
            PeerError, match=r"no batch \d of epoch \d from .* within 3.2 s: "
        ) as error:
            take(loader, lambda: fault(proxy), at=(1,))
        assert time.monotonic() - began_s < DEADLINE_S / 3
        named = [line for line in caplog.messages if re.search(r": waiting for 3\.\d s: ", line)]
        assert len(named) == 1
        assert all(reason in text for text in (str(error.value), named[0]))
        assert loader.statistics().verdict.startswith(f"{verdict}: {proxy.endpoint}: {reason}")
    with pytest.raises(PeerError, match=r"no welcome from .* within 1 s: "):
        make_loader(proxy.endpoint, timeout_s=1.0)


def test_broken_connection_ends_its_session_long_before_its_lease(packed: Path) -> None:
    with (
        serve(packed, "--lease-s", "600", workers=1) as daemon,
        TcpProxy(int(daemon.endpoint.rpartition(":")[2])) as proxy,
        RawClient(proxy.endpoint) as broken,
        RawClient(proxy.endpoint) as leaving,
    ):
        for client in (broken, leaving):
            assert isinstance(client.hello(small_recipe()), Welcome)
        leaving.bye()
        wait_until(lambda: daemon.counters()["sessions"] == 1, "one session is closed")
        assert daemon.counters()["slots_committed_bytes"] > 0
        proxy.cut()
        wait_until(lambda: daemon.counters()["sessions"] == 0, "the other session has ended")
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "its slots are free")
        counters = daemon.counters()
        assert (counters["sessions_lost"], counters["sessions_closed"]) == (1, 1)

"""The network between client and feeder cut, stalled, delayed and half closed: the same bytes."""

import contextlib
import socket
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final, get_args

import pytest

from bench.chaos.proxy import Side, TcpProxy
from feeder.errors import PeerError
from feeder.wire.messages import Welcome
from tests.support.daemon import DEADLINE_S, Daemon, RawClient, pack_small, small_recipe, wait_until
from tests.support.lent_client import digest, expected, make_loader
from trainer_client import FeederLoader

EPOCHS: Final = 2
LARGE: Final = {"image_size": 224, "recipe": {"resize_size": 236}}
"""1.5 MB a batch: some pieces of what a proxy passes on."""


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_small(tmp_path_factory.mktemp("network"))


@pytest.fixture(scope="module")
def daemon(packed: Path) -> Iterator[Daemon]:
    bind = ("--bind", "tcp://127.0.0.1:0", "--workers", "2", "--lease-s", "10")
    with Daemon("--data", f"d={packed}", *bind) as running:
        yield running


@pytest.fixture(scope="module")
def undisturbed(daemon: Daemon) -> list[str]:
    return expected(daemon.endpoint, EPOCHS * 5)


@pytest.fixture
def proxy(daemon: Daemon) -> Iterator[TcpProxy]:
    with TcpProxy(int(daemon.endpoint.rpartition(":")[2])) as running:
        yield running


@pytest.fixture(scope="module", autouse=True)
def nothing_stays(daemon: Daemon, undisturbed: list[str]) -> Iterator[None]:
    """What the node process opens when it first copies a batch is there already."""
    fds = daemon.node.num_fds()
    yield
    wait_until(lambda: daemon.counters()["sessions"] == 0, "no session is left")
    wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "no slot is left")
    wait_until(lambda: daemon.node.num_fds() <= fds, "no descriptor is left")


def take(
    loader: FeederLoader, strike: Callable[[], None] = lambda: None, at: tuple[int, ...] = ()
) -> list[str]:
    """Take all epochs, and strike when so many batches were taken."""
    taken: list[str] = []
    for _ in range(EPOCHS):
        for batch in loader:
            taken.append(digest(batch))
            if len(taken) in at:
                strike()
    return taken


def cut(proxy: TcpProxy) -> None:
    """Cut the network until a connection was refused."""
    refused = proxy.refused
    proxy.cut()
    wait_until(lambda: proxy.refused > refused, "the client has tried again")
    proxy.mend()


def test_a_network_that_is_cut_goes_unnoticed(proxy: TcpProxy, undisturbed: list[str]) -> None:
    with make_loader(proxy.endpoint) as loader:

        def cut_and_wait() -> None:
            before = loader.statistics().reconnects
            cut(proxy)
            wait_until(lambda: loader.statistics().reconnects == before + 1, "it has noticed")

        assert take(loader, cut_and_wait, at=(1, 5)) == undisturbed
        assert loader.statistics().reconnects == 2


def test_a_connection_that_comes_about_while_the_network_is_cut_is_cut_too(
    proxy: TcpProxy, monkeypatch: pytest.MonkeyPatch
) -> None:
    connect = proxy._connect

    def connect_and_cut() -> socket.socket | None:
        server = connect()
        proxy.cut()
        return server

    monkeypatch.setattr(proxy, "_connect", connect_and_cut)
    port = int(proxy.endpoint.rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), DEADLINE_S) as client:
        client.settimeout(DEADLINE_S)
        with contextlib.suppress(ConnectionError):
            assert client.recv(1) == b"", "the daemon's greeting came through"


def test_a_network_that_stalls_is_waited_for(proxy: TcpProxy, undisturbed: list[str]) -> None:
    with make_loader(proxy.endpoint) as loader, ThreadPoolExecutor() as pool:
        taken = pool.submit(take, loader, proxy.stall, at=(2,))
        wait_until(lambda: proxy.pieces_held, "something is on its way")
        proxy.mend()
        assert taken.result(DEADLINE_S) == undisturbed
        assert loader.statistics().reconnects == 0


def test_half_a_message_is_no_batch(daemon: Daemon, proxy: TcpProxy) -> None:
    """Cut while pieces of a chunk are here and others are not."""
    with make_loader(daemon.endpoint, **LARGE) as loader:
        undisturbed = take(loader)
    with make_loader(proxy.endpoint, **LARGE) as loader, ThreadPoolExecutor() as pool:
        taken = pool.submit(take, loader, proxy.stall, at=(1, 6))
        for _ in range(2):
            wait_until(lambda: proxy.pieces_held, "half a message is on its way")
            cut(proxy)
        assert taken.result(DEADLINE_S) == undisturbed


def test_a_slow_network_changes_nothing(proxy: TcpProxy, undisturbed: list[str]) -> None:
    proxy.delay(0.02)
    with make_loader(proxy.endpoint) as loader:
        assert take(loader) == undisturbed
        assert loader.statistics().reconnects == 0


@pytest.mark.parametrize("side", get_args(Side))
def test_a_connection_that_one_side_thinks_is_over_is_made_anew(
    proxy: TcpProxy, undisturbed: list[str], side: Side
) -> None:
    with make_loader(proxy.endpoint) as loader:
        assert take(loader, lambda: proxy.half_close(side), at=(2,)) == undisturbed
        wait_until(lambda: loader.statistics().reconnects == 1, "it has noticed")


@pytest.mark.parametrize("fault", [TcpProxy.stall, TcpProxy.cut])
def test_a_network_that_stays_away_is_one_exception_at_the_deadline(
    proxy: TcpProxy, fault: Callable[[TcpProxy], None]
) -> None:
    with make_loader(proxy.endpoint, timeout_s=3.0) as loader:
        began_s = time.monotonic()
        with pytest.raises(PeerError, match=r"no batch \d of epoch \d from .* within 3 s: "):
            take(loader, lambda: fault(proxy), at=(1,))
        assert time.monotonic() - began_s < DEADLINE_S / 3
    with pytest.raises(PeerError, match=r"no welcome from .* within 1 s: "):
        make_loader(proxy.endpoint, timeout_s=1.0)


def test_a_connection_that_breaks_ends_its_session_long_before_its_lease(packed: Path) -> None:
    bind = ("--bind", "tcp://127.0.0.1:0", "--workers", "1", "--lease-s", "600")
    with (
        Daemon("--data", f"d={packed}", *bind) as daemon,
        TcpProxy(int(daemon.endpoint.rpartition(":")[2])) as proxy,
        RawClient(proxy.endpoint) as broken,
        RawClient(proxy.endpoint) as leaving,
    ):
        for client in (broken, leaving):
            assert isinstance(client.hello(small_recipe()), Welcome)
        leaving.bye()
        wait_until(lambda: daemon.counters()["sessions"] == 1, "one has said goodbye")
        assert daemon.counters()["slots_committed_bytes"] > 0
        proxy.cut()
        wait_until(lambda: daemon.counters()["sessions"] == 0, "the other's session is over")
        wait_until(lambda: daemon.counters()["slots_committed_bytes"] == 0, "its slots are back")
        counters = daemon.counters()
        assert (counters["sessions_lost"], counters["sessions_closed"]) == (1, 1)

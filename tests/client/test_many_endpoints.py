"""One loader and several real daemons: they die, hang, drain, come and go; no byte changes."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import psutil
import pytest

from bench.daemon import free_port
from bench.stream.links import BATCH_SIZE, IMAGE_SIZE, client_of, count_descriptors, stand_ins
from feeder.errors import DatasetError, ProtocolError
from tests.daemon.test_node_processes import CPUS, two_nodes
from tests.support.daemon import (
    DEADLINE_S,
    Daemon,
    customised,
    failed_batches,
    serve,
    wait_until,
)
from tests.support.lent_client import digest, expected, make_loader
from trainer_client import LoaderStatistics

BATCHES = 24  # of five an epoch


def one_worker(packed: Path, bind: str, **settings: Any) -> Daemon:
    return serve(packed, "--chunk-images", "4", bind=bind, workers=1, **settings)


@pytest.fixture(scope="module")
def daemons(
    packed: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[tuple[Daemon, Daemon]]:
    """Return two daemons, which each test leaves running."""
    folder = tmp_path_factory.mktemp("daemons")
    tcp = f"tcp://127.0.0.1:{free_port()}"  # reserved while the daemon is down
    with one_worker(packed, f"ipc://{folder}/a") as a, one_worker(packed, tcp) as b:
        yield a, b


@pytest.fixture(scope="module")
def undisturbed(daemons: tuple[Daemon, Daemon]) -> list[str]:
    return expected(daemons[0].endpoint, BATCHES)


class Taker:
    """A loader whose batches are taken one epoch after the other, and hashed."""

    def __init__(self, endpoints: str | list[str], feeders: int = 1) -> None:
        self.taken: list[str] = []
        self.loader = make_loader(endpoints)
        self._stream = (batch for _ in iter(int, 1) for batch in self.loader)
        self.wait_for(feeders)

    def __enter__(self) -> "Taker":
        return self

    def __exit__(self, *_: object) -> None:
        self.loader.close()

    def wait_for(self, feeders: int) -> None:
        wait_until(lambda: self.statistics().feeders == feeders, f"{feeders} feeders")

    def take(self, until: int) -> None:
        while len(self.taken) < until:
            self.taken.append(digest(next(self._stream)))

    def statistics(self) -> LoaderStatistics:
        return self.loader.statistics()


def both(daemons: tuple[Daemon, Daemon]) -> list[str]:
    return [daemon.endpoint for daemon in daemons]


def test_two_daemons_share_the_work_and_the_bytes_are_the_same(
    daemons: tuple[Daemon, Daemon], undisturbed: list[str]
) -> None:
    before = [daemon.counters()["batches"] for daemon in daemons]
    with Taker(both(daemons), 2) as taker:
        taker.take(BATCHES)
        statistics = taker.statistics()
    assert taker.taken == undisturbed
    assert (statistics.feeders, statistics.feeders_left_out) == (2, 0)
    assert 0 < statistics.batches_lent < BATCHES, "one lends, the other cannot"
    for daemon, so_far in zip(daemons, before, strict=True):
        assert daemon.counters()["batches"] > so_far + 4
        wait_until(lambda d=daemon: d.counters()["sessions"] == 0, "it has sent Bye to both")  # type: ignore[misc]


def test_a_list_that_changes_during_an_epoch_changes_no_byte(
    daemons: tuple[Daemon, Daemon], undisturbed: list[str], tmp_path: Path
) -> None:
    a, b = both(daemons)
    path = tmp_path / "feeders"
    path.write_text(f"{a}  # the first\n")
    with Taker(f"file://{path}") as taker:
        taker.take(4)
        path.write_text(f"{a}\n{b}\n")
        taker.wait_for(2)
        taker.take(12)
        path.write_text(f"{b}\n")
        wait_until(lambda: daemons[0].counters()["sessions"] == 0, "the first is left")
        taker.take(18)
        path.write_text("not an endpoint\n")
        taker.take(BATCHES)
        assert taker.statistics().feeders == 1
    assert taker.taken == undisturbed


@pytest.mark.skipif(len(CPUS) < 2, reason="needs a CPU for each of two nodes")
def test_any_node_process_leads_to_all_of_its_host(
    packed: Path, tmp_path: Path, undisturbed: list[str]
) -> None:
    with Daemon(*two_nodes(packed, tmp_path, "tcp://127.0.0.1:0", f"ipc://{tmp_path}/n")) as daemon:
        with Taker(daemon.endpoints[3], 2) as taker:
            taker.take(5)
            psutil.Process(daemon.process.pid).children()[1].kill()
            taker.take(BATCHES)
        assert taker.taken == undisturbed
        with Taker(daemon.endpoints[0], 2) as taker:
            taker.take(BATCHES)
        assert taker.taken == undisturbed
        with Taker([*daemon.endpoints], 2) as taker:  # each node process twice
            taker.take(BATCHES)
        assert taker.taken == undisturbed
        daemon.family()


def test_data_that_one_feeder_cannot_read_comes_from_another(
    packed: Path, tmp_path: Path, daemons: tuple[Daemon, Daemon], undisturbed: list[str]
) -> None:
    damaged = tmp_path / "damaged"
    shutil.copytree(packed, damaged)
    for shard in damaged.glob("shard-*.fds"):
        content = bytearray(shard.read_bytes())
        content[64 + 3000] ^= 0xFF
        shard.write_bytes(content)
    with one_worker(damaged, f"ipc://{tmp_path}/b") as broken:
        with Taker([daemons[0].endpoint, broken.endpoint], 2) as taker:
            taker.take(BATCHES)
            assert taker.statistics().batches_asked_again > 0
        assert failed_batches(broken.counters()) > 0
        with Taker(broken.endpoint) as taker, pytest.raises(DatasetError, match="feeder verify"):
            taker.take(BATCHES)
    assert taker.taken != undisturbed


OTHER_LIBRARY = """
import sys
if "feeder.worker" in sys.orig_argv or "feeder.node" in sys.orig_argv:
    import feeder.sample.self_test
    feeder.sample.self_test.compute_self_test = lambda *_: "0" * 32
"""


def test_feeders_of_other_bytes_are_not_mixed(
    packed: Path,
    tmp_path: Path,
    daemons: tuple[Daemon, Daemon],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    # Loaders wait for all of their feeders' answers, on a busy machine too.
    monkeypatch.setattr("feeder.client.transport.GATHER_S", DEADLINE_S)
    environ = customised(tmp_path / "site", OTHER_LIBRARY)
    good, bind = daemons[0].endpoint, f"ipc://{tmp_path}/b"
    with one_worker(packed, bind, environ=environ) as bad:
        with pytest.raises(ProtocolError, match="would make different batches") as refused:
            make_loader([good, bad.endpoint])
        for name in (good, bad.endpoint, "self-test", "libraries of equal versions"):
            assert name in str(refused.value)
        path = tmp_path / "feeders"
        path.write_text(f"{good}\n")
        with Taker(f"file://{path}") as taker:
            taker.take(3)
            path.write_text(f"{good}\n{bad.endpoint}\n")
            wait_until(lambda: taker.statistics().feeders_left_out == 1, "it is left out")
            taker.take(12)
        assert bad.counters()["batches"] == 0


# 2,048 feeders, over real sockets

FEEDERS = 2048
DESCRIPTORS_MAX = 500


def test_a_client_of_2048_feeders_has_few_descriptors_and_asks_the_owners(tmp_path: Path) -> None:
    with stand_ins(FEEDERS) as lines:
        assert len(lines) == FEEDERS
        before = count_descriptors()
        most = 0
        with client_of(lines, tmp_path) as loader:
            for batch, _ in zip(loader, range(80), strict=False):
                assert batch.images.shape == (BATCH_SIZE, IMAGE_SIZE, IMAGE_SIZE, 3)
                most = max(most, count_descriptors() - before)
            statistics = loader.statistics()
    assert most < DESCRIPTORS_MAX
    assert statistics.batches_of_owners > 40, "the others came while owners connected"
    assert statistics.feeders > 3

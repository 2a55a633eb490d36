"""Four feeders with small caches of a dataset in a store copy from each other what they own.

All of it is over CURVE. The caches have 30 % of the dataset each: their own lanes, and some room.
"""

from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
import pytest

from bench.daemon import free_port
from bench.fetcher import BatchFetcher, LocalBatches
from bench.loopback_store import LoopbackStore
from feeder.client.stats import request_report
from feeder.dataset.manifest import Manifest
from feeder.dataset.opened import Dataset
from feeder.metrics.records import StoreRecord
from feeder.plan.lanes import piece_samples
from feeder.plan.recipe import Recipe
from feeder.security.keys import ClientKeys
from tests.support.daemon import DEADLINE_S, Daemon, RawClient, serve, small_recipe, wait_until
from tests.support.key_pairs import KeyPair
from tests.support.sources import error_line, run_feeder
from tests.support.stores import loopback_store
from tests.support.synthetic_sets import Sample, tiled_image, write_set

FEEDERS: Final = 4
LANES: Final = 16
PIECE: Final = 64
CACHE_SHARE: Final = 0.30
TRIES: Final = 4
"""Epochs. On a busy machine a feeder may not answer in time now and then."""

RECIPE: Final = Recipe.for_split("train", batch_size=4, image_size=32, resize_size=36, lanes=LANES)


@pytest.fixture(scope="module")
def published(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Manifest]:
    """A dataset of 98 MB: each lane is a piece."""
    images = [tiled_image(680, 520, seed) for seed in range(13)]
    samples = [
        Sample(name=f"s{number}", tiled=images[number * 5 % 13], source=number + 1)
        for number in range(LANES * PIECE)
    ]
    folder = tmp_path_factory.mktemp("published") / "set"
    manifest = write_set(folder, samples, shards=5, classes=("a",))
    assert piece_samples(manifest.samples, manifest.layout.size_bytes) == PIECE
    return folder, manifest


@pytest.fixture(scope="module")
def store(published: tuple[Path, Manifest]) -> Iterator[LoopbackStore]:
    with loopback_store({"set": published[0]}) as running:
        yield running


@dataclass
class Fleet:
    daemons: list[Daemon]
    store: LoopbackStore
    manifest: Manifest
    local: LocalBatches
    fetcher: BatchFetcher
    keys: ClientKeys
    epoch: int = 0

    def read_epoch(self) -> float:
        """Compare the next epoch's batches with the local dataset's; return what left the store,
        in datasets."""
        before, first = self.store.body_bytes(), self.epoch * self.local.batches
        for number, batch in enumerate(self.fetcher.fetch(first, self.local.batches), first):
            assert np.array_equal(batch.sample_ids, self.local.make(number))
            assert np.array_equal(batch.pixels, self.local.pixels)
        self.epoch += 1
        return (self.store.body_bytes() - before) / self.manifest.layout.size_bytes

    def records(self) -> list[StoreRecord]:
        reports = [
            request_report(daemon.endpoint, DEADLINE_S, self.keys)
            for daemon in self.daemons
            if daemon.is_running
        ]
        return [report.store for report in reports if report.store is not None]

    def peer_bytes(self) -> int:
        return sum(record.peer_bytes for record in self.records())


@pytest.fixture
def fleet(
    published: tuple[Path, Manifest], store: LoopbackStore, tmp_path: Path
) -> Iterator[Fleet]:
    folder, manifest = published
    server, *pairs = [
        KeyPair.make(tmp_path, name)
        for name in ("server", "trainer", *(f"peer-{number}" for number in range(FEEDERS)))
    ]
    allowed = tmp_path / "allowed"
    allowed.mkdir()
    for pair in pairs:
        pair.public.rename(allowed / pair.public.name)
    ports = [free_port() for _ in range(FEEDERS)]
    feeders = tmp_path / "feeders"
    lines = [f"node-{number} tcp://127.0.0.1:{port}" for number, port in enumerate(ports)]
    feeders.write_text("\n".join(lines))
    disk_bytes = str(int(CACHE_SHARE * manifest.layout.size_bytes))
    trainer, *peers = pairs
    with ExitStack() as stack:
        daemons = [
            stack.enter_context(
                serve(
                    store.url("set"),
                    *("--name", f"node-{number}", "--peers", f"file://{feeders}"),
                    *("--disk-path", tmp_path / f"cache-{number}", "--disk-bytes", disk_bytes),
                    *("--secret-key", server.secret, "--client-keys", allowed),
                    *("--peer-key", peers[number].secret),
                    bind=f"tcp://127.0.0.1:{port}",
                    workers=1,
                    environ=store.environ(),
                )
            )
            for number, port in enumerate(ports)
        ]
        keys = trainer.to(server)
        local = LocalBatches(stack.enter_context(Dataset.open(folder)), RECIPE)
        fetcher = stack.enter_context(
            BatchFetcher(f"file://{feeders}", recipe=RECIPE, dataset="d", window=8, keys=keys)
        )
        yield Fleet(daemons, store, manifest, local, fetcher, keys)


def test_after_the_first_epoch_feeders_copy_from_each_other(fleet: Fleet) -> None:
    assert fleet.read_epoch() < 1.2, "nearly all bytes once"
    wait_until(
        lambda: not any(r.transfers or r.queued_pieces for r in fleet.records()), "all there"
    )
    shares = [fleet.read_epoch()]
    while shares[-1] >= 0.05:
        assert len(shares) < TRIES, f"{shares} of the dataset came from the store"
        shares.append(fleet.read_epoch())
    before = fleet.peer_bytes()
    assert before > 0.02 * fleet.manifest.layout.size_bytes
    fleet.daemons[1].kill()
    assert fleet.read_epoch() < 1.0, "its lanes, of which there may be some twice, and no more"
    wait_until(lambda: fleet.peer_bytes() > before, "the others still copy from each other")
    assert all(r.peer_failures.keys() <= {"away", "rate"} for r in fleet.records())


def test_a_list_that_cannot_be_read_ends_the_start_in_a_line(
    store: LoopbackStore, tmp_path: Path
) -> None:
    done = run_feeder(
        *("serve", "--data", f"d={store.http_url('set')}", "--bind", "tcp://127.0.0.1:0"),
        *("--disk-path", tmp_path / "cache", "--peers", f"file://{tmp_path}/feeders"),
    )
    assert done.returncode == 2
    assert f"endpoint file://{tmp_path}/feeders: No such file or directory" in error_line(done)


def test_a_feeder_without_a_key_for_its_peers_says_so_and_reads_the_store(
    packed: Path, store: LoopbackStore, tmp_path: Path
) -> None:
    server, client = KeyPair.make(tmp_path, "server"), KeyPair.make(tmp_path, "client")
    feeders = tmp_path / "feeders"
    with serve(
        *(packed, "--secret-key", server.secret, "--client-keys", client.public),
        bind=f"tcp://127.0.0.1:{free_port()}",
        workers=1,
    ) as peer:
        feeders.write_text(f"other {peer.endpoint}\nown tcp://127.0.0.1:9\n")
        with (
            serve(
                store.url("set"),
                *("--disk-path", tmp_path / "cache", "--name", "own"),
                *("--peers", f"file://{feeders}"),
                workers=1,
                environ=store.environ(),
            ) as daemon,
            RawClient(daemon.endpoint) as trainer,
        ):
            trainer.hello(small_recipe(lanes=LANES))
            trainer.want((0, 0))
            trainer.take((0, 0))
            trainer.want((0, 1), unowned=((0, 1),))
            daemon.wait_line(
                f"a peer cannot be used, .*: {peer.endpoint} accepts only feeders with keys: set "
                "serve.peer_key"
            )
            assert trainer.take((0, 1)).valid

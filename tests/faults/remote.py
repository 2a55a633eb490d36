"""A dataset in a store that fails on demand, and the batches of daemons that serve it.

    nginx, a folder ◄── StoreProxy: faults, and an account of requests ◄── feeder serve ◄── loader

The dataset has 317 samples of noise, 68 MB in 5 shards; of its 10 pieces some lie in two shards. In
the order WINDOWED a batch needs whole pieces, and others are fetched ahead. In the order WHOLE it
needs samples of all pieces, which are fetched alone, while all pieces follow.
"""

import re
import shutil
from collections import deque
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from dataclasses import dataclass
from hashlib import sha256
from itertools import islice, repeat
from pathlib import Path
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from PIL import Image

from bench.loopback_store import BUCKET, LoopbackStore
from bench.store_proxy import StoreProxy
from feeder.client.stats import request_report
from feeder.dataset.format import HEADER_BYTES, shard_name
from feeder.dataset.manifest import MANIFEST_NAME
from feeder.dataset.opened import Dataset
from feeder.disk_cache.cached import OBJECTS_NAME, ORIGIN_NAME, PRESENCE_NAME, CachedDataset
from feeder.disk_cache.folder import FOLDER_NAME, MARKER_NAME
from feeder.disk_cache.ranges import Range
from feeder.jpeg.recode import tile_jpeg
from feeder.metrics.records import StoreRecord
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from feeder.wire.messages import Failed, Welcome
from tests.support.daemon import DEADLINE_S, Daemon, Key, RawClient, small_recipe, wait_until
from tests.support.sources import encoded
from tests.support.stores import loopback_store
from tests.support.synthetic_sets import Sample, write_set
from trainer_client import NumpyLoader

SAMPLES: Final = 317
SHARDS: Final = 5
PIECE: Final = 32  # samples
PIECES: Final = 10
BATCH: Final = 16
EPOCH: Final = SAMPLES // BATCH
AHEAD: Final = 158
"""Samples on the disk when one batch of an epoch was taken, and WINDOW were asked for: pieces 1, 2,
5 and 6, the short one, and sample 0."""
WINDOW: Final = 4
_SIDE_PX: Final = 288
_IMAGES: Final = 32  # distinct ones; each is in several places, at random

WINDOWED: Final = {"lanes": 1, "working_set": 42 << 20}
WHOLE: Final[dict[str, int]] = {}


def write_dataset(folder: Path) -> Path:
    """Write the dataset into a new folder; return it."""
    rng = np.random.default_rng(39)
    images = []
    for _ in range(_IMAGES):
        noise = Image.fromarray(rng.integers(0, 256, (_SIDE_PX, _SIDE_PX, 3), np.uint8))
        images.append(tile_jpeg(encoded(noise, quality=98, subsampling=0), 32))
    samples = [
        Sample(name=f"s{number}", tiled=images[image], source=number + 1, label=number % 3)
        for number, image in enumerate(rng.integers(_IMAGES, size=SAMPLES).tolist())
    ]
    write_set(folder, samples, shards=SHARDS, classes=("class0", "class1", "class2"))
    return folder


@dataclass
class Remote:
    """The dataset below several prefixes of a bucket: each has a cache of its own."""

    store: LoopbackStore
    proxy: StoreProxy
    shards_bytes: int

    def url(self, name: str) -> str:
        return f"{self.proxy.endpoint}/{BUCKET}/{name}"

    def data(self, *names: str) -> list[str]:
        """The options with which a daemon serves these prefixes under their names."""
        return [word for name in names for word in ("--data", f"{name}={self.url(name)}")]

    def own_shard(self, name: str, shard: str) -> Path:
        """Give a prefix a copy of its own of a shard; return it."""
        prefix = self.store.root / name
        dataset = prefix.resolve()
        prefix.unlink()
        prefix.mkdir()
        for path in dataset.iterdir():
            (prefix / path.name).symlink_to(path)
        (prefix / shard).unlink()
        return Path(shutil.copy(dataset / shard, prefix / shard))

    def shard_reads(self, name: str, start: int = 0) -> list[tuple[str, int, int]]:
        """What was sent whole of a prefix's shards, and not spoilt: shard, first byte, end.

        ``start``: leaves out as many of the proxy's exchanges.
        """
        reads = []
        for exchange in self.proxy.exchanges[start:]:
            shard = re.fullmatch(rf"/{BUCKET}/{name}/(shard-\d+\.fds)", exchange.path)
            asked = re.fullmatch(r"bytes=(\d+)-(\d+)", exchange.asked)
            if shard and asked and exchange.struck in (None, "slow", "late", "stall"):
                first, end = int(asked[1]), int(asked[2]) + 1
                if (exchange.status, exchange.body_bytes) == (206, end - first):
                    reads.append((shard[1], first, end))
        return reads

    def count_stalled(self, name: str) -> int:
        """How many requests for a prefix got a part of their answer, and wait for the rest."""
        return sum(
            exchange.struck == "stall" and exchange.body_bytes > 0
            for exchange in list(self.proxy.exchanges)
            if f"/{name}/" in exchange.path
        )

    def is_all_sent(self, name: str) -> bool:
        """Whether all samples of a prefix were sent; up to 7 bytes before each are of none."""
        sent = sum(end - first for _, first, end in self.shard_reads(name))
        return sent > self.shards_bytes - 8 * SAMPLES

    def find_again(self, name: str, kept: Mapping[str, Sequence[Range]], start: int) -> set[str]:
        """The shards of which samples were sent, after ``start`` exchanges, that ``kept`` has."""
        return {
            shard
            for shard, first, end in self.shard_reads(name, start)
            if any(place[0] < end and first < place[1] for place in kept.get(shard, ()))
        }

    def assert_nothing_twice(self, name: str) -> None:
        last: dict[str, int] = {}
        for shard, first, end in sorted(self.shard_reads(name)):
            if end <= HEADER_BYTES:
                continue  # without its index it is not whole
            assert first >= last.get(shard, 0), f"bytes of {shard} from {first} on were sent twice"
            last[shard] = end


@contextmanager
def remote_store(dataset: Path, *names: str, **settings: Any) -> Iterator[Remote]:
    """Put the dataset into a store below ``names``; ``settings`` are StoreProxy's."""
    with (
        loopback_store(dict.fromkeys(names, dataset)) as store,
        StoreProxy(store.port, **settings) as proxy,
    ):
        size_bytes = sum(path.stat().st_size for path in dataset.glob("*.fds"))
        yield Remote(store, proxy, size_bytes)


def recipe_of(order: Mapping[str, int]) -> Recipe:
    return small_recipe(batch_size=BATCH, **order)


class Taker:
    """Takes the first ``batches`` of all epochs in turn, WINDOW of them at a time."""

    def __init__(
        self,
        endpoint: str,
        dataset: str,
        order: Mapping[str, int] = WINDOWED,
        *,
        batches: int = EPOCH,
    ) -> None:
        self.client = RawClient(endpoint)
        welcome = self.client.hello(recipe_of(order), window=WINDOW, dataset=dataset)
        assert isinstance(welcome, Welcome), welcome
        self._keys = map(divmod, range(batches), repeat(EPOCH))
        self._open: deque[Key] = deque()
        self._failed: dict[Key, str] = {}

    def ask(self, release: tuple[Key, ...] = ()) -> None:
        """Ask for as many batches as the window has room for."""
        keys = tuple(islice(self._keys, WINDOW - len(self._open)))
        self.client.want(*keys, release=release)
        self._open.extend(keys)

    def take(self, batches: int = EPOCH) -> list[str]:
        """The digests of the next batches, over images, labels and ids; "failed: " and the line
        of those that fail."""
        return [self._next() for _ in range(batches)]

    def _next(self) -> str:
        if not self._open:
            self.ask()
        key, arrived = self._open[0], self.client.batches[self._open[0]]
        while arrived.missing and key not in self._failed:
            message = self.client.receive(2 * DEADLINE_S)
            if isinstance(message, Failed):
                assert message.code == "dataset"
                self._failed[message.epoch, message.index] = f"failed: {message.message}"
        self._open.popleft()
        self.ask(release=(key,))
        digest = _digest(key, arrived.pixels, arrived.labels, arrived.sample_ids)
        return self._failed.pop(key, digest)

    def __enter__(self) -> "Taker":
        return self

    def __exit__(self, *_: object) -> None:
        self.client.bye()
        self.client.__exit__()


def make_epochs(
    dataset: Path, order: Mapping[str, int] = WINDOWED, *, epochs: int = 1
) -> list[str]:
    """What a Taker takes, made in this process."""
    digests, recipe, seed = [], recipe_of(order), 3
    side, rows = recipe.image_size, recipe.batch_size
    with Dataset.open(dataset) as opened:
        reader = SampleReader(opened, recipe)
        for epoch in range(epochs):
            plan = recipe.plan_epoch(opened.layout, seed=seed, epoch=epoch)
            for index in range(EPOCH):
                pixels, labels = np.empty((rows, side, side, 3), np.int8), np.empty(rows, np.int64)
                ids = plan.samples(index)
                reader.fill(ids, seed=seed, epoch=epoch, pixels=pixels, labels=labels)
                digests.append(_digest((epoch, index), pixels, labels, ids))
    return digests


def _digest(key: Key, *arrays: NDArray[Any]) -> str:
    return f"{key} {sha256(b''.join(array.tobytes() for array in arrays)).hexdigest()}"


def load_epoch(endpoint: str, dataset: str) -> list[str]:
    """The same batches as a loader's, which outlives the feeder."""
    recipe = recipe_of(WINDOWED)
    with NumpyLoader(
        endpoint,
        dataset=dataset,
        batch_size=BATCH,
        image_size=recipe.image_size,
        recipe={"resize_size": recipe.resize_size, **WINDOWED},
        seed=3,
        window=WINDOW,
        timeout_s=2 * DEADLINE_S,
    ) as loader:
        return [
            _digest((batch.epoch, batch.index), batch.images, batch.labels, batch.sample_ids)
            for batch in loader
        ]


def take_epoch(endpoint: str, dataset: str, order: Mapping[str, int] = WINDOWED) -> list[str]:
    with Taker(endpoint, dataset, order) as taker:
        return taker.take()


def store_record(endpoint: str) -> StoreRecord:
    wait_until(lambda: request_report(endpoint, DEADLINE_S).store is not None, "a fetcher's record")
    record = request_report(endpoint, DEADLINE_S).store
    assert record is not None, "the fetcher has sent a record"
    return record


def leftovers(disk: Path) -> list[str]:
    """What a disk cache has that belongs to no cached dataset."""
    known = {MARKER_NAME, ORIGIN_NAME, MANIFEST_NAME, PRESENCE_NAME, OBJECTS_NAME}
    known.update(map(shard_name, range(SHARDS)))
    files = (path for path in (disk / FOLDER_NAME).rglob("*") if not path.is_dir())
    return sorted(str(path) for path in files if path.name not in known)


def serve(folder: Path, *arguments: str | Path, **settings: Any) -> Daemon:
    """A daemon with its disk cache and its socket in a folder; ``settings`` are Daemon's."""
    disk = () if "--disk-path" in arguments else ("--disk-path", folder / "disk")
    options = ("--bind", f"ipc://{folder}/node", "--workers", "1", "--lease-s", "600")
    return Daemon(*arguments, *disk, *options, **settings)


def cached_folder(disk: Path, name: str) -> Path:
    (folder,) = (disk / FOLDER_NAME).glob(f"{name}-*")
    return folder


def count_there(disk: Path, name: str) -> int:
    """How many of a prefix's samples a disk cache has."""
    with closing(CachedDataset.open(cached_folder(disk, name))) as cached:
        return int(cached.samples_there.sum())


def there(disk: Path, name: str) -> dict[str, list[Range]]:
    """The bytes of these samples, by shard: first byte and end."""
    folder = cached_folder(disk, name)
    blobs: dict[str, list[Range]] = {}
    with closing(CachedDataset.open(folder)) as cached, Dataset.open(folder) as dataset:
        ids = np.flatnonzero(cached.samples_there)
        for blob in dataset.find_blobs(ids, dataset.read_records(ids)):
            place = blob.offset, blob.offset + blob.blob_bytes
            blobs.setdefault(shard_name(blob.shard), []).append(place)
    return blobs

"""A training process for ``feeder-bench chaos``: takes batches, says what they are, may be killed.

    python -m bench.chaos.trainer PARENT_PID ORDERS

ORDERS is the JSON of ``ClientOrders``. It answers in JSON, a line for each batch: its epoch and
index, the hash of all it consists of, when it was there, and the loader's state after it, with
which a successor goes on. A line that is a text is an error, and its last. SIGTERM ends it cleanly.

    python -m bench.chaos.trainer PARENT_PID ORDERS DATASET

makes the batches here instead, by the sample path that the workers run and with no daemon, and
says the hashes of those whose keys it is told, ``EPOCH INDEX`` a line.
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import msgspec
import numpy as np
import torch

from bench.chaos.clients import BatchLine, ClientOrders, Ways
from bench.daemon import DATASET_NAME
from feeder.dataset.opened import Dataset
from feeder.errors import FeederError
from feeder.plan.recipe import Recipe
from feeder.process.parent_death import die_with_parent
from feeder.process.stop_signals import StopSignals
from feeder.sample.reader import SampleReader
from feeder.wire.messages import BatchKey
from trainer_client import FeederLoader
from trainer_client._device import Normaliser

SEED: Final = 5
WINDOW: Final = 4
_DTYPE: Final = torch.float16


def train(orders: ClientOrders) -> Iterator[BatchLine]:
    """Yield what there is to say of each batch, for ever."""
    with FeederLoader(
        orders.endpoints,
        dataset=DATASET_NAME,
        batch_size=orders.batch_size,
        image_size=orders.image_size,
        seed=SEED,
        rank=orders.rank,
        world_size=orders.world_size,
        device="cpu",
        dtype=_DTYPE,
        window=WINDOW + 2 * (len(orders.endpoints) - 1),  # so that all of them have work
        timeout_s=orders.timeout_s,
    ) as loader:
        if orders.state:
            loader.load_state_dict(orders.state)
        while True:
            loader.set_epoch(int(loader.state_dict()["epoch"]) % orders.epochs)
            for batch in loader:
                counts = loader.statistics()
                digest = digest_of(batch.images, batch.labels, batch.sample_ids)
                yield BatchLine(
                    epoch=batch.epoch,
                    index=batch.index,
                    digest=digest,
                    at_s=time.monotonic(),
                    ways=Ways(
                        lent=counts.batches_lent,
                        asked_again=counts.batches_asked_again,
                        hedged=counts.batches_hedged,
                    ),
                    state=loader.state_dict(),
                )


def digest_of(images: torch.Tensor, labels: torch.Tensor, sample_ids: torch.Tensor) -> str:
    """Return the hash of all that a batch consists of."""
    digest = hashlib.blake2b(digest_size=16)
    # Such images lie in memory as (N, H, W, C): nothing is copied.
    for tensor in (images.permute(0, 2, 3, 1), labels, sample_ids):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def make_digests(orders: ClientOrders, path: Path, keys: Iterator[BatchKey]) -> Iterator[str]:
    """Yield the hashes of batches that are made here."""
    recipe = Recipe.for_split("train", batch_size=orders.batch_size, image_size=orders.image_size)
    size = orders.image_size
    normaliser = Normaliser(torch.device("cpu"), _DTYPE, packing=recipe.packing)
    pixels = np.empty((orders.batch_size, size, size, 3), np.int8)
    labels = np.empty(orders.batch_size, np.int64)
    with Dataset.open(path) as dataset:
        reader = SampleReader(dataset, recipe)
        for epoch, index in keys:
            plan = recipe.plan_epoch(dataset.layout, seed=SEED, epoch=epoch)
            sample_ids = plan.samples(index)
            reader.fill(sample_ids, seed=SEED, epoch=epoch, pixels=pixels, labels=labels)
            yield digest_of(
                normaliser(torch.from_numpy(pixels)),
                torch.from_numpy(labels),
                torch.from_numpy(np.asarray(sample_ids, np.int64)),
            )


def _say(line: BatchLine | str) -> None:
    os.write(1, msgspec.json.encode(line) + b"\n")  # whole or not at all, whatever kills us


def main(parent: int, orders: ClientOrders, path: Path | None) -> int:
    """Run as the process; return the exit status."""
    die_with_parent(parent)
    torch.set_num_threads(1)
    with StopSignals() as signals:
        try:
            if path is None:
                for line in train(orders):
                    _say(line)
            else:
                keys = (tuple(map(int, line.split())) for line in sys.stdin)
                for digest in make_digests(orders, path, keys):  # type: ignore[arg-type]
                    _say(digest)
        except FeederError as error:
            _say(f"{type(error).__name__}: {error}")
            return error.exit_status
        except KeyboardInterrupt:
            return signals.exit_status
    return 0


if __name__ == "__main__":
    sys.exit(
        main(
            int(sys.argv[1]),
            msgspec.json.decode(sys.argv[2], type=ClientOrders),
            Path(sys.argv[3]) if sys.argv[3:] else None,
        )
    )

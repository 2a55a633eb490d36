"""A training process for ``feeder-bench chaos``: takes batches and reports them; may be killed.

    python -m bench.chaos.trainer PARENT_PID ORDERS

ORDERS is the JSON of ``ClientOrders``. It prints a line of JSON for each batch: its epoch, index
and hash, when it arrived, and the loader's state after it, from which a successor resumes. A line
that is a string is an error, and the last line. SIGTERM ends the process cleanly.
"""

import hashlib
import os
import sys
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import msgspec
import torch

from feeder.choose.members import open_samples
from feeder.errors import FeederError
from feeder.plan.recipe import Recipe
from feeder.process.child import die_with_parent
from feeder.process.stop_signals import StopSignals
from feeder.wire.messages import BatchKey
from trainer_client import Batch, FeederLoader
from trainer_client._device import Normaliser

from ..daemon import DATASET_NAME
from ..fetcher import LocalBatches
from .clients import TIMEOUT_S, BatchLine, ClientOrders

SEED: Final = 5
_DTYPE: Final = torch.float16


def train(orders: ClientOrders) -> Iterator[BatchLine]:
    with FeederLoader(
        orders.endpoints,
        dataset=DATASET_NAME,
        batch_size=orders.batch_size,
        image_size=orders.image_size,
        recipe=orders.recipe,
        seed=SEED,
        rank=orders.rank,
        world_size=orders.world_size,
        device="cpu",
        dtype=_DTYPE,
        window=4 + 2 * (len(orders.endpoints) - 1),  # so that all of them have work
        timeout_s=TIMEOUT_S,
    ) as loader:
        if orders.state:
            loader.load_state_dict(orders.state)
        while True:
            loader.set_epoch(int(loader.state_dict()["epoch"]) % orders.epochs)
            for batch in loader:
                counts = loader.statistics()
                yield BatchLine(
                    (batch.epoch, batch.index),
                    digest_of(_crops_of(batch), batch.labels, batch.sample_ids),
                    time.monotonic(),
                    {
                        "lent": counts.batches_lent,
                        "asked-again": counts.batches_asked_again,
                        "hedged": counts.batches_hedged,
                    },
                    loader.state_dict(),
                )


def _crops_of(batch: Batch[torch.Tensor]) -> list[torch.Tensor]:
    """Return the images of each crop, (N, C, H, W)."""
    images: object = batch[0]
    if not isinstance(images, tuple):
        return [batch.images]
    return [crop for group in batch.crops for crop in group]


def digest_of(crops: Sequence[torch.Tensor], labels: torch.Tensor, sample_ids: torch.Tensor) -> str:
    digest = hashlib.blake2b(digest_size=16)
    # The images are (N, H, W, C) in memory, so nothing is copied.
    for tensor in (*(crop.permute(0, 2, 3, 1) for crop in crops), labels, sample_ids):
        digest.update(tensor.contiguous().numpy().data)
    return digest.hexdigest()


def make_digests(
    orders: ClientOrders, path: Path, keys: Iterable[BatchKey]
) -> Mapping[BatchKey, str]:
    """Return the hashes of batches, made by the workers' sample path without a daemon."""
    sizes = {"batch_size": orders.batch_size, "image_size": orders.image_size}
    recipe = Recipe.for_split("train", **sizes, **orders.recipe)
    normaliser = Normaliser(torch.device("cpu"), _DTYPE, packing=recipe.packing)
    digests = {}
    with open_samples(path) as dataset:
        local = LocalBatches(dataset, recipe, seed=SEED)
        for epoch, index in sorted(set(keys)):
            sample_ids = local.make(epoch * local.batches + index)
            digests[epoch, index] = digest_of(
                [normaliser(torch.from_numpy(crop)) for crop in local.crops],
                torch.from_numpy(local.labels),
                torch.from_numpy(sample_ids),
            )
    return digests


def main(parent: int, orders: ClientOrders) -> int:
    die_with_parent(parent)
    torch.set_num_threads(1)
    with StopSignals() as signals:
        try:
            for line in train(orders):
                _print(line)
        except FeederError as error:
            _print(f"{type(error).__name__}: {error}")
            return error.exit_status
        except KeyboardInterrupt:
            return signals.exit_status
    return 0


def _print(line: BatchLine | str) -> None:
    os.write(1, msgspec.json.encode(line) + b"\n")  # one write: a kill leaves no partial line


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), msgspec.json.decode(sys.argv[2], type=ClientOrders)))

"""Loaders of small batches, and digests by which their batches are compared."""

import hashlib
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from trainer_client import Batch, NumpyLoader

if TYPE_CHECKING:
    from trainer_client import FeederLoader

WINDOW = 3
SLOTS = WINDOW + 1  # one more for the batch that the CPU reads
BATCH, SIDE = 10, 32
LANES = 2  # so that two feeders have work: few samples would be one lane

WAIT_S = 90.0
"""A loader's deadline for a batch: enough for two starts of a feeder, the first of which fails; a
start takes 20 s on a machine with ten busy processes for each CPU."""


def make_loader(endpoint: str | Sequence[str], **options: object) -> "FeederLoader":
    from trainer_client import FeederLoader  # imports torch

    settings = _settings() | {"device": "cpu"} | options
    return FeederLoader(endpoint, **settings)  # type: ignore[arg-type]


def make_numpy_loader(endpoint: str | Sequence[str], **options: object) -> NumpyLoader:
    """Return a loader of the same batches, for a process without torch."""
    settings = _settings() | {"dtype": "float32"} | options
    return NumpyLoader(endpoint, **settings)  # type: ignore[arg-type]


def digest(batch: Batch[Any]) -> str:
    """Return ``epoch index hash`` of a batch; the hash covers images, labels and sample ids."""
    images = np.asarray(batch.images)
    if isinstance(batch.images, np.ndarray):
        images = np.moveaxis(images, -1, 1)  # as torch has them
    parts = hashlib.sha256()
    for array in (images, np.asarray(batch.labels), np.asarray(batch.sample_ids)):
        parts.update(np.ascontiguousarray(array).tobytes())
    return f"{batch.epoch} {batch.index} {parts.hexdigest()}"


def _settings() -> dict[str, object]:
    return {
        "dataset": "d",
        "batch_size": BATCH,
        "image_size": SIDE,
        "recipe": {"resize_size": 36, "lanes": LANES},
        "seed": 3,
        "window": WINDOW,
        "timeout_s": WAIT_S,
    }


def expected(endpoint: str, batches: int, **options: object) -> list[str]:
    """Return the batches of an undisturbed client, copied over the socket."""
    taken: list[str] = []
    with make_loader(endpoint, share_memory=False, **options) as loader:
        while True:
            for batch in loader:
                taken.append(digest(batch))
                if len(taken) == batches:
                    return taken

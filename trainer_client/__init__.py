"""The training job's side of Feeder: a thin loader of batches that are ready to train on.

Each name is imported when it is first used: they need torch, which takes seconds to import, and
``python -m trainer_client.train`` sets up its signals before.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeder.wire.messages import PADDING_LABEL
    from trainer_client._accuracy import Accuracy, AccuracyResult
    from trainer_client._batch import Batch
    from trainer_client._device import IMAGENET_MEAN, IMAGENET_STD, denormalise, normalise
    from trainer_client._loader import EpochIterator, FeederLoader
    from trainer_client._statistics import LoaderStatistics

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "PADDING_LABEL",
    "Accuracy",
    "AccuracyResult",
    "Batch",
    "EpochIterator",
    "FeederLoader",
    "LoaderStatistics",
    "denormalise",
    "normalise",
]

_MODULES = {
    "IMAGENET_MEAN": "trainer_client._device",
    "IMAGENET_STD": "trainer_client._device",
    "PADDING_LABEL": "feeder.wire.messages",
    "Accuracy": "trainer_client._accuracy",
    "AccuracyResult": "trainer_client._accuracy",
    "Batch": "trainer_client._batch",
    "EpochIterator": "trainer_client._loader",
    "FeederLoader": "trainer_client._loader",
    "LoaderStatistics": "trainer_client._statistics",
    "denormalise": "trainer_client._device",
    "normalise": "trainer_client._device",
}


def __getattr__(name: str) -> Any:
    module = _MODULES.get(name)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

"""The training job's side of Feeder: a thin loader of batches that are ready to train on.

Names that need torch are imported at their first use: that takes seconds, and
``python -m trainer_client.train`` sets up its signals first.

May import: errors, plan, wire, process, security, client, client.core.
"""

import importlib
from typing import TYPE_CHECKING, Any, Final

from feeder import __version__
from feeder.errors import (
    ConfigError,
    DatasetError,
    FeederError,
    PeerError,
    ProtocolError,
    ResourceError,
)

if TYPE_CHECKING:
    from feeder.wire.messages import PADDING_LABEL
    from trainer_client._accuracy import Accuracy, AccuracyResult
    from trainer_client._batch import Batch
    from trainer_client._dataset import DatasetInfo
    from trainer_client._device import IMAGENET_MEAN, IMAGENET_STD, denormalise, normalise
    from trainer_client._epoch import EpochIterator
    from trainer_client._loader import FeederLoader
    from trainer_client._statistics import EpochTimes, LoaderStatistics

__all__ = [
    "IMAGENET_MEAN",
    "IMAGENET_STD",
    "PADDING_LABEL",
    "Accuracy",
    "AccuracyResult",
    "Batch",
    "ConfigError",
    "DatasetError",
    "DatasetInfo",
    "EpochIterator",
    "EpochTimes",
    "FeederError",
    "FeederLoader",
    "LoaderStatistics",
    "PeerError",
    "ProtocolError",
    "ResourceError",
    "__version__",
    "denormalise",
    "normalise",
]

_LAZY: Final = {
    "feeder.wire.messages": ("PADDING_LABEL",),
    "trainer_client._accuracy": ("Accuracy", "AccuracyResult"),
    "trainer_client._batch": ("Batch",),
    "trainer_client._device": ("IMAGENET_MEAN", "IMAGENET_STD", "denormalise", "normalise"),
    "trainer_client._epoch": ("EpochIterator",),
    "trainer_client._loader": ("FeederLoader",),
    "trainer_client._dataset": ("DatasetInfo",),
    "trainer_client._statistics": ("EpochTimes", "LoaderStatistics"),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _LAZY.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    value = globals()[name] = getattr(importlib.import_module(module), name)
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

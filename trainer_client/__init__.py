"""The training job's side of Feeder: a thin loader of batches that are ready to train on.

``FeederLoader`` gives torch tensors, ``NumpyLoader`` numpy arrays. Names are imported at their
first use: most need torch, which takes seconds to import and may be missing where arrays will do.

May import: errors, installation, plan, wire, process, security, client, client.core.
"""

import importlib
import importlib.util
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
    from feeder.plan.labels import PADDING_LABEL
    from trainer_client._accuracy import Accuracy, AccuracyResult
    from trainer_client._batch import Batch
    from trainer_client._device import denormalise, normalise
    from trainer_client._epoch import EpochIterator
    from trainer_client._host_normalise import IMAGENET_MEAN, IMAGENET_STD
    from trainer_client._like_dataloader import DatasetInfo
    from trainer_client._loader import FeederLoader
    from trainer_client._mixing import Mixing
    from trainer_client._numpy_loader import NumpyLoader
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
    "Mixing",
    "NumpyLoader",
    "PeerError",
    "ProtocolError",
    "ResourceError",
    "__version__",
    "denormalise",
    "normalise",
]

if importlib.util.find_spec("torch") is None:  # what `import *` and completion can offer
    for _name in (
        *("Accuracy", "AccuracyResult", "FeederLoader", "Mixing", "denormalise", "normalise"),
    ):
        __all__.remove(_name)

_LAZY: Final = {
    "feeder.plan.labels": ("PADDING_LABEL",),
    "trainer_client._accuracy": ("Accuracy", "AccuracyResult"),
    "trainer_client._batch": ("Batch",),
    "trainer_client._device": ("denormalise", "normalise"),
    "trainer_client._epoch": ("EpochIterator",),
    "trainer_client._loader": ("FeederLoader",),
    "trainer_client._mixing": ("Mixing",),
    "trainer_client._numpy_loader": ("NumpyLoader",),
    "trainer_client._host_normalise": ("IMAGENET_MEAN", "IMAGENET_STD"),
    "trainer_client._like_dataloader": ("DatasetInfo",),
    "trainer_client._statistics": ("EpochTimes", "LoaderStatistics"),
}


def __getattr__(name: str) -> Any:
    module = next((module for module, names in _LAZY.items() if name in names), None)
    if module is None:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    try:
        value = globals()[name] = getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        if error.name != "torch":
            raise
        raise ImportError(
            f"trainer_client.{name} needs torch, which is not installed here: pip install torch, "
            "or use NumpyLoader, which does without"
        ) from None
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})

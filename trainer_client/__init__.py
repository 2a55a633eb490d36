"""The training job's side of Feeder: a thin loader of batches that are ready to train on."""

from feeder.wire import PADDING_LABEL
from trainer_client._accuracy import Accuracy, AccuracyResult
from trainer_client._batch import Batch
from trainer_client._device import IMAGENET_MEAN, IMAGENET_STD, denormalise, normalise
from trainer_client._loader import EpochIterator, FeederLoader, LoaderStatistics

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

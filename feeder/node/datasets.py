"""The datasets of a node process, opened when it starts.

Each manifest must have the fingerprint that it had when the daemon started: otherwise a node
process that restarts would serve other samples under the same name. The first process of a daemon
ends where one cannot be opened. A successor logs why, refuses the clients of that dataset with the
reason, and serves the others. Once the dataset can be opened again, the process is to restart.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping
from typing import Final

import numpy as np

from feeder.dataset.first_read import check_readable
from feeder.dataset.loss import describe_loss
from feeder.dataset.opened import Dataset
from feeder.disk_cache.cached import CachedDataset, read_origin
from feeder.errors import DatasetError
from feeder.process.path_text import path_from_bytes, printable
from feeder.sample.cache_plan import DecodedSize, aligned_bytes
from feeder.session.admission import ServedDataset
from feeder.wire.messages import MAX_CLASSES, MAX_CLASSES_BYTES, MAX_TEXT_CHARACTERS
from feeder.worker.messages import DatasetSource, escape_surrogates

RETRY_S: Final = 5.0

_MEASURED_RECORDS: Final = 512
"""Their mean is within 3 % of that of all: ImageNet's sizes have a deviation of half the mean."""

_TYPICAL_PICTURE_BYTES: Final = 800_000
"""ImageNet's; used if the first records of a dataset cannot be read."""

_log = logging.getLogger(__name__)


class NodeDatasets:
    """The datasets that a node process is to serve."""

    def __init__(
        self,
        sources: Mapping[str, DatasetSource],
        on_mended: Callable[[float], None],
        *,
        is_successor: bool,
    ) -> None:
        """Open all of them, by name; ``on_mended`` is called when one can be that could not.

        Raises DatasetError in the first process of a daemon if one cannot be opened, ResourceError
        in a successor if one does not answer.
        """
        self.served: dict[str, ServedDataset | str] = {}
        """What sessions need of each, or why it cannot be served."""
        self.sizes: dict[str, DecodedSize] = {}
        """The decoded size of each that can be served."""
        self.deadline_s = float("inf")
        """When ``run_due`` is due."""
        self._on_mended = on_mended
        self._sources = sources
        self._failed: dict[str, DatasetSource] = {}
        if is_successor:  # else the supervisor has just checked
            folders = {name: path_from_bytes(source.folder) for name, source in sources.items()}
            check_readable(
                {f"dataset {name} at {folder}": folder for name, folder in folders.items()}
            )
        for name, source in sources.items():
            try:
                with _open(source) as dataset:
                    self.served[name] = describe_dataset(dataset, _find_store(source))
                    self.sizes[name] = measure_pictures(dataset)
            except DatasetError as error:
                if not is_successor:
                    raise
                reason = escape_surrogates(str(error))
                self.served[name] = f"dataset {name} cannot be served: {reason}"
                self._failed[name] = source
                self.deadline_s = 0.0
                _log.error("%s", self.served[name])

    def open_cached(self) -> dict[str, CachedDataset]:
        """Open the cached datasets among the served ones, by name; the caller closes them."""
        return {
            name: CachedDataset.open(path_from_bytes(source.folder))
            for name, source in self._sources.items()
            if source.is_cached and isinstance(self.served[name], ServedDataset)
        }

    def run_due(self, now_s: float) -> None:
        """Try to open one that could not be opened, every RETRY_S."""
        self.deadline_s = now_s + RETRY_S
        for name, source in self._failed.items():
            with contextlib.suppress(DatasetError), _open(source):
                _log.warning("dataset %s can be served again: restarting", name)
                self.deadline_s = float("inf")
                self._on_mended(now_s)
                return


def _open(source: DatasetSource) -> Dataset:
    return Dataset.open(path_from_bytes(source.folder), fingerprint=source.fingerprint)


def _find_store(source: DatasetSource) -> str:
    """The URL of a cached dataset, as far as messages have room for it; "" for others."""
    if not source.is_cached:
        return ""
    return printable(read_origin(path_from_bytes(source.folder)).url)[:MAX_TEXT_CHARACTERS]


def describe_dataset(dataset: Dataset, store: str = "") -> ServedDataset:
    """What sessions need of it; DatasetError if its class names do not fit into a Welcome."""
    classes = tuple(map(escape_surrogates, dataset.classes))
    longest = max(map(len, classes), default=0)
    total_bytes = sum(len(text.encode()) + 5 for text in classes)
    if (
        len(classes) > MAX_CLASSES
        or longest > MAX_TEXT_CHARACTERS
        or total_bytes > MAX_CLASSES_BYTES
    ):
        raise DatasetError(
            f"{dataset.where} cannot be served: {len(classes):,} class names of up to {longest:,} "
            f"characters, {total_bytes / 1e6:.1f} MB in all; the limits are {MAX_CLASSES:,} "
            f"of {MAX_TEXT_CHARACTERS:,}, {MAX_CLASSES_BYTES / 1e6:.1f} MB in all: pack it with "
            "shorter names"
        )
    return ServedDataset(
        content=dataset.content,
        classes=classes,
        layout=dataset.layout,
        labels=dataset.labels,
        store=store,
        loss=describe_loss(dataset.manifest),
    )


def measure_pictures(dataset: Dataset) -> DecodedSize:
    """Estimate a dataset's decoded size from its first records, which packing has shuffled.

    Takes the typical size where they are damaged, which is reported when a chunk is filled.
    """
    picture_bytes: float = _TYPICAL_PICTURE_BYTES
    with contextlib.suppress(DatasetError):
        ids = np.arange(min(_MEASURED_RECORDS, dataset.layout.samples))
        sides = dataset.read_records(ids)[["width", "height"]].tolist()
        picture_bytes = sum(aligned_bytes(4 * width * height) for width, height in sides) / len(ids)
    return DecodedSize(samples=dataset.layout.samples, picture_bytes=picture_bytes)

"""The datasets of a node process, opened when it starts.

Each manifest must have the fingerprint that it had when the daemon started: otherwise a node
process that restarts would serve other samples under the same name. The first process of a daemon
ends where one cannot be opened. A successor logs why, refuses the clients of that dataset with the
reason, and serves the others. Once the dataset can be opened again, the process is to restart.
"""

import contextlib
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Final

import numpy as np

from feeder.dataset.first_read import check_readable
from feeder.dataset.loss import describe_loss
from feeder.dataset.opened import Dataset
from feeder.dataset.selection import Selection
from feeder.disk_cache.cached import CachedDataset, read_origin
from feeder.errors import DatasetError
from feeder.process.path_text import path_from_bytes, printable
from feeder.sample.cache_plan import DecodedSize, aligned_bytes
from feeder.session.admission import ServedDataset
from feeder.wire.messages import MAX_CLASSES, MAX_CLASSES_BYTES, MAX_TEXT_CHARACTERS
from feeder.worker.messages import (
    MEMBER_PREFIX,
    DatasetSource,
    SelectionSource,
    escape_surrogates,
)

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
        selections: Mapping[str, SelectionSource] | None = None,
    ) -> None:
        """Open all of them, by name; ``on_mended`` is called when one can be that could not.

        Raises DatasetError in the first process of a daemon if one cannot be opened, ResourceError
        in a successor if one does not answer.
        """
        self.datasets: dict[str, ServedDataset | str] = {}
        """What sessions need of each dataset, or why it cannot be served."""
        self.selections: dict[str, Selection] = {}
        """Those that can be served."""
        self.served: dict[str, ServedDataset | str] = {}
        """What clients may ask for: selections and datasets, without those of selections alone."""
        self.sizes: dict[str, DecodedSize] = {}
        """The decoded size of each that can be served."""
        self.deadline_s = float("inf")
        """When ``run_due`` is due."""
        self._on_mended = on_mended
        self._sources = sources
        self._failed: dict[str, DatasetSource | SelectionSource] = {}
        if is_successor:  # else the supervisor has just checked
            folders = {name: path_from_bytes(source.folder) for name, source in sources.items()}
            for name, chosen in (selections or {}).items():
                folders[name] = path_from_bytes(chosen.path)
            check_readable(
                {f"dataset {name} at {folder}": folder for name, folder in folders.items()}
            )
        for name, source in sources.items():
            try:
                with _open(source) as dataset:
                    self.datasets[name] = describe_dataset(dataset, _find_store(source))
                    self.sizes[name] = measure_pictures(dataset)
            except DatasetError as error:
                if not is_successor:
                    raise
                self.datasets[name] = self._fail(name, source, error)
        for name, text in self.datasets.items():
            if not name.startswith(MEMBER_PREFIX):
                self.served[name] = text
        for name, chosen in (selections or {}).items():
            members = [self.datasets[member] for member in chosen.members]
            failed = next((text for text in members if isinstance(text, str)), "")
            if failed:  # which is tried again, and with it the selection
                self.served[name] = f"dataset {name} cannot be served: {failed}"
                continue
            try:
                self.selections[name] = _open_selection(chosen)
            except DatasetError as error:
                if not is_successor:
                    raise
                self.served[name] = self._fail(name, chosen, error)
                continue
            described = [member for member in members if isinstance(member, ServedDataset)]
            self.served[name] = describe_selection(self.selections[name], described)

    def _fail(self, name: str, source: DatasetSource | SelectionSource, error: DatasetError) -> str:
        """Log and return why a dataset cannot be served; it is tried again."""
        text = f"dataset {name} cannot be served: {escape_surrogates(str(error))}"
        self._failed[name] = source
        self.deadline_s = 0.0
        _log.error("%s", text)
        return text

    def open_cached(self) -> dict[str, CachedDataset]:
        """Open the cached datasets among the served ones, by name; the caller closes them."""
        return {
            name: CachedDataset.open(path_from_bytes(source.folder))
            for name, source in self._sources.items()
            if source.is_cached and isinstance(self.datasets[name], ServedDataset)
        }

    def run_due(self, now_s: float) -> None:
        """Try to open one that could not be opened, every RETRY_S."""
        self.deadline_s = now_s + RETRY_S
        for name, source in self._failed.items():
            with contextlib.suppress(DatasetError):
                if isinstance(source, SelectionSource):
                    _open_selection(source)
                else:
                    _open(source).close()
                _log.warning("dataset %s can be served again: restarting", name)
                self.deadline_s = float("inf")
                self._on_mended(now_s)
                return


def _open_selection(source: SelectionSource) -> Selection:
    return Selection.open(path_from_bytes(source.path), content=source.content)


def _open(source: DatasetSource) -> Dataset:
    return Dataset.open(path_from_bytes(source.folder), fingerprint=source.fingerprint)


def _find_store(source: DatasetSource) -> str:
    """The URL of a cached dataset, as far as messages have room for it; "" for others."""
    if not source.is_cached:
        return ""
    return printable(read_origin(path_from_bytes(source.folder)).url)[:MAX_TEXT_CHARACTERS]


def describe_dataset(dataset: Dataset, store: str = "") -> ServedDataset:
    """What sessions need of it; DatasetError if its class names do not fit into a Welcome."""
    return ServedDataset(
        content=dataset.content,
        classes=_check_classes(dataset.classes, dataset.where, "pack it with shorter names"),
        layout=dataset.layout,
        labels=dataset.labels,
        store=store,
        loss=describe_loss(dataset.manifest),
    )


def describe_selection(selection: Selection, members: Sequence[ServedDataset]) -> ServedDataset:
    """As ``describe_dataset``; batches wait for samples of the members that are in a store."""
    losses = {member.loss: None for member in members if member.loss}
    return ServedDataset(
        content=selection.content,
        classes=_check_classes(selection.classes, selection.where, "select fewer datasets"),
        layout=selection.layout,
        labels=selection.labels,
        store=next((member.store for member in members if member.store), ""),
        loss="; ".join(losses),
    )


def _check_classes(names: Sequence[str], where: str, remedy: str) -> tuple[str, ...]:
    classes = tuple(map(escape_surrogates, names))
    longest = max(map(len, classes), default=0)
    total_bytes = sum(len(text.encode()) + 5 for text in classes)
    if (
        len(classes) > MAX_CLASSES
        or longest > MAX_TEXT_CHARACTERS
        or total_bytes > MAX_CLASSES_BYTES
    ):
        raise DatasetError(
            f"{where} cannot be served: {len(classes):,} class names of up to {longest:,} "
            f"characters, {total_bytes / 1e6:.1f} MB in all; the limits are {MAX_CLASSES:,} "
            f"of {MAX_TEXT_CHARACTERS:,}, {MAX_CLASSES_BYTES / 1e6:.1f} MB in all: {remedy}"
        )
    return classes


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

"""How often an epoch draws the chosen samples: weights and shares of what was chosen."""

import math
from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from feeder.choose.narrow import read_names
from feeder.choose.sources import Sources, find_labels_of
from feeder.choose.weights import (
    WeightFile,
    Weighting,
    balance_classes,
    find_shares,
    to_integers,
    weights_by_class,
    weights_by_name,
)
from feeder.dataset.opened import Dataset
from feeder.dataset.selection_writer import DrawTables
from feeder.errors import ConfigError


def weigh(
    sources: Sources,
    weighting: Weighting,
    ids: Sequence[NDArray[np.int64]],
    classes: Sequence[str],
) -> DrawTables:
    """Return how often the chosen samples are drawn; ``ids`` are those of each input."""
    inputs = list(sources.inputs.values())
    ends = np.cumsum([len(own) for own in ids])

    def find_labels(where: str) -> NDArray[np.int32]:
        if sources.labels.kind != "index":
            raise ConfigError(
                f"{where}: samples with labels of kind {sources.labels.kind} have not one class "
                "each: give weights by name"
            )
        return np.concatenate(
            [find_labels_of(given, own, classes) for given, own in zip(inputs, ids, strict=True)]
        )

    def weigh_by(file: WeightFile) -> NDArray[np.float64]:
        if file.values is not None:
            file, values = _sort_values(sources, file, classes)
            if values is not None:
                return np.concatenate(
                    [
                        values[given.dataset.content][own]
                        for given, own in zip(inputs, ids, strict=True)
                    ]
                )
        if file.classes is not None:
            return weights_by_class(file, find_labels(file.where), classes)
        return weights_by_name(
            file,
            (
                names
                for given, own in zip(inputs, ids, strict=True)
                for names in read_names(given, own)
            ),
        )

    components: list[NDArray[np.int64]] | None = None
    shares = [1]
    if weighting.mix is not None:
        shares = find_shares(weighting.mix, list(sources.parts))
        components = _find_components(sources, ids)

    def as_integers(where: str, weights: NDArray[np.float64]) -> NDArray[np.uint32]:
        """Those of a DST are relative to each other alone."""
        if components is None:
            return to_integers(where, weights)
        places, integers = np.concatenate(components), np.zeros(len(weights), np.uint32)
        for place in np.unique(places):
            mine = places == place
            if weights[mine].any():
                integers[mine] = to_integers(where, weights[mine])
        return integers

    columns = [as_integers(file.where, weigh_by(file)) for file in weighting.columns.values()]
    if weighting.balance is not None:
        where, labels = f"--balance {weighting.balance}", find_labels("--balance")
        columns = [as_integers(where, balance_classes(labels, weighting.balance))]
    if not columns:
        columns = [np.ones(int(ends[-1]), np.uint32)]
    if components is not None:
        _check_components(sources, components, weighting, columns)
    return DrawTables(
        epoch_samples=weighting.epoch_samples or int(ends[-1]),
        epochs=tuple(weighting.columns) or (0,),
        columns=[np.split(column, ends[:-1]) for column in columns],
        shares=shares,
        components=components,
    )


def _sort_values(
    sources: Sources, file: WeightFile, classes: Sequence[str]
) -> tuple[WeightFile, dict[str, NDArray[np.float64]] | None]:
    """Return what the values of a file belong to: classes, or all samples of the DSTs in turn.

    The latter by the content of their datasets.
    """
    values, samples = file.values, sum(part.layout.samples for part in sources.parts.values())
    assert values is not None, "the file is an array"
    is_open = len(values) == samples == len(classes) and not file.is_by_sample
    if len(values) not in (samples, len(classes)) or is_open:
        which = "either, as these are equally many" if is_open else "neither"
        raise ConfigError(
            f"{file.where}: it has {len(values)} weights, for {samples} samples of all DSTs or "
            f"{len(classes)} classes: {which}; a CSV file says which"
        )
    if len(values) == len(classes) and not file.is_by_sample:
        by_name = dict(zip(classes, values.tolist(), strict=True))
        return WeightFile(where=file.where, classes=by_name), None
    sorted_values = {
        content: np.full(len(i.mask), math.nan) for content, i in sources.inputs.items()
    }

    def put(text: str, content: str, ids: NDArray[np.int64], own: NDArray[np.float64]) -> None:
        former = sorted_values[content][ids]
        differ = np.flatnonzero(~np.isnan(former) & ~np.isnan(own) & (former != own))
        if len(differ):
            raise ConfigError(
                f"{file.where}: sample {ids[differ[0]]} of {sources.inputs[content].location}, "
                f"which another DST has, too, has another weight in {text}: {own[differ[0]]}, not "
                f"{former[differ[0]]}"
            )
        sorted_values[content][ids] = np.where(np.isnan(own), former, own)

    first = 0
    for text, part in sources.parts.items():
        own = values[first : first + part.layout.samples]
        if isinstance(part, Dataset):
            put(text, part.content, np.arange(len(own)), own)
        else:
            for number, member in enumerate(part.members):
                rows, ids = part.rows_of(number)
                put(text, member.content, ids, own[rows])
        first += part.layout.samples
    return file, sorted_values


def _check_components(
    sources: Sources,
    components: Sequence[NDArray[np.int64]],
    weighting: Weighting,
    columns: Sequence[NDArray[np.uint32]],
) -> None:
    """Raise ConfigError for a DST of a mix that has nothing to draw."""
    places = np.concatenate(components)
    for epoch, column in zip(weighting.columns or (0,), columns, strict=True):
        sums = np.bincount(places, column, minlength=len(sources.parts))
        for text, weight in zip(sources.parts, sums.tolist(), strict=True):
            if not weight:
                raise ConfigError(
                    f"--mix {text}: from epoch {epoch} on, none of its samples can be drawn: none "
                    "is chosen, or their weights are 0"
                )


def _find_components(sources: Sources, ids: Sequence[NDArray[np.int64]]) -> list[NDArray[np.int64]]:
    """Return the position of the DST that each of the ``ids`` of each input comes from."""
    places = {content: np.full(len(i.mask), -1) for content, i in sources.inputs.items()}
    for place, (text, part) in enumerate(sources.parts.items()):
        for given, own, _ in sources.rows(part):
            known = places[given.dataset.content]
            if (known[own] >= 0).any():
                other = list(sources.parts)[int(known[own].max())]
                raise ConfigError(
                    f"--mix: {text} and {other} have samples in common: which share they belong to "
                    "is open; select without them first (--exclude-list)"
                )
            known[own] = place
    return [known[own] for known, own in zip(places.values(), ids, strict=True)]

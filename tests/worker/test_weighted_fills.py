"""What a worker writes for selections with weights: which rows, and the bytes of each draw."""

import math
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import ExitStack, closing
from fractions import Fraction
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest

import feeder
from feeder.dataset.opened import Dataset
from feeder.dataset.selection import Selection
from feeder.plan.draws import split_words
from feeder.plan.packing import pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from feeder.wire.chunk_work import Fill
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.filler import ChunkFiller
from feeder.worker.index_memory import IndexMemory, WorkerIndexes
from feeder.worker.messages import DatasetSource, OpenSession, SelectionSource
from feeder.worker.slot_memory import SlotMemory
from tests.support.sources import make_source, pack

SEED = 5
BATCH = 9
SIZES = {"a": 29, "b": 13}
WEIGHTS = {"a": np.arange(29) % 4, "b": np.arange(13) + 1}
DRAWS = 23 * BATCH
MIX_SHARES = {"a": Fraction(7, 10), "b": Fraction(3, 10)}
NAMES = ("weighted", "mix", "even")
CROPS = ((2, 32, (0.4, 1.0)), (3, 16, (0.05, 0.4)))


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The datasets ``a`` and ``b``, and selections of both."""
    folder = tmp_path_factory.mktemp("weighted")
    for name, images in SIZES.items():
        pack(make_source(folder / f"src{name}", images, side=72), folder / name, shards=2)
    both = {folder / name: None for name in SIZES}
    weights = {folder / name: own for name, own in WEIGHTS.items()}
    mix = {folder / name: float(share) for name, share in MIX_SHARES.items()}
    more: dict[str, dict[str, Any]] = {
        "weighted": {"weights": weights},
        "mix": {"weights": weights, "shares": mix},
        "even": {"balance": "classes"},
    }
    for name in NAMES:
        feeder.select(name, both, folder / f"{name}.sel", epoch_samples=DRAWS, **more[name])
    return folder


@pytest.fixture(scope="module")
def filler(home: Path) -> Iterator[ChunkFiller]:
    selections = {name: Selection.open(home / f"{name}.sel") for name in NAMES}
    with ExitStack() as stack:
        datasets = {name: stack.enter_context(Dataset.open(home / name)) for name in SIZES}
        memory = IndexMemory(
            {name: (d.layout, d.labels.stored_bytes) for name, d in datasets.items()}, selections
        )
        stack.callback(memory.close)
        sources = {
            name: DatasetSource(folder=bytes(home / name), fingerprint=d.manifest.fingerprint)
            for name, d in datasets.items()
        }
        indexes = WorkerIndexes(
            os.dup(memory.fileno()), memory.starts, memory.take, memory.selections
        )
        described = {
            name: SelectionSource(path=bytes(home / name), content=s.content, members=("a", "b"))
            for name, s in selections.items()
        }
        made = ChunkFiller(sources, open_shards=8, indexes=indexes, selections=described)
        with closing(made):
            yield made


class Row(NamedTuple):
    """A row of a batch: what was drawn, and the bytes of all of its crops."""

    dataset: str
    own_id: int
    draw: int
    crops: tuple[bytes, ...]
    label: int


def train(**fields: Any) -> Recipe:
    fields = {"image_size": 24} | fields if "crops" not in fields else fields
    return Recipe.for_split("train", batch_size=BATCH, **fields)


def fill_epoch(
    filler: ChunkFiller, home: Path, name: str, recipe: Recipe, epoch: int = 0, batches: int = 0
) -> list[list[Row]]:
    """The rows of the batches of an epoch, all or the first ones, filled in chunks."""
    selection = Selection.open(home / f"{name}.sel")
    layout = SlotLayout.of_recipe(recipe, selection.labels, slots=1)
    memory = SlotMemory.create(layout)
    plan = recipe.plan_epoch(selection.layout, seed=SEED, epoch=epoch)
    filled = []
    with closing(memory):
        message = OpenSession(
            session=1, dataset=name, recipe=recipe, seed=SEED, slots=1, labels=selection.labels
        )
        filler.open_session(message, os.dup(memory.fileno()))
        for index in range(batches or plan.batches):
            for ticket, (first, count) in enumerate([(0, 4), (4, BATCH - 4)]):
                filler.fill(Fill(ticket, 1, 0, epoch, index, first, count))
            arrays = memory.chunk(0, 0, BATCH, epoch)
            ids, draws = split_words(plan.words(index))
            assert arrays.sample_ids[: len(ids)].tolist() == ids.tolist()
            members, own_ids = selection.split(ids)
            filled.append(
                [
                    Row(
                        dataset="ab"[members[row]],
                        own_id=int(own_ids[row]),
                        draw=int(draws[row]),
                        crops=tuple(c[row].tobytes() for c in (arrays.pixels, *arrays.further)),
                        label=int(arrays.labels[row]),
                    )
                    for row in range(len(ids))
                ]
            )
        filler.close_session(1)
    return filled


def make_alone(home: Path, recipe: Recipe, row: Row, epoch: int, draws: Any = None) -> Row:
    """The sample of its dataset, as one that is served alone has it where there are no draws."""
    layout = pixel_layout_of(recipe.packing)
    shapes = [layout.image_shape(size) for size in recipe.crop_sizes]
    crops = [np.empty((1, *shape), layout.dtype) for shape in shapes]
    labels = np.empty(1, np.int64)
    with Dataset.open(home / row.dataset) as dataset:
        SampleReader(dataset, recipe).fill(
            np.array([row.own_id]),
            draws=draws,
            seed=SEED,
            epoch=epoch,
            pixels=crops[0],
            labels=labels,
            further=crops[1:],
        )
    crop_bytes = tuple(crop.tobytes() for crop in crops)
    return row._replace(crops=crop_bytes, label=int(labels[0]))


def test_samples_are_drawn_as_often_as_they_weigh_or_once_more(
    filler: ChunkFiller, home: Path
) -> None:
    total = sum(int(own.sum()) for own in WEIGHTS.values())
    for epoch in range(2):
        batches = fill_epoch(filler, home, "weighted", train(), epoch)
        drawn = Counter((row.dataset, row.own_id) for rows in batches for row in rows)
        assert drawn.total() == DRAWS
        for name, own in WEIGHTS.items():
            for sample, weight in enumerate(own.tolist()):
                exact = Fraction(DRAWS * weight, total)
                assert drawn[name, sample] in (math.floor(exact), math.ceil(exact))


def test_every_batch_of_a_mix_has_the_shares_of_its_datasets(
    filler: ChunkFiller, home: Path
) -> None:
    batches = fill_epoch(filler, home, "mix", train())
    counts = [Counter(row.dataset for row in rows) for rows in batches]
    for count in counts:
        for name, share in MIX_SHARES.items():
            assert count[name] - int(BATCH * share) in (0, 1)
    together = sum(counts, Counter[str]())
    for name, share in MIX_SHARES.items():
        assert abs(together[name] - share * BATCH * len(batches)) < 2
    drawn = Counter((row.dataset, row.own_id) for rows in batches for row in rows)
    assert not any(drawn["a", sample] for sample in range(0, 29, 4)), "they weigh nothing"


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize(
    "recipe",
    [
        train(),
        train(image_size={"0": 16, "1": 24}),
        train(crops=CROPS, brightness=0.4),
        train(auto_augment="rand-augment", packing="float32-hwc-rgb"),
    ],
    ids=["plain", "growing", "crops", "augmented"],
)
def test_a_first_draw_has_the_bytes_of_the_dataset_and_later_ones_crops_of_their_own(
    filler: ChunkFiller, home: Path, name: str, recipe: Recipe
) -> None:
    epoch = 1
    rows = [r for rows in fill_epoch(filler, home, name, recipe, epoch, 14) for r in rows]
    first = {(row.dataset, row.own_id): row for row in rows if row.draw == 0}
    again = [row for row in rows if row.draw]
    assert len(first) > 15
    assert len(again) > 15
    for row in first.values():
        assert row == make_alone(home, recipe.at(epoch), row, epoch)
    different = same = 0
    for row in again:
        assert row == make_alone(home, recipe.at(epoch), row, epoch, np.array([row.draw]))
        plain = make_alone(home, recipe.at(epoch), row, epoch)
        assert row.label == plain.label
        for crop, other in zip(row.crops, plain.crops, strict=True):
            different += crop != other
            same += crop == other
    assert same <= different // 20, "two crops are the same by chance alone"


def test_a_draw_has_the_same_bytes_in_every_selection(filler: ChunkFiller, home: Path) -> None:
    known: dict[tuple[str, int, int], Row] = {}
    compared = 0
    for name in NAMES:
        for rows in fill_epoch(filler, home, name, train()):
            for row in rows:
                key = row.dataset, row.own_id, row.draw
                compared += key in known and key[2] > 0
                assert known.setdefault(key, row) == row
    assert compared > 50

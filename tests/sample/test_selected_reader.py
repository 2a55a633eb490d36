"""A sample of a selection has the bytes, and the cached picture, of its dataset."""

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feeder
from feeder.choose.members import open_samples
from feeder.dataset.format import shard_name
from feeder.dataset.opened import Dataset
from feeder.dataset.selected import SelectedDataset
from feeder.errors import SampleError
from feeder.plan.recipe import Recipe
from feeder.sample.reader import STAGES, SampleReader
from feeder.sample.selected_reader import SelectedReader, make_reader
from tests.support.synthetic_sets import MULTI, write_labelled

SIZES = {"a": 23, "b": 11}
RECIPES = (
    Recipe.for_split("train", batch_size=8, image_size=16, auto_augment="rand-augment"),
    Recipe.for_split("train", batch_size=8, image_size=16, packing="float32-hwc-rgb"),
    Recipe.for_split("val", batch_size=8, image_size=16, resize_size=20),
)


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("home")
    for number, (name, samples) in enumerate(SIZES.items()):
        write_labelled(folder / name, MULTI, samples=samples, name=f"{number}s{{:03}}")
    chosen = {folder / "a": np.arange(0, 23, 2), folder / "b": np.arange(11)[::-1]}
    feeder.select("s", chosen, folder / "s.sel")
    return folder


def fill(reader: SampleReader | SelectedReader, recipe: Recipe, ids: Sequence[int], width: int):
    from feeder.plan.packing import pixel_layout_of

    layout = pixel_layout_of(recipe.packing)
    pixels = np.zeros((len(ids), *layout.image_shape(recipe.image_size)), layout.dtype)
    labels = np.zeros((len(ids), width), np.uint8)
    reader.fill(np.array(ids, np.int64), seed=5, epoch=2, pixels=pixels, labels=labels)
    return pixels, labels


@pytest.mark.parametrize("recipe", RECIPES, ids=lambda r: f"{r.split} {r.packing}")
@given(order=st.permutations(range(23)), count=st.integers(1, 23))
def test_rows_are_those_of_the_datasets(
    home: Path, recipe: Recipe, order: list[int], count: int
) -> None:
    ids = order[:count]
    with open_samples(home / "s.sel") as opened:
        assert isinstance(opened, SelectedDataset)
        member = opened.member
        reader = make_reader(opened, recipe)
        pixels, labels = fill(reader, recipe, ids, 11)
        members, own_ids = opened.selection.split(np.array(ids))
        records = opened.read_records(np.array(ids))
        for row, (number, own_id) in enumerate(zip(members, own_ids, strict=True)):
            expected = fill(SampleReader(member(int(number)), recipe), recipe, [int(own_id)], 11)
            assert pixels[row].tobytes() == expected[0].tobytes()
            assert labels[row].tolist() == expected[1][0].tolist()
            assert records[row] == member(int(number)).read_records(own_ids[row : row + 1])[0]
        assert set(reader.seconds) == {*STAGES}
        assert reader.seconds["decode"] > 0
        assert reader.decoded_bytes > 0


def test_only_its_own_work_counts_of_readers_that_others_use(home: Path) -> None:
    recipe = RECIPES[0]
    with open_samples(home / "s.sel") as opened:
        assert isinstance(opened, SelectedDataset)
        shared = [SampleReader(opened.member(number), recipe) for number in range(2)]
        fill(shared[0], recipe, [0, 1, 2], 11)
        before = [reader.decoded_bytes for reader in shared]
        reader = SelectedReader(opened, lambda n: shared[n])
        fill(reader, recipe, [0, 1, 2, 3], 11)
        after = [reader.decoded_bytes for reader in shared]
        assert reader.decoded_bytes == sum(after) - sum(before)


def test_a_damaged_sample_is_named_by_its_dataset_and_numbered_by_the_selection(
    tmp_path: Path,
) -> None:
    write_labelled(tmp_path / "a", MULTI, samples=9, shards=1)
    feeder.select("s", {tmp_path / "a": [3, 7]}, tmp_path / "s.sel")
    with Dataset.open(tmp_path / "a") as dataset:
        (location,) = dataset.find_blobs(np.array([7]), dataset.read_records(np.array([7])))
    with open(tmp_path / "a" / shard_name(0), "r+b") as file:
        file.seek(location.offset + location.blob_bytes // 2)
        byte = file.read(1)
        file.seek(-1, 1)
        file.write(bytes([byte[0] ^ 1]))
    with open_samples(tmp_path / "s.sel") as opened:
        assert isinstance(opened, SelectedDataset)
        reader = make_reader(opened, RECIPES[0])
        with pytest.raises(
            SampleError, match=r"sample 7 \(s007\) in shard-00000.fds of "
        ) as caught:
            fill(reader, RECIPES[0], [0, 1], 11)
        assert caught.value.sample_id == 1
        assert opened.shard_path(1) == str(tmp_path / "a" / shard_name(0))

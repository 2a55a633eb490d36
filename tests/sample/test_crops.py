"""Several crops of a sample: the bytes that each has alone, from one read and few decodes."""

import shutil
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.dataset.opened import BlobLocation, Dataset
from feeder.errors import SampleError
from feeder.jpeg.crop_decode import McuGrids
from feeder.plan.crop import plan_crops
from feeder.plan.labels import LabelRows
from feeder.plan.packing import Packing, Pixels, pixel_layout_of
from feeder.plan.recipe import Interpolation, Recipe
from feeder.plan.rng import crop_words
from feeder.sample.decode_plan import plan_decode, share_decodes
from feeder.sample.reader import SampleReader
from tests.sample.test_cache import create, eager
from tests.support.rows import make_rows, pack_every_kind

SIZES = [(500, 375), (375, 500), (61, 480), (900, 61), (224, 223), (31, 40), (1, 1)]
FEW_AND_MANY = ((2, 112, (0.4, 1.0)), (6, 48, (0.05, 0.4)))

groups = st.lists(
    st.tuples(
        st.integers(1, 3),
        st.integers(8, 64),
        st.tuples(st.floats(0.01, 1), st.floats(0.01, 1)).map(lambda pair: tuple(sorted(pair))),
        st.sampled_from([(0.75, 1.33), (0.2, 5.0)]),
    ),
    min_size=1,
    max_size=4,
)
augmentations = st.sampled_from(
    [
        {},
        {"auto_augment": "rand-augment", "erasing_probability": 0.5, "erasing_value": "noise"},
        {"brightness": 0.4, "hue": 0.2, "greyscale_probability": 0.3},
    ]
)


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Dataset]:
    folder = pack_every_kind(tmp_path_factory.mktemp("crops"), SIZES)
    with Dataset.open(folder) as opened:
        yield opened


def recipe_of(crops: Sequence[tuple[Any, ...]], **fields: Any) -> Recipe:
    return Recipe.for_split("train", batch_size=8, crops=crops, **fields)


def make_crops(
    reader: SampleReader, ids: NDArray[np.int64], *, seed: int = 0, epoch: int = 0
) -> list[Pixels]:
    """Return the pixels of each crop, in the recipe's packing."""
    layout = pixel_layout_of(reader.recipe.packing)
    shapes = [layout.image_shape(size) for size in reader.recipe.crop_sizes]
    pixels: list[Pixels] = [np.full((len(ids), *shape), 99, layout.dtype) for shape in shapes]
    labels = np.full(len(ids), -7, np.int64)
    reader.fill(ids, seed=seed, epoch=epoch, pixels=pixels[0], labels=labels, further=pixels[1:])
    assert (labels >= 0).all()
    return pixels


class OneCrop:
    """A dataset whose sample ids are what one crop draws by: a plain reader of it makes that crop.

    It counts the blobs that are read.
    """

    def __init__(self, dataset: Dataset, crop: int) -> None:
        self.where = dataset.where
        self.reads: Counter[int] = Counter()
        self._dataset = dataset
        ids = np.arange(dataset.layout.samples)
        self._id_of = dict(zip(crop_words(ids, crop).tolist(), ids.tolist(), strict=True))

    def ids(self, words: NDArray[np.int64]) -> NDArray[np.int64]:
        return np.array([self._id_of[word] for word in words.tolist()])

    def read_records(self, sample_ids: NDArray[np.int64]) -> NDArray[np.void]:
        return self._dataset.read_records(self.ids(sample_ids))

    def read_labels(
        self, sample_ids: NDArray[np.int64], records: NDArray[np.void], out: LabelRows
    ) -> None:
        self._dataset.read_labels(self.ids(sample_ids), records, out)

    def find_blobs(
        self, sample_ids: NDArray[np.int64], records: NDArray[np.void]
    ) -> list[BlobLocation]:
        return self._dataset.find_blobs(self.ids(sample_ids), records)

    def read_blob(self, location: BlobLocation, into: NDArray[np.uint8]) -> memoryview:
        self.reads[location.sample_id] += 1
        return self._dataset.read_blob(location, into)

    def describe(self, sample_id: int) -> str:
        return self._dataset.describe(sample_id)


@settings(max_examples=25)
@given(
    crops=groups,
    more=augmentations,
    packing=st.sampled_from(get_args(Packing)),
    interpolation=st.sampled_from(get_args(Interpolation)),
    epoch=st.integers(0, 2**31 - 1),
)
def test_each_crop_is_what_a_recipe_with_one_crop_makes_of_its_draws(
    dataset: Dataset,
    crops: list[tuple[Any, ...]],
    more: dict[str, Any],
    packing: str,
    interpolation: str,
    epoch: int,
) -> None:
    more = {**more, "dct_scaling": interpolation != "bilinear-no-antialias"}
    recipe = recipe_of(crops, packing=packing, interpolation=interpolation, **more)
    ids = np.arange(dataset.layout.samples)[::3].copy()
    made = make_crops(SampleReader(dataset, recipe), ids, seed=3, epoch=epoch)
    assert len(made) == sum(count for count, *_ in crops)
    for crop, one in enumerate(recipe.of_crops()):
        reader = SampleReader(OneCrop(dataset, crop), one)
        alone, _ = make_rows(reader, crop_words(ids, crop), seed=3, epoch=epoch)
        assert np.array_equal(made[crop], alone), crop


def test_the_first_crop_is_that_of_the_recipe_without_the_others(dataset: Dataset) -> None:
    ids = np.arange(dataset.layout.samples)
    plain = Recipe.for_split(
        "train", batch_size=8, image_size=112, scale=(0.4, 1.0), hue=0.1, erasing_probability=0.3
    )
    several = recipe_of(FEW_AND_MANY, hue=0.1, erasing_probability=0.3)
    first, second, *_ = make_crops(SampleReader(dataset, several), ids, seed=1, epoch=2)
    want, _ = make_rows(SampleReader(dataset, plain), ids, seed=1, epoch=2)
    assert np.array_equal(first, want)
    assert (first != second).any(axis=(1, 2, 3)).sum() > 0.9 * (len(ids) - 6), "1 pixel has no crop"


def test_a_blob_is_read_once_and_decoded_pixels_are_shared(dataset: Dataset) -> None:
    ids = np.arange(dataset.layout.samples)
    counted, recipe = OneCrop(dataset, 0), recipe_of(FEW_AND_MANY)
    together = SampleReader(counted, recipe)
    make_crops(together, ids)
    assert counted.reads == Counter(ids.tolist())
    alone_bytes = 0
    for crop, one in enumerate(recipe.of_crops()):
        reader = SampleReader(OneCrop(dataset, crop), one)
        make_rows(reader, crop_words(ids, crop))
        alone_bytes += reader.decoded_bytes
    assert together.images == 8 * len(ids)
    assert together.decoded_bytes < 0.6 * alone_bytes


@settings(max_examples=50)
@given(crops=groups, seed=st.integers(0, 2**32), ratio=st.floats(0.2, 3))
def test_decodes_hold_their_crops_and_are_no_more_than_these(
    dataset: Dataset, crops: list[tuple[Any, ...]], seed: int, ratio: float
) -> None:
    ids = np.arange(dataset.layout.samples)
    grids = McuGrids.of_records(dataset.read_records(ids))
    one = recipe_of(crops).of_group(0)
    total = sum(count for count, *_ in crops)
    everything = grids.take(np.tile(ids, total))
    drawn = plan_crops(
        one,
        seed=seed,
        epoch=0,
        sample_ids=np.concatenate([crop_words(ids, crop) for crop in range(total)]),
        widths=everything.width,
        heights=everything.height,
    )
    own = plan_decode(everything, drawn.boxes, drawn.scales, one.image_size).windows
    shared = share_decodes(grids, own, drawn.scales)
    assert (np.diff(shared.rows) >= 0).all(), "a blob is read once"
    served = [crop for crops_of in shared.crops for crop in crops_of]
    assert sorted(served) == [*range(total * len(ids))]
    decoded = own_px = 0
    for at, crops_of in enumerate(shared.crops):
        window = {name: int(getattr(shared.windows, name)[at]) for name in EDGES}
        for crop in crops_of:
            assert crop % len(ids) == shared.rows[at]
            assert drawn.scales[crop] == shared.scales[at]
            for least, end in (("first_mcu", "end_mcu"), ("first_row", "end_row")):
                assert window[least] <= getattr(own, least)[crop]
                assert window[end] >= getattr(own, end)[crop]
        decoded += int(shared.windows.width[at] * shared.windows.height[at])
        own_px += int((own.width * own.height)[crops_of].sum())
        assert decoded <= own_px


EDGES = ("first_mcu", "end_mcu", "first_row", "end_row")


@pytest.mark.parametrize("dct_scaling", [True, False])
def test_one_cached_image_serves_all_crops(dataset: Dataset, dct_scaling: bool) -> None:
    ids = np.arange(dataset.layout.samples)
    recipe, cache = recipe_of(FEW_AND_MANY, dct_scaling=dct_scaling), create(dataset)
    cached, plain = eager(cache, dataset, recipe), SampleReader(dataset, recipe)
    for epoch in range(3):
        made = make_crops(cached, ids, epoch=epoch)
        for crop, want in zip(made, make_crops(plain, ids, epoch=epoch), strict=True):
            assert np.array_equal(crop, want)
    hits, _, fills, _ = cached.cache_counts
    assert fills == cache.entries
    if not dct_scaling:  # then each image has one picture, which serves the next epochs
        assert (hits, fills) == (2 * len(ids), len(ids))
    cache.close()


def test_a_damaged_sample_is_named_once_for_all_its_crops(dataset: Dataset, tmp_path: Path) -> None:
    copy = Path(shutil.copytree(dataset.where, tmp_path / "copy"))
    for shard in copy.glob("shard-*"):
        content = bytearray(shard.read_bytes())
        content[len(content) // 2] ^= 1
        shard.write_bytes(content)
    with Dataset.open(copy) as damaged:
        reader = SampleReader(damaged, recipe_of(FEW_AND_MANY))
        with pytest.raises(SampleError, match=r"sample \d+ .*feeder verify") as caught:
            make_crops(reader, np.arange(damaged.layout.samples))
        assert "\n" not in str(caught.value)

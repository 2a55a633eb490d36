"""A batch's bytes are the same whether a sample hit the decoded cache, filled it, or neither."""

import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.dataset.opened import Dataset
from feeder.errors import DatasetError
from feeder.jpeg.recode import Subsampling
from feeder.node.datasets import measure_pictures
from feeder.plan.crop import plan_crops
from feeder.plan.packing import Packing
from feeder.plan.recipe import Interpolation, Recipe
from feeder.sample.cache import DecodedPictures, PackedRows, part_of, repeats_every_epoch
from feeder.sample.cache_file import DecodedCache
from feeder.sample.cache_plan import FillAllowance, plan_cache
from feeder.sample.reader import SampleReader
from tests.support.rows import make_rows, pack_every_kind

SIZES = [(224, 224), (31, 40), (150, 97), (97, 150), (300, 61), (1, 1), (5, 3), (223, 299)]


class AtOnce(FillAllowance):
    """Fills the cache with every image at first sight."""

    def spend(self, whole_px: int, needed_px: int) -> bool:
        return True


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_every_kind(tmp_path_factory.mktemp("cached"), SIZES)


@pytest.fixture
def dataset(packed: Path) -> Iterator[Dataset]:
    with Dataset.open(packed) as opened:
        yield opened


@pytest.fixture
def damaged(packed: Path, tmp_path: Path) -> Path:
    """A copy of the dataset to damage."""
    return Path(shutil.copytree(packed, tmp_path / "damaged"))


def create(dataset: Dataset, budget_bytes: int = 64 << 20) -> DecodedCache:
    plan = plan_cache(budget_bytes, {"d": measure_pictures(dataset)})
    assert plan is not None
    return DecodedCache.create(plan)


def eager(
    cache: DecodedCache, dataset: Dataset, recipe: Recipe, share: float = 1.0
) -> SampleReader:
    """A reader that caches every image that it admits at first sight."""
    pictures = DecodedPictures(cache, dataset.content, share, AtOnce(1.0))
    return SampleReader(dataset, recipe, pictures)


def recipe_of(split: str = "train", image_size: int = 16, **fields: Any) -> Recipe:
    return Recipe.for_split(split, batch_size=8, image_size=image_size, **fields)  # type: ignore[arg-type]


def count_locks(cache: DecodedCache) -> int:
    """Return how many ranges of the cache's file this process has locked."""
    mine = f" {os.getpid()} "
    inode = f":{os.fstat(cache.fileno()).st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return sum(mine in line and inode in line for line in lines)


def assert_equal(
    cached: SampleReader, ids: NDArray[np.int64], *, seed: int = 0, epoch: int = 0
) -> None:
    """The rows are those of a reader without a cache."""
    plain = SampleReader(cached._dataset, cached.recipe)
    want, want_labels = make_rows(plain, ids, seed=seed, epoch=epoch)
    pixels, labels = make_rows(cached, ids, seed=seed, epoch=epoch)
    wrong = np.flatnonzero((pixels != want).any(axis=(1, 2, 3)))
    assert not wrong.size, f"samples {ids[wrong]} differ in epoch {epoch}"
    assert labels.tolist() == want_labels.tolist()


@pytest.mark.parametrize(("image_size", "dct_scaling"), [(16, False), (64, True)])
def test_every_kind_has_the_same_bytes_before_during_and_after_filling(
    dataset: Dataset, image_size: int, dct_scaling: bool
) -> None:
    recipe = recipe_of(image_size=image_size, dct_scaling=dct_scaling)
    cache = create(dataset)
    ids = np.arange(dataset.layout.samples)
    cached = SampleReader(dataset, recipe, part_of(cache, "d", dataset, recipe))
    for epoch in range(15):
        assert_equal(cached, ids, seed=5, epoch=epoch)
    hits, misses, fills, _ = cached.cache_counts
    assert hits + misses == 15 * len(ids)
    assert fills == cache.entries
    assert cached.fill_seconds > 0
    assert fills > 0.9 * len(ids)
    assert hits > 5 * len(ids)
    cache.close()


def test_an_image_has_an_entry_for_each_scale_of_its_crops(dataset: Dataset) -> None:
    """Once all are filled nothing misses, with DCT scaling or without."""
    cache = create(dataset, 256 << 20)
    ids = np.arange(dataset.layout.samples)
    scaled, unscaled = (recipe_of(image_size=32, dct_scaling=scaling) for scaling in (True, False))
    scales = [_scales_of(dataset, scaled, ids, epoch) for epoch in range(4)]
    assert {1, 2, 4} <= {scale for each in scales for scale in each}
    expected = {(at, scale) for each in scales for at, scale in enumerate(each)}
    for epoch in (*range(4), *range(4)):
        cached = eager(cache, dataset, scaled)
        assert_equal(cached, ids, epoch=epoch)
    assert cached.cache_counts[:3] == (len(ids), 0, 0)
    assert cache.entries == len(expected)
    cached = eager(cache, dataset, unscaled)
    assert_equal(cached, ids)
    at_full_size = {at for at, scale in expected if scale == 1}
    assert cached.cache_counts[0] == len(at_full_size), "other scales' pixels are never used"
    cache.close()


def test_the_bytes_of_pixels_that_move_are_counted(dataset: Dataset) -> None:
    """Whole pictures when they fill the cache, then windows of them."""
    cache = create(dataset)
    reader = eager(cache, dataset, recipe_of(scale=(1, 1), ratio=(1, 1), dct_scaling=False))
    ids = np.arange(dataset.layout.samples)
    records = dataset.read_records(ids)
    assert_equal(reader, ids)
    filled = reader.cache_counts[-1]
    assert filled >= 4 * int((records["width"].astype(int) * records["height"]).sum())
    assert_equal(reader, ids)
    read = reader.cache_counts[-1] - filled
    sides = np.minimum(records["width"], records["height"]).astype(int)
    assert 4 * int((sides**2).sum()) <= read <= filled
    cache.close()


def test_large_images_have_room_for_an_entry_of_every_scale(tmp_path: Path) -> None:
    """Four for each image: more entries than images times two."""
    with Dataset.open(pack_every_kind(tmp_path, [(96, 96 + at) for at in range(6)])) as large:
        cache = create(large)
        ids = np.arange(large.layout.samples)
        for scale in (1, 2, 4, 8):
            recipe = recipe_of(image_size=96 // scale, scale=(1, 1), ratio=(1, 1))
            assert set(_scales_of(large, recipe, ids, 0)) == {scale}
            cached = eager(cache, large, recipe)
            assert_equal(cached, ids)
            assert cached.cache_counts[:3] == (0, len(ids), len(ids))
        assert 2 * cache.entries <= cache.plan.entries, "searching takes few probes"
        cache.close()


def _scales_of(dataset: Dataset, recipe: Recipe, ids: NDArray[np.int64], epoch: int) -> list[int]:
    records = dataset.read_records(ids)
    sizes = {"widths": records["width"].astype(int), "heights": records["height"].astype(int)}
    crops = plan_crops(recipe, seed=0, epoch=epoch, sample_ids=ids, **sizes)
    return [int(scale) for scale in crops.scales]


@settings(max_examples=50)
@given(data=st.data())
def test_any_history_of_any_cache_gives_the_same_bytes(packed: Path, data: st.DataObject) -> None:
    with Dataset.open(packed) as dataset:
        total_bytes = int(measure_pictures(dataset).total_bytes)
        cache = create(dataset, data.draw(st.integers(16_384, 2 * total_bytes), "budget"))
        for _ in range(data.draw(st.integers(1, 4), "sessions")):
            interpolation = data.draw(st.sampled_from(get_args(Interpolation)), "interpolation")
            averages = interpolation != "bilinear-no-antialias"
            recipe = recipe_of(
                data.draw(st.sampled_from(["train", "val"]), "split"),
                data.draw(st.integers(8, 48), "size"),
                resize_size=48,
                dct_scaling=averages and data.draw(st.booleans(), "scaling"),
                flip_probability=data.draw(st.sampled_from([0.0, 0.5, 1.0]), "flips"),
                packing=data.draw(st.sampled_from(get_args(Packing)), "packing"),
                interpolation=interpolation,
                auto_augment=data.draw(st.sampled_from(["none", "rand-augment"]), "augment"),
                greyscale_probability=data.draw(st.sampled_from([0.0, 0.5]), "greyscale"),
            )
            cached = SampleReader(dataset, recipe, part_of(cache, "d", dataset, recipe))
            if data.draw(st.booleans(), "at once") and not repeats_every_epoch(recipe):
                cached = eager(cache, dataset, recipe)
            seed = data.draw(st.integers(0, 3), "seed")
            for _ in range(2):
                samples = st.integers(0, dataset.layout.samples - 1)
                ids = data.draw(st.lists(samples, min_size=1, max_size=12), "ids")
                epoch = data.draw(st.integers(0, 9), "epoch")
                assert_equal(cached, np.array(ids), seed=seed, epoch=epoch)
        assert cache.used_bytes <= cache.plan.total_bytes
        cache.close()


def test_same_share_is_admitted_in_any_order_and_never_evicted(dataset: Dataset) -> None:
    ids = np.arange(dataset.layout.samples)
    kept = []
    for order in (ids, ids[::-1].copy(), np.roll(ids, 17)):
        cache = create(dataset, 1 << 23)  # room for all, but only a third is admitted
        reader = eager(cache, dataset, recipe_of(dct_scaling=False), 1 / 3)
        after: set[int] = set()
        for epoch in range(2):
            before = after
            make_rows(reader, order, epoch=epoch)
            assert reader._pictures is not None
            after = set(np.flatnonzero(reader._pictures._find(ids)[0] >= 0).tolist())
            assert before <= after
        kept.append(after)
        used_bytes = cache.used_bytes - cache.plan.pixels_at
        assert used_bytes < measure_pictures(dataset).total_bytes
        cache.close()
    assert kept[0] == kept[1] == kept[2]
    assert 5 < len(kept[0]) < 30  # of 48, a third


def test_batch_sizes_and_lanes_share_entries_and_other_recipes_do_not(dataset: Dataset) -> None:
    cache = create(dataset)
    ids = np.arange(dataset.layout.samples)
    for fields, expected_fills in (
        ({"batch_size": 8, "resize_size": 20}, len(ids)),
        ({"batch_size": 16, "resize_size": 20}, 0),
        ({"batch_size": 8, "resize_size": 20, "lanes": 3}, 0),
        ({"batch_size": 8, "resize_size": 21}, len(ids)),
    ):
        recipe = Recipe.for_split("val", image_size=16, **fields)
        reader = SampleReader(dataset, recipe, part_of(cache, "d", dataset, recipe))
        assert_equal(reader, ids)
        hits = len(ids) - expected_fills
        assert reader.cache_counts[:3] == (hits, expected_fills, expected_fills)
    cache.close()


def test_datasets_share_a_cache_and_no_rows(dataset: Dataset, tmp_path: Path) -> None:
    with Dataset.open(pack_every_kind(tmp_path, [(40, 30)])) as other:
        cache = create(dataset)
        ids = np.arange(other.layout.samples)
        for served in (dataset, other):
            row_recipe = recipe_of("val", resize_size=20)
            rows = SampleReader(served, row_recipe, part_of(cache, "d", served, row_recipe))
            for cached in (rows, eager(cache, served, recipe_of(dct_scaling=False))):
                assert_equal(cached, ids)
                assert cached.cache_counts[:3] == (0, len(ids), len(ids))
        cache.close()


@pytest.mark.parametrize(
    ("split", "fields", "repeats"),
    [
        ("val", {}, True),
        ("val", {"flip_probability": 1.0, "lanes": 3}, True),
        ("val", {"interpolation": "bicubic", "packing": "uint8-chw-rgb"}, True),
        ("val", {"flip_probability": 0.5}, False),
        ("val", {"greyscale_probability": 0.1}, False),
        ("val", {"auto_augment": "trivial-augment-wide"}, False),
        ("val", {"hue": 0.1}, False),
        ("val", {"erasing_probability": 1.0}, False),
        ("train", {}, False),
        ("train", {"scale": (1.0, 1.0), "flip_probability": 0.0}, False),
    ],
)
def test_only_rows_of_deterministic_recipes_are_cached(
    split: str, fields: dict[str, Any], repeats: bool
) -> None:
    assert repeats_every_epoch(recipe_of(split, **fields)) == repeats


def test_damaged_image_is_named_and_leaves_nothing_in_the_cache(damaged: Path) -> None:
    with Dataset.open(damaged) as copy:
        record = copy.read_records(np.array([3]))[0]
        shard = Path(copy.shard_path(3))
        content = bytearray(shard.read_bytes())
        content[int(record["offset"]) + int(record["blob_bytes"]) // 2] ^= 1
        shard.write_bytes(content)
        cache = create(copy)
        for recipe in (recipe_of(scale=(1, 1)), recipe_of("val", resize_size=16)):
            reader = SampleReader(copy, recipe, part_of(cache, "d", copy, recipe))
            for _ in range(2):
                with pytest.raises(DatasetError, match=r"sample 3 .*feeder verify"):
                    make_rows(reader, np.array([3]))
        assert cache.entries == 0
        cache.close()


@pytest.mark.parametrize(
    ("error", "raised"),
    [
        (ValueError("corrupt"), DatasetError),
        (MemoryError(), MemoryError),
        (OSError(errno.ENOMEM, "memory"), OSError),
    ],
)
def test_failed_decoding_releases_the_claim(
    dataset: Dataset,
    monkeypatch: pytest.MonkeyPatch,
    error: Exception,
    raised: type[Exception],
) -> None:
    def refuse(*_: object) -> None:
        raise error

    cache = create(dataset)
    reader = eager(cache, dataset, recipe_of(dct_scaling=False))
    records = dataset.read_records(np.arange(dataset.layout.samples))
    turbojpegs = np.flatnonzero(records["subsampling"] == Subsampling.S411)[:1]
    with monkeypatch.context() as patched:
        patched.setattr("feeder.sample.reader.decode_rgbx", refuse)
        with pytest.raises(raised):
            make_rows(reader, turbojpegs)
    assert count_locks(cache) == 0
    assert cache.entries == 0
    assert cache.used_bytes > cache.plan.pixels_at, "its range stays reserved"
    make_rows(reader, turbojpegs)
    assert cache.entries == 1
    cache.close()


def test_packed_rows_are_copied_and_not_decoded(dataset: Dataset) -> None:
    recipe = recipe_of("val", resize_size=20)
    cache = create(dataset)
    ids = np.arange(dataset.layout.samples)
    part = part_of(cache, "d", dataset, recipe)
    assert isinstance(part, PackedRows)
    reader, half = SampleReader(dataset, recipe, part), ids[::2].copy()
    assert_equal(reader, half)
    decoded = dict(reader.seconds)
    assert_equal(reader, half, epoch=1)
    assert reader.seconds == decoded
    assert_equal(reader, ids, epoch=2)  # every other one is cached
    assert reader.cache_counts[:3] == (2 * len(half), len(ids), len(ids))
    assert reader.images == 2 * len(half) + len(ids)
    cache.close()

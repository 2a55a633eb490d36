"""A batch's bytes are the same whether a sample hit the decoded cache, filled it, or neither."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.cli import main as cli
from feeder.dataset.format import shard_name
from feeder.dataset.manifest import ShardEntry
from feeder.dataset.opened import Dataset
from feeder.dataset.proven_shard import ProvenShard
from feeder.errors import DatasetError
from feeder.jpeg.recode import Subsampling
from feeder.node.datasets import measure_pictures
from feeder.plan.crop import plan_crops
from feeder.plan.packing import Packing, Pixels, pixel_layout_of
from feeder.plan.recipe import Interpolation, Recipe
from feeder.sample.cache import DecodedPictures, PackedRows, part_of, repeats_every_epoch
from feeder.sample.cache_file import DecodedCache
from feeder.sample.cache_plan import DecodedSize, FillAllowance, aligned_bytes, plan_cache
from feeder.sample.reader import SampleReader
from tests.support.jpegs import SAMPLINGS, encode, picture

SIZES = [(224, 224), (31, 40), (150, 97), (97, 150), (300, 61), (1, 1), (5, 3), (223, 299)]


class AtOnce(FillAllowance):
    """Fills the cache with every image at first sight."""

    def spend(self, whole_px: int, needed_px: int) -> bool:
        return True


def pack(source: Path, packed: Path) -> Path:
    assert cli.main(["pack", str(source), str(packed), "--jobs", "1"]) == 0
    return packed


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Every subsampling in every size."""
    folder = tmp_path_factory.mktemp("cached")
    for kind in [*SAMPLINGS, "grey"]:
        (folder / "images" / kind.replace(":", "")).mkdir(parents=True)
        for width, height in SIZES:
            name = folder / "images" / kind.replace(":", "") / f"{width}x{height}.jpg"
            name.write_bytes(encode(picture(width, height), kind))
    return pack(folder / "images", folder / "packed")


@pytest.fixture
def dataset(packed: Path) -> Iterator[Dataset]:
    with Dataset.open(packed) as opened:
        yield opened


def create(dataset: Dataset, budget_bytes: int = 64 << 20) -> DecodedCache:
    plan = plan_cache(budget_bytes, {"d": measure_pictures(dataset)})
    assert plan is not None
    return DecodedCache.create(plan)


def fill(
    reader: SampleReader, ids: NDArray[np.int64], size: int, *, seed: int = 0, epoch: int = 0
) -> tuple[Pixels, NDArray[np.int64]]:
    layout = pixel_layout_of(reader._recipe.packing)
    pixels = np.full((len(ids), *layout.image_shape(size)), 99, layout.dtype)
    labels = np.full(len(ids), -7, np.int64)
    reader.fill(ids, seed=seed, epoch=epoch, pixels=pixels, labels=labels)
    return pixels, labels


def count_locks(cache: DecodedCache) -> int:
    """Return how many ranges of the cache's file this process has locked."""
    mine = f" {os.getpid()} "
    inode = f":{os.fstat(cache.fileno()).st_ino} "
    lines = Path("/proc/locks").read_text().splitlines()
    return sum(mine in line and inode in line for line in lines)


def assert_equal(
    plain: SampleReader,
    cached: SampleReader,
    ids: NDArray[np.int64],
    size: int,
    *,
    seed: int = 0,
    epoch: int = 0,
) -> None:
    want, want_labels = fill(plain, ids, size, seed=seed, epoch=epoch)
    pixels, labels = fill(cached, ids, size, seed=seed, epoch=epoch)
    wrong = np.flatnonzero((pixels != want).any(axis=(1, 2, 3)))
    assert not wrong.size, f"samples {ids[wrong]} differ in epoch {epoch}"
    assert labels.tolist() == want_labels.tolist()


@pytest.mark.parametrize("image_size", [16, 64])
@pytest.mark.parametrize("dct_scaling", [False, True])
def test_every_kind_has_the_same_bytes_before_during_and_after_filling(
    dataset: Dataset, image_size: int, dct_scaling: bool
) -> None:
    recipe = Recipe.for_split("train", batch_size=8, image_size=image_size, dct_scaling=dct_scaling)
    cache = create(dataset)
    ids = np.arange(dataset.layout.samples)
    plain = SampleReader(dataset, recipe)
    cached = SampleReader(dataset, recipe, part_of(cache, "d", dataset, recipe))
    for epoch in range(15):
        assert_equal(plain, cached, ids, image_size, seed=5, epoch=epoch)
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
    recipe = Recipe.for_split("train", batch_size=8, image_size=32)
    unscaled = Recipe.for_split("train", batch_size=8, image_size=32, dct_scaling=False)
    scales = [_scales_of(dataset, recipe, ids, epoch) for epoch in range(4)]
    assert {1, 2, 4} <= {scale for each in scales for scale in each}
    expected = {(at, scale) for each in scales for at, scale in enumerate(each)}
    for epoch in (*range(4), *range(4)):
        pictures = DecodedPictures(cache, dataset.content, 1.0, AtOnce(1.0))
        cached = SampleReader(dataset, recipe, pictures)
        assert_equal(SampleReader(dataset, recipe), cached, ids, 32, epoch=epoch)
    assert cached.cache_counts[:3] == (len(ids), 0, 0)
    assert cache.entries == len(expected)
    pictures = DecodedPictures(cache, dataset.content, 1.0, AtOnce(1.0))
    cached = SampleReader(dataset, unscaled, pictures)
    assert_equal(SampleReader(dataset, unscaled), cached, ids, 32)
    at_full_size = {at for at, scale in expected if scale == 1}
    assert cached.cache_counts[0] == len(at_full_size), "other scales' pixels are never used"
    cache.close()


def test_the_bytes_of_pixels_that_move_are_counted(dataset: Dataset) -> None:
    """Whole pictures when they fill the cache, then windows of them."""
    cache = create(dataset)
    pictures = DecodedPictures(cache, dataset.content, 1.0, AtOnce(1.0))
    recipe = Recipe.for_split(
        "train", batch_size=8, image_size=16, scale=(1, 1), ratio=(1, 1), dct_scaling=False
    )
    ids = np.arange(dataset.layout.samples)
    records, reader = dataset.read_records(ids), SampleReader(dataset, recipe, pictures)
    assert_equal(SampleReader(dataset, recipe), reader, ids, 16)
    filled = reader.cache_counts[-1]
    assert filled >= 4 * int((records["width"].astype(int) * records["height"]).sum())
    assert_equal(SampleReader(dataset, recipe), reader, ids, 16)
    read = reader.cache_counts[-1] - filled
    sides = np.minimum(records["width"], records["height"]).astype(int)
    assert 4 * int((sides**2).sum()) <= read <= filled
    cache.close()


def test_large_images_have_room_for_an_entry_of_every_scale(tmp_path: Path) -> None:
    """Four for each image: more entries than images times two."""
    (tmp_path / "images" / "large").mkdir(parents=True)
    for number in range(32):
        image = tmp_path / "images" / "large" / f"{number}.jpg"
        image.write_bytes(encode(picture(96, 96 + number), "4:2:0"))
    with Dataset.open(pack(tmp_path / "images", tmp_path / "packed")) as large:
        cache = create(large)
        ids = np.arange(large.layout.samples)
        for scale in (1, 2, 4, 8):
            pictures = DecodedPictures(cache, large.content, 1.0, AtOnce(1.0))
            recipe = Recipe.for_split(
                "train", batch_size=8, image_size=96 // scale, scale=(1, 1), ratio=(1, 1)
            )
            assert set(_scales_of(large, recipe, ids, 0)) == {scale}
            cached = SampleReader(large, recipe, pictures)
            assert_equal(SampleReader(large, recipe), cached, ids, recipe.image_size)
            assert cached.cache_counts[:3] == (0, len(ids), len(ids))
        assert 2 * cache.entries <= cache.plan.entries, "searching takes few probes"
        cache.close()


def _scales_of(dataset: Dataset, recipe: Recipe, ids: NDArray[np.int64], epoch: int) -> list[int]:
    records = dataset.read_records(ids)
    sizes = {"widths": records["width"].astype(int), "heights": records["height"].astype(int)}
    crops = plan_crops(recipe, seed=0, epoch=epoch, sample_ids=ids, **sizes)
    return [int(scale) for scale in crops.scales]


@pytest.mark.parametrize("interpolation", get_args(Interpolation))
def test_every_filter_has_the_same_bytes_from_the_cache(
    dataset: Dataset, interpolation: Interpolation
) -> None:
    recipe = Recipe.for_split(
        "train", batch_size=8, image_size=16, dct_scaling=False, interpolation=interpolation
    )
    cache = create(dataset)
    pictures = DecodedPictures(cache, dataset.content, 1.0, AtOnce(1.0))
    plain, cached = SampleReader(dataset, recipe), SampleReader(dataset, recipe, pictures)
    ids = np.arange(dataset.layout.samples)
    for epoch in range(4):
        assert_equal(plain, cached, ids, 16, epoch=epoch)
    assert cached.cache_counts[:3] == (3 * len(ids), len(ids), len(ids))
    cache.close()


@settings(max_examples=60, deadline=None)
@given(data=st.data())
def test_any_history_of_any_cache_gives_the_same_bytes(packed: Path, data: st.DataObject) -> None:
    with Dataset.open(packed) as dataset:
        total_bytes = int(measure_pictures(dataset).total_bytes)
        cache = create(dataset, data.draw(st.integers(16_384, 2 * total_bytes), "budget"))
        for _ in range(data.draw(st.integers(1, 4), "sessions")):
            interpolation = data.draw(st.sampled_from(get_args(Interpolation)), "interpolation")
            averages = interpolation != "bilinear-no-antialias"
            recipe = Recipe.for_split(
                data.draw(st.sampled_from(["train", "val"]), "split"),
                batch_size=8,
                image_size=data.draw(st.integers(8, 48), "size"),
                resize_size=48,
                dct_scaling=averages and data.draw(st.booleans(), "scaling"),
                flip_probability=data.draw(st.sampled_from([0.0, 0.5, 1.0]), "flips"),
                packing=data.draw(st.sampled_from(get_args(Packing)), "packing"),
                interpolation=interpolation,
                auto_augment=data.draw(st.sampled_from(["none", "rand-augment"]), "augment"),
                greyscale_probability=data.draw(st.sampled_from([0.0, 0.5]), "greyscale"),
            )
            plain = SampleReader(dataset, recipe)
            cached = SampleReader(dataset, recipe, part_of(cache, "d", dataset, recipe))
            seed = data.draw(st.integers(0, 3), "seed")
            for _ in range(2):
                samples = st.integers(0, dataset.layout.samples - 1)
                ids = data.draw(st.lists(samples, min_size=1, max_size=12), "ids")
                epoch = data.draw(st.integers(0, 9), "epoch")
                size = recipe.image_size
                assert_equal(plain, cached, np.array(ids), size, seed=seed, epoch=epoch)
        assert cache.used_bytes <= cache.plan.total_bytes
        cache.close()


def test_every_real_image_has_the_same_bytes_from_the_cache(
    imagenet_sample: Path, tmp_path: Path
) -> None:
    with Dataset.open(pack(imagenet_sample, tmp_path / "packed")) as real:
        cache = create(real, 400 << 20)
        ids = np.arange(real.layout.samples)
        for split, epochs in (("train", 3), ("val", 2)):
            recipe = Recipe.for_split(split, batch_size=8)  # type: ignore[arg-type]
            plain = SampleReader(real, recipe)
            part = part_of(cache, "d", real, recipe)
            if isinstance(part, DecodedPictures):
                _fill_all(cache, real)
            cached = SampleReader(real, recipe, part)
            for epoch in range(epochs):
                assert_equal(plain, cached, ids, 224, seed=1, epoch=epoch)
            hits, misses, fills, _ = cached.cache_counts
            if split == "train":
                scaled = fills
                assert hits > 0.9 * epochs * len(ids)
                assert fills < 0.1 * epochs * len(ids), "only the scaled ones are missing"
            else:
                assert hits == misses == fills == len(ids)
        assert cache.entries == 2 * len(ids) + scaled
        cache.close()


def _fill_all(cache: DecodedCache, dataset: Dataset) -> None:
    fill(_eager_reader(cache, dataset), np.arange(dataset.layout.samples), 8)
    assert cache.entries == dataset.layout.samples


def _eager_reader(cache: DecodedCache, dataset: Dataset) -> SampleReader:
    """A reader that caches every image at first sight; its rows have 8 × 8 pixels."""
    recipe = Recipe.for_split("train", batch_size=1, image_size=8, dct_scaling=False)
    pictures = DecodedPictures(cache, dataset.content, 1.0, AtOnce(1.0))
    return SampleReader(dataset, recipe, pictures)


def test_same_share_is_admitted_in_any_order_and_never_evicted(
    dataset: Dataset,
) -> None:
    recipe = Recipe.for_split("train", batch_size=8, image_size=16, dct_scaling=False)
    ids = np.arange(dataset.layout.samples)
    total_bytes = measure_pictures(dataset).total_bytes
    kept = []
    for order in (ids, ids[::-1].copy(), np.roll(ids, 17)):
        plan = plan_cache(1 << 23, {"d": measure_pictures(dataset)})
        assert plan is not None
        cache = DecodedCache.create(plan)  # room for all, but only a third is admitted
        pictures = DecodedPictures(cache, dataset.content, 1 / 3, AtOnce(1.0))
        reader = SampleReader(dataset, recipe, pictures)
        for epoch in range(2):
            before = set(np.flatnonzero(pictures._find(ids)[0] >= 0))
            fill(reader, order, 16, epoch=epoch)
            after = set(np.flatnonzero(pictures._find(ids)[0] >= 0))
            assert before <= after
        kept.append(after)
        assert cache.used_bytes - cache.plan.pixels_at < total_bytes
        cache.close()
    assert kept[0] == kept[1] == kept[2]
    assert 5 < len(kept[0]) < 30  # of 48, a third


def test_names_of_a_dataset_batch_sizes_and_lanes_share_entries(dataset: Dataset) -> None:
    cache = create(dataset)
    ids = np.arange(dataset.layout.samples)
    for fields, expected_fills in (
        ({"batch_size": 8}, len(ids)),
        ({"batch_size": 16}, 0),
        ({"batch_size": 8, "lanes": 3}, 0),
    ):
        recipe = Recipe.for_split("val", image_size=16, resize_size=20, **fields)
        reader = SampleReader(dataset, recipe, part_of(cache, "d", dataset, recipe))
        fill(reader, ids, 16)
        assert reader.cache_counts[2] == expected_fills
    other = Recipe.for_split("val", batch_size=8, image_size=16, resize_size=21)
    reader = SampleReader(dataset, other, part_of(cache, "d", dataset, other))
    assert_equal(SampleReader(dataset, other), reader, ids, 16)
    assert reader.cache_counts[0] == 0, "rows of another recipe do not match"
    cache.close()


def test_lanes_change_the_order_of_an_epoch_and_nothing_else(dataset: Dataset) -> None:
    orders, epochs = [], []
    for lanes in (1, 3, 6):
        recipe = Recipe.for_split("train", batch_size=8, image_size=16, lanes=lanes)
        reader = SampleReader(dataset, recipe)
        plan = recipe.plan_epoch(dataset.layout, seed=3, epoch=2)
        order = np.concatenate([plan.samples(index) for index in range(plan.batches)])
        pixels, labels = fill(reader, order, 16, seed=3, epoch=2)
        orders.append(order.tolist())
        by_sample = np.argsort(order)
        epochs.append((order[by_sample], pixels[by_sample], labels[by_sample]))
    assert orders[0] != orders[1] != orders[2]
    assert len(orders[0]) == dataset.layout.samples
    for other in epochs[1:]:
        for one, another in zip(epochs[0], other, strict=True):
            assert np.array_equal(one, another)


def test_only_rows_of_deterministic_recipes_are_cached() -> None:
    for fields, repeats in (
        ({"split": "val"}, True),
        ({"split": "val", "flip_probability": 1.0}, True),
        ({"split": "val", "lanes": 3}, True),
        ({"split": "val", "interpolation": "bicubic", "packing": "uint8-chw-rgb"}, True),
        ({"split": "val", "flip_probability": 0.5}, False),
        ({"split": "val", "greyscale_probability": 0.1}, False),
        ({"split": "val", "auto_augment": "trivial-augment-wide"}, False),
        ({"split": "val", "hue": 0.1}, False),
        ({"split": "val", "erasing_probability": 1.0}, False),
        ({"split": "train"}, False),
        ({"split": "train", "scale": (1.0, 1.0), "flip_probability": 0.0}, False),
    ):
        recipe = Recipe.for_split(batch_size=8, **fields)  # type: ignore[arg-type]
        assert repeats_every_epoch(recipe) == repeats


def test_unknown_recipe_fields_count_as_random() -> None:
    class Newer(Recipe, frozen=True, kw_only=True):
        mixing_probability: float = 0.0

    assert repeats_every_epoch(Newer.for_split("val", batch_size=8))
    assert not repeats_every_epoch(Newer.for_split("val", batch_size=8, mixing_probability=0.1))


def test_damaged_image_leaves_nothing_in_the_cache(packed: Path, tmp_path: Path) -> None:
    for path in packed.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    with Dataset.open(tmp_path) as copy:
        record = copy.read_records(np.array([3]))[0]
        shard = tmp_path / copy.describe(3).rsplit(" ", 1)[1]
        content = bytearray(shard.read_bytes())
        content[int(record["offset"]) + int(record["blob_bytes"]) // 2] ^= 1
        shard.write_bytes(content)
        cache = create(copy)
        recipe = Recipe.for_split("train", batch_size=8, image_size=8, scale=(1, 1))
        for made in (recipe, Recipe.for_split("val", batch_size=8, image_size=8, resize_size=8)):
            reader = SampleReader(copy, made, part_of(cache, "d", copy, made))
            for _ in range(2):
                with pytest.raises(DatasetError, match="sample 3 "):
                    fill(reader, np.array([3]), 8)
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
    reader = _eager_reader(cache, dataset)
    records = dataset.read_records(np.arange(dataset.layout.samples))
    turbojpegs = np.flatnonzero(records["subsampling"] == Subsampling.S411)[:1]
    with monkeypatch.context() as patched:
        patched.setattr("feeder.sample.reader.decode_rgbx", refuse)
        with pytest.raises(raised):
            fill(reader, turbojpegs, 8)
    assert count_locks(cache) == 0
    assert cache.entries == 0
    assert cache.used_bytes > cache.plan.pixels_at, "its range stays reserved"
    fill(reader, turbojpegs, 8)
    assert cache.entries == 1
    cache.close()


def test_a_datasets_decoded_size_is_that_of_its_records(dataset: Dataset, tmp_path: Path) -> None:
    ids = np.arange(dataset.layout.samples)
    records = dataset.read_records(ids)
    sizes = [aligned_bytes(4 * int(record["width"]) * int(record["height"])) for record in records]
    assert measure_pictures(dataset) == DecodedSize(
        samples=len(ids), picture_bytes=sum(sizes) / len(ids)
    )


def test_damaged_shard_is_opened_once_for_the_decoded_size(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for path in packed.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    shard = tmp_path / shard_name(0)
    content = bytearray(shard.read_bytes())
    content[-1] ^= 1  # of its names
    shard.write_bytes(content)
    opened: list[int] = []

    class Watched(ProvenShard):
        def __init__(
            self, folder: Path, entry: ShardEntry, number: int, *rest: Any, **labels: int
        ) -> None:
            opened.append(number)
            super().__init__(folder, entry, number, *rest, **labels)

    monkeypatch.setattr("feeder.dataset.opened.ProvenShard", Watched)
    with Dataset.open(tmp_path) as dataset:
        assert measure_pictures(dataset).picture_bytes > 0
    assert opened == [0]


def test_packed_rows_are_copied_and_not_decoded(dataset: Dataset) -> None:
    recipe = Recipe.for_split("val", batch_size=8, image_size=16, resize_size=20)
    cache = create(dataset)
    ids = np.arange(dataset.layout.samples)
    part = part_of(cache, "d", dataset, recipe)
    assert isinstance(part, PackedRows)
    reader, plain = SampleReader(dataset, recipe, part), SampleReader(dataset, recipe)
    assert_equal(plain, reader, ids[::2].copy(), 16)
    decoded = dict(reader.seconds)
    assert_equal(plain, reader, ids[::2].copy(), 16, epoch=1)
    assert reader.seconds == decoded
    assert_equal(plain, reader, ids, 16, epoch=2)  # every other one is cached
    assert reader.cache_counts[:3] == (len(ids[::2]) + len(ids[::2]), len(ids), len(ids))
    assert reader.images == 2 * len(ids[::2]) + len(ids)
    cache.close()

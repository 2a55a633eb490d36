"""The loader against the real daemon: its bytes, its refusals, and restarts in mid-epoch."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from bench.data.synthetic import write_synthetic
from bench.demo.run import serving
from bench.fetcher import BatchFetcher
from feeder.cli.main import main
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, DatasetError, FeederError
from feeder.pack.options import PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import pack_dataset
from feeder.plan.packing import Packing, pixel_layout_of, unpack_levels
from feeder.sample.reader import SampleReader
from tests.trainer_client.test_loader import TensorBatch
from trainer_client import FeederLoader, NumpyLoader
from trainer_client._device import Normaliser

SAMPLES, CLASSES = 47, 3
BATCH, SIDE, SEED = 6, 32, 5


class Packed:
    """A small dataset, and its batches as computed in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dataset = Dataset.open(path)

    def check(self, batch: TensorBatch, loader: FeederLoader) -> None:
        """Compare a batch with the same one computed here, to the bit."""
        recipe = loader.recipe
        plan = recipe.plan_epoch(self.dataset.layout, seed=SEED, epoch=batch.epoch)
        sample_ids = plan.samples(batch.index)
        layout = pixel_layout_of(recipe.packing)
        count = len(sample_ids) if loader.world_size == 1 else recipe.batch_size
        pixels = np.full((count, *layout.image_shape(SIDE)), layout.grey, layout.dtype)
        labels = np.full(count, -100, np.int64)
        rows = slice(0, len(sample_ids))
        SampleReader(self.dataset, recipe).fill(
            sample_ids, seed=SEED, epoch=batch.epoch, pixels=pixels[rows], labels=labels[rows]
        )
        assert batch.valid == len(sample_ids)
        assert batch.sample_ids[rows].tolist() == sample_ids.tolist()
        assert batch.labels.tolist() == labels.tolist()
        normaliser = Normaliser(torch.device("cpu"), loader.dtype, packing=recipe.packing)
        expected = normaliser(torch.from_numpy(pixels))
        assert torch.equal(batch.images, expected)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packed]:
    folder = tmp_path_factory.mktemp("packed")
    write_synthetic(folder / "images", images=SAMPLES, classes=CLASSES, jobs=1)
    with (folder / "progress").open("w") as progress:
        options = PackOptions(jobs=1, shards=5)
        pack_dataset(folder / "images", folder / "dataset", options, ProgressLine(progress))
    result = Packed(folder / "dataset")
    yield result
    result.dataset.close()


@pytest.fixture(scope="module")
def endpoint(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    folder = tmp_path_factory.mktemp("node")
    with serving({"shapes": packed.path}, f"ipc://{folder}/s"):
        yield f"ipc://{folder}/s"


def make_loader(endpoint: str, **options: object) -> FeederLoader:
    settings: dict[str, object] = {
        "dataset": "shapes",
        "batch_size": BATCH,
        "image_size": SIDE,
        "seed": SEED,
        "timeout_s": 60.0,
        "device": "cpu",
    }
    if options.get("split") == "val":
        settings["recipe"] = {"resize_size": SIDE + 4}
    return FeederLoader(endpoint, **(settings | options))


@pytest.mark.parametrize("split", ["train", "val"])
def test_every_batch_is_the_plans(packed: Packed, endpoint: str, split: str) -> None:
    with make_loader(endpoint, split=split) as loader:
        assert loader.fingerprint == packed.dataset.content
        assert loader.classes == packed.dataset.classes
        for _ in range(2):
            batches = list(loader)
            assert len(batches) == len(loader) == (SAMPLES // BATCH + (split == "val"))
            for batch in batches:
                packed.check(batch, loader)


@pytest.mark.parametrize("convert", [list, torch.tensor])
def test_samples_have_the_names_of_their_files(
    packed: Packed, endpoint: str, convert: Callable[[list[int]], Any]
) -> None:
    source = packed.path.parent / "images"
    files = sorted(str(path.relative_to(source)) for path in source.glob("*/*"))
    with make_loader(endpoint, split="val") as loader:
        for batch in loader:
            for name, label in zip(loader.names(batch.sample_ids), batch.labels, strict=True):
                assert name.partition("/")[0] == loader.classes[label]
        names = loader.names(convert([*range(SAMPLES), 3, 3, -1, 0]))
        assert sorted(names[:SAMPLES]) == files, "each once"
        assert names[SAMPLES:] == [names[3], names[3], "", names[0]]
        assert loader.names(convert([])) == []
        for ids, message in (
            ([0, SAMPLES], "'shapes' has no sample 47, it has 0 .. 46"),
            ([-2], "'shapes' has no sample -2"),
            ([[1]], "whole numbers in one dimension"),
            ([0.5], "whole numbers in one dimension"),
        ):
            with pytest.raises(ConfigError, match=message):
                loader.names(convert(ids))
    with pytest.raises(ConfigError, match="closed"):
        loader.names([1])


def test_the_command_names_samples_of_a_feeder(
    packed: Packed, endpoint: str, capsys: pytest.CaptureFixture[str]
) -> None:
    expected = [packed.dataset.name_of(number) for number in (5, 0, 5)]
    assert main(["names", endpoint, "5", "0", "5", "--dataset", "shapes"]) == 0
    assert capsys.readouterr().out.splitlines() == expected
    for number, dataset, message in (
        ("47", "shapes", "'shapes' has no sample 47, it has 0 .. 46"),
        ("1", "birds", "no dataset 'birds' here; served: shapes"),
    ):
        assert main(["names", endpoint, number, "--dataset", dataset]) > 0
        output = capsys.readouterr()
        assert (output.out, output.err.count("\n")) == ("", 1)
        assert message in output.err


AUGMENTED = {
    "auto_augment": "rand-augment",
    "brightness": 0.4,
    "hue": 0.1,
    "greyscale_probability": 0.2,
    "erasing_probability": 0.5,
    "erasing_value": "noise",
}


@pytest.mark.parametrize("packing", get_args(Packing))
def test_every_packing_gives_the_same_batches_to_both_clients(
    packed: Packed, endpoint: str, packing: Packing
) -> None:
    """Including the padding in the epoch's last batch."""
    fields = {**AUGMENTED, "last_batch": "pad", "packing": packing}
    with make_loader(endpoint, recipe=fields) as loader:
        batches = list(loader)
        assert len(batches) == -(-SAMPLES // BATCH)
        for batch in batches:
            packed.check(batch, loader)
    with make_loader(endpoint, recipe=AUGMENTED) as plain:
        assert torch.equal(batches[0].images, next(iter(plain)).images)
    with BatchFetcher(endpoint, dataset="shapes", recipe=loader.recipe, seed=SEED) as fetcher:
        (last,) = fetcher.fetch(len(batches) - 1)
    levels = unpack_levels(last.pixels, pixel_layout_of(packing))
    turned = torch.from_numpy(levels ^ 128).view(torch.int8)
    expected = Normaliser(torch.device("cpu"), torch.float32)(turned)
    assert torch.equal(batches[-1].images, expected[: last.valid])
    assert (levels[last.valid :] == 128).all()


@pytest.mark.parametrize(
    ("options", "kind", "message"),
    [
        ({"dataset": "shape"}, DatasetError, r"no dataset 'shape' here.*: shapes$"),
        ({"batch_size": SAMPLES + 1}, ConfigError, "batch_size 48 is larger than dataset 'shapes'"),
        (
            {"recipe": {"lanes": 8}},
            ConfigError,
            ": recipe: lanes 8 is more than the 7 whole batches of 6 in 47 samples: use at most 7, "
            "or 0 to choose by size$",
        ),
    ],
)
def test_what_the_daemon_refuses_is_one_line(
    endpoint: str, options: dict[str, object], kind: type[FeederError], message: str
) -> None:
    with pytest.raises(kind, match=message) as caught:
        make_loader(endpoint, **options)
    assert "\n" not in str(caught.value)


# --- Arrays ---------------------------------------------------------------------------------------


def make_numpy_loader(endpoint: str, **options: object) -> NumpyLoader:
    settings = {"dataset": "shapes", "batch_size": 3, "image_size": SIDE, "seed": SEED}
    return NumpyLoader(endpoint, **(settings | options))  # type: ignore[arg-type]


def is_view(images: np.ndarray) -> bool:
    """Whether an array lies in a mapping that the kernel lets nobody write to."""
    address = images.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(text, 16) for text in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[1][1] == "-"
    raise AssertionError("no mapping has it")


@pytest.mark.parametrize("share_memory", [True, False])
@pytest.mark.parametrize("make", [make_loader, make_numpy_loader])
def test_all_parts_of_kept_batches_stay_as_they_were(
    endpoint: str, make: Callable[..., Any], share_memory: bool
) -> None:
    with make(endpoint, share_memory=share_memory, batch_size=3) as loader:
        batches = list(loader)
        assert len(batches) == SAMPLES // 3 > 2 * 6, "more than the slots that there are"
        loader.set_epoch(0)
        for kept, batch in zip(batches, loader, strict=True):
            for name in ("images", "labels", "sample_ids"):
                assert bool((getattr(kept, name) == getattr(batch, name)).all()), name
            assert (kept.valid, kept.epoch, kept.index) == (batch.valid, 0, batch.index)
        assert (loader.statistics().batches_lent > 0) == share_memory


def test_views_lie_in_the_feeders_memory_and_are_taken_again_once_they_are_dropped(
    endpoint: str,
) -> None:
    with make_numpy_loader(endpoint) as loader:
        kept = [batch.images for batch in loader]
        lie_in_slots = [is_view(images) for images in kept]
        assert lie_in_slots == [True] * 3 + [False] * (len(kept) - 3), "half of 4 + 2 slots"
        kept.clear()
        assert all(is_view(images) for images, _ in loader)
    with make_numpy_loader(endpoint, copy=False) as loader:
        batch = next(iter(loader))
        images = batch.images
        assert is_view(images)
        assert loader.statistics().batches_lent > 0
        with pytest.raises(ValueError, match="read-only"):
            images[0] = 0
    assert images.sum() == images.sum(), "it stays mapped after close()"
    with pytest.raises(ConfigError, match="or the loader closed"):
        _ = batch.images


@pytest.mark.parametrize("channels", [3, 4])
def test_float32_arrays_are_the_tensors(endpoint: str, channels: int) -> None:
    options: dict[str, Any] = {"channels": channels, "split": "val", "batch_size": 6}
    recipe = {"resize_size": SIDE + 4}
    with (
        make_loader(endpoint, **options) as tensors,
        make_numpy_loader(endpoint, dtype="float32", recipe=recipe, **options) as loader,
    ):
        count = 0
        for expected, batch in zip(tensors, loader, strict=True):
            assert np.array_equal(batch.images, expected.images.permute(0, 2, 3, 1).numpy())
            assert batch.labels.tolist() == expected.labels.tolist()
            assert batch.sample_ids.tolist() == expected.sample_ids.tolist()
            count += batch.valid
        assert count == SAMPLES
        assert loader.statistics().copied_because is None

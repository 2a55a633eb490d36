"""Both loaders against the real daemon: its bytes, its labels of every kind, its refusals."""

import operator
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, get_args

import numpy as np
import pytest
import torch

from bench.fetcher import BatchFetcher
from feeder.cli.main import main
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, DatasetError
from feeder.plan.labels import LabelSpec
from feeder.plan.packing import Packing, pixel_layout_of, unpack_levels
from feeder.sample.reader import SampleReader
from tests.support.daemon import Daemon
from tests.support.synthetic_sets import (
    EVERY_KIND,
    FLOATS,
    MULTI,
    NONE,
    class_names,
    expected_rows,
    pack_synthetic,
    write_labelled,
)
from trainer_client import Accuracy, FeederLoader, NumpyLoader
from trainer_client._device import Normaliser
from trainer_client.train import TrainingOptions, TrainingRecipe, train

SAMPLES, BATCH, SIDE, SEED = 47, 6, 32, 5
LABELLED = 23  # samples of each kind of labels
KINDS = {f"{labels.kind}{labels.width}": labels for labels in EVERY_KIND}


class Packed:
    """A small dataset, and its batches as computed in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dataset = Dataset.open(path)

    def check(self, batch: Any, loader: Any) -> None:
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
        if isinstance(loader, NumpyLoader):
            assert np.array_equal(batch.images, pixels)
            return
        normaliser = Normaliser(torch.device("cpu"), loader.dtype, packing=recipe.packing)
        expected = normaliser(torch.from_numpy(pixels))
        assert torch.equal(batch.images, expected)


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Packed]:
    result = Packed(pack_synthetic(tmp_path_factory.mktemp("packed"), images=SAMPLES))
    yield result
    result.dataset.close()


@pytest.fixture(scope="module")
def endpoints(packed: Packed, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One daemon that serves the images and a set of each kind of labels; by scheme."""
    folder = tmp_path_factory.mktemp("node")
    data = ["--data", f"shapes={packed.path}"]
    for name, labels in KINDS.items():
        write_labelled(folder / name, labels, samples=LABELLED)
        data += ["--data", f"{name}={folder / name}"]
    binds = ["--bind", f"ipc://{folder}/s", "--bind", "tcp://127.0.0.1:0"]
    with Daemon(*data, *binds, "--workers", "1") as daemon:
        yield {each.partition(":")[0]: each for each in daemon.endpoints}


@pytest.fixture
def endpoint(endpoints: dict[str, str]) -> str:
    return endpoints["ipc"]


def make_loader(endpoint: str, kind: Any = FeederLoader, **options: object) -> Any:
    settings: dict[str, object] = {
        "dataset": "shapes",
        "batch_size": BATCH,
        "image_size": SIDE,
        "seed": SEED,
        "timeout_s": 60.0,
    }
    if kind is FeederLoader:
        settings["device"] = "cpu"
    if options.get("split") == "val":
        settings["recipe"] = {"resize_size": SIDE + 4}
    return kind(endpoint, **(settings | options))


@pytest.mark.parametrize("kind", [FeederLoader, NumpyLoader])
@pytest.mark.parametrize("split", ["train", "val"])
def test_every_batch_is_the_plans(packed: Packed, endpoint: str, split: str, kind: type) -> None:
    with make_loader(endpoint, kind, split=split) as loader:
        assert loader.fingerprint == packed.dataset.content
        assert loader.classes == packed.dataset.classes
        for _ in range(2):
            count = 0
            for batch in loader:
                packed.check(batch, loader)
                count += 1
            assert count == len(loader) == (SAMPLES // BATCH + (split == "val"))


@pytest.mark.parametrize("convert", [list, torch.tensor])
def test_samples_have_the_names_of_their_files(
    packed: Packed, endpoint: str, convert: Callable[[list[int]], Any]
) -> None:
    source = packed.path.parent / "source"
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
        ("1", "birds", "no dataset 'birds' here; served: "),
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


def test_what_the_daemon_refuses_is_one_line(endpoint: str) -> None:
    lanes = "lanes 8 is more than the 7 whole batches of 6 in 47 samples: use at most 7, or 0 to"
    for options, kind, message in (
        ({"dataset": "shape"}, DatasetError, "no dataset 'shape' here.*shapes"),
        ({"batch_size": SAMPLES + 1}, ConfigError, "batch_size 48 is larger than dataset 'shapes'"),
        ({"recipe": {"lanes": 8}}, ConfigError, f": recipe: {lanes} choose by size$"),
    ):
        with pytest.raises(kind, match=message) as caught:
            make_loader(endpoint, **options)
        assert "\n" not in str(caught.value)


# --- Arrays ---------------------------------------------------------------------------------------


def is_view(images: np.ndarray) -> bool:
    """Whether an array lies in a mapping that the kernel lets nobody write to."""
    address = images.__array_interface__["data"][0]
    for line in Path("/proc/self/maps").read_text().splitlines():
        first, last = (int(text, 16) for text in line.split()[0].split("-"))
        if first <= address < last:
            return line.split()[1][1] == "-"
    raise AssertionError("no mapping has it")


@pytest.mark.parametrize("share_memory", [True, False])
@pytest.mark.parametrize(
    ("kind", "options"),
    [
        (FeederLoader, {}),
        (NumpyLoader, {}),
        (NumpyLoader, {"window": 1}),
        (NumpyLoader, {"copy": True, "window": 1}),
    ],
)
def test_all_parts_of_kept_batches_stay_as_they_were(
    endpoint: str, kind: type, options: dict[str, object], share_memory: bool
) -> None:
    with make_loader(endpoint, kind, share_memory=share_memory, batch_size=3, **options) as loader:
        batches = list(loader)
        assert len(batches) == SAMPLES // 3 > 2 * 6, "more than the slots that there are"
        loader.set_epoch(0)
        for kept, batch in zip(batches, loader, strict=True):
            for name in ("images", "labels", "sample_ids"):
                assert bool((getattr(kept, name) == getattr(batch, name)).all()), name
            assert (kept.valid, kept.epoch, kept.index) == (batch.valid, 0, batch.index)
            if kind is NumpyLoader:
                assert kept.images.flags.writeable == ("copy" in options)
        assert (loader.statistics().batches_lent > 0) == share_memory


def test_views_lie_in_the_feeders_memory_and_are_taken_again_once_they_are_dropped(
    endpoint: str,
) -> None:
    with make_loader(endpoint, NumpyLoader, batch_size=3) as loader:
        kept = [batch.images for batch in loader]
        lie_in_slots = [is_view(images) for images in kept]
        assert lie_in_slots == [True] * 3 + [False] * (len(kept) - 3), "half of 4 + 2 slots"
        kept.clear()
        assert all(is_view(images) for images, _ in loader)


def test_a_borrowed_batch_that_was_given_back_shows_no_other_batchs_pixels(
    packed: Packed, endpoint: str
) -> None:
    with make_loader(endpoint, NumpyLoader, copy=False) as loader:
        batches = iter(loader)
        first, second = next(batches), next(batches)
        for use in (lambda batch: batch.images, list, operator.itemgetter(0)):
            with pytest.raises(ConfigError, match="batch 0 of epoch 0 was used after the next one"):
                use(first)
            use(second)
        assert repr(first) == "<batch 0 of epoch 0, given back>"
        assert (first.index, first.valid) == (0, BATCH), "what needs no memory is still there"
        packed.check(second, loader)
        images = second.images
        assert is_view(images)
        with pytest.raises(ValueError, match="read-only"):
            images[0] = 0
    assert images.sum() == images.sum(), "it stays mapped after close()"
    with pytest.raises(ConfigError, match="or the loader closed"):
        _ = second.images


@pytest.mark.parametrize("channels", [3, 4])
def test_float32_arrays_are_the_tensors(endpoint: str, channels: int) -> None:
    options = {"channels": channels, "split": "val"}
    with (
        make_loader(endpoint, **options) as tensors,
        make_loader(endpoint, NumpyLoader, dtype="float32", **options) as loader,
    ):
        count = 0
        for expected, batch in zip(tensors, loader, strict=True):
            assert np.array_equal(batch.images, expected.images.permute(0, 2, 3, 1).numpy())
            assert batch.labels.tolist() == expected.labels.tolist()
            assert batch.sample_ids.tolist() == expected.sample_ids.tolist()
            count += batch.valid
        assert count == SAMPLES
        assert loader.statistics().copied_because is None


# --- Labels of every kind, padding included -------------------------------------------------------


def check_labels(batch: Any, labels: LabelSpec) -> None:
    """Compare with the samples' own; padding of floats is NaN."""
    ids = np.asarray(batch.sample_ids)
    found, expected = np.asarray(batch.labels), expected_rows(ids, labels)
    if labels.kind == "multi":
        expected = np.where(expected == 255, np.float32(np.nan), expected.astype(np.float32))
    assert found.dtype == expected.dtype == (np.float32 if labels.row_shape else np.int64)
    assert found.shape == expected.shape == (len(ids), *labels.row_shape)
    assert np.array_equal(found, expected, equal_nan=bool(labels.row_shape))
    assert ((ids >= 0) == (np.arange(len(ids)) < batch.valid)).all()


def labelled(name: str, **more: object) -> dict[str, Any]:
    """The options of an evaluation over a set of labels, in batches of 5."""
    small = {"batch_size": 5, "image_size": 16, "recipe": {"resize_size": 16}}
    return {"dataset": name, "split": "val", **small, **more}


@pytest.mark.parametrize(("scheme", "share_memory"), [("ipc", True), ("ipc", False), ("tcp", True)])
@pytest.mark.parametrize("name", KINDS)
def test_an_evaluation_over_ranks_has_each_samples_labels_and_padding(
    name: str, scheme: str, share_memory: bool, endpoints: dict[str, str]
) -> None:
    """Of five batches over two ranks, the last is short and a sixth is all padding."""
    labels = KINDS[name]
    for make, more in (
        (FeederLoader, {"device": "cpu"}),
        (NumpyLoader, {"copy": False}),
        (NumpyLoader, {"dtype": "float32"}),
    ):
        seen, valid, kept = [], [], []
        for rank in range(2):
            options = labelled(name, share_memory=share_memory, rank=rank, world_size=2, **more)
            with make(endpoints[scheme], **options) as loader:
                info = loader.dataset
                assert (info.label_kind, info.label_width) == (labels.kind, labels.width)
                assert loader.classes == class_names(labels)
                for batch in loader:
                    check_labels(batch, labels)
                    seen += batch.sample_ids[: batch.valid].tolist()
                    valid.append(batch.valid)
                    kept.append((batch.labels, np.asarray(batch.labels).copy()))
                is_lent = loader.statistics().copied_because is None
                assert is_lent == (scheme == "ipc" and share_memory)
        assert sorted(seen) == list(range(LABELLED))
        assert sorted(valid) == [0, 3, 5, 5, 5, 5]
        for found, copy in kept:
            assert np.asarray(found).tobytes() == copy.tobytes(), "labels are arrays of their own"


@pytest.mark.parametrize("labels", [MULTI, FLOATS, NONE], ids=lambda each: each.kind)
def test_the_reference_job_and_accuracy_refuse_other_kinds_in_one_line(
    labels: LabelSpec, endpoint: str
) -> None:
    name, recipe = f"{labels.kind}{labels.width}", TrainingRecipe(image_size=16)
    options = TrainingOptions(
        endpoint=endpoint, dataset=name, batch_size=5, recipe=recipe, device="cpu"
    )
    with pytest.raises(ConfigError, match="trains on one class a sample") as caught:
        train(options, report=lambda line: None)
    assert "\n" not in str(caught.value)

    def evaluate() -> None:
        with FeederLoader(endpoint, device="cpu", **labelled(name)) as loader:
            accuracy = Accuracy(LABELLED, loader.device)
            for batch in loader:
                accuracy.add(torch.eye(len(batch.labels), 11), batch)
            accuracy.result()

    none = "23 samples have no label"
    message = none if labels == NONE else rf"labels are \(5, {labels.width}\) floats"
    with pytest.raises(ConfigError, match=message):
        evaluate()

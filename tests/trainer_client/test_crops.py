"""Several crops a sample and sizes by epoch, from the real daemon to both loaders."""

import json
import logging
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.typing import NDArray

from feeder.cli.main import main
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, ProtocolError
from feeder.plan.packing import pixel_layout_of
from feeder.plan.recipe import Recipe
from feeder.sample.reader import SampleReader
from feeder.wire.messages import Refused, VersionMismatch, encode
from tests.support.daemon import Daemon
from tests.support.fake_node import FakeNode
from tests.support.sources import REPOSITORY
from tests.support.synthetic_sets import pack_synthetic
from trainer_client import FeederLoader, NumpyLoader
from trainer_client._device import Normaliser

SAMPLES, BATCH, SEED = 47, 6, 5
CROPS = [
    {"count": 2, "size": 40, "scale": [0.4, 1.0]},
    {"count": 3, "size": 24, "scale": [0.05, 0.4]},
]
SIZES = {"0": 32, "1": 40, "3": 24}
SIZE_OF_EPOCH = [32, 40, 40, 24, 24]


class Rows:
    """A dataset, and its batches as computed in this process."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.dataset = Dataset.open(path)

    def groups(self, recipe: Recipe, epoch: int, index: int) -> list[NDArray[Any]]:
        """The arrays of each group of crops, (crops, batch, …)."""
        recipe = recipe.at(epoch)
        ids = recipe.plan_epoch(self.dataset.layout, seed=SEED, epoch=epoch).samples(index)
        layout = pixel_layout_of(recipe.packing)
        groups: list[NDArray[Any]] = [
            np.empty((count, len(ids), *layout.image_shape(size)), layout.dtype)
            for count, size in recipe.group_shapes
        ]
        pixels, *further = (crop for group in groups for crop in group)
        labels = np.empty(len(ids), np.int64)
        SampleReader(self.dataset, recipe).fill(
            ids, seed=SEED, epoch=epoch, pixels=pixels, labels=labels, further=further
        )
        return groups


@pytest.fixture(scope="module")
def rows(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Rows]:
    made = Rows(pack_synthetic(tmp_path_factory.mktemp("packed"), images=SAMPLES))
    yield made
    made.dataset.close()


@pytest.fixture(scope="module")
def endpoints(rows: Rows, tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    folder = tmp_path_factory.mktemp("node")
    binds = ["--bind", f"ipc://{folder}/s", "--bind", "tcp://127.0.0.1:0"]
    data, few = ["--data", f"shapes={rows.path}"], ["--workers", "2", "--chunk-images", "4"]
    with Daemon(*data, *binds, *few, "--decoded-bytes", "64 MiB") as daemon:
        yield {each.partition(":")[0]: each for each in daemon.endpoints}


def make_loader(endpoint: str, kind: type, **options: Any) -> Any:
    more = {"device": "cpu"} if kind is FeederLoader else {}
    settings = {"dataset": "shapes", "batch_size": BATCH, "seed": SEED, "timeout_s": 60.0} | more
    return kind(endpoint, **(settings | options))


SHARED = pytest.mark.parametrize("transport", ["ipc", "tcp", "ipc, copied"])


def reach(endpoints: dict[str, str], transport: str) -> dict[str, Any]:
    scheme, _, copied = transport.partition(", ")
    return {"endpoint": endpoints[scheme], "share_memory": not copied}


@SHARED
@pytest.mark.parametrize("copy", [None, True, False])
def test_arrays_have_every_crop_of_the_plan(
    rows: Rows, endpoints: dict[str, str], transport: str, copy: bool | None
) -> None:
    options = reach(endpoints, transport) | {"copy": copy, "recipe": {"crops": CROPS}}
    kept, copies = [], []
    with make_loader(kind=NumpyLoader, **options) as loader:
        for _ in range(2):
            for batch in loader:
                assert [group.shape for group in batch.crops] == [
                    (2, BATCH, 40, 40, 3),
                    (3, BATCH, 24, 24, 3),
                ]
                expected = rows.groups(loader.recipe, batch.epoch, batch.index)
                for group, want in zip(batch.images, expected, strict=True):
                    assert np.array_equal(group, want)
                    assert group.flags.writeable is (copy is True)
                assert batch.labels.shape == batch.sample_ids.shape == (BATCH,)
                if copy is not False:
                    kept.append(batch.images)
                    copies.append([group.copy() for group in batch.images])
        is_lent = loader.statistics().batches_lent > 0
        assert is_lent is (transport == "ipc")
    for images, before in zip(kept, copies, strict=True):  # whatever was taken after them
        for group, want in zip(images, before, strict=True):
            assert np.array_equal(group, want)


@SHARED
@pytest.mark.parametrize("memory_format", [torch.channels_last, torch.contiguous_format])
@pytest.mark.parametrize("packing", ["int8-hwc-rgb", "uint8-chw-rgbx", "float32-hwc-rgb"])
def test_tensors_are_normalised_and_padded(
    rows: Rows,
    endpoints: dict[str, str],
    transport: str,
    memory_format: torch.memory_format,
    packing: Any,
) -> None:
    recipe = {"crops": CROPS, "packing": packing}
    options = reach(endpoints, transport) | {"recipe": recipe, "memory_format": memory_format}
    normaliser = Normaliser(
        torch.device("cpu"), torch.float32, packing=packing, memory_format=memory_format
    )
    with make_loader(kind=FeederLoader, **options) as loader:
        before: Any = None
        for batch in loader:
            expected = rows.groups(loader.recipe, batch.epoch, batch.index)
            for group, pixels in zip(batch.crops, expected, strict=True):
                assert group.shape[:3] == (*pixels.shape[:2], 4)
                for crop, want in zip(group, pixels, strict=True):
                    assert torch.equal(crop, normaliser(torch.from_numpy(want)).clone())
                    assert crop.is_contiguous(memory_format=memory_format)
            if before is not None:  # the batch that is kept is not written again
                assert all(map(torch.equal, *before))
            before = batch.crops, [group.clone() for group in batch.crops]
        moved = batch.to("cpu")
        assert moved.crops[1].shape == batch.crops[1].shape
        assert moved.index == batch.index


@SHARED
@pytest.mark.parametrize("kind", [NumpyLoader, FeederLoader])
@pytest.mark.parametrize("ranks", [1, 9])
def test_rows_of_padding_are_grey_in_every_crop(
    rows: Rows, endpoints: dict[str, str], transport: str, kind: type, ranks: int
) -> None:
    """On one rank the last batch is short; of nine, the last one has no sample at all."""
    recipe = {"crops": CROPS, "last_batch": "pad"}
    options = reach(endpoints, transport) | {"recipe": recipe, "world_size": ranks}
    normaliser = Normaliser(torch.device("cpu"), torch.float32)
    for rank in {0, ranks - 2, ranks - 1} & {*range(ranks)}:
        with make_loader(kind=kind, rank=rank, **options) as loader:
            *_, last = loader
            valid = last.valid
            assert valid == max(0, min(BATCH, SAMPLES - last.index * BATCH)) < BATCH + 1
            count = valid if ranks == 1 else BATCH
            expected = rows.groups(loader.recipe, last.epoch, last.index) if valid else [[], []]
            for group, want, (crops, size) in zip(
                last.crops, expected, loader.recipe.group_shapes, strict=True
            ):
                assert group.shape[:2] == (crops, count)
                pixels = np.zeros((crops, count, size, size, 3), np.int8)
                if valid:
                    pixels[:, :valid] = want
                for crop, right in zip(group, pixels, strict=True):
                    if kind is NumpyLoader:
                        assert np.array_equal(crop, right)
                    else:
                        assert torch.equal(crop, normaliser(torch.from_numpy(right)))


def test_the_first_crop_is_that_of_a_recipe_without_the_others(endpoints: dict[str, str]) -> None:
    endpoint = endpoints["ipc"]
    plain = {"recipe": {"scale": [0.4, 1.0], "brightness": 0.4}, "image_size": 40}
    several = {"recipe": {"crops": CROPS, "brightness": 0.4}}
    with (
        make_loader(endpoint, NumpyLoader, **plain) as one,
        make_loader(endpoint, NumpyLoader, **several) as many,
    ):
        for single, batch in zip(one, many, strict=True):
            assert isinstance(single.images, np.ndarray)
            assert np.array_equal(batch.images[0][0], single.images)
            assert not np.array_equal(batch.images[0][1], single.images)
            with pytest.raises(AttributeError, match="one crop a sample: read images"):
                _ = single.crops


@SHARED
@pytest.mark.parametrize("kind", [NumpyLoader, FeederLoader])
def test_arrays_have_the_size_of_their_epoch(
    rows: Rows, endpoints: dict[str, str], transport: str, kind: type
) -> None:
    options = reach(endpoints, transport) | {"image_size": SIZES, "window": 3}
    normaliser = Normaliser(torch.device("cpu"), torch.float32)
    kept: list[tuple[Any, Any]] = []
    with make_loader(kind=kind, **options) as loader:
        for size in SIZE_OF_EPOCH:
            for batch in loader:
                (pixels,) = rows.groups(loader.recipe, batch.epoch, batch.index)
                assert pixels.shape[2] == size
                if kind is NumpyLoader:
                    assert np.array_equal(batch.images, pixels[0])
                    kept.append((batch.images, pixels[0]))
                else:
                    want = normaliser(torch.from_numpy(pixels[0]))
                    assert torch.equal(batch.images, want)
            assert loader.statistics().epoch.bytes_per_s > 0
    assert all(np.array_equal(images, pixels) for images, pixels in kept)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_job_resumes_on_either_side_of_a_new_size(endpoints: dict[str, str], ranks: int) -> None:
    options = {"image_size": SIZES, "recipe": {"scale": {0: [0.3, 1.0], 2: [0.1, 1.0]}}}
    seen: list[bytes] = []
    states: list[dict[str, int | str]] = []
    with make_loader(endpoints["tcp"], NumpyLoader, **options) as loader:
        for _ in SIZE_OF_EPOCH:
            for batch in loader:
                seen.append(batch.images.tobytes())
                states.append(loader.state_dict())
        steps = len(loader)
    assert len({state["recipe"] for state in states}) == 1, "one job, one state"
    for epoch in (1, 3):
        for step in (0, 2, steps - 1) if ranks == 1 else (steps - 1,):
            state = states[epoch * steps + step - 1]
            with make_loader(endpoints["ipc"], NumpyLoader, **options) as loader:
                loader.load_state_dict(state)
                at = epoch * steps + step
                for again in (*loader, *next_epoch(loader)):
                    assert again.images.tobytes() == seen[at]
                    at += 1


def next_epoch(loader: Any) -> list[Any]:
    return list(loader) if loader.state_dict()["epoch"] < len(SIZE_OF_EPOCH) else []


def test_the_log_has_the_shape_of_the_images(
    endpoints: dict[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainer_client")
    endpoint = endpoints["ipc"]
    for options, text in (
        ({"recipe": {"crops": CROPS}}, "6 x (2 x (40, 40, 3) and 3 x (24, 24, 3)) int8 arrays"),
        ({"image_size": SIZES}, "(32, 32, 3), (40, 40, 3) from epoch 1, (24, 24, 3) from epoch 3"),
    ):
        with make_loader(endpoint, NumpyLoader, **options) as loader:
            next(iter(loader))
        assert text in caplog.text


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"split": "val", "recipe": {"crops": CROPS}}, "crops are for training"),
        ({"split": "val", "image_size": SIZES}, "by epoch are for training, an evaluation has one"),
        ({"image_size": {"2": 40}}, 'begins at epoch 2: give its value from epoch "0" on, too'),
        ({"image_size": {0: 40, 3: 4096}}, "image_size from epoch 3 on must be .* 8 .. 2048"),
        ({"image_size": 48, "recipe": {"crops": CROPS}}, "image_size 48 is that of no group"),
    ],
)
def test_a_bad_shape_is_one_line(
    endpoints: dict[str, str], options: dict[str, Any], message: str
) -> None:
    for kind in (NumpyLoader, FeederLoader):
        with pytest.raises(ConfigError, match=message) as caught:
            make_loader(endpoints["ipc"], kind, **options)
        assert "\n" not in str(caught.value)


def test_a_served_preview_shows_the_crops_that_the_dataset_has(
    rows: Rows, endpoints: dict[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    sheets: list[NDArray[np.uint8]] = []
    monkeypatch.setattr(
        "feeder.cli.contact_sheet.draw_contact_sheet",
        lambda pictures, *_, **__: sheets.append(pictures),
    )
    more = ["--images", "10", "--epoch", "1", "--out", str(tmp_path / "sheet.png")]
    more += ["--batch-size", str(BATCH), "--recipe", f"crops={json.dumps(CROPS)}"]
    served = ["--from", endpoints["tcp"], "--dataset", "shapes"]
    assert main(["preview", *served, *more]) == main(["preview", str(rows.path), *more]) == 0
    assert sheets[0].shape == (10, 40, 40, 3)
    assert np.array_equal(*sheets)


class NewerRecipe(Recipe, frozen=True, kw_only=True):
    """A recipe of a later version of the client, with a field that this feeder has not."""

    zoom: float = 0.0

    def fingerprint(self) -> str:
        own = {name: getattr(self, name) for name in Recipe.__struct_fields__}
        return Recipe(**own).fingerprint() if not self.zoom else "of a newer recipe"


@pytest.mark.parametrize("kind", [NumpyLoader, FeederLoader])
def test_a_feeder_that_has_not_a_field_is_named_in_one_line(
    endpoints: dict[str, str], kind: type, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("trainer_client._feed.Recipe", NewerRecipe)
    with make_loader(endpoints["tcp"], kind, image_size=32) as loader:
        next(iter(loader))  # the field is at its default, and so is not sent
    with pytest.raises(ConfigError) as caught:
        make_loader(endpoints["tcp"], kind, recipe={"zoom": 0.5})
    text = str(caught.value)
    assert "recipe: this feeder is older than its client and has no field zoom: " in text
    assert text.endswith("install the same version on both sides, or leave it out")
    assert "\n" not in text


@pytest.mark.parametrize(
    ("options", "field"), [({"recipe": {"crops": CROPS}}, "crops"), ({"image_size": SIZES}, "phas")]
)
def test_a_feeder_from_before_crops_and_phases_refuses_them_at_once(
    options: dict[str, Any], field: str
) -> None:
    """It knows protocol version 8, of which everything else still is."""
    old = VersionMismatch(9)
    assert str(old).endswith(
        "version 9, this feeder 8: install the same feeder version on both sides"
    )
    with FakeNode() as node:
        node.greeting = lambda hello: [encode(Refused(code="version", message=str(old)))]
        with pytest.raises(ProtocolError) as caught:
            make_loader(node.endpoint, NumpyLoader, **options)
    text = str(caught.value)
    assert f"{old}, or leave {field}" in text
    assert "\n" not in text


def test_the_self_supervised_example_learns_and_resumes(
    endpoints: dict[str, str], tmp_path: Path
) -> None:
    """Its loss falls, and a job of two halves ends with the weights of one without a break."""

    def train(checkpoint: str, epochs: int) -> list[float]:
        script = REPOSITORY / "docs" / "examples" / "self_supervised.py"
        sizes = ["--batch-size", "12", "--image-size", "32", "--checkpoint-steps", "2"]
        more = ["--epochs", str(epochs), "--checkpoint", checkpoint]
        done = subprocess.run(
            [sys.executable, script, endpoints["ipc"], "--dataset", "shapes", *sizes, *more],
            cwd=tmp_path,
            env={**os.environ, "PYTHONPATH": str(REPOSITORY), "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
            timeout=120,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return [float(loss) for loss in re.findall(r"mean loss (\S+) over 3 steps", done.stdout)]

    whole = train("whole.pt", 8)
    assert len(whole) == 8
    assert whole[-1] < 0.9 * whole[0]
    assert [*train("parts.pt", 3), *train("parts.pt", 8)] == whole
    ends = [torch.load(tmp_path / name)["model"] for name in ("whole.pt", "parts.pt")]
    assert all(torch.equal(ends[0][name], ends[1][name]) for name in ends[0])


def test_phases_that_change_nothing_are_none() -> None:
    sizes = [
        recipe.image_size
        for recipe in Recipe.for_split(
            "train", batch_size=2, image_size={"0": 32, "4": 32, "5": 40, "9": 40}
        ).over_epochs()
    ]
    assert all(before != after for before, after in pairwise(sizes))

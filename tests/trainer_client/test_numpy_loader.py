"""``NumpyLoader``: the same batches as arrays, without torch; ``test_loader_daemon`` has more."""

import operator
from typing import Any

import numpy as np
import pytest

from feeder.errors import ConfigError
from tests.support.fake_node import FakeNode, sample_pixels
from tests.trainer_client.test_loader import BATCH, SIDE, STEPS, run_script
from trainer_client import NumpyLoader


def make_arrays(node: FakeNode, **options: Any) -> NumpyLoader:
    settings: dict[str, Any] = {"dataset": "birds", "batch_size": BATCH, "image_size": SIDE}
    settings |= {"timeout_s": 20.0, "recipe": {"resize_size": SIDE}}
    return NumpyLoader(node.endpoint, **(settings | options))


@pytest.mark.parametrize("copy", [None, False, True])
@pytest.mark.parametrize("split", ["train", "val"])
def test_int8_batches_are_the_packed_pixels(node: FakeNode, split: str, copy: bool | None) -> None:
    with make_arrays(node, split=split, copy=copy) as loader:
        seen = []
        for images, labels in loader:
            assert (images.dtype, images.shape[1:]) == (np.int8, (SIDE, SIDE, 3))
            assert (labels.dtype, images.flags.writeable) == (np.int64, copy is True)
            seen.append(labels.tolist())
        batches = [(batch.sample_ids, batch.images.copy()) for batch in loader]
        assert len(seen) == len(batches) == len(loader) == STEPS + (split == "val")
    for ids, images in batches:
        assert (images == sample_pixels(ids, 1, SIDE)).all()
    assert len(batches[-1][0]) == (1 if split == "val" else BATCH)


def test_a_borrowed_batch_that_was_given_back_shows_no_other_batchs_pixels(node: FakeNode) -> None:
    with make_arrays(node, copy=False) as loader:
        batches = iter(loader)
        first, second = next(batches), next(batches)
        for use in (lambda batch: batch.images, list, operator.itemgetter(0)):
            with pytest.raises(ConfigError, match="batch 0 of epoch 0 was used after the next one"):
                use(first)
            use(second)
        assert "array(" in repr(second)
        assert repr(first) == "<batch 0 of epoch 0, given back>"
        assert (first.index, first.valid) == (0, BATCH), "what needs no memory is still there"
        assert (second.images == sample_pixels(second.sample_ids, 0, SIDE)).all()


@pytest.mark.parametrize(
    ("options", "granted"), [({}, 64), ({}, 2), ({"window": 1}, 64), ({"copy": True}, 1)], ids=str
)
def test_what_is_kept_of_an_epoch_stays_as_it_was(
    node: FakeNode, options: dict[str, Any], granted: int
) -> None:
    node.window = granted
    with make_arrays(node, **options) as loader:
        batches = list(loader)
        images = [images for images, _ in loader]
    for batch in batches:
        assert (batch.images == sample_pixels(batch.sample_ids, 0, SIDE)).all()
    with make_arrays(node, copy=True) as loader:
        loader.set_epoch(1)
        for kept, batch in zip(images, loader, strict=True):
            assert (kept == batch.images).all()


WITHOUT_TORCH = """
    import sys
    sys.modules["torch"] = None  # as where it is not installed
    import trainer_client
    from trainer_client import *
    assert NumpyLoader is trainer_client.NumpyLoader
    sizes = {"dataset": "birds", "batch_size": 8, "image_size": 8}
    with NumpyLoader(sys.argv[1], dtype="float32", **sizes) as loader:
        print(sum(len(labels) for _, labels in loader))
    for name in ("FeederLoader", "Accuracy", "normalise"):
        try:
            getattr(trainer_client, name)
        except ImportError as error:
            print(error)
"""


def test_no_torch_is_imported(node: FakeNode) -> None:
    images, *errors = run_script(WITHOUT_TORCH, node.endpoint).stdout.splitlines()
    assert images == "96"
    for name, line in zip(("FeederLoader", "Accuracy", "normalise"), errors, strict=True):
        assert line.startswith(f"trainer_client.{name} needs torch, which is not installed here: ")
        assert "NumpyLoader" in line

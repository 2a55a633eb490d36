"""Labels of every kind from a real daemon to both loaders, padding included."""

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import torch

from feeder.errors import ConfigError
from feeder.plan.labels import LabelSpec
from tests.support.daemon import Daemon
from tests.support.synthetic_sets import (
    EVERY_KIND,
    FLOATS,
    MULTI,
    NONE,
    class_names,
    expected_rows,
    write_labelled,
)
from trainer_client import Accuracy, FeederLoader, NumpyLoader
from trainer_client.train import TrainingOptions, TrainingRecipe, train

SAMPLES, BATCH, SIDE = 23, 5, 16
NAMES = {f"{labels.kind}{labels.width}": labels for labels in EVERY_KIND}

every_kind = pytest.mark.parametrize("name", NAMES)
every_way = pytest.mark.parametrize(
    ("scheme", "share_memory"), [("ipc", True), ("ipc", False), ("tcp", True)]
)


@pytest.fixture(scope="module")
def endpoints(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """One daemon that serves a dataset of each kind, by the schemes of its endpoints."""
    folder = tmp_path_factory.mktemp("labels")
    data: list[str] = []
    for name, labels in NAMES.items():
        write_labelled(folder / name, labels, samples=SAMPLES, shards=3)
        data += ["--data", f"{name}={folder / name}"]
    binds = ["--bind", f"ipc://{folder}/s", "--bind", "tcp://127.0.0.1:0"]
    with Daemon(*data, *binds, "--workers", "1") as daemon:
        yield {each.partition(":")[0]: each for each in daemon.endpoints}


def _expected(sample_ids: Any, labels: LabelSpec) -> np.ndarray:
    """Return the labels of a loader's batch: NaN as padding where they are floats."""
    rows = expected_rows(np.asarray(sample_ids), labels)
    if labels.kind != "multi":
        return rows
    return np.where(rows == 255, np.float32(np.nan), rows.astype(np.float32))


def _check(batch: Any, labels: LabelSpec) -> None:
    found, expected = np.asarray(batch.labels), _expected(batch.sample_ids, labels)
    assert found.dtype == expected.dtype == (np.float32 if labels.row_shape else np.int64)
    assert found.shape == expected.shape == (len(batch.sample_ids), *labels.row_shape)
    assert np.array_equal(found, expected, equal_nan=bool(labels.row_shape))
    ids = np.asarray(batch.sample_ids)
    assert ((ids >= 0) == (np.arange(len(ids)) < batch.valid)).all()


def _options(name: str, share_memory: bool, **more: object) -> dict[str, Any]:
    return {
        "dataset": name,
        "batch_size": BATCH,
        "image_size": SIDE,
        "recipe": {"resize_size": SIDE},
        "split": "val",
        "share_memory": share_memory,
        **more,
    }


@every_way
@every_kind
def test_an_evaluation_over_ranks_has_each_samples_labels_and_padding(
    name: str, scheme: str, share_memory: bool, endpoints: dict[str, str]
) -> None:
    """Of five batches over two ranks, the last is short and a sixth is all padding."""
    labels = NAMES[name]
    for make, more in (
        (FeederLoader, {"device": "cpu"}),
        (NumpyLoader, {"copy": False}),
        (NumpyLoader, {"dtype": "float32"}),
    ):
        seen, valid, kept = [], [], []
        for rank in range(2):
            options = _options(name, share_memory, rank=rank, world_size=2, **more)
            with make(endpoints[scheme], **options) as loader:
                info = loader.dataset
                assert (info.label_kind, info.label_width) == (labels.kind, labels.width)
                assert loader.classes == class_names(labels)
                for batch in loader:
                    _check(batch, labels)
                    seen += batch.sample_ids[: batch.valid].tolist()
                    valid.append(batch.valid)
                    kept.append((batch.labels, np.asarray(batch.labels).copy()))
                is_lent = loader.statistics().copied_because is None
                assert is_lent == (scheme == "ipc" and share_memory)
        assert sorted(seen) == list(range(SAMPLES))
        assert sorted(valid) == [0, 3, 5, 5, 5, 5]
        for found, copy in kept:
            assert np.asarray(found).tobytes() == copy.tobytes(), "labels are arrays of their own"


@pytest.mark.parametrize("labels", [MULTI, FLOATS, NONE], ids=lambda each: each.kind)
def test_the_reference_job_and_accuracy_refuse_other_kinds_in_one_line(
    labels: LabelSpec, endpoints: dict[str, str]
) -> None:
    name = f"{labels.kind}{labels.width}"
    recipe = TrainingRecipe(image_size=SIDE)
    options = TrainingOptions(
        endpoint=endpoints["ipc"], dataset=name, batch_size=BATCH, recipe=recipe, device="cpu"
    )
    with pytest.raises(ConfigError, match="trains on one class a sample") as caught:
        train(options, report=lambda line: None)
    assert "\n" not in str(caught.value)
    message = rf"labels are \(5, {labels.width}\) floats"
    if labels == NONE:
        message = "23 samples have no label"
    with FeederLoader(endpoints["ipc"], device="cpu", **_options(name, True)) as loader:

        def evaluate() -> None:
            accuracy = Accuracy(SAMPLES, loader.device)
            for batch in loader:
                accuracy.add(torch.eye(len(batch.labels), 11), batch)
            accuracy.result()

        with pytest.raises(ConfigError, match=message):
            evaluate()

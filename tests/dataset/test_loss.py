"""What the images of a dataset lost by choice, in one line."""

from pathlib import Path

import msgspec
import pytest

from feeder.dataset.loss import describe_loss
from feeder.dataset.manifest import MANIFEST_NAME, load_manifest
from feeder.dataset.opened import Dataset
from feeder.node.datasets import describe_dataset
from tests.support.sources import make_source, pack

_CHOSEN: dict[str, bool | int | str] = {
    "apply_exif": False,
    "quality": 90,
    "max_side": 500,
    "subsampling": "420",
    "reencode": True,
}


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("loss")
    pack(make_source(root / "source", 7), root / "dataset")
    return root / "dataset"


@pytest.mark.parametrize(
    ("options", "odd", "line"),
    [
        (
            _CHOSEN,
            {"resized": 3, "reencoded": 6, "png": 1},
            "3 of 7 resized (max side 500), 7 re-encoded (quality 90, 4:2:0)",
        ),
        (_CHOSEN | {"max_side": 0}, {"reencoded": 7}, "7 of 7 re-encoded (quality 90, 4:2:0)"),
        (_CHOSEN | {"subsampling": ""}, {"cmyk": 2}, "2 of 7 re-encoded (quality 90)"),
        (_CHOSEN | {"reencode": False}, {"progressive": 2, "warned": 1, "exif-applied": 3}, ""),
        (_CHOSEN | {"max_side": 0, "subsampling": "", "reencode": False}, {"png": 7}, ""),
        ({"apply_exif": False, "quality": 95}, {"png": 1}, ""),  # all that older versions had
    ],
)
def test_loss_is_counted_with_the_options_that_caused_it(
    dataset: Path, options: dict[str, bool | int | str], odd: dict[str, int], line: str
) -> None:
    manifest = msgspec.structs.replace(load_manifest(dataset), options=options, odd=odd)
    assert describe_loss(manifest) == line


def test_served_dataset_has_its_loss(dataset: Path) -> None:
    path = dataset / MANIFEST_NAME
    before = path.read_bytes()
    assert describe_dataset(Dataset.open(dataset)).loss == ""
    lossy = msgspec.structs.replace(
        load_manifest(dataset), options=_CHOSEN, odd={"resized": 1, "reencoded": 7}
    )
    path.write_bytes(lossy.sealed().encode())
    try:
        shown = describe_dataset(Dataset.open(dataset)).loss
    finally:
        path.write_bytes(before)
    assert shown == "1 of 7 resized (max side 500), 7 re-encoded (quality 90, 4:2:0)"

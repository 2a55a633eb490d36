"""docs/examples/pack_huggingface.py, on a dataset that the ``datasets`` library wrote."""

from pathlib import Path

import numpy as np
import pytest

from feeder.dataset.format import checksum
from feeder.dataset.opened import Dataset
from tests.frameworks.running import SCRIPTS, environment, run_python
from tests.support.sources import REPOSITORY, encoded, image

PYTHON = environment("datasets")
CLASSES = ("ant", "bee", "cat")


def run(script: Path, *arguments: object, folder: Path) -> str:
    variables = {"HF_HOME": str(folder / "cache"), "HF_HUB_OFFLINE": "1"}
    done = run_python(PYTHON, script, *arguments, folder=folder, environ=variables)
    assert done.returncode == 0, done.stderr
    return done.stdout


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """Image files by split and class; the test split has no ants."""
    for split, first, count in (("train", 0, 31), ("test", 1, 7)):
        for number in range(count):
            format_name = "PNG" if number % 5 == 4 else "JPEG"
            data = encoded(image(40 + number, 30, seed=number), format_name)
            name = CLASSES[first + number % (3 - first)]
            path = tmp_path / "source" / split / name / f"{number:03}.{format_name.lower()}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(data)
    return tmp_path / "source"


def rows_of(source: Path) -> dict[str, tuple[str, int]]:
    """Return class and checksum of each file by the key that its row gets."""
    paths = sorted(source.glob("*/*"), key=lambda path: path.name)
    return {
        f"{row:08d}": (path.parent.name, checksum(path.read_bytes()))
        for row, path in enumerate(paths)
    }


def packed(dataset: Path) -> dict[str, tuple[str, int]]:
    with Dataset.open(dataset) as opened:
        assert opened.classes == CLASSES
        records = opened.read_records(np.arange(opened.layout.samples))
        return {
            opened.name_of(number) or "": (
                CLASSES[int(record["label"])],
                int(record["source_checksum"]),
            )
            for number, record in enumerate(records)
        }


@pytest.mark.parametrize("options", [(), ("--streaming",)])
def test_both_splits_are_packed_as_they_are_stored(
    source: Path, tmp_path: Path, options: tuple[str, ...]
) -> None:
    (tmp_path / "hub").mkdir()
    run(SCRIPTS / "make_huggingface_dataset.py", source, tmp_path / "hub", folder=tmp_path)
    example = REPOSITORY / "docs" / "examples" / "pack_huggingface.py"
    output = run(example, tmp_path / "hub", "train", *options, folder=tmp_path)
    assert "31 samples of 3 classes in train" in output
    assert packed(tmp_path / "train") == rows_of(source / "train")
    known = ("--split", "test", "--classes-of", "train")
    run(example, tmp_path / "hub", "test", *known, *options, folder=tmp_path)
    assert packed(tmp_path / "test") == rows_of(source / "test")

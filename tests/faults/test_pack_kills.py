"""Packing is killed at random moments, and ends with the same bytes."""

import tarfile
from pathlib import Path

import pytest

from feeder.dataset.manifest import MANIFEST_NAME
from tests.faults.killed_packing import pack_with_kills
from tests.support.sources import file_tree, make_source, run_feeder


def _tars(source: Path, folder: Path) -> str:
    """Write the images of a class folder as three compressed WebDataset shards."""
    folder.mkdir()
    files = sorted(source.glob("*/*.jpg"))
    for number in range(3):
        with tarfile.open(folder / f"images-{number}.tar.gz", "w:gz") as tar:
            for path in files[number::3]:
                name = f"{path.parent.name}-{path.stem}"
                label = path.parent / f"{path.stem}.cls"
                label.write_text(path.parent.name[-1])
                tar.add(label, f"{name}.cls")
                tar.add(path, f"{name}.jpg")
                label.unlink()
    return str(folder / "images-{0..2}.tar.gz")


@pytest.mark.parametrize(
    "kills",
    [4, pytest.param(20, marks=pytest.mark.extensive("20 kills instead of 4: half a minute"))],
    ids=["few", "many"],
)
@pytest.mark.parametrize("kind", ["class-folder", "webdataset"])
def test_a_packing_killed_again_and_again_ends_with_the_same_bytes(
    tmp_path: Path, kind: str, kills: int
) -> None:
    options = ("--shards", str(6 * kills), "--jobs", "2")
    folder = make_source(tmp_path / "source", 60 * kills)
    source = str(folder) if kind == "class-folder" else _tars(folder, tmp_path / "tars")
    undisturbed = run_feeder("pack", source, tmp_path / "undisturbed", *options)
    assert undisturbed.returncode == 0, undisturbed.stderr
    packing = pack_with_kills(source, tmp_path / "killed", *options, kills=kills)
    assert packing.kills == kills
    assert (tmp_path / "killed" / MANIFEST_NAME).exists()
    assert file_tree(tmp_path / "killed") == file_tree(tmp_path / "undisturbed")

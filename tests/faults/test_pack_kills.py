"""Packing is killed at random moments, and ends with the same bytes."""

import os
import random
import signal
import subprocess
import tarfile
from pathlib import Path

import pytest

from feeder.dataset.manifest import MANIFEST_NAME
from tests.support.daemon import wait_until
from tests.support.sources import call_feeder, feeder_command, file_tree, make_source


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


def pack_with_kills(source: str, destination: Path, *options: str) -> None:
    """Run ``feeder pack`` to the end, and kill it twice on the way.

    A kill comes when the work folder has changed a drawn number of times since the run's start, so
    that each run gets further than the one before it. Afterwards a run completes the dataset. Two
    processes may finish several shards between two looks: give six for each kill.
    """
    chosen, work = random.Random(0), destination / ".packing"
    for _ in range(2):
        before, changes = files_of(work), chosen.randint(1, 2)
        with subprocess.Popen(
            feeder_command("pack", source, destination, *options),
            stdout=subprocess.DEVNULL,
            stderr=subprocess.DEVNULL,
            process_group=0,
        ) as process:
            wait_until(
                lambda: process.poll() is not None or len(files_of(work) ^ before) >= changes,  # noqa: B023
                "the packing makes progress",
            )
            os.killpg(process.pid, signal.SIGKILL)
        assert process.returncode == -signal.SIGKILL, "it had ended before"
    done = call_feeder("pack", source, destination, *options)
    assert done.returncode == 0, done.stderr


def files_of(folder: Path) -> set[str]:
    if not folder.is_dir():
        return set()
    return {name for name in os.listdir(folder) if not name.endswith(".tmp")}


@pytest.mark.parametrize("kind", ["class-folder", "webdataset"])
def test_a_packing_killed_again_and_again_ends_with_the_same_bytes(
    tmp_path: Path, kind: str
) -> None:
    options = ("--shards", "12", "--jobs", "2")
    folder = make_source(tmp_path / "source", 120)
    source = str(folder) if kind == "class-folder" else _tars(folder, tmp_path / "tars")
    undisturbed = call_feeder("pack", source, tmp_path / "undisturbed", *options)
    assert undisturbed.returncode == 0, undisturbed.stderr
    pack_with_kills(source, tmp_path / "killed", *options)
    assert (tmp_path / "killed" / MANIFEST_NAME).exists()
    assert file_tree(tmp_path / "killed") == file_tree(tmp_path / "undisturbed")

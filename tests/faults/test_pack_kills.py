"""Packing is killed at random moments, and ends with the same bytes."""

import os
import random
import re
import signal
import subprocess
import tarfile
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest

from feeder.dataset.manifest import MANIFEST_NAME
from tests.support.daemon import wait_until
from tests.support.sources import call_feeder, feeder_command, file_tree, make_source
from tests.support.stores import FaultyStore


def _tars(source: Path, folder: Path, compression: str = "gz") -> str:
    """Write the images of a class folder as three WebDataset shards."""
    folder.mkdir()
    files = sorted(source.glob("*/*.jpg"))
    for number in range(3):
        shard = f"images-{number}.tar{compression and '.'}{compression}"
        with tarfile.open(folder / shard, f"w:{compression}") as tar:
            for path in files[number::3]:
                name = f"{path.parent.name}-{path.stem}"
                label = path.parent / f"{path.stem}.cls"
                label.write_text(path.parent.name[-1])
                tar.add(label, f"{name}.cls")
                tar.add(path, f"{name}.jpg")
                label.unlink()
    return str(folder / "images-*")


def pack_with_kills(source: str, destination: Path, *options: str) -> None:
    """Run ``feeder pack`` to the end, and kill it twice on the way.

    A kill comes when the work folder has changed a drawn number of times since the run's start, so
    that each run gets further than the one before it. Afterwards a run completes the dataset. Two
    processes may finish several shards between two looks: give six for each kill.
    """
    chosen, work = random.Random(0), destination / ".packing"
    for _ in range(2):
        before, changes = files_of(work), chosen.randint(1, 2)
        kill_when(
            lambda: len(files_of(work) ^ before) >= changes,  # noqa: B023
            *("pack", source, destination, *options),
        )
    done = call_feeder("pack", source, destination, *options)
    assert done.returncode == 0, done.stderr


def kill_when(is_reached: Callable[[], bool], *arguments: str | Path) -> None:
    """Run ``feeder`` and kill it, with its processes, at a point that it reaches."""
    with subprocess.Popen(
        feeder_command(*arguments),
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        process_group=0,
    ) as process:
        wait_until(lambda: process.poll() is not None or is_reached(), "the packing makes progress")
        os.killpg(process.pid, signal.SIGKILL)
    assert process.returncode == -signal.SIGKILL, "it had ended before"


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


@pytest.mark.parametrize("kind", ["images", "tars"])
def test_a_packing_from_a_store_that_is_killed_reads_nothing_whole_again(
    tmp_path: Path, use_store: Callable[[FaultyStore], None], kind: str
) -> None:
    """Not a container that was fetched whole, nor an image of a finished shard."""
    pytest.importorskip("obstore")
    folder = make_source(tmp_path / "source", 120, side=200)
    if kind == "tars":
        _tars(folder, tmp_path / "tars", compression="")
        folder = tmp_path / "tars"
    files = file_tree(folder)
    killed, options = tmp_path / "killed", ("--shards", "12", "--jobs", "2")
    work = killed / ".packing"
    with FaultyStore({f"bucket/raw/{name}": data for name, data in files.items()}) as store:
        use_store(store)

        def reads() -> Counter[str]:
            names = (
                path.removeprefix("/bucket/raw/")
                for _, path, headers in store.requests
                if headers.get("range", "") not in ("bytes=0-0", "bytes=0-31", "bytes=0-65535")
            )
            return Counter(name for name in names if name in files)

        def fetched() -> int:
            return sum(bool(re.fullmatch(r"fetched-[-0-9a-f]+", name)) for name in files_of(work))

        def finished() -> int:
            return sum(bool(re.fullmatch(r"part-\d+.json", name)) for name in files_of(work))

        if kind == "images":
            points = [lambda: finished() >= 2, lambda: finished() >= 5]
            lost = 2 * 2 * len(files) // 12  # in two kills, of the two shards that were begun
        else:
            points = [lambda: fetched() >= 1, lambda: finished() >= 3]
            lost = len(files) - 1  # that were not whole yet at the first
        for is_reached in points:
            kill_when(is_reached, "pack", "s3://bucket/raw/", killed, *options)
        done = call_feeder("pack", "s3://bucket/raw/", killed, *options)
        assert done.returncode == 0, done.stderr
        assert reads().total() <= len(files) + lost
    call_feeder("pack", folder, tmp_path / "undisturbed", *options)
    assert file_tree(killed) == file_tree(tmp_path / "undisturbed")

"""The synthetic set: reproducible, statistically like ImageNet, and learnable."""

import io
import signal
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from bench.cli import main
from bench.data.synthetic import write_synthetic
from bench.data.synthetic_image import class_look, draw_jpeg

IMAGES = 149


def _files(folder: Path) -> dict[str, bytes]:
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in folder.rglob("*")
        if path.is_file()
    }


def test_files_are_the_same_whatever_the_number_of_processes(tmp_path: Path) -> None:
    done: list[int] = []
    write_synthetic(tmp_path / "one", images=11, classes=3, jobs=1)
    write_synthetic(tmp_path / "two", images=11, classes=3, jobs=2, progress=done.append)
    files = _files(tmp_path / "one")
    assert files == _files(tmp_path / "two")
    assert sum(done) == 11
    assert Counter(name.split("/")[0] for name in files) == {
        class_look(label).name: 4 - (label == 2) for label in range(3)
    }


def test_the_set_is_like_imagenet() -> None:
    jpegs = [draw_jpeg(index, classes=10, seed=0) for index in range(IMAGES)]
    pictures = [Image.open(io.BytesIO(jpeg)) for jpeg in jpegs]
    sizes = np.array([picture.size for picture in pictures])
    long, short = sizes.max(axis=1), sizes.min(axis=1)
    assert 430 < sizes[:, 0].mean() < 540
    assert 360 < sizes[:, 1].mean() < 450
    assert 0.6 < np.mean(long == 500) < 0.85
    assert 0.6 < np.mean(sizes[:, 0] > sizes[:, 1]) < 0.9
    assert (short.min() >= 80, long.max() <= 1280) == (True, True)
    total_bytes = sum(map(len, jpegs))
    assert 90_000 < total_bytes / IMAGES < 130_000
    assert 0.45 < total_bytes / sizes.prod(axis=1).sum() < 0.65
    kinds = Counter(
        "grey" if picture.mode == "L" else jpeg[jpeg.index(b"\xff\xc0") + 11]  # the factors of Y
        for picture, jpeg in zip(pictures, jpegs, strict=True)
    )
    assert set(kinds) <= {0x11, 0x22, "grey"}
    assert 0.62 < kinds[0x11] / IMAGES < 0.88
    assert 0.1 < kinds[0x22] / IMAGES < 0.36
    assert kinds["grey"] / IMAGES < 0.08


def test_the_command_writes_a_set_and_refuses_impossible_ones(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    target = str(tmp_path / "set")
    for options, status, text, folders in (
        ("--images 4 --classes 9999", 2, "classes is 9999; it must be 1 to 1152", 0),
        ("--images 2 --classes 3", 2, "at least one image each", 0),
        ("--images 4 --classes 2", 0, "4 images of 2 classes", 1),
        ("--images 4 --classes 2", 2, "exists already", 1),
    ):
        assert main(["synthetic", target, *options.split(), "--jobs", "1"]) == status
        assert text in "".join(capsys.readouterr())
        assert len([*tmp_path.iterdir()]) == folders


def test_interrupting_leaves_nothing_behind(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "synthetic", str(tmp_path / "set")]
    process = subprocess.Popen(
        [*command, "--images", "100000", "--jobs", "2"],
        stderr=subprocess.PIPE,
        start_new_session=True,
    )
    try:
        while not list(tmp_path.glob(".set.partial-*/*/*.jpg")):
            assert process.poll() is None
        process.send_signal(signal.SIGINT)
        _, printed = process.communicate(timeout=60)
    finally:
        process.kill()
        process.wait()
    assert process.returncode == 130
    assert printed == b"feeder-bench: interrupted\n"
    assert list(tmp_path.iterdir()) == []

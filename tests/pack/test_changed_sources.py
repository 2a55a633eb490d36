"""A source that changes between a packing and its resumption is noticed."""

import os
from pathlib import Path
from typing import Any

import pytest

from feeder.dataset.manifest import load_manifest
from feeder.errors import ConfigError, DatasetError
from tests.source.tar_writer import tar_bytes
from tests.support.sources import encoded, image, pack, run_inline

_BAD = "the source has changed: "


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run")


def _interrupt(monkeypatch: pytest.MonkeyPatch, *arguments: Any, **options: Any) -> None:
    """Pack, and stop when all parts are packed and nothing is published."""

    def stop(*_: Any, **__: Any) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("feeder.pack.run.publish_parts", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(*arguments, **options)


def _write_image(path: Path, seed: int) -> None:
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(encoded(image(seed=seed), "BMP"))


def _write_tar(path: Path, seed: int) -> Path:
    """Write a tar of BMPs, whose members have the same sizes whatever the seed."""
    members = {}
    for number in range(9):
        members[f"{number}.bmp"] = encoded(image(40, 30, seed=seed + number), "BMP")
        members[f"{number}.cls"] = b"%d" % (number % 3)
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(tar_bytes(members))
    os.utime(path, ns=(0, seed))
    return path


def test_a_tar_rewritten_before_the_resumption_is_another_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = _write_tar(tmp_path / "x.tar", 1)
    _interrupt(monkeypatch, tar, tmp_path / "packed")
    _write_tar(tar, 100)
    for _ in range(2):  # a refused attempt leaves what is compared
        with pytest.raises(ConfigError, match=f"{_BAD}{tar} was written again or replaced"):
            pack(tar, tmp_path / "packed")


def test_a_packing_is_resumed_in_another_place_of_the_same_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """For example because their disk was away."""
    tar = _write_tar(tmp_path / "disk" / "x.tar", 1)
    _interrupt(monkeypatch, tar, tmp_path / "packed")
    (tmp_path / "disk").rename(tmp_path / "away")
    with pytest.raises(DatasetError, match="does not exist"):
        pack(tar, tmp_path / "packed")
    (tmp_path / "away").rename(tmp_path / "disk")
    assert pack(tar, tmp_path / "packed").packed_files == 0


@pytest.mark.parametrize("is_swapped", [True, False], ids=["replaced", "labels only"])
def test_a_change_of_one_loose_file_is_named(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, is_swapped: bool
) -> None:
    source = tmp_path / "source"
    for number in range(5):
        _write_image(source / f"{number}.jpg", number)
    (source / "labels.csv").write_text("".join(f"{n}.jpg,{n % 2}\n" for n in range(5)))
    _interrupt(monkeypatch, source, tmp_path / "packed")
    if is_swapped:
        _write_image(source / "new.jpg", 3)
        status = (source / "3.jpg").stat()
        os.utime(source / "new.jpg", ns=(status.st_atime_ns, status.st_mtime_ns))
        (source / "new.jpg").replace(source / "3.jpg")
        change = f"{source}/3.jpg was written again or replaced"
    else:
        (source / "labels.csv").write_text("".join(f"{n}.jpg,{n % 3 % 2}\n" for n in range(5)))
        change = r"\d.jpg had another label"
    with pytest.raises(ConfigError, match=f"{_BAD}{change}"):
        pack(source, tmp_path / "packed")


def _write_validation(folder: Path) -> tuple[Path, Path]:
    folder.mkdir()
    names = [f"ILSVRC2012_val_{number:08d}.JPEG" for number in range(1, 5)]
    tar = folder / "ILSVRC2012_img_val.tar"
    tar.write_bytes(tar_bytes({name: encoded(image(seed=len(name))) for name in names}))
    return tar, folder / "labels.txt"


def test_a_mended_file_of_labels_is_read_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar, labels = _write_validation(tmp_path / "source")
    reading = {"labels_file": str(labels)}
    labels.write_text("n01440764\nn01440764\n")
    with pytest.raises(DatasetError):
        pack(tar, tmp_path / "packed", reading=reading, max_bad="0")
    labels.write_text("n01440764\n" * 3 + "n01443537\n")
    pack(tar, tmp_path / "packed", reading=reading, max_bad="0")
    assert load_manifest(tmp_path / "packed").classes == ("n01440764", "n01443537")
    _interrupt(monkeypatch, tar, tmp_path / "other", reading=reading)
    labels.write_text("n01443537\n" * 3 + "n01440764\n")
    with pytest.raises(ConfigError, match=_BAD):
        pack(tar, tmp_path / "other", reading=reading)


def test_temporary_files_that_a_killed_publication_left_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    tar = _write_tar(tmp_path / "x.tar", 1)
    _interrupt(monkeypatch, tar, tmp_path / "packed")
    for name in ("manifest.json.123.tmp", "survey.html.9.tmp", "quarantine.jsonl.77.tmp"):
        (tmp_path / "packed" / name).touch()
    pack(tar, tmp_path / "packed")
    assert list((tmp_path / "packed").glob("*.tmp")) == []

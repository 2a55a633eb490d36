"""Packing: the same bytes after any interruption, and never an incomplete dataset."""

import os
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from feeder.cli.pack import format_summary
from feeder.dataset.manifest import MANIFEST_NAME, WORK_FOLDER_NAME, load_manifest
from feeder.errors import ConfigError, DatasetError
from feeder.pack.options import PackOptions
from feeder.pack.verify import verify_dataset
from feeder.pack.work_folder import STATE_NAME
from tests.source.tar_writer import tar_bytes
from tests.support.sources import (
    encoded,
    file_tree,
    image,
    make_source,
    pack,
    run_inline,
    silent,
)

_IMAGES = 29


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """29 good images, and 5 bad files spread over the classes."""
    root = make_source(tmp_path_factory.mktemp("source"), _IMAGES)
    (root / "class0" / "cut.jpg").write_bytes(encoded(image(60, 50))[:700])
    (root / "class1" / "empty.jpg").touch()
    (root / "class1" / "text.jpg").write_text("not an image")
    (root / "class2" / "dangling.jpg").symlink_to("nowhere")
    (root / "class2" / "zeros.png").write_bytes(bytes(100))
    return root


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "pack.verify")


@pytest.fixture(scope="module")
def reference(source: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The dataset of ``source``, packed without interruption."""
    path = tmp_path_factory.mktemp("reference") / "packed"
    with pytest.MonkeyPatch.context() as patch:
        run_inline(patch, "pack.run")
        pack(source, path, shards=6)
    return path


def _problems(path: Path) -> list[str]:
    return list(verify_dataset(path, jobs=1, progress=silent())[1])


def _interrupt(
    source: Path, path: Path, then: Callable[[], None] = lambda: None, **options: Any
) -> None:
    """Pack until all parts are finished, do ``then``, and stop as Ctrl-C does."""

    def stop(*_: object, **__: object) -> None:
        then()
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feeder.pack.run.publish_parts", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(source, path, **options)


def test_good_files_become_samples_and_bad_ones_are_listed_with_reasons(
    source: Path, reference: Path, tmp_path: Path
) -> None:
    moved = shutil.copytree(source, tmp_path / "elsewhere", symlinks=True)
    summary = pack(moved, tmp_path / "packed", shards=6)
    assert file_tree(tmp_path / "packed") == file_tree(reference)
    manifest = summary.manifest
    assert manifest.samples == _IMAGES
    assert manifest.classes == ("class0", "class1", "class2")
    assert sorted({shard.samples for shard in manifest.shards}) == [4, 5]
    assert manifest.source_bytes == sum(p.stat().st_size for p in source.rglob("image*.jpg"))
    assert manifest.subsampling == {"s420": _IMAGES}
    assert manifest.quarantined == 5
    bad = {entry.path: entry.kind for entry in summary.quarantine}
    assert bad.pop("class0/cut.jpg") in ("truncated", "corrupt")
    assert bad == {
        "class1/empty.jpg": "empty",
        "class1/text.jpg": "not-image",
        "class2/dangling.jpg": "unreadable",
        "class2/zeros.png": "not-image",
    }
    assert summary.packed_files == _IMAGES + 5
    assert not (reference / WORK_FOLDER_NAME).exists()
    assert _problems(reference) == []


def test_options_change_the_fingerprint_and_other_images_or_orders_the_content(
    source: Path, reference: Path, tmp_path: Path
) -> None:
    variants: list[dict[str, Any]] = [
        {"seed": 1},
        {"shards": 5},
        {"tile_width_px": 64},
        {"apply_exif": True},
        {"quality": 90},
    ]
    manifests = [load_manifest(reference)]
    for number, options in enumerate(variants):
        path = tmp_path / str(number)
        manifests.append(pack(source, path, **{"shards": 6, **options}).manifest)
    assert len({manifest.fingerprint for manifest in manifests}) == 6
    whole, *other_order, tiles, exif, quality = (manifest.content for manifest in manifests)
    assert tiles == exif == whole, "only the packing differs: no image is rotated"
    assert len({whole, *other_order, quality}) == 4


def test_fewer_samples_than_shards_drop_the_empty_shards(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", 3)
    for number in range(4):
        (source / "class0" / f"bad{number}.jpg").write_bytes(b"no image")
    summary = pack(source, tmp_path / "packed", shards=7)
    assert [shard.samples for shard in summary.manifest.shards] == [1, 1, 1]
    assert len([*(tmp_path / "packed").glob("*.fds")]) == 3
    assert _problems(tmp_path / "packed") == []
    assert format_summary(tmp_path, summary)[0].endswith(f"into {tmp_path}: 3 shards")


def test_strict_stops_and_a_later_run_without_it_resumes(
    source: Path, reference: Path, tmp_path: Path
) -> None:
    path = tmp_path / "packed"
    with pytest.raises(DatasetError, match=r"is .*without --strict it would go to quarantine"):
        pack(source, path, shards=6, strict=True)
    assert not (path / MANIFEST_NAME).exists()
    with pytest.raises(DatasetError, match=r"or more: [12]\d images are not tried yet$"):
        pack(source, path, shards=6, max_bad="0")  # no part is begun after the first bad image
    _interrupt(source, path, shards=6)
    refusal = r"5 of 34 images are bad .* more than --strict allows: first class0/cut.jpg"
    with pytest.raises(DatasetError, match=refusal):  # an earlier run quarantined them
        pack(source, path, shards=6, strict=True)
    pack(source, path, shards=6)
    assert file_tree(path) == file_tree(reference)


# Interruptions


class Killed(BaseException):
    """Simulates SIGKILL: no file system change follows it."""


def kill_at(patch: pytest.MonkeyPatch, step: int) -> Callable[[], int]:
    """Kill before the ``step``-th file system change; return a function that counts them."""
    made = 0

    def killing(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            if made >= step:
                raise Killed
            return real(*arguments, **options)

        return change

    for name in ("replace", "unlink", "mkdir", "rmdir"):
        patch.setattr(os, name, killing(getattr(os, name)))
    return lambda: made


def test_packing_killed_at_any_file_system_change_resumes_to_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.fsync", lambda _: None)
    source = make_source(tmp_path / "source", 7, side=16)
    for number in range(2):  # makes samples move between shards
        (source / "class0" / f"bad{number}.jpg").write_bytes(b"no image")
    pack(source, tmp_path / "reference", shards=3)
    expected = file_tree(tmp_path / "reference")
    step = 0
    while True:
        step += 1
        path = tmp_path / str(step)
        with pytest.MonkeyPatch.context() as patch:
            changes = kill_at(patch, step)
            try:
                pack(source, path, shards=3)
            except Killed:
                is_complete = expected.items() <= file_tree(path).items()
                assert is_complete or not (path / MANIFEST_NAME).exists()
        if changes() < step:
            break
        resume(source, path)
        assert file_tree(path) == expected, step
        shutil.rmtree(path)
    assert step > 20


def resume(source: Path, path: Path) -> None:
    """Pack again; refused as complete where the kill came after the manifest and the state."""
    if (path / MANIFEST_NAME).exists() and not (path / WORK_FOLDER_NAME / STATE_NAME).exists():
        with pytest.raises(ConfigError, match="is a complete dataset already"):
            pack(source, path, shards=3)
        shutil.rmtree(path / WORK_FOLDER_NAME, ignore_errors=True)
    else:
        pack(source, path, shards=3)


def test_resuming_with_other_options_or_source_is_refused_with_the_difference(
    tmp_path: Path,
) -> None:
    source, path = make_source(tmp_path / "source", 6), tmp_path / "packed"
    _interrupt(source, path, shards=2)
    with pytest.raises(ConfigError, match=r"tile-width was 32, now 64; seed was 0, now 9"):
        pack(source, path, shards=2, tile_width_px=64, seed=9)
    with pytest.raises(ConfigError, match=r"\(max-side was none, now 30\)"):
        pack(source, path, shards=2, max_side=30)
    make_source(source, 7)
    with pytest.raises(ConfigError, match=r"it had 6 files and has 7"):
        pack(source, path, shards=2)


def test_two_packings_of_one_destination_exclude_each_other(tmp_path: Path) -> None:
    source, path = make_source(tmp_path / "source", 6), tmp_path / "packed"

    def try_another() -> None:
        with pytest.raises(ConfigError, match="another feeder pack or repack is running"):
            pack(source, path, shards=2)

    _interrupt(source, path, try_another, shards=2)
    pack(source, path, shards=2)


def test_destinations_that_are_not_empty_are_refused_and_unchanged(
    source: Path, reference: Path, tmp_path: Path
) -> None:
    before = file_tree(reference)
    with pytest.raises(ConfigError, match="is a complete dataset already"):
        pack(source, reference, shards=6)
    assert file_tree(reference) == before
    (tmp_path / "diary.txt").write_text("dear diary")
    with pytest.raises(ConfigError, match=r"is not empty \(it holds diary.txt\)"):
        pack(source, tmp_path)
    with pytest.raises(ConfigError, match=r"diary.txt is a file where the dataset's folder"):
        pack(source, tmp_path / "diary.txt")
    with pytest.raises(ConfigError, match="is inside the source"):
        pack(source, source / "packed")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["diary.txt"]


def test_the_beginning_of_an_older_versions_packing_is_refused(
    source: Path, tmp_path: Path
) -> None:
    path = tmp_path / "packed"
    (path / WORK_FOLDER_NAME).mkdir(parents=True)
    for state, message in (
        (
            b'{"version": 2, "files": 30}',
            f"{path} holds the beginning of a packing by another feeder version (of format 2, this "
            f"one continues 7): remove {path} and pack again",
        ),
        (b"{}", f"{path}/.packing/state.json is damaged: remove {path} and pack again"),
    ):
        (path / WORK_FOLDER_NAME / STATE_NAME).write_bytes(state)
        with pytest.raises((ConfigError, DatasetError), match=f"^{re.escape(message)}$"):
            pack(source, path)


# A source that changes between a packing and its resumption


_CHANGED = "the source has changed: files were written again or replaced, or have other labels"


def test_a_tar_that_was_away_is_resumed_and_a_rewritten_one_is_another_source(
    tmp_path: Path,
) -> None:
    tar, members = tmp_path / "disk" / "x.tar", dict[str, bytes]()
    for number in range(9):
        members[f"{number}.bmp"] = encoded(image(40, 30, seed=number), "BMP")
        members[f"{number}.cls"] = b"%d" % (number % 3)
    tar.parent.mkdir()
    tar.write_bytes(tar_bytes(members))
    _interrupt(tar, tmp_path / "packed")
    (tmp_path / "disk").rename(tmp_path / "away")
    with pytest.raises(DatasetError, match="does not exist"):
        pack(tar, tmp_path / "packed")
    (tmp_path / "away").rename(tmp_path / "disk")
    assert pack(tar, tmp_path / "packed").packed_files == 0
    _interrupt(tar, tmp_path / "other")
    os.utime(tar, ns=(0, 1))
    with pytest.raises(ConfigError, match=_CHANGED):
        pack(tar, tmp_path / "other")


@pytest.mark.parametrize("is_swapped", [True, False], ids=["replaced", "labels only"])
def test_a_change_of_one_loose_file_is_noticed(tmp_path: Path, is_swapped: bool) -> None:
    source = tmp_path / "source"
    source.mkdir()
    for number in range(5):
        (source / f"{number}.jpg").write_bytes(encoded(image(seed=number), "BMP"))
    (source / "labels.csv").write_text("".join(f"{n}.jpg,{n % 2}\n" for n in range(5)))
    _interrupt(source, tmp_path / "packed")
    if is_swapped:  # by a file of the same size, content and time
        shutil.copy2(source / "3.jpg", source / "new.jpg")
        (source / "new.jpg").replace(source / "3.jpg")
    else:
        (source / "labels.csv").write_text("".join(f"{n}.jpg,{n % 3 % 2}\n" for n in range(5)))
    with pytest.raises(ConfigError, match=_CHANGED):
        pack(source, tmp_path / "packed")


# Options


def test_shards_are_256_mib_or_less_in_a_number_that_many_divide() -> None:
    for files, gibibytes, shards in (
        (7, 0, 1),
        (100, 0, 8),
        (300, 140, 300),
        (1_281_167, 64.1, 512),
        (1_281_167, 140, 768),
        (14_197_122, 1300, 5376),
    ):
        assert PackOptions().choose_shards(files, int(gibibytes * 2**30)) == shards
    assert PackOptions(shards=11).choose_shards(100, 1) == 11


def test_impossible_options_are_named() -> None:
    with pytest.raises(ConfigError, match=r"--shards 11 is more than the 10 files"):
        PackOptions(shards=11).choose_shards(10, 1)
    with pytest.raises(ConfigError, match="--shards 0 is not within 1"):
        PackOptions(shards=0)
    with pytest.raises(ConfigError, match="--tile-width 48 is not one of"):
        PackOptions(tile_width_px=48)

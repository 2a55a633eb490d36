"""Packing: the same bytes after any interruption, and never an incomplete dataset."""

import os
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from PIL import Image

from feeder.cli.pack import format_summary
from feeder.dataset.manifest import MANIFEST_NAME, WORK_FOLDER_NAME, load_manifest
from feeder.dataset.opened import Dataset
from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.pack.options import PackOptions
from feeder.pack.verify import Verification
from feeder.pack.work_folder import STATE_NAME, WorkFolder
from feeder.plan.epoch import MAX_SEED
from tests.support.sources import (
    InlinePool,
    encoded,
    file_tree,
    image,
    make_source,
    pack,
    run_inline,
    silent,
)

GOLDEN = Path(__file__).parent / "golden"
_IMAGES = 29


@pytest.fixture(scope="module")
def source(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """29 good images, and 5 bad files spread over the classes."""
    root = make_source(tmp_path_factory.mktemp("source"), _IMAGES)
    whole = encoded(image(60, 50))
    (root / "class0" / "cut.jpg").write_bytes(whole[:700])
    (root / "class1" / "empty.jpg").touch()
    (root / "class1" / "text.jpg").write_text("not an image")
    (root / "class2" / "dangling.jpg").symlink_to("nowhere")
    (root / "class2" / "zeros.png").write_bytes(bytes(100))
    return root


@pytest.fixture
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
    return list(Verification.open(path, jobs=1, progress=silent()).problems())


def _do_nothing() -> None:
    return


def _pack_until_publishing(
    source: Path,
    path: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    shards: int,
    then: Callable[[], None] = _do_nothing,
) -> None:
    """Pack until all parts are finished, do ``then``, and stop as Ctrl-C does."""

    def stop(*arguments: object, **options: object) -> None:
        then()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("feeder.pack.run.publish_parts", stop)
        with pytest.raises(KeyboardInterrupt):
            pack(source, path, shards=shards)


def test_good_files_become_samples_and_bad_ones_are_listed(
    source: Path, reference: Path, inline: None
) -> None:
    with Dataset.open(reference) as dataset:
        manifest = dataset.manifest
    assert manifest.samples == _IMAGES
    assert manifest.classes == ("class0", "class1", "class2")
    assert manifest.quarantined == 5
    assert sorted({shard.samples for shard in manifest.shards}) == [4, 5]
    assert manifest.source_bytes == sum(p.stat().st_size for p in source.rglob("image*.jpg"))
    assert manifest.subsampling == {"s420": _IMAGES}
    assert not (reference / WORK_FOLDER_NAME).exists()
    assert _problems(reference) == []


def test_quarantine_list_has_files_and_reasons(source: Path, tmp_path: Path, inline: None) -> None:
    summary = pack(source, tmp_path / "packed", shards=2)
    found = [(entry.path, entry.kind) for entry in summary.quarantine]
    assert found[1:] == [
        ("class1/empty.jpg", "empty"),
        ("class1/text.jpg", "not-image"),
        ("class2/dangling.jpg", "unreadable"),
        ("class2/zeros.png", "not-image"),
    ]
    assert found[0] in [("class0/cut.jpg", "truncated"), ("class0/cut.jpg", "corrupt")]
    assert summary.packed_files == _IMAGES + 5


@pytest.mark.parametrize("jobs", [1, 3])
def test_real_worker_processes_give_the_same_bytes(
    source: Path, reference: Path, tmp_path: Path, jobs: int
) -> None:
    pack(source, tmp_path / "packed", shards=6, jobs=jobs)
    assert file_tree(tmp_path / "packed") == file_tree(reference)


def test_options_change_the_fingerprint_and_other_images_or_orders_the_content(
    source: Path, reference: Path, tmp_path: Path, inline: None
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
    contents = [manifest.content for manifest in manifests]
    whole, *other_order, other_tiles, exif_applied, other_quality = contents
    assert other_tiles == exif_applied == whole, "only the packing differs: no image is rotated"
    assert len({whole, *other_order, other_quality}) == 4


def test_moved_source_gives_the_same_dataset(
    source: Path, reference: Path, tmp_path: Path, inline: None
) -> None:
    shutil.copytree(source, tmp_path / "elsewhere", symlinks=True)
    pack(tmp_path / "elsewhere", tmp_path / "packed", shards=6)
    assert file_tree(tmp_path / "packed") == file_tree(reference)


def test_fewer_samples_than_shards_drops_the_empty_shards(tmp_path: Path, inline: None) -> None:
    source = make_source(tmp_path / "source", 3)
    for number in range(4):
        (source / "class0" / f"bad{number}.jpg").write_bytes(b"no image")
    summary = pack(source, tmp_path / "packed", shards=7)
    assert [shard.samples for shard in summary.manifest.shards] == [1, 1, 1]
    assert _problems(tmp_path / "packed") == []


def test_the_summary_of_one_odd_image_is_in_the_singular_and_in_words(
    tmp_path: Path, inline: None
) -> None:
    source, destination = tmp_path / "source", tmp_path / "packed"
    (source / "a").mkdir(parents=True)
    picture, exif = image(), Image.Exif()
    exif[0x0112] = 6
    (source / "a" / "turned.png").write_bytes(encoded(picture, exif=exif, subsampling="4:2:0"))
    lines = format_summary(destination, pack(source, destination))
    assert lines[0] == f"packed 1 image of 1 class into {destination}: 1 shard"
    assert "  subsampling: 4:2:0 (1)" in lines
    assert "  odd: EXIF rotation ignored (1), Wrong suffix (1)" in lines
    assert any(line.startswith("  this run: 1 file in ") for line in lines)


def test_the_summary_counts_one_shard_and_several(tmp_path: Path, inline: None) -> None:
    source = make_source(tmp_path / "source", 3)
    for shards, counts in ((1, "1 shard"), (3, "3 shards")):
        destination = tmp_path / str(shards)
        first, *_ = format_summary(destination, pack(source, destination, shards=shards))
        assert first.endswith(f"into {destination}: {counts}")


def test_only_bad_files_are_an_error_and_make_no_dataset(tmp_path: Path, inline: None) -> None:
    (tmp_path / "source" / "a").mkdir(parents=True)
    (tmp_path / "source" / "a" / "cut.jpg").write_bytes(encoded(image())[:300])
    with pytest.raises(
        DatasetError, match=r"^1 of 1 image is bad .* a/cut.jpg, (truncated|corrupt)"
    ):
        pack(tmp_path / "source", tmp_path / "packed")
    assert not (tmp_path / "packed" / MANIFEST_NAME).exists()


def test_strict_stops_and_a_later_run_without_it_resumes(
    source: Path, reference: Path, tmp_path: Path, inline: None
) -> None:
    path = tmp_path / "packed"
    with pytest.raises(DatasetError, match=r"is .*without --strict it would go to quarantine"):
        pack(source, path, shards=6, strict=True)
    assert not (path / MANIFEST_NAME).exists()
    pack(source, path, shards=6)
    assert file_tree(path) == file_tree(reference)


def test_strict_refuses_files_that_an_earlier_run_quarantined(
    source: Path, tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    _pack_until_publishing(source, tmp_path / "packed", monkeypatch, shards=6)
    with pytest.raises(
        DatasetError,
        match=r"5 of 34 images are bad .* more than --strict allows: first class0/cut.jpg",
    ):
        pack(source, tmp_path / "packed", shards=6, strict=True)


class Killed(BaseException):
    """Simulates SIGKILL: no file system change follows it."""


def _kill_at(patch: pytest.MonkeyPatch, step: int, after: bool) -> Callable[[], int]:
    """Make the ``step``-th file system change the last; return a function that counts them."""
    made = 0

    def killing(real: Callable[..., Any]) -> Callable[..., Any]:
        def change(*arguments: Any, **options: Any) -> Any:
            nonlocal made
            made += 1
            if made > step or (made == step and not after):
                raise Killed
            result = real(*arguments, **options)
            if made == step:
                raise Killed
            return result

        return change

    for name in ("replace", "unlink", "mkdir", "rmdir"):
        patch.setattr(os, name, killing(getattr(os, name)))
    return lambda: made


@pytest.mark.parametrize("after", [False, True], ids=["before", "after"])
def test_packing_killed_at_any_file_system_change_resumes_to_the_same_bytes(
    tmp_path: Path, inline: None, after: bool
) -> None:
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
            changes = _kill_at(patch, step, after)
            try:
                pack(source, path, shards=3)
            except Killed:
                assert _is_complete(path, expected) or not (path / MANIFEST_NAME).exists()
        if changes() < step:
            break
        _resume(source, path)
        assert file_tree(path) == expected, step
        shutil.rmtree(path)
    assert step > 20


def _is_complete(path: Path, expected: dict[str, bytes]) -> bool:
    """Return whether all files of the dataset exist, with or without the work folder."""
    return expected.items() <= file_tree(path).items()


def _resume(source: Path, path: Path) -> None:
    """Pack again; refused as complete where the kill came after the manifest and the state."""
    if (path / MANIFEST_NAME).exists() and not (path / WORK_FOLDER_NAME / STATE_NAME).exists():
        with pytest.raises(ConfigError, match="is a complete dataset already"):
            pack(source, path, shards=3)
        shutil.rmtree(path / WORK_FOLDER_NAME, ignore_errors=True)
    else:
        pack(source, path, shards=3)


def test_finished_parts_are_not_packed_again(
    source: Path, reference: Path, tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "packed"
    tasks_done = []
    real_run = InlinePool.run

    def stop_after_two(self: InlinePool, tasks: Any) -> Iterator[Any]:
        for message in real_run(self, tasks):
            yield message
            tasks_done.extend([1] if message["kind"] == "done" else [])
            if len(tasks_done) == 2:
                raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(InlinePool, "run", stop_after_two)
        with pytest.raises(KeyboardInterrupt):
            pack(source, path, shards=6)
    work = path / WORK_FOLDER_NAME
    before = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in work.glob("part-*.fds")}
    assert len(before) == 2

    def check() -> None:
        after = {p.name: (p.stat().st_ino, p.stat().st_mtime_ns) for p in work.glob("part-*.fds")}
        assert len(after) == 6
        assert before.items() <= after.items()

    _pack_until_publishing(source, path, monkeypatch, shards=6, then=check)
    assert pack(source, path, shards=6).packed_files == 0
    assert file_tree(path) == file_tree(reference)


def test_resuming_with_other_options_or_source_is_refused_with_the_difference(
    tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = make_source(tmp_path / "source", 6), tmp_path / "packed"
    _pack_until_publishing(source, path, monkeypatch, shards=2)
    with pytest.raises(ConfigError, match=r"tile-width was 32, now 64; seed was 0, now 9"):
        pack(source, path, shards=2, tile_width_px=64, seed=9)
    make_source(source, 7)
    with pytest.raises(ConfigError, match=r"it had 6 files and has 7; .*\.jpg"):
        pack(source, path, shards=2)


def test_damaged_work_folder_is_an_error_with_the_remedy(
    tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = make_source(tmp_path / "source", 6), tmp_path / "packed"
    _pack_until_publishing(source, path, monkeypatch, shards=2)
    work = path / WORK_FOLDER_NAME
    (work / "part-00001.json").write_bytes(b"{")
    with pytest.raises(DatasetError, match=r"part-00001.json is damaged: remove .*packed and pack"):
        pack(source, path, shards=2)
    (work / STATE_NAME).write_bytes(b"{}")
    with pytest.raises(DatasetError, match=r"state.json is damaged"):
        pack(source, path, shards=2)


def test_two_packings_of_one_destination_exclude_each_other(
    tmp_path: Path, inline: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    source, path = make_source(tmp_path / "source", 6), tmp_path / "packed"

    def try_another() -> None:
        with pytest.raises(ConfigError, match="another feeder pack or repack is running"):
            pack(source, path, shards=2)

    _pack_until_publishing(source, path, monkeypatch, shards=2, then=try_another)
    pack(source, path, shards=2)


def test_destinations_that_are_not_empty_are_refused_and_unchanged(
    source: Path, reference: Path, tmp_path: Path, inline: None
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


def test_bad_source_creates_no_destination(tmp_path: Path, inline: None) -> None:
    with pytest.raises(DatasetError):
        pack(tmp_path / "missing", tmp_path / "packed")
    assert not (tmp_path / "packed").exists()


def test_dead_worker_is_reported_and_the_next_run_completes_the_dataset(
    source: Path, reference: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "packed"
    monkeypatch.setattr("feeder.pack.run.Task", lambda part, **_: _WrongTask(part))
    with pytest.raises(ResourceError, match=r"worker process \d+ died \(exit status 1\)"):
        pack(source, path, shards=6)
    monkeypatch.undo()
    pack(source, path, shards=6)
    assert file_tree(path) == file_tree(reference)


class _WrongTask(msgspec.Struct):
    part: int


@given(st.integers(1, 10**7), st.integers(1, 10**13))
def test_default_shards_are_a_number_that_many_divide(files: int, total_bytes: int) -> None:
    shards = PackOptions().choose_shards(files, total_bytes)
    assert 1 <= shards <= files
    if files >= 64:
        assert shards >= 8
    if shards < files:
        assert shards.bit_count() == 1 if shards <= 256 else shards % 256 == 0
        assert total_bytes / shards <= 256 << 20


@pytest.mark.parametrize(
    ("files", "gibibytes", "shards"),
    [
        (7, 0, 1),
        (24, 0, 4),  # 3, of 8 files each
        (100, 0, 8),
        (10_000, 2, 8),
        (10_000, 3, 16),
        (1_281_167, 64, 256),
        (1_281_167, 64.1, 512),
        (1_281_167, 140, 768),
        (14_197_122, 1300, 5376),
        (300, 140, 300),
    ],
)
def test_default_shards_of_known_sizes(files: int, gibibytes: float, shards: int) -> None:
    assert PackOptions().choose_shards(files, int(gibibytes * 2**30)) == shards


def test_a_number_of_shards_is_taken_as_it_is_if_the_files_suffice() -> None:
    assert PackOptions(shards=11).choose_shards(100, 1) == 11
    with pytest.raises(ConfigError, match=r"--shards 11 is more than the 10 files"):
        PackOptions(shards=11).choose_shards(10, 1)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"shards": 0}, "--shards 0 is not within 1"),
        ({"seed": -1}, "--seed -1"),
        ({"seed": MAX_SEED + 1}, "--seed"),
        ({"quality": 101}, r"--quality 101 is not within 1 \.\. 100"),
        ({"tile_width_px": 48}, "--tile-width 48 is not one of"),
    ],
)
def test_invalid_options_are_named(options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        PackOptions(**options)


def test_the_beginning_of_an_older_versions_packing_is_refused(
    source: Path, tmp_path: Path, inline: None
) -> None:
    path = tmp_path / "packed"
    (path / WORK_FOLDER_NAME).mkdir(parents=True)
    # as a packing with --strict left it at a bad image, before version 3
    shutil.copy(GOLDEN / "state-2.json", path / WORK_FOLDER_NAME / STATE_NAME)
    with pytest.raises(ConfigError) as caught:
        pack(source, path)
    assert str(caught.value) == (
        f"{path} holds the beginning of a packing by another feeder version (of format 2, this "
        f"one continues 7): remove {path} and pack again"
    )
    shutil.rmtree(path)
    pack(source, path)
    assert _problems(path) == []


def test_work_folder_can_be_closed_twice(tmp_path: Path) -> None:
    folder = WorkFolder(tmp_path)
    folder.close()
    folder.close()

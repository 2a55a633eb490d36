"""Packed copies of sources: packed once, found again, replaced only on request."""

import contextlib
import io
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from feeder.cli.serve import find_cache_folder
from feeder.dataset.manifest import MANIFEST_NAME, load_manifest
from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.pack_cache.entry import CacheEntry, is_source
from feeder.pack_cache.resolve import SourceCache
from feeder.pack_cache.shared_progress import SharedProgress
from tests.support.sources import encoded, image, make_source, run_inline

IMAGES = 11


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "pack.containers")


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return make_source(tmp_path / "images", IMAGES)


class Cache:
    """A cache folder, and what its last look wrote."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.written = ""
        self.packed: list[Path] = []

    def find(
        self, source: Path | str, *, repack: bool = False, classes_of: Path | None = None
    ) -> Path:
        stream = io.StringIO()
        self.packed.clear()
        cache = SourceCache(
            self.folder,
            jobs=1,
            repack=repack,
            progress=SharedProgress(stream),
            report=lambda dataset, summary: self.packed.append(dataset),
        )
        try:
            return cache.find_dataset(str(source), classes_of)
        finally:
            self.written = stream.getvalue()

    def folders(self, source: Path) -> list[Path]:
        """All folders in the entry of a source."""
        return [
            path for path in CacheEntry(self.folder, str(source)).folder.iterdir() if path.is_dir()
        ]


@pytest.fixture
def cache(tmp_path: Path) -> Cache:
    return Cache(tmp_path / "cache")


@contextlib.contextmanager
def stopped_before_publishing() -> Iterator[None]:
    """Stop the packing in the body when all parts are packed."""

    def stop(*_: object, **__: object) -> None:
        raise KeyboardInterrupt

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("feeder.pack.run.publish_parts", stop)
        with pytest.raises(KeyboardInterrupt):
            yield


def add_image(source: Path) -> None:
    path = source / "class0" / "more.jpg"
    path.write_bytes(encoded(image(50, 40, seed=99)))
    os.utime(path, ns=(0, 1_000_000_000))


def test_a_source_is_packed_once(source: Path, cache: Cache) -> None:
    dataset = cache.find(source)
    assert load_manifest(dataset).samples == IMAGES
    assert cache.packed == [dataset]
    assert f"feeder: packing {source} into {dataset}\n" in cache.written
    before = {path: path.stat().st_mtime_ns for path in cache.folder.rglob("*")}
    assert cache.find(source) == dataset
    assert cache.packed == []
    assert cache.written == f"feeder: {source} is packed in {dataset}\n"
    assert {path: path.stat().st_mtime_ns for path in cache.folder.rglob("*")} == before
    (dataset.parent / "record.json").unlink()  # a kill between the manifest and the record
    assert cache.find(source) == dataset
    assert cache.packed == []


def test_two_sources_of_one_name_are_kept_apart(source: Path, cache: Cache, tmp_path: Path) -> None:
    datasets = [cache.find(each) for each in (source, make_source(tmp_path / "x" / "images", 5))]
    assert [load_manifest(each).samples for each in datasets] == [IMAGES, 5]
    assert all(each.parent.name.startswith("images-") for each in datasets)


def test_a_changed_source_is_refused_until_it_is_packed_again(source: Path, cache: Cache) -> None:
    before = cache.find(source)
    add_image(source)
    with pytest.raises(DatasetError) as caught:
        cache.find(source)
    assert f"{source} has changed since it was packed (1 file more in " in str(caught.value)
    assert str(caught.value).endswith("): --repack packs it again")
    after = cache.find(source, repack=True)
    assert after == cache.find(source)
    assert cache.folders(source) == [after]
    assert (after / MANIFEST_NAME).exists()
    assert not before.exists()


def test_the_old_dataset_stays_until_the_new_one_is_complete(source: Path, cache: Cache) -> None:
    before = cache.find(source)
    original = source.with_name("original")
    shutil.copytree(source / "class0", original)
    add_image(source)
    with stopped_before_publishing():
        cache.find(source, repack=True)
    assert load_manifest(before).samples == IMAGES
    (source / "class0").rename(source.with_name("away"))
    original.rename(source / "class0")
    assert cache.find(source) == before, "the source is as it was"
    shutil.rmtree(source / "class0")
    source.with_name("away").rename(source / "class0")
    assert load_manifest(cache.find(source, repack=True)).samples == IMAGES + 1
    assert "images/s" not in cache.written, "no part is packed again"
    assert not before.exists()


def test_a_source_that_changes_while_it_is_packed_is_not_kept(
    source: Path, cache: Cache, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If a file comes; packing itself notices changes of those that it has listed."""
    from feeder.pack import run

    def add_after_packing(*arguments: object, **options: object) -> None:
        published(*arguments, **options)  # type: ignore[arg-type]
        add_image(source)

    published = run.publish_parts
    with monkeypatch.context() as patch:
        patch.setattr("feeder.pack.run.publish_parts", add_after_packing)
        with pytest.raises(DatasetError, match=r"while it was packed \(1 file more .*/more.jpg\)"):
            cache.find(source)
    assert load_manifest(cache.find(source)).samples == IMAGES + 1


def make_classes(root: Path, *classes: str) -> Path:
    for number, name in enumerate(classes):
        (root / name).mkdir(parents=True)
        (root / name / "x.jpg").write_bytes(encoded(image(50, 40, seed=number)))
    return root


def test_a_validation_source_gets_the_classes_of_its_training_set(
    cache: Cache, tmp_path: Path
) -> None:
    training = cache.find(make_classes(tmp_path / "train", "ant", "bee", "cat"))
    other = cache.find(make_classes(tmp_path / "other", "bee", "cat", "dog"))
    source = make_classes(tmp_path / "val", "bee", "cat")
    alone = cache.find(source)
    assert load_manifest(alone).classes == ("bee", "cat")
    paired = cache.find(source, classes_of=training)
    assert load_manifest(paired).classes == ("ant", "bee", "cat")
    assert f"{alone} has other classes than {training}: class 0 is bee and ant" in cache.written
    assert f"packing {source} into {paired} with the classes of {training}" in cache.written
    assert not alone.exists()
    assert cache.find(source, classes_of=training) == paired
    assert cache.packed == []
    assert cache.find(source) == paired, "alone, it may have more classes than images"
    with_other = cache.find(source, classes_of=other)
    assert load_manifest(with_other).classes == ("bee", "cat", "dog")
    with pytest.raises(ConfigError, match=f"{source}/bee is not among the 1 classes .*classes-of"):
        cache.find(source, classes_of=cache.find(make_classes(tmp_path / "few", "cat")))
    assert cache.find(source, classes_of=other) == with_other
    shutil.rmtree(source)
    assert cache.find(source, classes_of=training) == with_other, "it cannot be packed again"


def test_an_interrupted_packing_is_resumed_with_the_same_classes_only(
    cache: Cache, tmp_path: Path
) -> None:
    training = cache.find(make_classes(tmp_path / "train", "ant", "bee"))
    source = make_classes(tmp_path / "val", "bee")
    with stopped_before_publishing():
        cache.find(source)
    assert load_manifest(cache.find(source, classes_of=training)).classes == ("ant", "bee")


def test_the_copy_of_a_source_that_is_gone_is_served_with_a_warning(
    source: Path, cache: Cache
) -> None:
    dataset = cache.find(source)
    assert is_source(str(source), cache.folder)
    shutil.rmtree(source)
    assert is_source(str(source), cache.folder)
    assert cache.find(source) == dataset
    assert f"feeder: warning: {source} is gone: serving {dataset}," in cache.written
    with pytest.raises((ConfigError, DatasetError), match="images"):
        cache.find(source, repack=True)
    assert cache.find(source) == dataset


def test_a_damaged_copy_or_record_is_refused_with_the_remedy(source: Path, cache: Cache) -> None:
    dataset = cache.find(source)
    record = dataset.parent / "record.json"
    whole = record.read_bytes()
    elsewhere = whole.replace(dataset.name.encode(), b"../../elsewhere")
    for data in (b"", b"{}", b'{"version": 1, "folder": "../x"}', b"\xff", elsewhere):
        record.write_bytes(data)
        with pytest.raises(DatasetError, match="is damaged or of another version") as caught:
            cache.find(source)
        assert f"remove {record.parent} to pack {source} again" in str(caught.value)
    record.write_bytes(whole)
    (dataset / MANIFEST_NAME).unlink()
    missing = r"cannot be served \(.*no manifest.json.*--repack packs"
    with pytest.raises(DatasetError, match=missing):
        cache.find(source)
    assert load_manifest(cache.find(source, repack=True)).samples == IMAGES
    shutil.rmtree(record.parent)
    assert load_manifest(cache.find(source)).samples == IMAGES


def test_a_source_is_told_from_a_dataset_and_from_nothing(
    source: Path, cache: Cache, tmp_path: Path
) -> None:
    dataset = cache.find(source)
    unfinished = tmp_path / "unfinished"
    (unfinished / ".packing").mkdir(parents=True)
    locations = {
        str(source): True,
        str(dataset): False,
        str(tmp_path / "absent"): False,
        str(tmp_path / "shard-{000..009}.tar"): True,
        "hf://datasets/imagenet": True,
        str(dataset / MANIFEST_NAME): True,
        "/" + "x" * 5000: False,
    }
    assert {each: is_source(each, None) for each in locations} == locations


def test_impossible_cache_folders_are_refused(source: Path, cache: Cache) -> None:
    before = sorted(source.rglob("*"))
    with pytest.raises(ConfigError, match=r"is inside the source .*another one with --cache-dir"):
        Cache(source / "cache").find(source)
    assert sorted(source.rglob("*")) == before
    cache.folder.write_bytes(b"")
    failure = r"keeping packed sources in .* failed: Not a directory"
    with pytest.raises(ResourceError, match=failure):
        cache.find(source)


def test_the_cache_folder_is_as_given_or_systemds_or_the_users() -> None:
    systemd = {"CACHE_DIRECTORY": "/a", "XDG_CACHE_HOME": "/b", "HOME": "/c"}
    assert find_cache_folder("/given", systemd) == Path("/given")
    assert find_cache_folder("", systemd) == Path("/a")
    assert find_cache_folder("", {"XDG_CACHE_HOME": "/b", "HOME": "/c"}) == Path("/b/feeder")
    assert find_cache_folder("", {}) is None


def test_too_many_bad_images_are_a_case_for_feeder_pack(source: Path, cache: Cache) -> None:
    (source / "class0" / "broken.jpg").write_bytes(b"no image")
    with pytest.raises(DatasetError, match=r"more than --max-bad 5%.* an option of feeder pack"):
        cache.find(source)

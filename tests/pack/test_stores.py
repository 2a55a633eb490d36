"""Sources in stores: the dataset of a local copy, whatever the kind, the faults and the kills."""

import contextlib
import gzip
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from feeder.cli.pack import format_summary
from feeder.dataset.manifest import MANIFEST_NAME, load_manifest
from feeder.errors import ConfigError, ResourceError, SourceChangedError, StoreError
from feeder.pack import containers, run
from feeder.pack.options import PackOptions
from feeder.pack.run import pack_dataset
from feeder.pack.work_folder import WorkFolder
from feeder.process.punched_file import can_punch
from feeder.source.location import objects
from feeder.source.recognise import recognise
from tests.pack.test_kinds import WRITERS
from tests.pack.test_run import Killed, kill_at, resume
from tests.source.listings import JPEG, put
from tests.source.tar_writer import tar_bytes
from tests.support.raw_client import DEADLINE_S
from tests.support.sources import (
    encoded,
    file_tree,
    image,
    make_source,
    pack,
    run_inline,
    silent,
)
from tests.support.stores import Answer, Fault, FaultyStore, S3Server, refusal, reset, status

pytest.importorskip("obstore")

_CLASSES = [f"n0{number % 3}" for number in range(23)]
_buckets = count()


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "pack.containers")
    monkeypatch.setattr("os.fsync", lambda _: None)


@pytest.fixture
def store(use_store: Callable[[FaultyStore], None]) -> Iterator[FaultyStore]:
    with FaultyStore({}, page_objects=5) as server:
        use_store(server)
        yield server


def upload(store: FaultyStore, folder: Path) -> None:
    """Make a folder s3://bucket/raw/."""
    store.objects |= {f"bucket/raw/{name}": data for name, data in file_tree(folder).items()}


# The same dataset as of a local copy


def _odd_folder(folder: Path) -> Path:
    """Classes with bad and hidden files, folders below them, and names of many characters."""
    make_source(folder, 11)
    put(folder, {"class0/bad.jpg": b"no image", "class0/cut.jpg": encoded(image(60, 50))[:700]})
    put(folder, {"class1/.hidden/x.jpg": b"", "class1/.hidden/y.jpg": b"", ".DS_Store": b""})
    put(folder, {"class1/deep/er/x.jpg": JPEG, "class2/a+b c&d=e%20#f~é.jpg": JPEG})
    (folder / "class2" / "zero.jpg").touch()
    return folder


def _tars(folder: Path) -> Path:
    """Tars of equal names in two folders, and one whose images lie in the work folder twice."""
    for number, name in enumerate(("a/x-0", "a/x-1", "b/x-0")):
        whole = WRITERS["wds-cls"](folder.with_name(f"tar-{number}"), _CLASSES[number:])
        put(folder, {f"{name}.tar": whole.read_bytes()})
    return folder


def _compressed(folder: Path) -> Path:
    whole = WRITERS["wds-cls"](folder.with_name("tar"), _CLASSES).read_bytes()
    return put(folder, {"x-0.tar": whole, "x-1.tar.gz": gzip.compress(whole)})


def _splits(folder: Path) -> Path:
    for split, images in (("train", 13), ("val", 5)):
        make_source(folder / split, images)
    return folder


def _labels_apart(folder: Path) -> Path:
    """A file of labels that lists hidden and missing files, and lacks a row."""
    names = [f"{number:02}.jpg" for number in range(9)]
    put(folder, " ".join(f"images/{name}" for name in names) + " images/.hidden.jpg")
    rows = [f"images/{name},{number % 2}" for number, name in enumerate(names[1:])]
    rows += ["images/.hidden.jpg,1", "images/none.jpg,1", "images/none"]
    return put(folder, {"x.csv": "file,label\n" + "\n".join(rows), "notes.txt": "notes"})


def _writer(kind: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        WRITERS[kind](folder, _CLASSES)
        return folder

    return write


SOURCES: dict[str, tuple[Callable[[Path], Path], str, dict[str, Any]]] = {
    **{kind: (_writer(kind), "", {}) for kind in WRITERS},
    "tfrecord": (_writer("tfrecord"), "", {"label": "label"}),
    "odd folder": (_odd_folder, "", {}),
    "tars in folders": (_tars, "**/*.tar", {}),
    "tars by number": (_tars, "a/x-{0..1}.tar", {}),
    "a tar and a compressed one": (_compressed, "", {}),
    "a split": (_splits, "", {"split": "val"}),
    "folder of a split": (_splits, "train/", {}),
    "file of labels": (_labels_apart, "", {}),
    "no labels": (_labels_apart, "images", {"label_kind": "none"}),
}
"""What writes each source into a folder, what of it is packed, and options."""


@pytest.mark.parametrize("title", SOURCES)
def test_a_source_in_a_store_gives_the_dataset_of_its_copy(
    title: str, s3: S3Server, use_store: Callable[[S3Server], None], tmp_path: Path
) -> None:
    write, below, reading = SOURCES[title]
    folder = write(tmp_path / "source")
    bucket = f"packed-{next(_buckets)}"
    s3.make_bucket(bucket)
    s3.put_folder(bucket, "some/raw", folder)
    use_store(s3)
    local = pack(f"{folder}/{below}", tmp_path / "local", reading=reading, shards=3)
    remote = pack(f"s3://{bucket}/some/raw/{below}", tmp_path / "remote", reading=reading, shards=3)
    assert file_tree(tmp_path / "remote") == file_tree(tmp_path / "local")
    assert remote.manifest == local.manifest
    assert remote.hidden == local.hidden
    assert remote.labels_read == local.labels_read


def test_tars_of_a_web_server_are_packed(store: FaultyStore, tmp_path: Path) -> None:
    upload(store, _tars(tmp_path / "source"))
    pack(f"{tmp_path}/source/a/x-{{0..1}}.tar", tmp_path / "local")
    url = f"{store.endpoint}/bucket/raw/a/x-{{0..1}}.tar"
    pack(url, tmp_path / "remote")
    assert file_tree(tmp_path / "remote") == file_tree(tmp_path / "local")


def test_labels_in_a_store_are_read_for_images_here_and_there(
    store: FaultyStore, tmp_path: Path
) -> None:
    folder = WRITERS["csv"](tmp_path / "source", _CLASSES)
    upload(store, folder)
    pack(folder, tmp_path / "expected")
    for number, source in enumerate((folder, "s3://bucket/raw/")):
        labels = {"labels_file": "s3://bucket/raw/labels.csv"}
        pack(source, tmp_path / str(number), reading=labels)
        assert file_tree(tmp_path / str(number)) == file_tree(tmp_path / "expected")
    rows = (folder / "labels.csv").read_text().splitlines()
    urls = "\n".join((rows[0], *(f"s3://bucket/raw/{row}" for row in rows[1:])))
    put(tmp_path, {"urls.csv": urls})
    pack("s3://bucket/raw/", tmp_path / "urls", reading={"labels_file": str(tmp_path / "urls.csv")})
    assert load_manifest(tmp_path / "urls").samples == len(_CLASSES)


# What changes, and what fails


@pytest.fixture
def when_listed(monkeypatch: pytest.MonkeyPatch) -> Callable[[Callable[[], object]], None]:
    """Let something happen between the listing of a source and its packing."""

    def arrange(act: Callable[[], object]) -> None:
        def plan(*arguments: Any) -> run.PackPlan:
            planned = plan_packing(*arguments)
            act()
            return planned

        monkeypatch.setattr(run, "plan_packing", plan)

    plan_packing = run.plan_packing
    return arrange


WhenListed = Callable[[Callable[[], object]], None]


@pytest.mark.parametrize("change", ["it was written again or replaced", "it is gone"])
def test_an_image_that_changes_after_it_was_listed_ends_packing(
    store: FaultyStore, tmp_path: Path, when_listed: WhenListed, change: str
) -> None:
    upload(store, make_source(tmp_path / "source", 20))
    name = "bucket/raw/class1/image010.jpg"
    before = dict(store.objects)

    def attack() -> None:
        if change == "it is gone":
            del store.objects[name]
        else:
            store.objects[name] = encoded(image(50, 40, seed=99))

    when_listed(attack)
    problem = rf"s3://{name} has changed since it was listed \({change}\): wait until it is compl"
    with pytest.raises(SourceChangedError, match=problem):
        pack("s3://bucket/raw/", tmp_path / "packed", shards=3)
    when_listed(lambda: None)
    with pytest.raises(ConfigError, match="the source has changed"):
        pack("s3://bucket/raw/", tmp_path / "packed", shards=3)
    store.objects.update(before)
    pack("s3://bucket/raw/", tmp_path / "packed", shards=3)
    pack(tmp_path / "source", tmp_path / "expected", shards=3)
    assert file_tree(tmp_path / "packed") == file_tree(tmp_path / "expected")


@pytest.mark.parametrize(
    ("kind", "fault"),
    [
        ("denied", refusal(403, "AccessDenied")),
        ("expired", refusal(400, "ExpiredToken")),
        ("server", status(500)),
    ],
)
@pytest.mark.parametrize("form", ["images", "tars"])
def test_a_store_that_fails_ends_packing_which_resumes(
    store: FaultyStore,
    tmp_path: Path,
    large_tars: list[str],
    monkeypatch: pytest.MonkeyPatch,
    form: str,
    kind: str,
    fault: Fault,
) -> None:
    """No image goes to quarantine, and what is there already is not fetched again."""
    monkeypatch.setattr(objects, "PATIENCE_S", 0.0)
    name, module, step = "x-1.tar", containers, "state_room"
    if form == "images":
        name, module, step = "class1/image010.jpg", run, "plan_packing"
        store.objects.clear()
        upload(store, make_source(tmp_path / "source", 20))
    before = getattr(module, step)

    def spoil(*arguments: Any) -> Any:
        result = before(*arguments)
        store.fail(name, fault, times=999)
        return result

    with monkeypatch.context() as patch:
        patch.setattr(module, step, spoil)
        with pytest.raises(StoreError, match=rf"s3://bucket/raw/{name}: .*") as caught:
            pack("s3://bucket/raw/", tmp_path / "packed", shards=10)
    assert caught.value.kind == kind
    assert str(caught.value).endswith("run the same command again to resume")
    assert not (tmp_path / "packed" / MANIFEST_NAME).exists()
    store.faults.clear()
    store.requests.clear()
    pack("s3://bucket/raw/", tmp_path / "packed", shards=10)
    assert form == "images" or [whole_reads(store, each) for each in large_tars] == [0, 1]
    pack("s3://bucket/raw/", tmp_path / "expected", shards=10)
    assert file_tree(tmp_path / "packed") == file_tree(tmp_path / "expected")


def whole_reads(store: FaultyStore, name: str) -> int:
    """How often all of an object was requested; recognition asks for 64 KiB at most."""
    size_bytes = len(store.objects[f"bucket/raw/{name}"])
    wholes = ("", f"bytes=0-{size_bytes - 1}")
    return sum(
        path.endswith(name) and headers.get("range", "") in wholes
        for _, path, headers in store.requests
    )


def test_a_failure_that_passes_is_counted_and_changes_nothing(
    store: FaultyStore, tmp_path: Path
) -> None:
    upload(store, make_source(tmp_path / "source", 20))
    store.fail("class1/image010.jpg", status(503), reset)
    summary = pack("s3://bucket/raw/", tmp_path / "packed", shards=3)
    assert summary.retries == {"throttled": 1, "reset": 1}
    line = "  store: 2 requests made again: reset (1), throttled (1)"
    assert line in format_summary(tmp_path / "packed", summary)
    pack(tmp_path / "source", tmp_path / "expected", shards=3)
    assert file_tree(tmp_path / "packed") == file_tree(tmp_path / "expected")


def stop() -> None:
    raise KeyboardInterrupt


def test_other_options_before_packing_begins_fetch_nothing_again(
    store: FaultyStore, tmp_path: Path, large_tars: list[str]
) -> None:
    """As after an error that asks for one: labels are read when all is fetched."""
    put(tmp_path, {"names": "cat"})
    names = {"class_names_file": str(tmp_path / "names")}
    with pytest.raises(ConfigError, match="--class-names"):
        pack("s3://bucket/raw/", tmp_path / "packed", reading=names)
    pack("s3://bucket/raw/", tmp_path / "packed", reading={"label_kind": "name"}, shards=2)
    assert {name: whole_reads(store, name) for name in large_tars} == dict.fromkeys(large_tars, 1)


def test_other_options_after_packing_began_are_refused_and_keep_the_copies(
    store: FaultyStore, tmp_path: Path, large_tars: list[str]
) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run, "publish_parts", lambda *_: stop())
        with pytest.raises(KeyboardInterrupt):
            pack("s3://bucket/raw/", tmp_path / "packed", shards=2)
    with pytest.raises(ConfigError, match="or with other options: run the command that"):
        pack("s3://bucket/raw/", tmp_path / "packed", reading={"label_kind": "name"}, shards=2)
    pack("s3://bucket/raw/", tmp_path / "packed", shards=2)
    assert {name: whole_reads(store, name) for name in large_tars} == dict.fromkeys(large_tars, 1)


class Crowded(FaultyStore):
    """A store that answers a request only once as many others of its kind have come."""

    def __init__(self, objects: dict[str, bytes]) -> None:
        super().__init__(objects)
        self.crowds: dict[str, threading.Barrier] = {}
        """By a part of what is requested."""

    def answer(self, target: str, headers: Mapping[str, str]) -> Answer:
        for part, crowd in self.crowds.items():
            if part in target:
                crowd.wait(DEADLINE_S)
        return super().answer(target, headers)


def test_folders_are_listed_and_images_read_many_at_a_time(
    tmp_path: Path, use_store: Callable[[FaultyStore], None], when_listed: WhenListed
) -> None:
    files = file_tree(make_source(tmp_path / "source", 64, classes=8))
    with Crowded({f"bucket/raw/{name}": data for name, data in files.items()}) as store:
        use_store(store)
        spec = recognise("s3://bucket/raw/")
        store.crowds["prefix=raw%2Fclass"] = threading.Barrier(8)
        when_listed(lambda: store.crowds.update({".jpg": threading.Barrier(64)}))
        options = PackOptions(shards=1, jobs=1)
        pack_dataset("s3://bucket/raw/", tmp_path / "packed", options, silent(), spec=spec)
    assert load_manifest(tmp_path / "packed").samples == 64


# Copies of containers


@pytest.fixture
def large_tars(store: FaultyStore, tmp_path: Path) -> list[str]:
    """Two tars at s3://bucket/raw/ of images of many blocks of a disk."""
    for number in range(2):
        members: dict[str, bytes] = {}
        for key in range(6):
            noise = np.random.default_rng((number, key)).integers(0, 256, (150, 150, 3), np.uint8)
            members[f"{key}.jpg"] = encoded(Image.fromarray(noise), quality=95)
            members[f"{key}.cls"] = b"%d" % (key % 2)
        store.objects[f"bucket/raw/x-{number}.tar"] = tar_bytes(members)
    return ["x-0.tar", "x-1.tar"]


def test_a_packing_killed_while_its_copies_are_removed_is_complete(
    store: FaultyStore, tmp_path: Path, large_tars: list[str]
) -> None:
    path = tmp_path / "packed"
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(WorkFolder, "remove", lambda work: stop())
        with pytest.raises(KeyboardInterrupt):
            pack("s3://bucket/raw/", path, shards=2)
    for copy in (path / ".packing").glob("fetched-*"):
        copy.unlink()
    with pytest.raises(ConfigError, match="or with other options"):
        pack("s3://bucket/raw/", path, shards=2, seed=9)
    summary = pack("s3://bucket/raw/", path, shards=2)
    assert summary.manifest.samples == 12
    assert not (path / ".packing").exists()
    assert {name: whole_reads(store, name) for name in large_tars} == dict.fromkeys(large_tars, 1)


def test_a_shards_copies_go_when_it_is_packed(
    store: FaultyStore, tmp_path: Path, large_tars: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    work = tmp_path / "packed" / ".packing"
    if not can_punch(tmp_path):
        pytest.skip("this file system cannot give back parts of files")
    used: list[int] = []

    def look(*arguments: Any) -> None:
        used.append(sum(512 * path.stat().st_blocks for path in work.glob("fetched-*")))
        write_result(*arguments)

    write_result = WorkFolder.write_result
    monkeypatch.setattr(WorkFolder, "write_result", look)
    monkeypatch.setattr(run, "publish_parts", lambda *_: look_at_end())

    def look_at_end() -> None:
        used.append(sum(512 * path.stat().st_blocks for path in work.glob("fetched-*")))
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        pack("s3://bucket/raw/", tmp_path / "packed", shards=4)
    whole = sum(len(data) for data in store.objects.values())
    assert used[0] >= whole
    assert used == sorted(used, reverse=True)
    assert used[-1] < whole / 4


def test_packing_without_room_for_the_copies_fetches_nothing(
    store: FaultyStore, tmp_path: Path, large_tars: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.source.fetch._KEPT_SHARE", 1e12)
    with pytest.raises(ResourceError, match="GB free, and packing s3://bucket/raw/ takes about"):
        pack("s3://bucket/raw/", tmp_path / "packed")
    assert [whole_reads(store, name) for name in large_tars] == [0, 0]


@pytest.mark.parametrize("form", ["images", "tars", "compressed"])
def test_packing_killed_at_any_file_system_change_fetches_nothing_whole_again(
    store: FaultyStore, tmp_path: Path, large_tars: list[str], form: str
) -> None:
    if form == "images":
        store.objects.clear()
        upload(store, make_source(tmp_path / "source", 7, side=16))
    elif form == "compressed":
        for name in large_tars:
            data = store.objects.pop(f"bucket/raw/{name}")
            store.objects[f"bucket/raw/{name}.gz"] = gzip.compress(data)
    pack("s3://bucket/raw/", tmp_path / "reference", shards=3)
    expected = file_tree(tmp_path / "reference")
    for step in count(1):
        path = tmp_path / str(step)
        store.requests.clear()
        with pytest.MonkeyPatch.context() as patch:
            changes = kill_at(patch, step)
            with contextlib.suppress(Killed):
                pack("s3://bucket/raw/", path, shards=3)
        if changes() < step:
            break
        finished = len([*(path / ".packing").glob("part-*.json")])
        is_listed = len([*(path / ".packing").glob("list-*.json")]) == len(large_tars)
        before = {name: whole_reads(store, name[11:]) for name in store.objects}
        resume("s3://bucket/raw/", path)
        assert file_tree(path) == expected, step
        after = {name: whole_reads(store, name[11:]) for name in store.objects}
        if form == "images":
            again = sum(after[name] - before[name] for name in after)
            assert again <= len(after) * (3 - finished) / 3 + 1, step
        else:
            assert after == dict.fromkeys(after, 1), (step, is_listed)
        shutil.rmtree(path)
    assert step > 15

"""Sources in stores: locations, folders of objects, and containers that are fetched."""

import os
import re
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from feeder.errors import ConfigError, DatasetError, FeederError, ResourceError, SourceChangedError
from feeder.source.fetch import fetch_container, forget_copies, state_room
from feeder.source.listing import fetched_path
from feeder.source.location.find import find_file, find_files
from feeder.source.location.objects import (
    StoredObject,
    has_objects,
    look_at,
    open_store,
    scan_objects,
    stamp_info,
    stamp_object,
    walk_objects,
)
from feeder.source.recognise import recognise
from tests.source.listings import JPEG
from tests.support.stores import FaultyStore, refusal, reset

pytest.importorskip("obstore")

UseStore = Callable[[FaultyStore], None]


@pytest.fixture
def store(use_store: UseStore) -> Iterator[FaultyStore]:
    """A store without objects, which lists two to a page."""
    with FaultyStore({}, page_objects=2) as server:
        use_store(server)
        yield server


def fill(store: FaultyStore, names: str, data: bytes = b"some bytes") -> None:
    store.objects |= {f"bucket/{name}": data for name in names.split()}


@pytest.mark.parametrize(
    ("location", "found"),
    [
        ("s3://bucket", "s3://bucket/"),
        ("s3://bucket/raw/", "s3://bucket/raw/"),
        ("s3://bucket/raw", "s3://bucket/raw/"),
        ("S3://bucket/raw/a-1.tar", "s3://bucket/raw/a-1.tar"),
        ("s3://bucket/raw/a-{2..0}.tar", "raw/a-0.tar raw/a-1.tar raw/a-2.tar"),
        ("s3://bucket/raw/a-[01].*", "raw/a-0.tar raw/a-1.tar"),
        ("s3://bucket/*/a-?.tar", "raw/a-0.tar raw/a-1.tar raw/a-2.tar"),
        ("s3://bucket/**/c.tar", "raw/deep/er/c.tar"),
        ("s3://bucket/{raw,odd}/a-2.tar", "odd/a-2.tar raw/a-2.tar"),
        ("s3://bucket/odd/{0..1}.tar", "odd/{0..1}.tar"),
        ("s3://bucket/odd/[x]", "s3://bucket/odd/[x]/"),
    ],
)
def test_a_location_stands_for_a_folder_or_for_objects(
    store: FaultyStore, location: str, found: str
) -> None:
    fill(store, "raw/a-0.tar raw/a-1.tar raw/a-2.tar raw/deep/er/c.tar raw/.a-3.tar raw2/x")
    fill(store, "odd/{0..1}.tar odd/0.tar odd/[x]/x odd/a-2.tar")
    urls = [each if "://" in each else f"s3://bucket/{each}" for each in found.split()]
    matches = [url for url in find_files(location) if url != "s3://bucket/odd/a-2.tar"]
    assert matches == [url for url in urls if url != "s3://bucket/odd/a-2.tar"]


@pytest.mark.parametrize(
    ("location", "error", "problem"),
    [
        ("s3://bucket/no", DatasetError, "source s3://bucket/no is empty or does not exist: che"),
        ("s3://bucket/no.tar", DatasetError, "no.tar is empty or does not exist"),
        ("s3://gone/x", DatasetError, "s3://gone/x.*there is no such"),
        ("s3://bucket/a-{0..2}.tar", DatasetError, r"1 of the 3 objects of .*/a-1.tar first"),
        ("s3://bucket/b*.tar", DatasetError, r"no object matches s3://bucket/b\*.tar"),
        ("s3://bucket/{a", ConfigError, "unbalanced"),
        ("s3://", ConfigError, "names no bucket"),
        ("ENDPOINT/bucket/", ConfigError, "web servers cannot be listed: name tars"),
        ("ENDPOINT/bucket/a-*.tar", ConfigError, "web servers cannot be listed"),
        ("ENDPOINT/bucket/no.tar", DatasetError, "no.tar does not exist"),
    ],
)
def test_what_is_not_there_is_refused(
    store: FaultyStore, location: str, error: type[FeederError], problem: str
) -> None:
    fill(store, "a-0.tar a-2.tar")
    with pytest.raises(error, match=problem) as caught:
        find_files(location.replace("ENDPOINT", store.endpoint))
    assert str(caught.value).isprintable()


def test_files_that_options_name_may_be_in_a_store(store: FaultyStore) -> None:
    fill(store, "labels.csv")
    assert find_file("s3://bucket/labels.csv", "--labels") == "s3://bucket/labels.csv"
    url = f"{store.endpoint}/bucket/labels.csv"
    assert find_file(url, "--labels") == url
    with pytest.raises(ConfigError, match=r"--labels s3://bucket/no.csv cannot be read: there is"):
        find_file("s3://bucket/no.csv", "--labels")


def test_threads_share_a_store(store: FaultyStore) -> None:
    """Each one finds credentials and reads certificates, which takes 40 ms of CPU time."""
    with ThreadPoolExecutor(16) as pool:
        opened = [*pool.map(open_store, [f"s3://bucket/{number}" for number in range(64)])]
    assert len({id(each) for each, _ in opened}) == 1
    assert [name for _, name in opened] == [str(number) for number in range(64)]


# Folders


def _names(entries: Iterator[object]) -> str:
    return " ".join(entry.name.decode() + "/" * entry.is_dir() for entry in entries)  # type: ignore[attr-defined]


@pytest.mark.parametrize(
    ("names", "directly"),
    [
        ("a b c d e", "a b c d e"),
        ("a/1 a/2 b/1", "a/ b/"),
        ("a b c d/1 d/2 e", "a b c d/ e"),
        ("a d d/1 e", "a d d/ e"),
    ],
)
def test_a_folder_is_listed_by_pages(store: FaultyStore, names: str, directly: str) -> None:
    fill(store, "raz/x raw2/x " + " ".join(f"raw/{name}" for name in names.split()))
    assert sorted(_names(scan_objects("s3://bucket/raw/")).split()) == sorted(directly.split())
    assert _names(walk_objects("s3://bucket/raw/")) == names
    assert has_objects("s3://bucket/raw/")
    assert not has_objects("s3://bucket/ra/")


def test_a_large_folder_of_files_is_not_listed_at_once(use_store: UseStore) -> None:
    names = {f"bucket/raw/{number:04}": b"" for number in range(9999)}
    with FaultyStore(names) as store:
        use_store(store)
        assert next(scan_objects("s3://bucket/raw/")).name == b"0000"
        assert len(store.requests) < 4


def test_marks_of_folders_are_no_files(store: FaultyStore) -> None:
    fill(store, "raw/cat/1 raw/cat/deep/2 raw/zero")
    fill(store, "raw/ raw/cat/ raw/cat/deep/ raw/empty", b"")
    assert sorted(_names(scan_objects("s3://bucket/raw/")).split()) == ["cat/", "empty", "zero"]
    assert _names(walk_objects("s3://bucket/raw/")) == "cat/1 cat/deep/2 empty zero"


def test_stamps_are_of_size_and_etag(store: FaultyStore) -> None:
    fill(store, "raw/a")
    (entry,) = walk_objects("s3://bucket/raw/")
    assert entry.stamp == stamp_info(look_at("s3://bucket/raw/a")) > 0
    fill(store, "raw/a", b"more bytes")
    (other,) = walk_objects("s3://bucket/raw/")
    assert other.stamp != entry.stamp
    assert stamp_object(1, '"x"') == stamp_object(1, "x") != stamp_object(2, "x")


def test_a_range_is_of_the_version_that_was_opened(store: FaultyStore) -> None:
    fill(store, "a", bytes(range(100)))
    with StoredObject(b"s3://bucket/a") as stored:
        assert stored.read(90, 20) == bytes(range(90, 100))
        assert stored.read(100, 5) == b""
        fill(store, "a", bytes(100))
        with pytest.raises(SourceChangedError, match="s3://bucket/a has changed since"):
            stored.read(0, 5)
        del store.objects["bucket/a"]
        fill(store, "b")
        with pytest.raises(SourceChangedError, match="it is gone"):
            stored.read(0, 5)


# Recognition


def test_a_source_is_recognised_by_few_requests(use_store: UseStore) -> None:
    names = [f"bucket/raw/{n:03}/{k:04}.jpg" for n in range(50) for k in range(60)]
    with FaultyStore(dict.fromkeys(names, JPEG)) as store:
        use_store(store)
        spec = recognise("s3://bucket/raw")
        assert (spec.kind, spec.containers) == ("class-folder", ("s3://bucket/raw/",))
        assert len(store.requests) < 10


@pytest.mark.parametrize(
    ("files", "problem"),
    [
        ({"manifest.json": b'{"format": "feeder-dataset"}'}, "packed dataset already: give it to"),
        ({"a.tar": b"", "x.jpg": JPEG}, "holds 1 image and 1 tar file"),
        ({"train/a/x.jpg": JPEG, "val/a/x.jpg": JPEG}, "choose one with feeder pack --split train"),
        ({"x.jpg": JPEG}, "holds images without labels"),
    ],
)
def test_what_could_be_several_things_is_refused(
    store: FaultyStore, files: Mapping[str, bytes], problem: str
) -> None:
    store.objects |= {f"bucket/raw/{name}": data for name, data in files.items()}
    with pytest.raises(ConfigError, match=re.escape(problem)) as caught:
        recognise("s3://bucket/raw/")
    assert "s3://bucket/raw/" in str(caught.value)


def test_a_store_that_refuses_is_no_other_kind_of_source(store: FaultyStore) -> None:
    fill(store, "raw/a.csv raw/cat/x.jpg", JPEG)
    store.fail("raw/a.csv", refusal(403, "AccessDenied"), times=9)
    with pytest.raises(FeederError, match=r"s3://bucket/raw/a.csv: .*denied"):
        recognise("s3://bucket/raw/")


# Containers


@pytest.fixture
def small_ranges(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("feeder.source.fetch._RANGE_BYTES", 10)


def ranges_of(store: FaultyStore, name: str) -> list[tuple[int, int]]:
    """The ranges of an object that were asked for, but for looks at its first byte."""
    asked = []
    for method, path, headers in store.requests:
        match = re.fullmatch(r"bytes=(\d+)-(\d+)", headers.get("range", ""))
        if method == "GET" and path.endswith(name) and match and match[0] != "bytes=0-0":
            asked.append((int(match[1]), int(match[2]) + 1))
    return sorted(asked)


@pytest.mark.usefixtures("small_ranges")
def test_a_container_is_fetched_once(store: FaultyStore, tmp_path: Path) -> None:
    data = os.urandom(95)
    fill(store, "a.tar", data)
    counted: list[int] = []
    path, (size, stamp) = fetch_container(tmp_path, "s3://bucket/a.tar", counted.append)
    assert path.read_bytes() == data
    assert (size, stamp) == (95, stamp_info(look_at("s3://bucket/a.tar")))
    assert sum(counted) == 95
    asked = ranges_of(store, "a.tar")
    assert asked == [(at, min(at + 10, 95)) for at in range(0, 95, 10)]
    assert fetch_container(tmp_path, "s3://bucket/a.tar", counted.append)[0] == path
    assert ranges_of(store, "a.tar") == asked
    assert [*tmp_path.iterdir()] == [path]
    forget_copies(tmp_path, [path])
    assert path.exists()
    forget_copies(tmp_path, [])
    assert not path.exists()


@pytest.mark.usefixtures("small_ranges")
def test_an_interrupted_fetch_goes_on_where_it_was(
    store: FaultyStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    data = os.urandom(95)
    fill(store, "a.tar", data)
    monkeypatch.setattr("feeder.source.fetch._RANGES_AT_ONCE", 1)

    def stop(size: int) -> None:
        if len(ranges_of(store, "a.tar")) == 4:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        fetch_container(tmp_path, "s3://bucket/a.tar", stop)
    store.fail("a.tar", lambda answer: answer, reset)  # which is tried again at once
    path, _ = fetch_container(tmp_path, "s3://bucket/a.tar", lambda size: None)
    assert path.read_bytes() == data
    asked = ranges_of(store, "a.tar")
    assert len(asked) == len({*asked}) + 1
    assert [*tmp_path.iterdir()] == [path]


@pytest.mark.usefixtures("small_ranges")
def test_a_container_that_changes_while_it_is_fetched_is_named(
    store: FaultyStore, tmp_path: Path
) -> None:
    fill(store, "a.tar", os.urandom(95))

    def change(size: int) -> None:
        fill(store, "a.tar", os.urandom(95))

    with pytest.raises(SourceChangedError, match=r"s3://bucket/a.tar has changed since"):
        fetch_container(tmp_path, "s3://bucket/a.tar", change)


def test_the_room_that_copies_take_is_stated_and_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = tmp_path / ".packing"
    folder.mkdir()
    sizes = {"s3://b/a.tar": (2 * 10**9, 1), "s3://b/b.tar": (10**9, 2)}
    line = state_room(folder, "s3://b/", sizes, 4 * 10**9, workers=8)
    assert re.match(rf"fetching 3\.00 GB into {folder}: packing takes about 3\.[34]0 GB", line)
    monkeypatch.setattr("feeder.source.fetch.can_punch", lambda folder: False)
    line = state_room(folder, "s3://b/", sizes, 4 * 10**9, workers=8)
    assert "takes about 7.00 GB" in line
    packed = {
        "s3://b/a.parquet": (2 * 10**9, 1),
        "s3://b/b.tar.gz": (10**9, 2),
        "s3://b/c.tar": (10**9, 3),
    }
    line = state_room(folder, "s3://b/", packed, 4 * 10**9, workers=1)
    assert "takes about 10.00 GB" in line
    for url, suffix, size_bytes in (("a.parquet", ".part", 10**9), ("c.tar", "", 10**9)):
        path = fetched_path(folder, f"s3://b/{url}", packed[f"s3://b/{url}"][1])
        with open(f"{path}{suffix}", "wb") as file:
            file.truncate(size_bytes)
    line = state_room(folder, "s3://b/", packed, 4 * 10**9, workers=1)
    assert "fetching 2.00 GB" in line
    with pytest.raises(ResourceError, match=rf"^{tmp_path} has .* GB free, and packing s3://b/ ta"):
        state_room(folder, "s3://b/", {"s3://b/a.tar": (10**18, 1)}, 10**18, workers=1)

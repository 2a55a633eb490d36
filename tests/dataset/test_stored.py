"""Datasets in a store: the same bytes as local ones, few requests, errors that name the object."""

import shutil
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import numpy as np
import pytest

from feeder.dataset.files import files_at, local_folder, location_from_text, location_to_text
from feeder.dataset.format import shard_name
from feeder.dataset.manifest import MANIFEST_NAME, load_manifest
from feeder.dataset.opened import Dataset
from feeder.dataset.proven_shard import ProvenShard
from feeder.errors import ConfigError, DatasetError, StoreError
from tests.support.sources import call_feeder, make_source
from tests.support.stores import FaultyStore, S3Server, flip, refusal, reset

URL = "s3://bucket/sets/small"
SHARD = f"bucket/sets/small/{shard_name(0)}"


@pytest.fixture
def store(packed: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FaultyStore]:
    """``packed`` at URL."""
    pytest.importorskip("obstore")
    objects = {f"bucket/sets/small/{path.name}": path.read_bytes() for path in packed.iterdir()}
    with FaultyStore(objects) as faulty:
        for name, value in faulty.environment.items():
            monkeypatch.setenv(name, value)
        yield faulty


def ranges(store: FaultyStore, name: str) -> list[str]:
    """The byte ranges of an object that were asked for since the last call."""
    found = [
        headers for _, target, headers in store.requests if urlsplit(target).path.endswith(name)
    ]
    store.requests.clear()
    return [{key.lower(): value for key, value in headers.items()}["range"] for headers in found]


def read_all(dataset: Dataset) -> list[bytes]:
    ids = np.arange(dataset.layout.samples)
    records = dataset.read_records(ids)
    room = np.empty(int(records["blob_bytes"].max()), np.uint8)
    return [bytes(dataset.read_blob(at, room)) for at in dataset.find_blobs(ids, records)]


def test_a_stored_dataset_is_the_local_one(store: FaultyStore, packed: Path) -> None:
    store.fail(shard_name(1), reset)
    with Dataset.open(URL, open_shards=2) as stored, Dataset.open(packed) as local:
        assert stored.manifest == local.manifest
        ids = np.array([7, 0])
        assert np.array_equal(stored.read_records(ids), local.read_records(ids))
        assert read_all(stored) == read_all(local)
        assert stored.describe(3) == local.describe(3)
        assert stored.shard_path(0) == f"{URL}/{shard_name(0)}"


def test_requests_fetch_what_is_needed_or_much_where_samples_follow_each_other(
    store: FaultyStore,
) -> None:
    files = files_at(URL)
    entry = load_manifest(files).shards[0]
    store.requests.clear()
    shard = ProvenShard(files, entry, 0)
    index = shard.prove_index()
    header, whole_index = ranges(store, shard_name(0))
    assert header == "bytes=0-63"
    assert whole_index == f"bytes={shard.header.records_offset}-{entry.bytes - 1}"

    first, second, *others = index.records
    shard.read_blob(second)
    shard.read_blob(first)
    one = int(second["offset"]), int(second["offset"] + second["blob_bytes"]) - 1
    assert ranges(store, shard_name(0))[0] == f"bytes={one[0]}-{one[1]}"
    for record in (second, *others):
        shard.read_blob(record)
    assert ranges(store, shard_name(0)) == [f"bytes={one[0]}-{entry.bytes - 1}"]


def test_an_object_that_changes_while_it_is_open_is_an_error(
    store: FaultyStore, packed: Path
) -> None:
    with Dataset.open(URL) as dataset:
        ids = np.array([0])
        (location,) = dataset.find_blobs(ids, dataset.read_records(ids))
        store.objects[SHARD] = (packed / shard_name(1)).read_bytes()
        with pytest.raises(StoreError, match=r"shard-00000\.fds: the object has changed") as caught:
            dataset.read_blob(location, np.empty(location.blob_bytes, np.uint8))
        assert caught.value.kind == "changed"
    with Dataset.open(URL) as dataset, pytest.raises(DatasetError, match="different number"):
        dataset.read_records(ids)


def test_wrong_bytes_are_found(store: FaultyStore) -> None:
    with Dataset.open(URL) as dataset:
        ids = np.array([0])
        (location,) = dataset.find_blobs(ids, dataset.read_records(ids))
        room = np.empty(location.blob_bytes, np.uint8)
        store.fail(SHARD, flip)
        with pytest.raises(DatasetError, match=rf"sample 0 .* of {URL} is damaged"):
            dataset.read_blob(location, room)
        dataset.read_blob(location, room)


def test_an_object_that_is_cut_is_truncated(store: FaultyStore) -> None:
    whole = store.objects[SHARD]
    store.objects[SHARD] = whole[:-1]
    with (
        Dataset.open(URL) as dataset,
        pytest.raises(DatasetError, match=rf"{URL}/{shard_name(0)} is truncated: "),
    ):
        dataset.read_records(np.array([0]))


def test_what_is_not_there_or_refused_is_named(store: FaultyStore) -> None:
    with pytest.raises(
        StoreError, match=r"s3://bucket/other is not a dataset: it has no"
    ) as caught:
        Dataset.open("s3://bucket/other")
    assert caught.value.kind == "gone"
    store.fail(MANIFEST_NAME, refusal(403, "AccessDenied"))
    with pytest.raises(StoreError, match=rf"{URL}/manifest.json: access denied"):
        Dataset.open(URL)
    del store.objects[SHARD]
    with (
        Dataset.open(URL) as dataset,
        pytest.raises(StoreError, match=rf"{URL}/{shard_name(0)}: there is no such object"),
    ):
        dataset.read_records(np.array([0]))


def test_locations_survive_their_way_to_another_process(tmp_path: Path) -> None:
    for location in (URL, "gs://b/x", tmp_path, Path("/odd\udcff")):
        assert location_from_text(location_to_text(location)) == location
    assert location_from_text(location_to_text(Path("relative"))) == Path("relative").absolute()
    assert local_folder(URL) is None
    assert local_folder("s3:/folder") == Path("s3:/folder")
    with pytest.raises(ConfigError, match="names no bucket"):
        files_at("s3:///small")


# --- Commands -------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def bucket(s3: S3Server, packed: Path) -> S3Server:
    s3.make_bucket("seam")
    s3.put_folder("seam", "sets/small", packed)
    return s3


@pytest.fixture
def url(bucket: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    """The URL of ``packed`` in moto's store, which commands and their workers find."""
    for name, value in bucket.environment.items():
        monkeypatch.setenv(name, value)
    return "s3://seam/sets/small"


def run(*arguments: object) -> str:
    result = call_feeder(*arguments)
    assert result.returncode == 0, result.stderr
    return result.stdout


def test_verify(url: str, bucket: S3Server, packed: Path) -> None:
    content = load_manifest(packed).content
    end = f"is whole: 53 samples in 5 shards, content fingerprint {content}\n"
    assert run("verify", url, "--jobs", "2") == f"{url} {end}"
    assert run("verify", packed) == f"{packed} {end}"
    damaged = bytearray((packed / shard_name(0)).read_bytes())
    damaged[700] ^= 1
    bucket.put_folder("seam", "damaged", packed)
    bucket.put("seam", f"damaged/{shard_name(0)}", bytes(damaged))
    result = call_feeder("verify", "s3://seam/damaged")
    assert result.returncode == DatasetError.exit_status
    assert "its checksum does not match" in result.stdout


def test_verify_reports_a_store_that_refuses_as_no_damage(store: FaultyStore) -> None:
    store.fail(shard_name(2), refusal(403, "AccessDenied"))
    result = call_feeder("verify", URL, "--jobs", "1")
    assert result.returncode == DatasetError.exit_status
    assert "damaged" not in result.stdout
    assert f"feeder: error: {URL}/{shard_name(2)}: access denied" in result.stderr


def test_unpack(url: str, packed: Path, tmp_path: Path) -> None:
    for dataset, out in ((url, tmp_path / "stored"), (packed, tmp_path / "local")):
        assert run("unpack", dataset, out) == f"unpacked 53 images into {out}\n"
    stored, local = (
        {path.relative_to(out): path.read_bytes() for path in out.rglob("*") if path.is_file()}
        for out in (tmp_path / "stored", tmp_path / "local")
    )
    assert stored == local
    assert len(stored) == 53


def test_preview(url: str, packed: Path, tmp_path: Path) -> None:
    local = tmp_path / "small"  # of the same name, which the title has
    shutil.copytree(packed, local)
    sheets = [tmp_path / "stored.png", tmp_path / "local.png"]
    for dataset, sheet in zip((url, local), sheets, strict=True):
        assert run("preview", dataset, "--images", "4", "--out", sheet) == f"4 images in {sheet}\n"
    assert sheets[0].read_bytes() == sheets[1].read_bytes()


def test_names_and_survey(url: str, packed: Path, tmp_path: Path) -> None:
    assert run("names", url, "5", "0") == run("names", packed, "5", "0")
    pages = [tmp_path / "stored.html", tmp_path / "local.html"]
    for dataset, page in zip((url, packed), pages, strict=True):
        assert run("survey", dataset, "--out", page) == f"{page}\n"
    assert pages[0].read_bytes() == pages[1].read_bytes()
    result = call_feeder("survey", url)
    assert result.returncode == ConfigError.exit_status
    assert "nothing is written" in result.stderr


def test_classes_of(url: str, tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", 4)
    run("pack", source, tmp_path / "packed", "--classes-of", url)
    classes = load_manifest(url).classes
    assert load_manifest(tmp_path / "packed").classes == classes

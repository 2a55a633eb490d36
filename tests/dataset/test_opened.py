"""Open datasets: verified samples by id, little memory, errors that name the sample."""

import ctypes
import mmap
import os
import shutil
import tracemalloc
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import psutil
import pytest

from feeder.dataset.format import RECORD, decode_header, shard_name
from feeder.dataset.manifest import MANIFEST_NAME
from feeder.dataset.opened import Dataset
from feeder.dataset.proven_index import ProvenIndex
from feeder.dataset.reader import ShardIndex
from feeder.errors import DatasetError
from feeder.jpeg.crop_decode import whole_jpeg
from tests.dataset.test_manifest import make_manifest
from tests.support.raw_client import wait_until
from tests.support.rewrite import rewrite_record
from tests.support.sources import make_source, pack, pixels, run_inline
from tests.support.synthetic_sets import Sample, tiled_image, write_set

_IMAGES = 23  # prime: shards are uneven


@pytest.fixture(scope="module")
def packed(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source and its packed dataset."""
    root = tmp_path_factory.mktemp("dataset")
    source = make_source(root / "source", _IMAGES)
    with pytest.MonkeyPatch.context() as patch:
        run_inline(patch, "pack.run")
        pack(source, root / "packed", shards=5)
    return source, root / "packed"


@pytest.fixture
def dataset(packed: tuple[Path, Path]) -> Iterator[Dataset]:
    with Dataset.open(packed[1], open_shards=2) as opened:
        yield opened


@pytest.fixture
def damaged(packed: tuple[Path, Path], tmp_path: Path) -> Path:
    """A copy of the dataset to damage."""
    return Path(shutil.copytree(packed[1], tmp_path / "damaged"))


def _all_ids(dataset: Dataset) -> "np.ndarray[tuple[int], np.dtype[np.int64]]":
    return np.arange(dataset.layout.samples, dtype=np.int64)


def _name(dataset: Dataset, sample: int) -> str:
    return dataset.describe(sample).split("(")[1].split(")")[0]


def test_every_sample_decodes_to_its_source_file(
    packed: tuple[Path, Path], dataset: Dataset
) -> None:
    source, _ = packed
    records = dataset.read_records(_all_ids(dataset))
    scratch = np.empty(int(records["blob_bytes"].max()), np.uint8)
    names = set()
    locations = dataset.find_blobs(_all_ids(dataset), records)
    for sample, (record, location) in enumerate(zip(records, locations, strict=True)):
        blob = dataset.read_blob(location, scratch)
        assert len(blob) == record["blob_bytes"]
        name = _name(dataset, sample)
        names.add(name)
        original = pixels((source / name).read_bytes())
        assert original.shape[:2] == (record["height"], record["width"])
        ordinary = whole_jpeg(blob, record)
        assert np.array_equal(pixels(ordinary), original)
        assert dataset.classes[record["label"]] == name.split("/")[0]
    assert len(names) == _IMAGES


def test_open_shards_are_bounded_and_closed(packed: tuple[Path, Path]) -> None:
    process = psutil.Process()
    before = process.num_fds()
    dataset = Dataset.open(packed[1], open_shards=2)
    assert process.num_fds() == before
    for _ in range(3):
        dataset.read_records(_all_ids(dataset))
        assert process.num_fds() == before + 2
    dataset.close()
    dataset.close()
    assert process.num_fds() == before


def test_damaged_blob_names_the_sample_whenever_it_is_read(damaged: Path) -> None:
    with Dataset.open(damaged) as dataset:
        records = dataset.read_records(_all_ids(dataset))
        name = _name(dataset, 6)
        path = damaged / dataset.describe(6).split(" in ")[1]
        intact = path.read_bytes()
        content = bytearray(intact)
        content[int(records[6]["offset"]) + int(records[6]["blob_bytes"]) - 9] ^= 1
        scratch = np.empty(1 << 20, np.uint8)
        locations = dataset.find_blobs(_all_ids(dataset), records)
        for _ in range(2):  # also after it was read intact
            dataset.read_blob(locations[6], scratch)
            path.write_bytes(content)
            with pytest.raises(DatasetError, match=rf"sample 6 \({name}\) in .*feeder verify"):
                dataset.read_blob(locations[6], scratch)
            dataset.read_blob(locations[5], scratch)
            path.write_bytes(intact)


def _swap_records(shard: bytes) -> bytes:
    """The first two change places; all their checksums are right."""
    start = decode_header(shard, "").records_offset
    first, second = shard[start : start + 64], shard[start + 64 : start + 128]
    return shard[:start] + second + first + shard[start + 128 :]


def test_damaged_record_names_the_sample(damaged: Path) -> None:
    path = damaged / shard_name(0)
    content = bytearray(path.read_bytes())
    content[decode_header(bytes(content), "").records_offset + 64 + 50] ^= 1
    path.write_bytes(content)
    with Dataset.open(damaged) as dataset:
        with pytest.raises(DatasetError, match=r"row 1 is damaged.*feeder verify"):
            dataset.read_records(np.array([0, 1, 2]))
        assert dataset.name_of(1) is None
        assert dataset.describe(1) == "sample 1 (name unreadable) in shard-00000.fds"


@pytest.mark.parametrize("open_shards", [1, 5], ids=("reopened", "open"))
def test_records_stay_those_that_were_packed_whatever_the_file_has_later(
    damaged: Path, open_shards: int
) -> None:
    """An index is read once for records, also where its shard was closed to limit descriptors."""
    with Dataset.open(damaged, open_shards=open_shards) as dataset:
        path = damaged / shard_name(0)
        intact = path.read_bytes()
        records = dataset.read_records(_all_ids(dataset))
        assert dataset.name_of(_IMAGES - 1) is not None, "the names of another shard are kept"
        path.write_bytes(_swap_records(intact))
        assert np.array_equal(dataset.read_records(_all_ids(dataset)), records)
        assert dataset.describe(1) == "sample 1 (name unreadable) in shard-00000.fds"
        path.write_bytes(intact[:-1] + bytes([intact[-1] ^ 1]))
        assert dataset.describe(0) == "sample 0 (name unreadable) in shard-00000.fds"
        path.write_bytes(intact)
        assert "unreadable" not in dataset.describe(1)


def test_ids_outside_the_dataset_have_no_records(dataset: Dataset) -> None:
    for ids in ([0, -1], [0, _IMAGES]):
        with pytest.raises(IndexError, match="outside this dataset"):
            dataset.read_records(np.array(ids))
    assert len(dataset.read_records(np.array([], np.int64))) == 0


def test_an_index_takes_memory_for_shards_in_use_only(tmp_path: Path) -> None:
    """Of 200 MB for all samples, one shard's part is in memory once its records are read."""
    manifest = make_manifest(3_000_000, 500)
    layout = manifest.layout
    before = psutil.Process().memory_info().rss
    index = ProvenIndex(layout, label_bytes=0)
    rows = layout.rows(250)
    count = rows.stop - rows.start
    proven = ShardIndex(np.ones(count, RECORD), np.empty((count, 0), np.uint8), b"", is_intact=True)
    index.add(250, proven)
    assert index.records[rows.start]["offset"] == 1
    assert np.flatnonzero(index.is_here).tolist() == [250]
    assert psutil.Process().memory_info().rss - before < 20e6


def test_dataset_with_another_fingerprint_is_refused(packed: tuple[Path, Path]) -> None:
    with Dataset.open(packed[1]) as dataset:
        wanted = dataset.manifest.fingerprint
    Dataset.open(packed[1], fingerprint=wanted).close()
    with pytest.raises(DatasetError, match=r"another dataset .*restart the daemon"):
        Dataset.open(packed[1], fingerprint="0" * 32)


def test_record_with_a_blob_outside_its_shard_is_refused(dataset: Dataset) -> None:
    records = dataset.read_records(np.array([3]))
    records["offset"] = 2**40
    with pytest.raises(DatasetError, match=r"sample 3 .*points out of the shard"):
        dataset.find_blobs(np.array([3]), records)


@pytest.mark.parametrize(
    "fields",
    [
        *({"subsampling": value} for value in (6, 200, 65_535)),
        {"width": 0},
        {"height": 0},
        {"label": 3},
        {"width": 65_528, "height": 65_528},  # over the limit of pixels
    ],
)
def test_inconsistent_record_is_refused(damaged: Path, fields: dict[str, int]) -> None:
    rewrite_record(damaged, 4, **fields)
    with Dataset.open(damaged) as dataset:
        with pytest.raises(DatasetError, match=r"sample 4 \(class.*contradicts itself"):
            dataset.read_records(np.array([3, 4]))
        assert len(dataset.read_records(np.array([3, 2]))) == 2


def test_shard_truncated_while_open_is_a_dataset_error(damaged: Path) -> None:
    with Dataset.open(damaged) as dataset:
        locations = dataset.find_blobs(_all_ids(dataset), dataset.read_records(_all_ids(dataset)))
        os.truncate(damaged / shard_name(0), 500)
        with pytest.raises(DatasetError, match=r"shard-00000.fds is truncated"):
            dataset.read_blob(locations[4], np.empty(1 << 20, np.uint8))
        assert dataset.describe(0) == "sample 0 (name unreadable) in shard-00000.fds"


@pytest.mark.parametrize("how", ["missing", "truncated", "swapped", "longer"])
def test_wrong_shard_file_is_refused_when_first_used(damaged: Path, how: str) -> None:
    path, other = (damaged / shard_name(number) for number in (1, 2))
    content = path.read_bytes()
    contents = {"truncated": content[:500], "swapped": other.read_bytes(), "longer": content + b"0"}
    path.unlink()
    if how != "missing":
        path.write_bytes(contents[how])
    with Dataset.open(damaged) as dataset:
        dataset.read_records(np.array([0]))
        with pytest.raises(DatasetError, match=r"shard-00001.fds"):
            dataset.read_records(np.array([5]))
        assert dataset.describe(5) == "sample 5 (name unreadable) in shard-00001.fds"


def test_opening_millions_of_samples_takes_little_memory(tmp_path: Path) -> None:
    manifest = make_manifest(2_839_424, 2000)  # a fifth of ImageNet-21k
    (tmp_path / MANIFEST_NAME).write_bytes(manifest.encode())
    del manifest
    tracemalloc.start()
    try:
        with Dataset.open(tmp_path) as dataset:
            kept, peak = tracemalloc.get_traced_memory()
            assert dataset.layout.samples == 2_839_424
            assert dataset._locate(2_839_423) == (1999, 1418)
    finally:
        tracemalloc.stop()
    assert kept < 1.6e6  # the manifest's 2,000 entries
    assert peak < 8e6  # while JSON is parsed


def _resident_share(path: Path, start: int, end: int) -> float:
    """Return the share of a file's pages between two offsets, whole ones, in the page cache."""
    libc = ctypes.CDLL(None, use_errno=True)
    with path.open("rb") as file, mmap.mmap(file.fileno(), 0, mmap.MAP_PRIVATE) as mapped:
        pages = np.zeros(-(-len(mapped) // mmap.PAGESIZE), np.uint8)
        first = ctypes.c_char.from_buffer(mapped)
        status = libc.mincore(ctypes.byref(first), ctypes.c_size_t(len(mapped)), pages.ctypes)
        del first
    assert status == 0, os.strerror(ctypes.get_errno())
    return float(np.mean(pages[-(-start // mmap.PAGESIZE) : end // mmap.PAGESIZE] & 1))


@pytest.fixture
def large(tmp_path: Path) -> Iterator[Dataset]:
    """60 samples of many pages in three shards, none in the page cache."""
    samples = [Sample(name=f"s{number}", tiled=tiled_image(800, 600)) for number in range(60)]
    write_set(tmp_path / "large", samples, classes=("one",), shards=3)
    with Dataset.open(tmp_path / "large") as opened:
        for path in sorted(Path(opened.where).glob("*.fds")):
            with path.open("rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            if _resident_share(path, 0, path.stat().st_size):
                pytest.skip("this file system keeps dropped pages in memory, as tmpfs does")
        yield opened


def test_advice_reads_ranges_of_samples_ahead_and_drops_them(large: Dataset) -> None:
    records = large.read_records(_all_ids(large))
    offsets = records["offset"].astype(int)
    ends = offsets + records["blob_bytes"].astype(int)

    def share(first: int, end: int) -> float:
        path = Path(large.shard_path(first))
        return _resident_share(path, int(offsets[first]), int(ends[end - 1]))

    large.advise([(15, 45), (50, 52)], needed=True)
    for first, end in ((15, 20), (20, 40), (40, 45), (50, 52)):
        wait_until(lambda r=(first, end): share(*r) == 1, f"samples {first} .. {end - 1} are read")  # type: ignore[misc]
    assert share(0, 14) < 0.2
    assert share(46, 49) < 0.2
    large.advise([(18, 30), (50, 52)], needed=False)
    for first, end in ((18, 20), (20, 30), (50, 52)):
        assert share(first, end) == 0
    assert share(15, 17) == share(31, 40) == share(40, 45) == 1


def test_advice_about_samples_that_cannot_be_read_is_ignored(
    damaged: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with Dataset.open(damaged) as dataset:
        everything = [(0, dataset.layout.samples)]
        path = Path(dataset.shard_path(0))
        content = path.read_bytes()
        path.write_bytes(content[:-1])
        Path(dataset.shard_path(_IMAGES - 1)).unlink()
        for needed in (True, False):
            dataset.advise(everything, needed=needed)
        with pytest.raises(DatasetError, match="is truncated"):
            dataset.read_records(_all_ids(dataset))

        def fail(*_: int) -> None:
            raise OSError(38, "Function not implemented")

        monkeypatch.setattr("os.posix_fadvise", fail)
        path.write_bytes(content)
        dataset.advise(everything, needed=True)
        assert len(dataset.read_records(_all_ids(dataset)[:3])) == 3

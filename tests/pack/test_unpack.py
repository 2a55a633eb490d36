"""Unpacking: ordinary JPEGs with the originals' pixels and names, and no other files."""

import shutil
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.dataset.format import shard_name
from feeder.dataset.manifest import MANIFEST_NAME
from feeder.errors import ConfigError, DatasetError
from feeder.pack.unpack import SHORTENED_NAME, unpack_dataset
from feeder.pack.unpack_names import NameLimits, choose_name
from feeder.process.path_text import decode_name, encode_name
from tests.support.jpegs import SAMPLINGS, encode, picture
from tests.support.rewrite import rewrite_record
from tests.support.sources import (
    InlinePool,
    encoded,
    file_tree,
    image,
    make_source,
    pack,
    pixels,
    run_inline,
    silent,
)

LIMITS = NameLimits(name_bytes_max=255, path_bytes_max=4000)


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "pack.unpack")


@pytest.fixture
def packed(tmp_path: Path) -> Path:
    pack(make_source(tmp_path / "source", 7), tmp_path / "packed", shards=3)
    return tmp_path / "packed"


def _unpack(path: Path, out: Path, *, force: bool = False) -> None:
    unpack_dataset(path, out, jobs=1, force=force, progress=silent())


def test_real_images_come_back_with_equal_pixels(
    imagenet_sample: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Through real worker processes, on every seventh image of the sample."""
    source = tmp_path / "source"
    for path in sorted(imagenet_sample.rglob("*.JPEG"))[::7]:
        (source / path.parent.name).mkdir(parents=True, exist_ok=True)
        shutil.copyfile(path, source / path.parent.name / path.name)
    monkeypatch.undo()
    pack(source, tmp_path / "packed", jobs=2)
    unpack_dataset(tmp_path / "packed", tmp_path / "out", jobs=2, force=False, progress=silent())
    originals, copies = file_tree(source), file_tree(tmp_path / "out")
    assert originals.keys() == copies.keys()
    for name, original in originals.items():
        assert np.array_equal(pixels(copies[name]), pixels(original)), name


def test_every_subsampling_and_odd_size_comes_back(tmp_path: Path) -> None:
    source = tmp_path / "source" / "class"
    source.mkdir(parents=True)
    for sampling in (*SAMPLINGS, "grey"):
        for width, height in ((1, 1), (17, 33), (65, 7)):
            name = f"{sampling.replace(':', '')}-{width}x{height}.jpg"
            (source / name).write_bytes(encode(picture(width, height), sampling))
    pack(tmp_path / "source", tmp_path / "packed", shards=2)
    _unpack(tmp_path / "packed", tmp_path / "out")
    for path in source.iterdir():
        copy = tmp_path / "out" / "class" / path.name
        assert np.array_equal(pixels(copy.read_bytes()), pixels(path.read_bytes())), path.name


def test_names_keep_their_folders_and_get_jpeg_suffixes(tmp_path: Path) -> None:
    source = tmp_path / "source"
    names = {
        "a/x.JPEG": "a/x.JPEG",
        "a/sub/x.jpe": "a/sub/x.jpe",
        "a/p.png": "a/p.jpg",
        "a/none": "a/none.jpg",
        "a/ü\udcff.jpg": "a/ü\udcff.jpg",
    }
    for name in names:
        (source / name).parent.mkdir(parents=True, exist_ok=True)
        data = encoded(image(), "PNG" if name.endswith("png") else "JPEG")
        (source / name).write_bytes(data)
    pack(source, tmp_path / "packed")
    _unpack(tmp_path / "packed", tmp_path / "out")
    assert sorted(file_tree(tmp_path / "out")) == sorted(names.values())


def test_folder_that_is_not_empty_needs_force(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "class0").mkdir(parents=True)
    (out / "class0" / "image000.jpg").write_text("older")
    (out / "diary.txt").write_text("dear diary")
    with pytest.raises(ConfigError, match=r"out is not empty: .* or --force"):
        _unpack(packed, out)
    assert (out / "class0" / "image000.jpg").read_text() == "older"
    _unpack(packed, out, force=True)
    assert len(file_tree(out)) == 8
    assert (out / "diary.txt").read_text() == "dear diary"
    assert (out / "class0" / "image000.jpg").read_bytes().startswith(b"\xff\xd8")


def test_impossible_targets_are_refused(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file where the folder"):
        _unpack(packed, tmp_path / "file")
    with pytest.raises(ConfigError, match="is inside the dataset"):
        _unpack(packed, packed / "out")


def test_damaged_sample_stops_with_its_name_and_leaves_no_partial_file(
    packed: Path, tmp_path: Path
) -> None:
    path = packed / shard_name(1)
    content = bytearray(path.read_bytes())
    content[300] ^= 1
    path.write_bytes(content)
    with pytest.raises(DatasetError, match=r"class\d/image\d+\.jpg in .*checksum does not match"):
        _unpack(packed, tmp_path / "out")
    unpacked = file_tree(tmp_path / "out")
    assert unpacked, "the first shard is intact"
    for name, data in unpacked.items():
        assert name.endswith(".jpg")
        assert pixels(data).size


@pytest.mark.parametrize(
    ("field", "value", "problem"),
    [
        ("subsampling", 6, "its record contradicts itself"),
        ("width", 0, "its record contradicts itself"),
        ("label", 99, "its record contradicts itself"),
        ("offset", 2**40, "its record points out of the shard"),
    ],
)
def test_inconsistent_records_are_refused(
    packed: Path, tmp_path: Path, field: str, value: int, problem: str
) -> None:
    rewrite_record(packed, 4, **{field: value})
    with pytest.raises(DatasetError, match=rf"class\d/image\d+\.jpg in .*{problem}"):
        _unpack(packed, tmp_path / "out")


def test_interrupted_unpacking_leaves_only_complete_files(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real_run = InlinePool.run

    def stop_after_one(self: InlinePool, tasks: Iterator[dict[str, int]]) -> Iterator[object]:
        for event in real_run(self, tasks):
            yield event
            raise KeyboardInterrupt

    out = tmp_path / "out"
    with monkeypatch.context() as patch:
        patch.setattr(InlinePool, "run", stop_after_one)
        with pytest.raises(KeyboardInterrupt):
            _unpack(packed, out)
    assert {Path(name).suffix for name in file_tree(out)} == {".jpg"}
    _unpack(packed, out, force=True)
    assert len(file_tree(out)) == 7


def test_files_with_names_like_temporary_ones_are_kept(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / ".unpacking-folder").mkdir(parents=True)
    kept = {".unpacking-notes", ".unpacking-1.tmp.txt", "x.unpacking-1.tmp", ".unpacking-a.names"}
    for name in (*kept, ".unpacking-00001.tmp", ".unpacking-100000.names"):
        (out / name).touch()
    _unpack(packed, out, force=True)
    assert {name for name in file_tree(out) if not name.endswith(".jpg")} == kept
    assert (out / ".unpacking-folder").is_dir()


def test_an_error_is_reported_even_if_the_folder_has_been_removed(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def fail(*_: object) -> Iterator[object]:
        out.rmdir()
        raise DatasetError("the shard is damaged")

    monkeypatch.setattr(InlinePool, "run", fail)
    with pytest.raises(DatasetError, match="the shard is damaged"):
        _unpack(packed, out)


def test_another_datasets_list_of_shortened_names_is_removed(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    (out / SHORTENED_NAME).write_text("{}\n")
    _unpack(packed, out, force=True)
    assert len(file_tree(out)) == 7


def test_names_from_a_killed_unpacking_are_not_listed(tmp_path: Path) -> None:
    source = make_source(tmp_path / "source", 7)
    (source / "class0" / ("a" * 255)).write_bytes(encoded(image(seed=100)))
    pack(source, tmp_path / "packed", shards=2)
    out = tmp_path / "out"
    out.mkdir()
    for number in range(2):
        (out / f".unpacking-{number:05}.names").write_text("{}\n")
    _unpack(tmp_path / "packed", out, force=True)
    assert len((out / SHORTENED_NAME).read_text("ascii").splitlines()) == 1


@pytest.mark.parametrize(
    "name", ["../x.jpg", "a/../../x.jpg", "/etc/x.jpg", "..", "a//x.jpg", "a/./x", "a/x\0y", ""]
)
@pytest.mark.parametrize("class_name", [None, "a"])
def test_names_that_leave_the_folder_are_refused(name: str, class_name: str | None) -> None:
    with pytest.raises(DatasetError, match="invalid name"):
        choose_name(encode_name(name), LIMITS, "shard-00000.fds", class_name)


@given(
    st.lists(st.binary(max_size=10), min_size=1, max_size=4).map(b"/".join),
    st.none() | st.binary(max_size=10).map(decode_name),
)
def test_arbitrary_names_stay_below_the_folder(stored: bytes, class_name: str | None) -> None:
    try:
        chosen = choose_name(stored, LIMITS, "shard", class_name)
        path = PurePosixPath(decode_name(chosen[0]))
    except DatasetError:
        return
    assert not path.is_absolute()
    assert not {"..", "."} & set(path.parts)
    assert path.suffix.lower() in (".jpg", ".jpeg", ".jpe", ".jfif")


def test_damaged_manifest_creates_no_folder(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(b"{}")
    with pytest.raises(DatasetError, match="is damaged"):
        _unpack(tmp_path, tmp_path.parent / "never")
    assert not (tmp_path.parent / "never").exists()

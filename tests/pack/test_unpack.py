"""Unpacking: ordinary JPEGs with the originals' pixels, names and labels, and no other files."""

import errno
import json
import os
import re
import shutil
from pathlib import Path, PurePosixPath
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feeder.dataset.format import shard_name
from feeder.dataset.manifest import MANIFEST_NAME
from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.pack.task_pool import Messages
from feeder.pack.unpack import LABELS_NAME, SHORTENED_NAME, unpack_dataset
from feeder.pack.unpack_names import choose_name, class_folder
from feeder.process.path_text import decode_name, encode_name
from tests.support.jpegs import SAMPLINGS, encode, picture
from tests.support.sources import (
    call_feeder,
    encoded,
    file_tree,
    image,
    make_source,
    pack,
    pixels,
    run_here,
    run_inline,
    silent,
)
from tests.support.synthetic_sets import (
    FLOATS,
    MULTI,
    NONE,
    Sample,
    classes_of,
    values_of,
    write_labelled,
    write_set,
)

LIMITS = (255, 4000)
MARK = re.compile(r"~[0-9a-f]{32}(\.jpg)?$")


@pytest.fixture(autouse=True)
def inline(monkeypatch: pytest.MonkeyPatch) -> None:
    run_inline(monkeypatch, "pack.run", "pack.unpack")


@pytest.fixture(scope="module")
def whole(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    pack(make_source(folder / "source", 7), folder / "packed", shards=3)
    return folder / "packed"


@pytest.fixture
def packed(whole: Path, tmp_path: Path) -> Path:
    return shutil.copytree(whole, tmp_path / "packed")


def _unpack(path: Path, out: Path, *, force: bool = False, jobs: int = 1) -> None:
    unpack_dataset(path, out, jobs=jobs, force=force, progress=silent())


def test_every_subsampling_size_and_name_comes_back_with_a_jpeg_suffix(tmp_path: Path) -> None:
    files = {
        f"a/{sampling.replace(':', '')}-{width}.jpg": encode(picture(width, height), sampling)
        for sampling in (*SAMPLINGS, "grey")
        for width, height in ((1, 1), (17, 33), (65, 7))
    }
    expected = dict(files)
    for name, unpacked in {
        "a/x.JPEG": "a/x.JPEG",
        "a/sub/x.jpe": "a/sub/x.jpe",
        "a/none": "a/none.jpg",
        "a/ü\udcff.jpg": "a/ü\udcff.jpg",
    }.items():
        expected[unpacked] = files[name] = encoded(image())
    for name, data in files.items():
        (tmp_path / "source" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "source" / name).write_bytes(data)
    pack(tmp_path / "source", tmp_path / "packed", shards=2)
    _unpack(tmp_path / "packed", tmp_path / "out")
    tree = file_tree(tmp_path / "out")
    assert tree.keys() == expected.keys()
    for name, data in expected.items():
        assert np.array_equal(pixels(tree[name]), pixels(data)), name


# Labels


def test_labels_unpack_with_the_names_of_classes_or_few_digits(tmp_path: Path) -> None:
    write_labelled(tmp_path / "multi", MULTI, samples=7, shards=2, name="sub/s{:03}.png")
    _unpack(tmp_path / "multi", tmp_path / "classes")
    assert _read_list(tmp_path / "classes") == [
        {
            "file": f"sub/s{number:03}.jpg",
            "labels": [f"class{label}" for label in classes_of(number, MULTI)],
        }
        for number in range(7)
    ]
    write_labelled(tmp_path / "float", FLOATS, samples=7, shards=2)
    _unpack(tmp_path / "float", tmp_path / "values")
    listed = _read_list(tmp_path / "values")
    assert [line["file"] for line in listed] == [f"s{number:03}.jpg" for number in range(7)]
    assert listed[1]["labels"] == [0.33333334, -0.6666667, -1.6666666]
    for number, line in enumerate(listed):
        wanted = np.array(values_of(number, FLOATS), np.float32)
        assert np.array(line["labels"], np.float32).tobytes() == wanted.tobytes()


def _parse(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text("ascii").splitlines()]


def _read_list(out: Path) -> list[dict[str, Any]]:
    """The list of labels; it must list each file once, and no list may be left over."""
    listed = _parse(out / LABELS_NAME)
    assert sorted([*(line["file"] for line in listed), LABELS_NAME]) == sorted(file_tree(out))
    return listed


# What is refused, and what is left


def test_folder_that_is_not_empty_needs_force(packed: Path, tmp_path: Path) -> None:
    out = tmp_path / "out"
    (out / "class0").mkdir(parents=True)
    (out / "class0" / "image000.jpg").write_text("older")
    kept = {".unpacking-notes", ".unpacking-1.tmp.txt", ".unpacking-a.names", "diary.txt"}
    for name in (*kept, ".unpacking-00001.tmp", ".unpacking-100000.names", SHORTENED_NAME):
        (out / name).write_text("dear diary")
    with pytest.raises(ConfigError, match=r"out is not empty: .* or --force"):
        _unpack(packed, out)
    assert (out / "class0" / "image000.jpg").read_text() == "older"
    _unpack(packed, out, force=True)
    tree = file_tree(out)
    assert {name for name in tree if not name.endswith(".jpg")} == kept
    assert len(tree) == 7 + len(kept)
    assert tree["diary.txt"] == b"dear diary"
    assert tree["class0/image000.jpg"].startswith(b"\xff\xd8")


def test_impossible_requests_are_refused(packed: Path, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    with pytest.raises(ConfigError, match="file is a file where the folder"):
        _unpack(packed, tmp_path / "file")
    with pytest.raises(ConfigError, match="is inside the dataset"):
        _unpack(packed, packed / "out")
    (packed / MANIFEST_NAME).write_bytes(b"{}")
    with pytest.raises(DatasetError, match="is damaged"):
        _unpack(packed, tmp_path / "never")
    assert not (tmp_path / "never").exists()


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


def test_interrupted_unpacking_leaves_only_complete_files(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = tmp_path / "out"

    def stop_after_one(*arguments: Any, **named: Any) -> Messages:
        yield next(run_here(*arguments, **named))
        raise KeyboardInterrupt

    def fail(*_: object, **named: object) -> Messages:
        shutil.rmtree(out)
        raise DatasetError("the shard is damaged")

    with monkeypatch.context() as patch:
        run_inline(patch, "pack.unpack", run=stop_after_one)
        with pytest.raises(KeyboardInterrupt):
            _unpack(packed, out)
    assert {Path(name).suffix for name in file_tree(out)} == {".jpg"}
    with monkeypatch.context() as patch:
        run_inline(patch, "pack.unpack", run=fail)
        with pytest.raises(DatasetError, match="the shard is damaged"):  # also without its folder
            _unpack(packed, out, force=True)
    _unpack(packed, out, force=True)
    assert len(file_tree(out)) == 7


@pytest.mark.parametrize(
    ("first", "second", "force"),
    [
        ("x.png", "x.jpg/y", False),
        ("x.png", "x.jpg/y", True),
        ("x.jpg/y", "x.png", False),
        ("x.jpg/y", "x.png", True),
        ("x", "x", False),
    ],
)
def test_a_sample_with_the_path_of_another_is_an_error_with_a_remedy(
    tmp_path: Path, first: str, second: str, force: bool
) -> None:
    samples = [Sample(name=first), Sample(name=second)]
    write_set(tmp_path / "packed", samples, labels=NONE, shards=1)
    with pytest.raises(DatasetError, match=r"cannot be unpacked: .*x\.jpg.* pack again with names"):
        _unpack(tmp_path / "packed", tmp_path / "out", force=force)


# Names


def test_the_class_is_the_first_folder_unless_the_name_has_it() -> None:
    for name, class_name, path in (
        ("cat/x.png", "cat", "cat/x.jpg"),
        ("cat", "cat", "cat/cat.jpg"),
        ("dog/x.jpg", "cat", "cat/dog/x.jpg"),
        ("x", "a/../b", "a%2F..%2Fb/x.jpg"),
        ("x", "..", "%2E./x.jpg"),
        ("x", "", "%/x.jpg"),
        ("x", None, "x.jpg"),
    ):
        chosen = choose_name(encode_name(name), LIMITS, "shard", class_name)
        assert chosen == (encode_name(path), False)
    assert choose_name(b"cat/x~" + b"0" * 32, LIMITS, "shard", "cat")[1], "it looks shortened"
    names = ["", ".", "..", "%", "%25", "%2E", "a/b", "a%2Fb", "a\0", "a", "%2E."]
    assert len({class_folder(name) for name in names}) == len(names)


_REFUSED = ("../x.jpg", "a/../../x.jpg", "/etc/x.jpg", "..", "a//x.jpg", "a/./x", "a/x\0y", "")


@given(
    st.lists(st.binary(max_size=10), min_size=1, max_size=4).map(b"/".join),
    st.none() | st.binary(max_size=10).map(decode_name),
)
def test_arbitrary_names_stay_below_the_folder(stored: bytes, class_name: str | None) -> None:
    for name in _REFUSED:
        with pytest.raises(DatasetError, match="invalid name"):
            choose_name(encode_name(name), LIMITS, "shard-00000.fds", class_name)
    try:
        path = PurePosixPath(decode_name(choose_name(stored, LIMITS, "shard", class_name)[0]))
    except DatasetError:
        return
    assert not path.is_absolute()
    assert not {"..", "."} & set(path.parts)
    assert path.suffix.lower() in (".jpg", ".jpeg", ".jpe", ".jfif")


# Names too long for the file system: shortened, one-to-one, and listed


def test_long_names_are_shortened_and_listed_and_no_sample_is_lost(tmp_path: Path) -> None:
    source, out = make_source(tmp_path / "source", 7), tmp_path / "out"
    names = ["a" * 252, "a" * 255, "a" * 254 + "b", "ü" * 127, "\udcff" * 255, "x\ny" * 85]
    for number, name in enumerate(names):
        path = os.fsencode(source / "class0") + b"/" + encode_name(name)
        Path(os.fsdecode(path)).write_bytes(encoded(image(seed=100 + number)))
    pack(source, tmp_path / "packed", shards=3)
    out.mkdir()
    for number in range(3):  # of a killed unpacking
        (out / f".unpacking-{number:05}.names").write_text("{}\n")
    result = call_feeder("unpack", tmp_path / "packed", out, "--force")
    assert result.returncode == 0, result.stderr
    assert f"6 names shortened to fit the file system, listed in {out}/" in result.stdout
    listed = {entry["name"]: entry["path"] for entry in _parse(out / SHORTENED_NAME)}
    assert sorted(listed) == sorted(f"class0/{name}" for name in names)
    assert len(set(listed.values())) == 6
    tree = file_tree(out)
    assert len(tree) == 7 + 6 + 1
    for name, path in listed.items():
        assert len(os.fsencode(path).rpartition(b"/")[2]) <= 255
        assert MARK.search(path)
        assert name.startswith(path.rpartition("~")[0]), "no partial character"
        assert (out / path).is_file()
    _unpack(tmp_path / "packed", tmp_path / "again")
    assert file_tree(tmp_path / "again") == tree, "every run gives the same names in one order"
    pack(out, tmp_path / "repacked")


@pytest.mark.parametrize("number", [errno.ENAMETOOLONG, errno.EILSEQ])
def test_a_name_that_the_file_system_refuses_is_an_error_that_names_the_sample(
    packed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    def refuse(source: bytes, target: bytes) -> None:
        raise OSError(number, os.strerror(number), source, None, target)

    monkeypatch.setattr(os, "replace", refuse)
    refusal = r"class\d/image00\d\.jpg cannot be unpacked: the file system refuses the name /.*out/"
    with pytest.raises(ResourceError, match=refusal):
        _unpack(packed, tmp_path / "out")
    assert not list((tmp_path / "out").iterdir())


_LONG = ["a", "ab", "a" * 60, "a" * 61, "ü" * 30, "\udcff" * 60, "a.jpg", "a~" + "0" * 32]
_TEXTS = st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40)
_NAMES = st.lists(st.one_of(st.sampled_from(_LONG), _TEXTS), min_size=2, max_size=5).map("/".join)


@given(st.sets(_NAMES, max_size=12), st.integers(45, 80), st.integers(95, 300))
@example({"a/" + "a" * 60, "a/" + "a" * 61}, 45, 95)
def test_different_names_stay_different_and_fit(
    names: set[str], name_max: int, path_max: int
) -> None:
    seen: dict[bytes, str] = {}
    for name in names:
        try:
            path = choose_name(encode_name(f"{name}.jpg"), (name_max, path_max), "shard")[0]
        except DatasetError:
            continue
        assert seen.setdefault(path, name) == name
        assert path.endswith(b".jpg")
        assert all(len(part) <= name_max for part in path.split(b"/"))
        assert len(path) <= max(path_max, 2 * name_max + 1)

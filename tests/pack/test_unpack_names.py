"""Names too long for a file system: shortened, one-to-one, and listed."""

import json
import os
import re
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import DatasetError, ResourceError
from feeder.pack.unpack import SHORTENED_NAME
from feeder.pack.unpack_names import NameLimits, choose_name
from feeder.process.path_text import decode_name, encode_name
from tests.support.sources import (
    encoded,
    error_line,
    file_tree,
    image,
    make_source,
    pack,
    run_feeder,
)

LIMITS = NameLimits(name_bytes_max=255, path_bytes_max=4000)
MARK = re.compile(r"~[0-9a-f]{32}(\.jpg)?$")


def chosen(name: str, limits: NameLimits = LIMITS) -> str:
    return decode_name(choose_name(encode_name(name), limits, "shard")[0])


@pytest.fixture
def long_names(tmp_path: Path) -> tuple[Path, list[str]]:
    """A dataset with short names and with names of up to 255 bytes without a suffix."""
    source = make_source(tmp_path / "source", 7)
    names = ["a" * 252, "a" * 255, "a" * 254 + "b", "ü" * 127, "\udcff" * 255, "x\ny" * 85]
    for number, name in enumerate(names):
        path = os.fsencode(source / "class0") + b"/" + encode_name(name)
        with open(path, "wb") as file:
            file.write(encoded(image(seed=100 + number)))
    pack(source, tmp_path / "packed", shards=3)
    return tmp_path / "packed", [f"class0/{name}" for name in names]


def test_long_names_are_shortened_and_listed_and_no_sample_is_lost(
    long_names: tuple[Path, list[str]], tmp_path: Path
) -> None:
    packed, names = long_names
    out = tmp_path / "out"
    result = run_feeder("unpack", packed, out)
    assert result.returncode == 0, result.stderr
    assert f"6 names shortened to fit the file system, listed in {out}/" in result.stdout
    lines = (out / SHORTENED_NAME).read_text("ascii").splitlines()
    listed = {entry["name"]: entry["path"] for entry in map(json.loads, lines)}
    assert sorted(listed) == sorted(names)
    assert len(set(listed.values())) == 6
    tree = file_tree(out)
    assert len(tree) == 7 + 6 + 1
    for name, path in listed.items():
        stored = os.fsencode(path)
        assert len(stored.rpartition(b"/")[2]) <= 255
        assert MARK.search(path)
        assert name.startswith(path.rpartition("~")[0]), "no partial character"
        assert (out / path).is_file()
    again = tmp_path / "again"
    assert run_feeder("unpack", packed, again, "--jobs", "1").returncode == 0
    assert file_tree(again) == tree, "every run gives the same names, in the same order"
    assert run_feeder("pack", out, tmp_path / "repacked").returncode == 0


def test_without_long_names_there_is_no_list(tmp_path: Path) -> None:
    pack(make_source(tmp_path / "source", 7), tmp_path / "packed")
    result = run_feeder("unpack", tmp_path / "packed", tmp_path / "out")
    assert (result.returncode, "shortened" in result.stdout) == (0, False)
    assert len(file_tree(tmp_path / "out")) == 7


def test_paths_below_a_deep_folder_are_shortened(tmp_path: Path) -> None:
    """The rest of PATH_MAX is enough for a class folder and a file name."""
    source = tmp_path / "source"
    deep = source / "class0" / "/".join(["d" * 200] * 12)
    deep.mkdir(parents=True)
    for name in ("one.jpg", "two.jpg"):
        (deep / name).write_bytes(encoded(image(seed=len(name))))
    pack(source, tmp_path / "packed")
    out = tmp_path / "/".join(["o" * 200] * 8)
    result = run_feeder("unpack", tmp_path / "packed", out)
    assert result.returncode == 0, result.stderr
    assert len(file_tree(out / "class0")) == 2
    assert len(list((out / "class0").iterdir())) == 2, "the deep folders are gone"


@pytest.mark.parametrize("remaining_bytes", [3, 15])
def test_output_path_near_path_max_is_an_error_that_names_the_sample(
    tmp_path: Path, remaining_bytes: int
) -> None:
    pack(make_source(tmp_path / "source", 3), tmp_path / "packed")
    room = os.pathconf("/", "PC_PATH_MAX") - 1 - len(os.fsencode(tmp_path)) - remaining_bytes
    whole, rest = divmod(room, 201)
    half = (201 + rest) // 2
    parts = ["o" * 200] * (whole - 1) + ["p" * (half - 1), "q" * (201 + rest - half - 1)]
    out = tmp_path.joinpath(*parts)
    assert len(os.fsencode(out)) == os.pathconf("/", "PC_PATH_MAX") - 1 - remaining_bytes
    result = run_feeder("unpack", tmp_path / "packed", out)
    assert result.returncode == ResourceError.exit_status
    line = error_line(result)
    assert re.search(r"class\d/image00\d\.jpg cannot be unpacked: .* refuses the name", line)
    assert ".unpacking-" not in line


def test_an_error_names_the_target_and_not_the_temporary_file(tmp_path: Path) -> None:
    pack(make_source(tmp_path / "source", 3), tmp_path / "packed")
    out = tmp_path / "out"
    (out / "class1" / "image001.jpg").mkdir(parents=True)
    line = error_line(run_feeder("unpack", tmp_path / "packed", out, "--force"))
    assert f"Is a directory at {out}/class1/image001.jpg" in line
    assert not list(out.glob(".unpacking-*"))


@pytest.mark.parametrize("name_bytes_max", [40, 143, 255])
def test_class_folders_fit_file_systems_with_shorter_names(name_bytes_max: int) -> None:
    limits = NameLimits(name_bytes_max=name_bytes_max, path_bytes_max=4000)
    folder = "k" * 255
    one, two = (chosen(f"{folder}/{name}.jpg", limits) for name in ("one", "two"))
    assert one.split("/")[0] == two.split("/")[0], "one class stays one folder"
    assert one.endswith("/one.jpg")
    assert len(one.split("/")[0]) <= name_bytes_max
    other = chosen(f"{folder[:-1]}q/one.jpg", limits)
    assert other.split("/")[0] != one.split("/")[0]


def test_a_jpeg_suffix_stays_and_any_other_becomes_jpg() -> None:
    assert chosen(f"c/{'n' * 300}.JPEG").endswith(".JPEG")
    assert chosen(f"c/{'n' * 300}.png").endswith(".jpg")
    assert chosen("c/" + "n" * 100 + "." + "s" * 200).endswith(".jpg")


def test_a_name_that_looks_shortened_is_shortened_too() -> None:
    """So an unchanged name never equals a shortened one, not even a forged name."""
    long = f"c/{'n' * 300}.jpg"
    forged = chosen(long)
    assert MARK.search(forged)
    assert chosen(forged) != forged
    assert chosen(forged) != chosen(long)


def test_a_flattened_path_equals_no_other_name() -> None:
    limits = NameLimits(name_bytes_max=255, path_bytes_max=300)
    deep = "c/" + "/".join(["d" * 100] * 5) + "/x.jpg"
    flat = chosen(deep, limits)
    assert flat.count("/") == 1
    assert flat.startswith("c/ddd")
    assert flat.endswith(".jpg")
    assert chosen(flat, limits) != flat


COMPONENTS = st.one_of(
    st.sampled_from(
        ["a", "ab", "a" * 60, "a" * 61, "ü" * 30, "\udcff" * 60, "a.jpg", "a~" + "0" * 32]
    ),
    st.text(st.characters(codec="utf-8", exclude_characters="/\0"), min_size=1, max_size=40),
)
NAMES = st.lists(COMPONENTS, min_size=2, max_size=5).map("/".join)


@given(st.sets(NAMES, max_size=12), st.integers(45, 80), st.integers(95, 300))
def test_different_names_stay_different_and_fit(
    names: set[str], name_max: int, path_max: int
) -> None:
    limits = NameLimits(name_bytes_max=name_max, path_bytes_max=path_max)
    seen: dict[bytes, str] = {}
    for name in names:
        try:
            path = choose_name(encode_name(f"{name}.jpg"), limits, "shard")[0]
        except DatasetError:
            continue
        assert seen.setdefault(path, name) == name
        assert all(len(part) <= name_max for part in path.split(b"/"))
        assert len(path) <= max(path_max, 2 * name_max + 1)

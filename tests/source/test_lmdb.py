"""LMDB files: which values become items, and what is refused; a file that is cut ends nothing."""

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import DatasetError
from tests.source.listings import (
    JPEG,
    Listed,
    check_refused,
    list_one,
    read_items,
    spec_of,
)
from tests.source.tf_writer import encode_datum, field
from tests.support.sources import encoded, image, write_lmdb

PNG = encoded(image(), "PNG")
PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")
VALUES = {b"n%d/%04d.JPEG" % (number % 3, number): JPEG + bytes(number) for number in range(211)}
"""Inline and on pages of their own; their keys take two levels of pages."""


def list_file(path: Path, **options: Any) -> Listed:
    return list_one("lmdb", path, **options)


def read_all(path: Path, listed: Listed) -> dict[str, bytes]:
    return read_items(spec_of("lmdb", path), listed, path.parent / "work")


@pytest.mark.parametrize("sizes", [(1, 100), (3000, 20_000)], ids=["inline", "own pages"])
def test_all_values_are_listed_with_their_folders_as_labels(
    tmp_path: Path, sizes: tuple[int, int]
) -> None:
    values = {
        b"n%d/%04d.JPEG" % (number % 3, number): b"\xff\xd8\xff" + os.urandom(sizes[number % 2])
        for number in range(1009)
    }
    path = write_lmdb(tmp_path / "data.mdb", values)
    listed = list_file(path)
    assert read_all(path, listed) == {key.decode(): value for key, value in values.items()}
    assert listed.labels == {key.decode(): key.decode()[:2] for key in values}
    assert (listed.rejected, listed.facts.notes, listed.facts.by_name) == ({}, (), True)


def test_datums_have_their_images_and_labels(tmp_path: Path) -> None:
    values = {
        b"0_a/x.jpg": encode_datum(JPEG, 0),
        b"1_a/x.jpg": encode_datum(PNG, 2**31 - 1),
        b"2": encode_datum(JPEG * 30, -1),
        b"3/c.jpg": encode_datum(JPEG, None),
        b"4": encode_datum(b"no image", 5) + encode_datum(JPEG, 6),  # the last of a field counts
        b"\0\0\0\5": encode_datum(JPEG, 7),
    }
    path = write_lmdb(tmp_path / "data.mdb", values)
    listed = list_file(path, label_base=1)
    labels = {"0_a/x.jpg": 0, "1_a/x.jpg": 2**31 - 1, "2": -1, "3/c.jpg": "3", "4": 6}
    assert listed.labels == labels | {"00000005": 7}
    assert (listed.rejected, listed.facts.base) == ({}, 1)
    images = dict.fromkeys(listed.labels, JPEG) | {"1_a/x.jpg": PNG, "2": JPEG * 30}
    assert read_all(path, listed) == images


def test_what_cannot_be_a_sample_is_refused_with_its_reason(tmp_path: Path) -> None:
    values = {
        b"a/ok": JPEG,
        b"a/empty": b"",
        b"a/empty-datum": encode_datum(b"", 1),
        b"a/float": field(6, bytes(400)),
        b"a/foreign": b"some text",
        b"a/foreign-datum": encode_datum(b"some text", 1),
        b"a/message": field(1, b"another one"),
        b"a/newer": encode_datum(JPEG, 1, junk=field(9, b"x")),
        b"a/pickle": b"\x80\x04\x95\x10\x00\x00\x00\x00\x00\x00\x00]\x94.",
        b"a/raw": encode_datum(JPEG, 1, encoded=False),
        b"b/../ok": JPEG,
        b"b/c/ok": JPEG,
        b"label-000000001": b"word",
        b"ok": JPEG,
    }
    path = write_lmdb(tmp_path / "data.mdb", values)
    listed = list_file(path)
    assert listed.labels == {"a/ok": "a"}
    raw = ("unsupported", "a Datum of raw pixels: encode its images")
    pickled = "a pickle, which can run any code: read it in Python, and give its images to "
    unlabelled = "neither a Datum nor its key has a label (--label-kind none packs it without)"
    assert listed.rejected == {
        "a/empty": ("empty", "its image has no bytes"),
        "a/empty-datum": ("empty", "its image has no bytes"),
        "a/float": raw,
        "a/foreign": ("not-image", f"starts with {b'some tex'.hex(' ')}"),
        "a/foreign-datum": ("not-image", f"starts with {b'some tex'.hex(' ')}"),
        "a/message": ("not-image", f"starts with {field(1, b'another one')[:8].hex(' ')}"),
        "a/newer": ("not-image", f"starts with {values[b'a/newer'][:8].hex(' ')}"),
        "a/pickle": ("unsupported", f"{pickled}feeder.pack_samples"),
        "a/raw": raw,
        "b/../ok": ("bad-name", "its key has .. or is empty"),
        "b/c/ok": ("no-label", unlabelled),
        "label-000000001": ("not-image", f"starts with {b'word'.hex(' ')}"),
        "ok": ("no-label", unlabelled),
    }
    listed = list_file(path, label_kind="none")
    assert {*listed.labels} == {"a/ok", "b/c/ok", "ok"}


def test_metadata_are_left_out_and_counted(tmp_path: Path) -> None:
    keys = (b"__keys__", b"__len__", b"length", b"num-samples", b"num_samples")
    values = {b"a/x": JPEG} | dict.fromkeys(keys, b"\x80\x04K\x01.")
    path = write_lmdb(tmp_path / "data.mdb", values)
    listed = list_file(path)
    assert (listed.labels, listed.rejected) == ({"a/x": "a"}, {})
    assert listed.facts.notes == (f"{path}: keys left out as metadata: 5",)


def test_named_databases_are_refused_and_values_of_their_size_are_not(tmp_path: Path) -> None:
    value = JPEG[:48]
    path = write_lmdb(tmp_path / "plain.mdb", {b"a/x": value, b"b/x": value})
    assert read_all(path, list_file(path)) == {"a/x": value, "b/x": value}
    path = write_lmdb(tmp_path / "named.mdb", {b"a/x": JPEG}, database=b"images\n")
    check_refused(
        "lmdb", path, r"holds the database 'images\n': read it in Python, and give its images to"
    )


def test_damaged_files_are_one_line(tmp_path: Path) -> None:
    good = write_lmdb(tmp_path / "good.mdb", VALUES).read_bytes()
    leaf = good.index(b"n0/0000.JPEG") // PAGE_BYTES * PAGE_BYTES
    metas = (16, PAGE_BYTES + 16)  # LMDB takes the later one
    damages = [
        (metas, b"\0\0\0\0", "is cut or damaged: not an LMDB data file (MDB_MAGIC not found"),
        ([at + 4 for at in metas], b"\7", "data version 7, this engine"),
        ([at + 120 for at in metas], bytes([3] + [0] * 7), "out of range"),  # the last page
        ([at + 112 for at in metas], bytes([0] * 5 + [1, 0, 0]), "root page"),
        ([leaf + 12], b"\x20\0", "leaf"),  # where its list of keys ends: fewer keys
    ]
    path = tmp_path / "data.mdb"
    for places, value, reason in damages:
        data = bytearray(good)
        for at in places:
            data[at : at + len(value)] = value
        path.write_bytes(data)
        check_refused("lmdb", path, reason)
    path.write_bytes(b"")
    check_refused("lmdb", path, "not an LMDB data file")
    assert path.read_bytes() == b""


_LIST = """
import sys
from pathlib import Path
from feeder.errors import DatasetError
from tests.source.listings import list_one
try:
    list_one("lmdb", Path(sys.argv[1]))
except DatasetError as error:
    print(error)
"""


@pytest.mark.parametrize("kept", [0.01, 0.6, 0.999])
def test_a_file_that_is_cut_is_an_error_and_no_signal(tmp_path: Path, kept: float) -> None:
    """In a process of its own, which SIGBUS would end."""
    whole = write_lmdb(tmp_path / "whole.mdb", VALUES).read_bytes()
    path = tmp_path / "data.mdb"
    path.write_bytes(whole[: int(len(whole) * kept)])
    command = [sys.executable, "-c", _LIST, str(path)]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    assert listed.returncode == 0, f"{listed.returncode} {listed.stderr}"
    (line,) = listed.stdout.splitlines()
    assert line.startswith(f"{path} is cut or damaged: ")
    assert line.endswith(": copy it again")


def test_a_value_that_is_cut_off_later_is_quarantined(tmp_path: Path) -> None:
    path = write_lmdb(tmp_path / "data.mdb", VALUES)
    listed = list_file(path)
    os.truncate(path, PAGE_BYTES * 2)
    with pytest.raises(DatasetError, match="truncated: its file ends too early"):
        read_all(path, listed)

"""Parquet files: which columns are found, which rows become items, and what is refused."""

import base64
import hashlib
import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.source.listings import GOLDEN, Listed, check_refused, list_one, read_one

pa = pytest.importorskip("pyarrow", reason="make test installs pyarrow")
pq = pytest.importorskip("pyarrow.parquet")
pe = pytest.importorskip("pyarrow.parquet.encryption")

IMAGES = [b"\xff\xd8\xff image %d" % number + bytes(number) for number in range(5)]
STRUCT = pa.struct([("bytes", pa.binary()), ("path", pa.string())])


def list_file(path: Path, **options: Any) -> Listed:
    return list_one("parquet", path, **options)


def read_all(path: Path, listed: Listed) -> list[bytes]:
    return read_one("parquet", path, listed)


def write(folder: Path, columns: dict[str, Any], **options: Any) -> Path:
    path = folder / "a.parquet"
    pq.write_table(pa.table(columns), path, **options)
    return path


@pytest.fixture
def golden(tmp_path: Path) -> Path:
    """The files that Hugging Face's datasets wrote, in a folder with room for a work folder."""
    for path in GOLDEN.glob("*.parquet"):
        shutil.copy(path, tmp_path)
    return tmp_path


def test_datasets_of_hugging_face_have_their_images_labels_and_names(golden: Path) -> None:
    classes = {"00000000-0.jpg": 2, "00000001-1.jpg": 0, "00000002-2.jpg": 1, "00000003-3.jpg": 0}
    tags = {"00000000": [], "00000001": [0, 2], "00000002": [1], "00000003": [2, 1, 0]}
    expected = json.loads((GOLDEN / "parquet.json").read_text())
    for name, labels in (("classes", classes), ("tags", tags)):
        path = golden / f"{name}.parquet"
        listed = list_file(path)
        assert (listed.labels, listed.rejected) == (labels, {})
        assert listed.facts.names == {0: "cat", 1: "dog", 2: "röd räv"}
        assert listed.facts.is_declared
        assert [hashlib.sha256(image).hexdigest() for image in read_all(path, listed)] == expected


def test_paths_in_place_of_bytes_are_refused(golden: Path) -> None:
    problem = "the column image has no image bytes, only paths such as train/0.jpg"
    check_refused("parquet", golden / "paths.parquet", problem)
    path = write(golden, {"image": [{"path": "x.jpg"}], "label": [1]})
    check_refused("parquet", path, "has no column of image bytes: its columns are image (struct<")


@pytest.mark.parametrize("kind", [pa.binary(), pa.large_binary(), pa.binary_view()])
def test_images_in_a_plain_column_are_those_of_the_rows(
    tmp_path: Path, kind: pa.DataType, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("feeder.source.parquet_rows._BATCH_BYTES", 60)
    images = pa.array([*IMAGES * 3, None, IMAGES[0]], kind)
    columns = {"x": images, "label": [*range(17)], "other": ["a"] * 17}
    path = write(tmp_path, columns, row_group_size=7, use_dictionary=["x"])
    listed = list_file(path)
    assert listed.labels == {f"{number:08d}": number for number in range(17) if number != 15}
    assert listed.rejected == {"00000015": ("no-image", "its image is null")}
    assert read_all(path, listed) == [*IMAGES * 3, IMAGES[0]]


@pytest.mark.parametrize(
    ("values", "kind", "expected"),
    [
        (pa.array([3, 1, 2, 1, 5], pa.uint8()), None, [3, 1, 2, 1, 5]),
        (pa.array(["b", "a", "b", "c", "a"]).dictionary_encode(), None, ["b", "a", "b", "c", "a"]),
        ([0.5, 1, 2, 3, 4], None, [0.5, 1.0, 2.0, 3.0, 4.0]),
        (["1", "0", "NA", "007", "3 "], None, [1, 0, "NA", "007", 3]),
        ([[1, 0], [0, 1], [-1, 0], [None, 1], []], None, [[1, 0], [0, 1], [-1, 0], [None, 1], []]),
        ([True, False, True, True, False], None, [1, 0, 1, 1, 0]),
        ([["a"], ["b", "a"], ["a"], ["a"], ["b"]], None, [["a"], ["b", "a"], ["a"], ["a"], ["b"]]),
        (pa.array([[1, 2]] * 5, pa.list_(pa.float32(), 2)), "float", [[1.0, 2.0]] * 5),
    ],
)
def test_labels_of_every_type_are_read(
    tmp_path: Path, values: Any, kind: str | None, expected: list[object]
) -> None:
    path = write(tmp_path, {"image": IMAGES, "label": values})
    listed = list_file(path, label_kind=kind, label_base=1)
    assert (list(listed.labels.values()), listed.rejected) == (expected, {})
    field = "" if kind == "none" else "column label"
    assert (listed.facts.base, listed.facts.field) == (1, field)
    assert (listed.facts.is_declared, listed.facts.notes) == (False, ())


def test_a_row_that_cannot_be_a_sample_is_refused_and_the_others_are_not(tmp_path: Path) -> None:
    paths = ("dir/a.jpg", "dir/a.jpg", "b/", "x" * 600)
    images = [
        None,
        {"bytes": None, "path": "a/\x1b.jpg"},
        {"bytes": b"", "path": None},
        *({"bytes": IMAGES[0], "path": path} for path in paths),
    ]
    labels = [0, 0, 0, None, -1, 2, 3]
    path = write(tmp_path, {"image": pa.array(images, STRUCT), "label": labels})
    listed = list_file(path)
    assert listed.labels == {"00000004-a.jpg": -1, "00000005": 2, "00000006": 3}
    assert listed.rejected == {
        "00000000": ("no-image", "its image is null"),
        "00000001-\x1b.jpg": ("no-image", r"its image is null, and has only the path a/\x1b.jpg"),
        "00000002": ("empty", "its image has no bytes"),
        "00000003-a.jpg": ("no-label", "it has no label"),
    }
    assert read_all(path, listed) == [IMAGES[0]] * 3


_VALUES = {
    "image": IMAGES,
    "images": [[each] for each in IMAGES],
    "nulls": pa.nulls(5, pa.binary()),
    "structs": pa.array([None] * 5, STRUCT),
    "int": [0] * 5,
    "bytes": [b"text"] * 5,
    "url": ["https://example.org/1.jpg"] * 5,
    "object": [{"x": 1}] * 5,
}
"""Columns of five rows by what is in them."""


def columns(text: str) -> dict[str, Any]:
    """Return the columns of a table that is described as NAME:VALUES NAME:VALUES."""
    return {name: _VALUES[what] for name, what in (each.split(":") for each in text.split())}


@pytest.mark.parametrize(
    ("table", "image", "labels"),
    [
        ("a:image b:image jpg:image label:int", "", {0}),
        ("a:bytes b:image label:int", "b", {0}),
        ("mask:structs Image:image label:int", "Image", {0}),
        ("x:image label:bytes", "", {"text"}),
        ("x:image label:int cls:url", "", {0}),
    ],
)
def test_the_columns_of_images_and_labels_are_found(
    tmp_path: Path, table: str, image: str, labels: set[object]
) -> None:
    path = write(tmp_path, columns(table))
    listed = list_file(path, image=image)
    assert read_all(path, listed) == IMAGES
    assert {*listed.labels.values()} == labels


@pytest.mark.parametrize(
    ("table", "options", "reason"),
    [
        ("a:image b:image label:int", {}, "several columns of bytes: choose one with --image (a, "),
        ("a:image label:int", {"image": "label"}, "the column label is int64, not the bytes of on"),
        ("a:image label:int", {"image": "x"}, "has no columns x (--image), not one: its columns "),
        ("image:image", {}, "no column is called label: choose one with --label, or"),
        ("a:image fine_label:int y:int coarse_label:int", {}, "may be in fine_label, coarse_label"),
        ("image:image label:object", {}, "the column label is struct<x: int64>, which is no label"),
        ("image:url label:int", {}, "has no column of image bytes: its columns are image (string)"),
        ("image:nulls label:int", {}, "the column image has no image bytes, only nulls"),
    ],
)
def test_a_schema_that_does_not_fit_is_one_line_with_what_there_is(
    tmp_path: Path, table: str, options: dict[str, Any], reason: str
) -> None:
    check_refused("parquet", write(tmp_path, columns(table)), reason, **options)


def test_a_column_that_is_there_twice_is_not_chosen(tmp_path: Path) -> None:
    labels = pa.array([0] * 5)
    table = pa.Table.from_arrays([pa.array(IMAGES), labels, labels], ["image", "label", "label"])
    pq.write_table(table, tmp_path / "a.parquet")
    problem = "has 2 columns label (--label), not one: its columns are image (binary), label (int64"
    check_refused("parquet", tmp_path / "a.parquet", problem, label="label")


def _in_the_middle(data: bytes) -> bytes:
    at = data.index(IMAGES[3])
    return data[:at] + b"\xd8" + data[at + 1 :]


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (
            lambda data: b"",
            "its footer cannot be read (Parquet file size is 0 bytes): copy or make",
        ),
        (lambda data: b"\xff\xd8\xff\xe0 some other file", "this is not a parquet file"),
        (lambda data: data[:-8] + bytes(4) + b"PAR1", "its footer cannot be read"),
        (_in_the_middle, "row group 0 cannot be read (could not verify page integrity"),
    ],
)
def test_a_damaged_file_is_one_line_that_names_it(tmp_path: Path, damage: Any, reason: str) -> None:
    options = {"write_page_checksum": True, "write_statistics": False, "use_dictionary": False}
    path = write(tmp_path, columns("image:image label:int"), **options, compression="none")
    path.write_bytes(damage(path.read_bytes()))
    check_refused("parquet", path, reason)


class _Keys(pe.KmsClient):  # type: ignore[misc]
    def wrap_key(self, key: bytes, name: str) -> str:
        return base64.b64encode(key).decode()

    def unwrap_key(self, wrapped: str, name: str) -> bytes:
        return base64.b64decode(wrapped)


@pytest.mark.parametrize(
    ("column", "plaintext_footer", "is_refused"),
    [("image", False, True), ("image", True, True), ("secret", True, False)],
)
def test_an_encrypted_file_is_refused_where_what_it_takes_is_encrypted(
    tmp_path: Path, column: str, plaintext_footer: bool, is_refused: bool
) -> None:
    table = pa.table(columns("secret:int image:image label:int"))
    configuration = pe.EncryptionConfiguration(
        footer_key="a", column_keys={"b": [column]}, plaintext_footer=plaintext_footer
    )
    factory = pe.CryptoFactory(lambda _: _Keys())
    properties = factory.file_encryption_properties(pe.KmsConnectionConfig(), configuration)
    path = tmp_path / "a.parquet"
    with pq.ParquetWriter(path, table.schema, encryption_properties=properties) as writer:
        writer.write_table(table)
    if is_refused:
        check_refused("parquet", path, "is encrypted, and Feeder has no keys")
    else:
        assert read_all(path, list_file(path)) == IMAGES

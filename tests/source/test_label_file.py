"""Files of labels: their formats, columns and cells, and the files that are none."""

import codecs
import csv
import io
import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError, DatasetError
from feeder.source.label_files import tables
from feeder.source.label_files.columns import BadLabel, choose_label
from feeder.source.label_files.label_file import LabelFile


def read(path: Path, **options: Any) -> list[tuple[int, str, object]]:
    """Return number, file and label of all rows; the reason where a row or a label is bad."""
    file = LabelFile(path, **options)
    for row in file.rows():
        if not row.fault:
            file.observe(row)
    rows: list[tuple[int, str, object]] = []
    for row in file.rows():
        try:
            rows.append((row.number, row.file, row.fault or file.read_label(row)))
        except BadLabel as error:
            rows.append((row.number, row.file, str(error)))
    return rows


def labels_of(path: Path, **options: Any) -> list[object]:
    return [label for _, _, label in read(path, **options)]


def write(folder: Path, data: bytes | str, name: str = "x.csv") -> Path:
    path = folder / name
    path.write_bytes(data if isinstance(data, bytes) else data.encode())
    return path


_CELLS = st.text(
    st.characters(codec="utf-8", exclude_categories=("Cc", "Cs", "Zs", "Zl", "Zp")), max_size=8
)
_NAMES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc")), max_size=8).map(
    lambda stem: f"{stem.strip()}x.jpg"
)
_LABELS = _CELLS | st.sampled_from(["7", "two\nlines", 'q"uote', "a, b; c"])


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=40)
@given(
    rows=st.lists(st.tuples(_NAMES, _LABELS, _CELLS), min_size=1, max_size=8),
    dialect=st.fixed_dictionaries(
        {
            "delimiter": st.sampled_from(",;\t"),
            "lineterminator": st.sampled_from(["\n", "\r\n"]),
            "quoting": st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
        }
    ),
    mark=st.sampled_from([b"", codecs.BOM_UTF8]),
)
def test_what_a_csv_writer_wrote_is_read(
    tmp_path: Path, rows: list[tuple[str, str, str]], dialect: dict[str, Any], mark: bytes
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, **dialect)
    writer.writerows([("file_name", "class", "weight of it"), *rows])
    path = write(tmp_path, mark + text.getvalue().encode())
    found = [(name, label or "") for _, name, label in read(path, label_kind="name")]
    assert found == [(name.strip(), label) for name, label, _ in rows]


@pytest.mark.parametrize(
    ("text", "image", "label"),
    [
        ("file,label\nx,1\n", "x", "1"),
        ("Label;File Name\n1;x\n", "x", "1"),
        (",path,target\n0,x,1\n", "x", "1"),
        ("id,file,label\n7,x,1\n", "x", "1"),
        ("file,label_id,label\nx,7,cat\n", "x", "cat"),
        ("file,class_name,class_id\nx,cat,7\n", "x", "7"),
        ("id,name,label\n7,x.jpg,1\n", "x.jpg", "1"),
        ("picture,what\nx.png,cat\n", "x.png", "cat"),
        ("cat,x.jpg\n", "x.jpg", "cat"),
        ("my own image.jpg 3\nx.jpg 4\n", "my own image.jpg", "3"),
        ("file,label,\nx,1,\n", "x", "1"),
    ],
)
def test_columns_are_found_by_their_names_and_values(
    tmp_path: Path, text: str, image: str, label: object
) -> None:
    assert read(write(tmp_path, text))[0][1:] == (image, label)


@pytest.mark.parametrize(
    ("text", "image", "label", "problem"),
    [
        ("file,filename,label\n", "", "", "images may be in file, filename: choose one with --ima"),
        ("file,a,b\nx.jpg,1,2\n", "", "", "labels may be in a, b: choose one with --label"),
        ("a,b\n1,2\n", "", "", "no column of a, b is known to hold the images' names"),
        ("file\nx.jpg\n", "", "", "has no column of labels: name it with --label, or give"),
        ("file,label\n", "pic", "", "--image pic is none of its columns: file, label"),
        ("file,label\n", "", "kind", "--label kind is none of its columns: label"),
        ("file,label,label\n", "", "label", "two columns label: rename one"),
    ],
)
def test_columns_that_are_not_clear_are_refused(
    tmp_path: Path, text: str, image: str, label: str, problem: str
) -> None:
    with pytest.raises(ConfigError, match=problem):
        read(write(tmp_path, text), image=image, label=label)


def test_a_column_that_is_declared_to_hold_classes_counts_as_the_most_usual_name() -> None:
    assert choose_label(["kind", "label_id"], "x", {"kind"}) == "kind"
    assert choose_label(["kind", "label_id"], "x") == "label_id"
    with pytest.raises(ConfigError, match="the labels may be in kind, label: choose one"):
        choose_label(["kind", "label"], "x", {"kind"})


def test_columns_may_be_named(tmp_path: Path) -> None:
    path = write(tmp_path, "file,image,label,class\nx,y,1,cat\n")
    assert read(path, image="image", label="class") == [(2, "y", "cat")]
    assert read(path, image="file", label="label") == [(2, "x", "1")]
    path = write(tmp_path, 'file,"a,b",a,b\nx,1,2,3\n')
    assert read(path, label="a,b") == [(2, "x", "1")], "a name, not two"
    path = write(tmp_path, "x.jpg,1,2\n")
    assert read(path, label="column 3") == [(1, "x.jpg", "2")]
    path = write(tmp_path, '{"file": "x", "a": 1, "b": 2}\n', "x.jsonl")
    assert read(path, label="a") == [(1, "x", 1)]
    path = write(tmp_path, '{"x": {"a": 1, "b": 2}, "y": 3}', "x.json")
    assert read(path, label="b") == [(1, "x", 2), (2, "y", "it is no JSON object")]
    with pytest.raises(ConfigError, match="has no fields that --image or --label could name"):
        read(write(tmp_path, '{"x": 1}', "x.json"), label="b")


@pytest.mark.parametrize(
    ("cells", "kind", "labels"),
    [
        (["7", "NA", "007", "1.0", "", "a b"], None, ["7", "NA", "007", "1.0", None, "a b"]),
        (["[1, 0]", "[]", "['x', 'y']", '["a;b"]'], None, [[1, 0], [], ["x", "y"], ["a;b"]]),
        (["[x]"], None, ["its label '[x]' is no list"]),
        (["1;2", "3", "", "x"], "multi", [["1", "2"], ["3"], [], ["x"]]),
        (["1 2", "3 4"], "multi", [["1", "2"], ["3", "4"]]),
        (["1|0|-1", "[0, 1, 0]"], "multi-hot", [["1", "0", "-1"], [0, 1, 0]]),
        (["1;2.5", "3", "", "x"], "float", [[1.0, 2.5], [3.0], None, "its label 'x' is no number"]),
    ],
)
def test_a_cell_is_a_text_unless_it_is_a_list_or_the_kind_is_of_lists(
    tmp_path: Path, cells: list[str], kind: str | None, labels: list[object]
) -> None:
    text = io.StringIO()
    csv.writer(text, delimiter="\t").writerows([("file", "label"), *(("x", c) for c in cells)])
    assert labels_of(write(tmp_path, text.getvalue(), "x.tsv"), label_kind=kind) == labels


_MINUS = "1 0, -1 0, -1.0 1.0"
_EMPTY = "1 0, _ 1, NA NA"


@pytest.mark.parametrize(
    ("rows", "kind", "uncertain", "labels"),
    [
        ("1 0, no yes, 1 True, 0 f", "multi", "", [["a"], ["b"], ["a", "b"], []]),
        ("1 -1, -1 -1", "multi", "", [["a"], []]),  # no 0: -1 is no
        (_MINUS, "multi", "", "column a of .* has -1 beside 0 and 1: give --uncertain no, yes or"),
        (_MINUS, "multi-hot", "yes", [["a"], ["a"], ["a", "b"]]),
        (_EMPTY, "multi", "", "column a of .* has an empty cell beside 0 and 1: give --uncertain"),
        (_EMPTY, "multi", "no", [["a"], ["b"], []]),
        (_EMPTY, "multi", "leave-out", [["a"], "column 'a' is empty", "column 'a' is na"]),
        ("1 0, 0 2", "multi", "", [["a"], "label '2' in column 'b' is not 0 or 1"]),
        ("1 0, 0 1, 1 1, 0 0", "one-hot", "", ["a", "b", "2 of its columns ", "0 of its columns "]),
    ],
)
def test_a_class_in_each_column(
    tmp_path: Path, rows: str, kind: Any, uncertain: Any, labels: str | list[Any]
) -> None:
    """Longer texts in place of a class are reasons; a text in place of labels is an error."""
    pairs = [row.split() for row in rows.split(", ")]
    objects = [{"file": "x", "a": a.strip("_"), "b": b.strip("_")} for a, b in pairs]
    lines = "".join(f"{','.join(each.values())}\n" for each in objects)
    for name, text in (
        ("x.csv", f"file,a,b\n{lines}"),
        ("x.json", json.dumps(objects)),
        ("x.jsonl", "\n".join(map(json.dumps, objects))),
    ):
        path = write(tmp_path, text, name)
        options = {"label": "a,b", "label_kind": kind, "uncertain": uncertain}
        if isinstance(labels, str):
            with pytest.raises(ConfigError, match=labels):
                labels_of(path, **options)
            continue
        for label, expected in zip(labels_of(path, **options), labels, strict=True):
            is_reason = isinstance(expected, str) and len(expected) > 1
            assert expected in str(label) if is_reason else label == expected
        assert LabelFile(path, label="a,b", label_kind=kind).classes == ("a", "b")


def test_files_that_are_no_utf_8_text_are_refused(tmp_path: Path) -> None:
    for name in ("x.csv", "x.jsonl", "x.json"):
        for data, place in (
            ("file,label\n".encode("utf-16"), r"line 1 .* \(byte 0xff at 1\)"),
            (b'{"file": "x", "y": 1}\n\n{"y": "caf\xe9"}\n', r"line 3 .* \(byte 0xe9 at 11\)"),
        ):
            with pytest.raises(DatasetError, match=f"{place}: decompress .*, or convert") as caught:
                read(write(tmp_path, data, name))
            assert "\n" not in str(caught.value)


def test_json_a_line_may_be_called_json_and_have_a_byte_order_mark(tmp_path: Path) -> None:
    text = '{"file": "x", "label": 1}\n\n{"file": "y", "label": 2}\n'
    rows = [(1, "x", 1), (3, "y", 2)]
    for name in ("x.json", "x.jsonl", "x.ndjson", "x.txt"):
        assert read(write(tmp_path, codecs.BOM_UTF8 + text.encode(), name)) == rows
    path = write(tmp_path, codecs.BOM_UTF8 + b'{"x": "cat"}', "x.json")
    assert read(path) == [(1, "x", "cat")]


def test_long_files_of_json_have_to_be_a_row_a_line(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(tables, "BYTES_MAX", 100)
    lines = [json.dumps({"file": f"{number}.jpg", "label": number}) for number in range(20)]
    assert len(read(write(tmp_path, "\n".join(lines), "x.json"))) == 20
    with pytest.raises(DatasetError, match="write it as JSONL, an object a line"):
        read(write(tmp_path, f"[{','.join(lines)}]", "x.json"))
    with pytest.raises(DatasetError, match=r"line 2 of .* is longer than"):
        read(write(tmp_path, f"file,label\n{'x' * 200},1\n"))

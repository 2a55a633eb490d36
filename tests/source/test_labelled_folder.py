"""A folder of images with a file of labels: which files are listed, and which rows are refused."""

import json
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import ConfigError, DatasetError
from feeder.plan.labels import LabelChoice
from feeder.process.path_text import path_to_text
from feeder.source.item_bytes import SourceError
from feeder.source.labelled_folder import LabelledFolder
from feeder.source.location.storage import stamp_path
from feeder.source.raw_labels import Form
from feeder.source.source import SourceSpec
from tests.source.listings import Listed, list_container
from tests.support.sources import encoded, image

_JPEG = encoded(image())


def put(root: Path, *names: str, data: bytes = _JPEG) -> Path:
    for name in names:
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(data)
    return root


@pytest.fixture
def source(tmp_path: Path) -> Path:
    return put(tmp_path / "source", "a.jpg", "b.png", "deep/c.jpg")


def spec_of(source: Path, labels: Path | None, **fields: Any) -> SourceSpec:
    return SourceSpec(
        kind="labelled-folder",
        location=str(source),
        containers=(path_to_text(source),),
        labels_file="" if labels is None else path_to_text(labels),
        **fields,
    )


def list_with(source: Path, text: str, name: str = "labels.csv", **fields: Any) -> Listed:
    labels = source / name
    labels.write_text(text, "utf-8")
    return list_container(spec_of(source, labels, **fields), source.with_name("work"))


ROWS = (("a.jpg", 3), ("b.png", 1), ("deep/c.jpg", 0))


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("labels.csv", "file,label\n" + "".join(f"{file},{label}\n" for file, label in ROWS)),
        ("labels.csv", "".join(f"{file};{label}\r\n" for file, label in ROWS)),
        ("labels.tsv", "label\tpath\n" + "".join(f"{label}\t{file}\n" for file, label in ROWS)),
        ("val.txt", "".join(f"{file} {label}\n" for file, label in ROWS)),
        ("labels.json", json.dumps(dict(ROWS))),
        ("labels.json", json.dumps({file: {"label": label} for file, label in ROWS}, indent=1)),
        ("labels.json", json.dumps([{"image": file, "class": label} for file, label in ROWS])),
        ("dataset.json", json.dumps({"labels": [[file, label] for file, label in ROWS]})),
        (
            "metadata.jsonl",
            "".join(json.dumps({"file_name": file, "y": label}) + "\n" for file, label in ROWS),
        ),
    ],
)
def test_every_format_gives_the_same_labels(source: Path, name: str, text: str) -> None:
    listed = list_with(source, text, name)
    assert listed.labels == dict(ROWS)
    assert listed.rejected == {}
    assert (listed.facts.hidden, listed.forms, listed.facts.notes) == (0, {Form.NUMBER}, ())
    assert listed.items["a.jpg"].size_bytes == len(_JPEG)
    assert listed.stamps["a.jpg"] == stamp_path(source / "a.jpg")
    folder = LabelledFolder(spec_of(source, None))
    assert folder.read_item(listed.items["deep/c.jpg"]) == _JPEG


def test_rows_without_a_file_and_images_without_a_row_are_rejected(source: Path) -> None:
    put(source, "d.jpg", "deep/e.heic", "noname", ".hidden.jpg")
    put(source, "readme.md", "empty", data=b"")
    listed = list_with(source, "file,label\na.jpg,1\ngone.jpg,2\n../out.jpg,0\nb.png,0\n")
    assert listed.labels == {"a.jpg": 1, "b.png": 0}
    assert listed.rejected == {
        "gone.jpg": ("unreadable", "listed in labels.csv line 3, but there is no such file"),
        "../out.jpg": ("unreadable", "listed in labels.csv line 4, but that is outside the source"),
        "d.jpg": ("no-label", "labels.csv has no row for it"),
        "deep/c.jpg": ("no-label", "labels.csv has no row for it"),
        "deep/e.heic": ("no-label", "labels.csv has no row for it"),
        "noname": ("no-label", "labels.csv has no row for it"),
    }
    assert listed.facts.hidden == 1
    assert listed.facts.notes == ("left out 2 files: no images, and not in labels.csv",)


def test_a_file_listed_twice_counts_once_unless_its_labels_differ(source: Path) -> None:
    listed = list_with(
        source,
        "file,label\na.jpg,1\nb.png,2\n./a.jpg,1\nb.png,2\nb.png,3\ndeep/../deep/c.jpg,0\nb.png,2\n",
    )
    assert listed.labels == {"a.jpg": 1, "deep/c.jpg": 0}
    reason = "it has another label in line 6 (--label-kind multi takes all)"
    assert listed.rejected == {
        "b.png": ("two-labels", f"listed in labels.csv line 3, but {reason}")
    }
    assert listed.facts.notes == ("labels.csv lists 2 files more than once",)


def test_rows_that_cannot_be_read_are_rejected_with_their_line(source: Path) -> None:
    put(source, "d.jpg")
    text = 'file,label\na.jpg,1\n,5\nb.png\n\nd.jpg,1,2\n"deep/c.jpg",\n'
    listed = list_with(source, text)
    assert listed.labels == {"a.jpg": 1}
    assert listed.rejected == {
        "labels.csv:3": ("bad-row", "listed in labels.csv line 3, but it names no file"),
        "b.png": (
            "bad-row",
            "listed in labels.csv line 4, but it has 1 cells, the first line 2",
        ),
        "d.jpg": ("bad-row", "listed in labels.csv line 6, but it has 3 cells, the first line 2"),
        "deep/c.jpg": ("no-label", "listed in labels.csv line 7, but it has no label"),
    }


def test_bad_lines_and_values_of_json_are_rejected(source: Path) -> None:
    put(source, "d.jpg", "e.jpg")
    lines = [
        '{"file": "a.jpg", "label": 1}',
        '{"file": "b.png", "label": null}',
        '{"file": "deep/c.jpg"}',
        '{"file": "d.jpg", "label": {"x": 1}}',
        '{"file": "e.jpg", "label": "\\ud800"}',
        '{"file": "\\ud800.jpg", "label": 1}',
        '{"file": "x\\u0000.jpg", "label": 1}',
        '{"file": 1.5, "label": 1}',
        '{"file": "a.j',
    ]
    listed = list_with(source, "\n".join(lines), "labels.jsonl")
    assert listed.labels == {"a.jpg": 1}
    assert {name: kind for name, (kind, _) in listed.rejected.items()} == {
        "b.png": "no-label",
        "deep/c.jpg": "no-label",
        "d.jpg": "bad-label",
        "e.jpg": "bad-label",
        "\\ud800.jpg": "unreadable",
        "x\0.jpg": "unreadable",
        "labels.jsonl:8": "bad-row",
        "labels.jsonl:9": "bad-row",
    }


def test_repeated_keys_of_a_json_object_are_two_rows(source: Path) -> None:
    text = '{"a.jpg": 1, "b.png": 2, "a.jpg": 3, "deep/c.jpg": 0}'
    listed = list_with(source, text, "labels.json")
    assert listed.labels == {"b.png": 2, "deep/c.jpg": 0}
    assert listed.rejected["a.jpg"][0] == "two-labels"
    assert "it has another label in entry 3" in listed.rejected["a.jpg"][1]


@pytest.mark.parametrize(
    "names",
    [
        ("a", "b", "deep/c"),
        ("./a.jpg", "x/../b.png", "deep//c.jpg"),
        ("a.jpg", "b.png", "deep\\c.jpg"),
        ("source/a.jpg", "source/b.png", "source/deep/c.jpg"),
        ("{root}/a.jpg", "{root}/b.png", "{root}/deep/c.jpg"),
    ],
)
def test_names_are_found_however_they_are_spelt(source: Path, names: tuple[str, ...]) -> None:
    labels = source.with_name("labels.csv")  # beside the folder
    rows = [f"{name.format(root=source)},{number}" for number, name in enumerate(names)]
    labels.write_text("\n".join(["name,label", *rows]))
    listed = list_container(spec_of(source, labels), source.with_name("work"))
    assert listed.labels == {"a.jpg": 0, "b.png": 1, "deep/c.jpg": 2}
    assert listed.rejected == {}


def test_a_hidden_file_counts_where_a_row_lists_it(source: Path) -> None:
    put(source, ".h.jpg")
    listed = list_with(source, "a.jpg,1\nb.png,1\ndeep/c.jpg,0\n.h.jpg,1\n")
    assert listed.labels[".h.jpg"] == 1
    assert listed.rejected == {}


@pytest.mark.parametrize(
    ("text", "kind", "labels", "forms"),
    [
        ("a.jpg,cat\nb.png,dog\ndeep/c.jpg,7\n", None, ["cat", "dog", 7], "TEXT NUMBER"),
        ("a.jpg,07\nb.png,7\ndeep/c.jpg,NA\n", None, ["07", 7, "NA"], "TEXT NUMBER"),
        ("a.jpg,07\nb.png,7\ndeep/c.jpg,NA\n", "name", ["07", "7", "NA"], "TEXT"),
        ("a.jpg,7\nb.png,1.5\ndeep/c.jpg,-2\n", None, [7, "1.5", -2], "TEXT NUMBER"),
        ("a.jpg,7\nb.png,1.5\ndeep/c.jpg,2\n", "float", [[7.0], [1.5], [2.0]], "REALS"),
        ("a.jpg,1;2\nb.png,3;4\ndeep/c.jpg,5;6e2\n", "float", [[1, 2], [3, 4], [5, 600]], "REALS"),
        ("a.jpg,1;2\nb.png,3\ndeep/c.jpg,5\n", "multi", [[1, 2], [3], [5]], "NUMBERS"),
        ("a.jpg,1 2\nb.png,3\ndeep/c.jpg,\n", "multi", [[1, 2], [3], []], "NUMBERS"),
        (
            "a.jpg,1 0\nb.png,0 1\ndeep/c.jpg,1 -1\n",
            "one-hot",
            [[1, 0], [0, 1], [1, -1]],
            "NUMBERS",
        ),
        (
            "a.jpg,x y|z\nb.png,1\ndeep/c.jpg,z\n",
            "multi",
            [["x y", "z"], [1], ["z"]],
            "TEXTS NUMBERS",
        ),
        (
            "a.jpg,\"['x', 'y']\"\nb.png,[]\ndeep/c.jpg,\"['z']\"\n",
            None,
            [["x", "y"], [], ["z"]],
            "TEXTS NUMBERS",
        ),
        ("a.jpg,x\nb.png,y\ndeep/c.jpg,z\n", "none", [None, None, None], "NONE"),
    ],
)
def test_cells_are_listed_as_they_are(
    source: Path, text: str, kind: LabelChoice | None, labels: list[Any], forms: str
) -> None:
    listed = list_with(source, text, label_kind=kind)
    assert listed.rejected == {}
    assert listed.labels == dict(zip(("a.jpg", "b.png", "deep/c.jpg"), labels, strict=True))
    assert listed.forms == {Form[name] for name in forms.split()}
    assert listed.facts.by_name == (kind == "name")


def test_values_of_several_columns_are_a_vector(source: Path) -> None:
    text = "file,x,y,z\na.jpg,1,2.5,0\nb.png,-1,0,1e3\ndeep/c.jpg,0,zero,\n"
    listed = list_with(source, text, label="x,z", label_kind="float")
    assert listed.labels == {"a.jpg": [1.0, 0.0], "b.png": [-1.0, 1000.0]}
    assert listed.rejected["deep/c.jpg"] == (
        "bad-label",
        "listed in labels.csv line 4, but its label '' is no number",
    )


def test_columns_of_zeros_and_ones_are_classes(source: Path) -> None:
    text = "image_id,is_cat,is_dog,is_none\na.jpg,1,0,-1\nb.png,1,1,0\ndeep/c.jpg,2,0,0\n"
    with pytest.raises(
        ConfigError, match=r"column is_none of .* has -1 beside 0 and 1: give --unc"
    ):
        list_with(source, text, label="is_*", label_kind="multi")
    listed = list_with(source, text, label="is_*", label_kind="multi", uncertain="no")
    assert listed.labels == {"a.jpg": ["is_cat"], "b.png": ["is_cat", "is_dog"]}
    assert listed.facts.texts == ("is_cat", "is_dog", "is_none")
    assert listed.facts.by_name
    assert listed.facts.field == "columns is_cat, is_dog, is_none of labels.csv"
    assert listed.rejected["deep/c.jpg"] == (
        "bad-label",
        "listed in labels.csv line 4, but its label '2' in column 'is_cat' is not 0 or 1",
    )
    with pytest.raises(ConfigError, match="--label names 3 columns: give --label-kind float"):
        list_with(source, text, label="is_*")


def test_json_values_keep_their_types(source: Path) -> None:
    text = json.dumps({"a.jpg": ["x", "y"], "b.png": ["z"], "deep/c.jpg": ["x"]})
    listed = list_with(source, text, "labels.json", label_kind="multi")
    assert listed.labels == {"a.jpg": ["x", "y"], "b.png": ["z"], "deep/c.jpg": ["x"]}
    text = json.dumps([{"file": "a.jpg", "u": 1, "v": 0.5}, {"file": "b.png", "u": 2, "v": "x"}])
    listed = list_with(source, text, "labels.json", label="u,v", label_kind="float")
    assert listed.labels == {"a.jpg": [1.0, 0.5]}
    assert listed.rejected["b.png"][0] == "bad-label"


@pytest.mark.parametrize(
    ("name", "text", "options", "field"),
    [
        ("labels.csv", "file,label\na.jpg,1\n", {"label_base": 1}, "column label of labels.csv"),
        ("labels.csv", "a.jpg,1\n", {}, "column 2 of labels.csv"),
        ("labels.json", '{"a.jpg": 1}', {"label_base": 2}, "labels.json"),
        ("x.jsonl", '{"file": "a.jpg", "y": 1}', {}, "field y of x.jsonl"),
        (
            "x.jsonl",
            '{"file": "a.jpg", "columns": 1}',
            {"label": "columns"},
            "field columns of x",
        ),
        (
            "labels.csv",
            "file,v,w,x,y,z\na.jpg,1,2,3,4,5\n",
            {"label": "v,w,x,y,z", "label_kind": "float"},
            "columns v, w, x and 2 more of labels.csv",
        ),
    ],
)
def test_the_list_says_where_labels_are_and_what_they_count_from(
    source: Path, name: str, text: str, options: dict[str, Any], field: str
) -> None:
    facts = list_with(source, text, name, **options).facts
    assert facts.field.startswith(field)
    assert facts.base == options.get("label_base", 0)
    assert facts.notes == ()


@pytest.mark.parametrize(
    ("name", "text", "problem"),
    [
        ("labels.csv", "", "labels.csv has no rows"),
        ("labels.csv", "file,label\n", "labels.csv has no rows"),
        ("labels.csv", "file,label\nx.jpg,1\n", r"none of the files .* x.jpg \(line 2\): give the"),
        ("labels.csv", 'file,label\na.jpg,1\n"b.png,2\n', r"line 3 of .* is no CSV"),
        ("labels.csv", 'file,label\na.jpg,"1"2\n', r"line 2 of .* is no CSV"),
        ("labels.json", '{"a.jpg": 1', r"labels.json is no JSON: .* line 1"),
        ("labels.json", "[" * 100_000, "labels.json is no JSON"),
        ("labels.json", "3", "holds neither an object nor a list"),
        ("labels.json", "{}", "has no entries"),
        ("labels.json", "[1, 2]", "entry 1 of .* is neither an object nor"),
        ("labels.json", '{"images": [], "annotations": []}', "COCO's annotations"),
        ("labels.jsonl", "nothing\n", "line 1 of .* is no JSON object"),
        ("labels.jsonl", "\n\n", "has no rows"),
    ],
)
def test_files_that_hold_no_labels_of_the_folder_are_refused(
    source: Path, name: str, text: str, problem: str
) -> None:
    with pytest.raises(DatasetError, match=problem):
        list_with(source, text, name)


def test_without_labels_every_image_is_listed(source: Path) -> None:
    put(source, "noname", ".hidden.jpg")
    put(source, "notes.txt", "broken.jpg", data=b"x")
    spec = spec_of(source, None, label_kind="none")
    listed = list_container(spec, source.with_name("work"))
    names = [file for file, _ in ROWS]
    assert listed.labels == dict.fromkeys((*names, "broken.jpg", "noname"))
    assert (listed.facts.hidden, listed.forms) == (1, {Form.NONE})
    assert listed.facts.notes == ("left out 1 file: not images by their names or content",)
    with pytest.raises(ConfigError, match="name their file with --labels, or give --label-kind no"):
        list_container(spec_of(source, None), source.with_name("work"))
    empty = source / "empty"
    empty.mkdir()
    with pytest.raises(DatasetError, match="empty holds no images"):
        list_container(spec_of(empty, None, label_kind="none"), source.with_name("work"))


def test_a_file_that_is_gone_since_is_unreadable(source: Path) -> None:
    listed = list_with(source, "a.jpg,1\nb.png,2\n")
    (source / "a.jpg").unlink()
    with pytest.raises(SourceError, match="unreadable: no such file"):
        LabelledFolder(spec_of(source, None)).read_item(listed.items["a.jpg"])

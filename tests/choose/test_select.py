"""``feeder select``: the samples that its options choose, and what it refuses."""

import os
import shutil
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feeder
from feeder.choose.criteria import read_fraction
from feeder.choose.members import open_samples
from feeder.dataset.opened import Dataset
from feeder.dataset.selected import SelectedDataset
from feeder.dataset.selection import Selection
from feeder.errors import ConfigError, DatasetError
from tests.choose.animals import BIRDS, CATS, refused, select
from tests.support.sources import call_feeder
from tests.support.synthetic_sets import MULTI, NONE, Sample, write_labelled, write_set


@contextmanager
def chosen(path: Path) -> Iterator[SelectedDataset]:
    with open_samples(path) as opened:
        assert isinstance(opened, SelectedDataset)
        yield opened


def read_all(path: Path) -> dict[str, str]:
    """The class of each sample by name."""
    with chosen(path) as opened:
        ids = np.arange(opened.layout.samples)
        labels = np.empty(len(ids), np.int64)
        opened.read_labels(ids, opened.read_records(ids), labels)
        classes = opened.classes
        return {opened.read_name(i): classes[labels[i]] for i in ids.tolist()}


CAT_CLASSES = {f"cat{n:02}.jpg": CATS[n % 3] for n in range(23)}
BIRD_CLASSES = {f"bird{n:02}.jpg": BIRDS[n % 2] for n in range(11)}
ALL = CAT_CLASSES | BIRD_CLASSES


def test_all_of_two_datasets_with_their_classes_merged_by_name(home: Path) -> None:
    out = select(home, "cats", "birds")
    assert read_all(out) == ALL
    selection = Selection.open(out)
    assert selection.classes == ("cat", "dog", "fox", "owl")
    assert [(m.name, m.samples, m.chosen, m.hint) for m in selection.members] == [
        ("cats", 23, 23, "cats"),
        ("birds", 11, 11, "birds"),
    ]


@pytest.mark.parametrize(
    ("options", "kept"),
    [
        (["--classes", "cat"], lambda name, c: c == "cat"),
        (["--classes", "cat,owl"], lambda name, c: c in ("cat", "owl")),
        (["--exclude-classes", "cat"], lambda name, c: c != "cat"),
        (["--classes", "cat,dog", "--exclude-classes", "dog"], lambda name, c: c == "cat"),
        (["--where", "cmyk"], lambda name, c: int(name[-6:-4]) % 5 == 0),
        (
            ["--where", "width >= 26", "--classes", "fox"],
            lambda n, c: int(n[-6:-4]) > 4 and c == "fox",
        ),
    ],
)
def test_classes_and_conditions_choose(home: Path, options: list[str], kept: object) -> None:
    assert callable(kept)
    expected = {name: c for name, c in ALL.items() if kept(name, c)}
    assert 0 < len(expected) < len(ALL)
    assert read_all(select(home, "cats", "birds", *options)) == expected


def test_classes_keep_their_numbers(home: Path) -> None:
    assert Selection.open(select(home, "cats", "--classes", "fox")).classes == CATS


def test_class_names_come_from_a_file_too(home: Path, tmp_path: Path) -> None:
    (tmp_path / "names").write_text("fox\r\n\nowl\n")
    out = select(home, "cats", "birds", "--classes", f"@{tmp_path / 'names'}")
    assert {*read_all(out).values()} == {"fox", "owl"}


def test_lists_of_names_choose_and_leave_out(home: Path, tmp_path: Path) -> None:
    names = ["cat03.jpg", "bird10.jpg", "cat22.jpg"]
    (tmp_path / "list").write_text("\n".join(names))
    listed = select(home, "cats", "birds", "--list", str(tmp_path / "list"))
    assert {*read_all(listed)} == {*names}
    others = select(home, "cats", "birds", "--exclude-list", str(tmp_path / "list"))
    assert {*read_all(others)} == {*ALL} - {*names}


def test_lists_of_ids_choose_and_leave_out(home: Path, tmp_path: Path) -> None:
    np.save(tmp_path / "one.npy", np.array([7, 2]))
    np.save(tmp_path / "two.npy", np.array([[1, 2], [0, 7]], np.uint32))
    one = select(home, "cats", "--list", str(tmp_path / "one.npy"), name="one")
    assert {*read_all(one)} == {"cat02.jpg", "cat07.jpg"}
    two = select(home, "cats", "birds", "--exclude-list", str(tmp_path / "two.npy"))
    assert {*ALL} - {*read_all(two)} == {"cat07.jpg", "bird02.jpg"}
    # Of a selection, ids are its own.
    np.save(tmp_path / "last.npy", np.array([1]))
    last = select(home, one.name, "--list", str(tmp_path / "last.npy"))
    assert {*read_all(last)} == {"cat07.jpg"}


def test_a_selection_is_a_list_so_that_splits_are_disjoint(home: Path) -> None:
    val = select(home, "cats", "--fraction", "0.3", name="val")
    train = read_all(select(home, "cats", "birds", "--exclude-list", str(val), name="train"))
    assert {**train, **read_all(val)} == ALL
    assert train.keys().isdisjoint(read_all(val))
    assert read_all(select(home, "cats", "birds", "--list", str(val))) == read_all(val)
    assert "it is of cats, which is not here" in refused(home, "birds", "--list", str(val))


def test_a_selection_does_not_list_a_dataset_that_was_packed_again(
    home: Path, tmp_path: Path
) -> None:
    """Its samples would silently be in training and in validation."""
    val = select(home, "cats", "birds", "--fraction", "0.3", name="val")
    shutil.copytree(home / "cats", tmp_path / "again")
    write_set(tmp_path / "fewer", [Sample(name="bird01.jpg")], classes=BIRDS)
    text = refused(home, "cats", str(tmp_path / "fewer"), "--exclude-list", str(val))
    assert "it is of birds, which is not here, and has nothing of " in text
    assert "list names instead" in text
    part = select(home, str(tmp_path / "again"), "--exclude-list", str(val))
    assert read_all(part).keys().isdisjoint(read_all(val)), "a part of what it lists"


def test_a_selection_finds_its_datasets_through_symbolic_links(home: Path, tmp_path: Path) -> None:
    out = select(home, "cats", name="linked")
    (tmp_path / "links").mkdir()
    link = tmp_path / "links" / "current.sel"
    link.symlink_to(out)
    assert read_all(link) == read_all(out)
    (tmp_path / "linked").symlink_to(home, target_is_directory=True)
    assert read_all(tmp_path / "linked" / out.name) == read_all(out)


def test_names_in_a_pipe_are_listed_as_they_are(tmp_path: Path) -> None:
    """Also those that a terminal would not show: spaces of another kind, bytes that are no text."""
    names = ["a/10.00\u202fPM.jpg", os.fsdecode(b"caf\xe9.jpg"), "end\r", "plain.jpg"]
    write_set(tmp_path / "d", [Sample(name=name) for name in names], classes=CATS)
    printed = subprocess.run(
        [sys.executable, "-m", "feeder", "names", str(tmp_path / "d"), "0", "1", "2", "3"],
        stdout=subprocess.PIPE,
        check=True,
    )
    assert sorted(printed.stdout.split(b"\n")[:-1]) == sorted(map(os.fsencode, names))
    (tmp_path / "some").write_bytes(b"".join(os.fsencode(n) + b"\n" for n in (names[0], names[1])))
    kept = read_all(select(tmp_path, "d", "--exclude-list", str(tmp_path / "some")))
    assert {*kept} == {*names[2:]}


def test_relabelling_comes_before_the_choice_by_class(home: Path, tmp_path: Path) -> None:
    (tmp_path / "r.csv").write_text('name,class\ncat00.jpg,"wolf, grey"\ncat01.jpg,cat\n')
    out = select(home, "cats", "birds", "--relabel", str(tmp_path / "r.csv"))
    changed = {"cat00.jpg": "wolf, grey", "cat01.jpg": "cat"}
    assert read_all(out) == ALL | changed
    assert Selection.open(out).classes == (*CATS, "owl", "wolf, grey")
    cats = select(home, "cats", "--relabel", str(tmp_path / "r.csv"), "--classes", "cat")
    assert read_all(cats) == {n: c for n, c in (CAT_CLASSES | changed).items() if c == "cat"}


def test_a_selection_of_selections_has_their_datasets_and_labels(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "r.csv").write_text("cat00.jpg,wolf\n")
    first = select(home, "cats", "--relabel", str(tmp_path / "r.csv"), name="first")
    second = select(home, "birds", "--classes", "owl", name="second")
    both = select(home, first.name, second.name, "--exclude-classes", "dog", name="both")
    expected = (CAT_CLASSES | {"cat00.jpg": "wolf"}) | {
        name: c for name, c in BIRD_CLASSES.items() if c == "owl"
    }
    assert read_all(both) == {name: c for name, c in expected.items() if c != "dog"}
    assert [member.name for member in Selection.open(both).members] == ["cats", "birds"]


def test_a_sample_of_several_is_chosen_once_with_the_label_of_the_last(
    home: Path, tmp_path: Path
) -> None:
    (tmp_path / "r.csv").write_text("cat00.jpg,dog\n")
    relabelled = select(home, "cats", "--relabel", str(tmp_path / "r.csv"), name="relabelled")
    last = read_all(select(home, "cats", relabelled.name))
    assert last == CAT_CLASSES | {"cat00.jpg": "dog"}
    assert read_all(select(home, relabelled.name, "cats")) == CAT_CLASSES


def test_samples_of_several_classes_are_chosen_by_any_of_them(tmp_path: Path) -> None:
    write_labelled(tmp_path / "d", MULTI)
    out = select(tmp_path, "d", "--classes", "class3", "--exclude-classes", "class9")
    with chosen(out) as opened:
        ids = np.arange(opened.layout.samples)
        rows = np.empty((len(ids), 11), np.uint8)
        opened.read_labels(ids, opened.read_records(ids), rows)
        assert rows[:, 3].all()
        assert not rows[:, 9].any()
        names = {opened.read_name(i) for i in ids.tolist()}
    expected = {n for n in range(23) if n % 5 and 3 in (n % 11, n * n % 11)}
    expected -= {n for n in expected if 9 in (n % 11, n * n % 11)}
    assert names == {f"s{n:03}" for n in expected}


# --- Fractions ----------------------------------------------------------------------------------

names = st.lists(st.binary(min_size=1, max_size=20), min_size=1, max_size=50)


@given(names, st.integers(1, 100), st.integers(1, 100), st.integers(0, 2**64 - 1))
def test_a_fraction_depends_on_the_name_alone_and_grows(
    given_names: list[bytes], share: int, other: int, seed: int
) -> None:
    small, large = sorted([share, other])
    few = read_fraction(f"{small / 100}", seed)
    is_in = few.has(given_names)
    assert is_in[::-1].tolist() == few.has(given_names[::-1]).tolist()
    assert (~is_in | read_fraction(f"{large / 100}", seed).has(given_names)).all()
    assert read_fraction("1", seed).has(given_names).all()


def test_a_fraction_is_about_that_share_and_other_with_another_seed() -> None:
    many = [b"%d.jpg" % number for number in range(20_000)]
    first, second = (read_fraction("0.25", seed).has(many) for seed in (0, 1))
    assert abs(first.mean() - 0.25) < 0.02
    assert abs((first & second).mean() - 0.0625) < 0.01


def test_a_fraction_is_the_same_beside_other_datasets(home: Path) -> None:
    alone = {*read_all(select(home, "cats", "--fraction", "0.4"))}
    both = {*read_all(select(home, "cats", "birds", "--fraction", "0.4"))}
    assert alone == {name for name in both if name.startswith("cat")}
    assert 0 < len(alone) < 23


# --- From Python --------------------------------------------------------------------------------


def test_arrays_of_ids_choose_from_python(home: Path, tmp_path: Path) -> None:
    out = tmp_path / "p.sel"
    given = {home / "cats": np.array([5, 1]), str(home / "birds"): None}
    content = feeder.select("mine", given, out)
    assert {*read_all(out)} == {"cat05.jpg", "cat01.jpg", *BIRD_CLASSES}
    opened = Selection.open(out)
    assert (opened.content, opened.name) == (content, "mine")
    assert feeder.select("other", {home / "cats": [1, 5], home / "birds": None}, out) == content


@pytest.mark.parametrize(
    ("ids", "text"),
    [
        ([1, 1], "comes twice: give each once"),
        ([23], "has no sample 23, it has 0 .. 22"),
        ([-1], "has no sample -1"),
        ([0.5], "are no whole numbers"),
        ([], "are no whole numbers"),
    ],
)
def test_ids_that_are_none_are_one_line(
    home: Path, tmp_path: Path, ids: Sequence[float], text: str
) -> None:
    with pytest.raises(ConfigError, match=text):
        feeder.select("x", {home / "cats": ids}, tmp_path / "x.sel")
    assert not (tmp_path / "x.sel").exists()


# --- What is refused ----------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (
            ["cats", "--classes", "doge"],
            "--classes: there is no class doge in these datasets; near",
        ),
        (["cats", "--exclude-classes", "dogs"], "nearest is dog"),
        (["cats", "--classes", ","], "it names no class"),
        (["cats", "--classes", "@/no/file"], "--classes /no/file: it cannot be read: No such"),
        (["cats", "--where", "width > 900"], "no sample is left: check the options"),
        (["cats", "--where", "cats > 9"], "there is no field or flag 'cats'"),
        (["cats", "--fraction", "0"], "--fraction 0: it must be above 0, up to 1"),
        (["cats", "--fraction", "nan"], "--fraction nan: it must be"),
        (["cats", "--fraction", "0.5", "--fraction-seed", "-1"], "--fraction-seed -1: it must"),
        (["cats", "--list", "/no/file"], "--list /no/file: it cannot be read"),
        (["cats", "--list", "/no/file.npy"], "--list /no/file.npy: it cannot be read"),
        (["cats", "--relabel", "/no/file"], "--relabel /no/file: it cannot be read"),
        (["/no/folder"], "no dataset at /no/folder"),
        (["cats", "birds", "cats"], "/cats comes twice: give each once"),
        (["cats", "--fraction-seed", "7"], "--fraction-seed goes with --fraction"),
    ],
)
def test_bad_options_are_one_line(home: Path, arguments: list[str], text: str) -> None:
    assert text in refused(home, *arguments)


@pytest.mark.parametrize(
    ("option", "content", "text"),
    [
        ("--list", "cat03.jpg\ncat33.jpg\n", "no sample is called cat33.jpg; nearest is cat"),
        ("--list", "cat33.jpg\nzzz\n", ".jpg, and 1 more are missing"),
        ("--exclude-list", "bird33\n", "--exclude-list"),
        ("--list", "\n", "it lists no names"),
        ("--relabel", "cat33.jpg,dog\n", "no sample is called cat33.jpg"),
        ("--relabel", "cat00.jpg,dog\ncat00.jpg,fox\n", "line 2 gives cat00.jpg a second class"),
        ("--relabel", "name,class\ncat00.jpg\n", "line 2 is 'cat00.jpg', not name,class"),
        ("--relabel", "name,class\n", "it has no lines name,class"),
        ("--relabel", "cat00.jpg, dog\n", "class ' dog' has white space at an end"),
        ("--relabel", '"cat00.jpg,dog', "it is not CSV"),
    ],
)
def test_bad_lists_are_one_line(
    home: Path, tmp_path: Path, option: str, content: str, text: str
) -> None:
    (tmp_path / "file").write_text(content)
    assert text in refused(home, "cats", option, str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("table", "datasets", "text"),
    [
        (np.array([1.5]), ["cats"], "it must be an array of whole numbers"),
        (np.array([23]), ["cats"], "has no sample 23, it has 0 .. 22"),
        (np.array([1]), ["cats", "birds"], "ids are an array (n, 2)"),
        (np.array([[2, 1]]), ["cats", "birds"], "there is no DST 2, they are 0 .. 1"),
        (np.array([[1, 11]]), ["cats", "birds"], "has no sample 11, it has 0 .. 10"),
        (np.array([object()]), ["cats"], "it is not an array of numpy"),
        (np.array(3), ["cats"], "ids are an array (n, 2)"),
    ],
)
def test_bad_arrays_of_ids_are_one_line(
    home: Path, tmp_path: Path, table: np.ndarray, datasets: list[str], text: str
) -> None:
    np.save(tmp_path / "ids.npy", table, allow_pickle=True)
    assert text in refused(home, *datasets, "--list", str(tmp_path / "ids.npy"))


@pytest.mark.parametrize("damage", ["cut", "more rows than memory has"])
def test_damaged_arrays_are_one_line(home: Path, tmp_path: Path, damage: str) -> None:
    np.save(tmp_path / "ids.npy", np.arange(3))
    data = (tmp_path / "ids.npy").read_bytes()
    if damage == "cut":  # the header's dictionary does not end
        data = data.replace(b"(3,), }", b"(3,    ")
    else:
        data = data.replace(b"(3,), }" + b" " * 14, b"(50000000000000,), }" + b" ")
    (tmp_path / "ids.npy").write_bytes(data)
    text = refused(home, "cats", "--list", str(tmp_path / "ids.npy"))
    assert "it is not an array of numpy" in text


@pytest.mark.parametrize("option", ["--list", "--relabel", "--weights"])
def test_pipes_are_one_line(home: Path, tmp_path: Path, option: str) -> None:
    os.mkfifo(tmp_path / "pipe")
    assert "named pipe" in refused(home, "cats", option, str(tmp_path / "pipe"))


def test_a_listed_name_that_is_only_in_the_dataset_is_said_so(home: Path, tmp_path: Path) -> None:
    part = select(home, "cats", "--classes", "dog", name="dogs")
    (tmp_path / "names").write_text("cat00.jpg\n")
    text = refused(home, str(part), "--exclude-list", str(tmp_path / "names"))
    assert "cat00.jpg is in " in text
    assert "but not in the selections of it that are given" in text


def test_datasets_of_different_kinds_of_labels_are_one_line(home: Path, tmp_path: Path) -> None:
    write_labelled(tmp_path / "none", NONE)
    text = refused(home, "cats", str(tmp_path / "none"))
    assert "have different labels, index and none" in text
    assert "no classes to choose by" in refused(home, str(tmp_path / "none"), "--classes", "cat")


def test_other_files_are_not_replaced(home: Path, tmp_path: Path) -> None:
    (tmp_path / "notes").write_text("mine")
    result = call_feeder("select", "x", home / "cats", "--out", tmp_path / "notes")
    assert result.returncode == 2
    assert "exists and is no selection: choose another name" in result.stderr
    assert (tmp_path / "notes").read_text() == "mine"


def test_a_selection_whose_dataset_has_changed_or_gone_is_one_line(tmp_path: Path) -> None:
    write_labelled(tmp_path / "d", NONE)
    out = select(tmp_path, "d")
    content = Dataset.open(tmp_path / "d").content
    write_labelled(tmp_path / "new", NONE, samples=24)
    (tmp_path / "d").rename(tmp_path / "old")
    with pytest.raises(DatasetError, match=f"needs dataset d with content fingerprint {content}"):
        read_all(out)
    (tmp_path / "new").rename(tmp_path / "d")
    with pytest.raises(DatasetError, match=r"d is another one \(.{12}\)"):
        read_all(out)


def test_datasets_of_one_name_are_told_apart(home: Path, tmp_path: Path) -> None:
    for folder in ("x", "y"):
        write_labelled(tmp_path / folder / "train", NONE, samples=5 + len(folder) * ord(folder))
    out = select(tmp_path, str(tmp_path / "x" / "train"), str(tmp_path / "y" / "train"))
    assert [member.name for member in Selection.open(out).members] == ["x/train", "y/train"]


def test_it_says_what_it_chose(home: Path) -> None:
    result = call_feeder(
        "select", "x", home / "cats", home / "birds", "--classes", "owl", "--out", home / "o.sel"
    )
    lines = result.stdout.splitlines()
    assert lines[0] == f"chose 6 of 34 samples into {home / 'o.sel'}"
    assert lines[1:3] == ["  cats: 0 of 23", "  birds: 6 of 11"]
    assert lines[3].startswith("  4 classes, content fingerprint ")

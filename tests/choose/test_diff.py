"""``feeder diff``: what differs by name and content, in datasets and selections."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import feeder
from feeder.choose.diff import find_changes
from feeder.choose.members import open_samples
from feeder.plan.labels import LabelSpec
from tests.support.sources import call_feeder
from tests.support.synthetic_sets import Sample, tiled_image, write_set

Table = dict[str, list[tuple[int, int]]]
"""By name, the image and the class of each sample that is called so."""

tables = st.dictionaries(
    st.sampled_from([f"s{number}" for number in range(8)]),
    st.lists(st.tuples(st.integers(0, 2), st.integers(0, 1)), min_size=1, max_size=2),
    min_size=1,
)


def write(folder: Path, table: Table, classes: tuple[str, ...] = ("cat", "dog")) -> Path:
    samples = [
        Sample(name=name, tiled=tiled_image(16, 16, image), label=label)
        for name, rows in table.items()
        for image, label in rows
    ]
    write_set(folder, samples, classes=classes, shards=min(2, len(samples)))
    return folder


def names(path: Path, ids: np.ndarray) -> list[str]:
    with open_samples(path) as opened:
        return sorted(opened.read_name(number) for number in ids.tolist())


@given(tables, tables)
def test_each_name_is_added_removed_changed_relabelled_or_the_same(
    tmp_path_factory: pytest.TempPathFactory, old: Table, new: Table
) -> None:
    folder = tmp_path_factory.mktemp("diff")
    paths = write(folder / "old", old), write(folder / "new", new)
    with open_samples(paths[0]) as first, open_samples(paths[1]) as second:
        changes = find_changes(first, second)
    added, removed, pairs = [], [], 0
    for name in {*old, *new}:
        before, after = len(old.get(name, [])), len(new.get(name, []))
        added += [name] * (after - before)
        removed += [name] * (before - after)
        pairs += min(before, after)
    assert names(paths[1], changes.added) == sorted(added)
    assert names(paths[0], changes.removed) == sorted(removed)
    single = {n for n in {*old} & {*new} if len(old[n]) == len(new[n]) == 1}
    changed = {n for n in single if old[n][0][0] != new[n][0][0]}
    relabelled = {n for n in single if old[n][0][1] != new[n][0][1]}
    assert {*names(paths[1], changes.changed)} & single == changed
    assert {*names(paths[1], changes.relabelled)} & single == relabelled
    assert changes.same + len({*changes.changed.tolist()} | {*changes.relabelled.tolist()}) == pairs


def test_of_several_samples_of_a_name_those_that_are_equal_are_the_same(tmp_path: Path) -> None:
    both = write(tmp_path / "both", {"a": [(0, 0), (1, 0), (2, 0)], "b": [(3, 0), (4, 1), (4, 0)]})
    some = write(tmp_path / "some", {"a": [(2, 0), (1, 0)], "b": [(4, 0), (5, 0)]})
    with open_samples(both) as old, open_samples(some) as new:
        changes = find_changes(old, new)
        assert (changes.same, len(changes.removed), len(changes.changed)) == (3, 2, 1)
        assert [len(changes.added), len(changes.relabelled)] in ([0, 0], [0, 1])
        back = find_changes(new, old)
    assert (back.same, len(back.added), len(back.changed)) == (3, 2, 1)


OLD: Table = {"a": [(0, 0)], "b": [(1, 1)], "c": [(2, 0)], "d": [(0, 1)]}
NEW: Table = {"d": [(0, 0)], "b": [(1, 1)], "c": [(1, 0)], "e": [(2, 1)], "f": [(2, 1)]}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    write(tmp_path / "old", OLD)
    write(tmp_path / "new", NEW)
    return tmp_path


def test_counts_and_names_and_the_exit_status_of_diff(home: Path) -> None:
    result = call_feeder("diff", home / "old", home / "new")
    assert result.returncode == 1
    assert result.stdout.splitlines() == [
        "added: 2 samples",
        "+ e",
        "+ f",
        "removed: 1 sample",
        "- a",
        "changed: 1 sample",
        "~ c",
        "relabelled: 1 sample",
        "= d",
        "same: 1 sample",
    ]
    listed = call_feeder("diff", home / "old", home / "new", "--list")
    assert listed.stdout.split("\n") == ["+ e", "+ f", "- a", "~ c", "= d", ""]
    same = call_feeder("diff", home / "old", home / "old")
    assert (same.returncode, same.stdout) == (0, "same: 4 samples\n")
    missing = call_feeder("diff", home / "old", home / "gone")
    assert (missing.returncode, missing.stdout) == (3, "")


def test_only_the_first_names_are_shown(tmp_path: Path) -> None:
    write(tmp_path / "old", {"a": [(0, 0)]})
    write(tmp_path / "new", {name: [(0, 0)] for name in "abcdef"})
    result = call_feeder("diff", tmp_path / "old", tmp_path / "new")
    assert result.stdout.splitlines()[:5] == [
        "added: 5 samples",
        "+ b",
        "+ c",
        "+ d",
        "+ … and 2 more: --list prints all",
    ]


def test_classes_are_compared_by_name(tmp_path: Path) -> None:
    write(tmp_path / "old", {"a": [(0, 0)], "b": [(0, 1)]})
    write(tmp_path / "new", {"a": [(0, 1)], "b": [(0, 0)]}, ("dog", "cat"))
    assert call_feeder("diff", tmp_path / "old", tmp_path / "new").returncode == 0


def test_an_appended_dataset_differs_by_what_was_appended(home: Path) -> None:
    both = home / "both.sel"
    feeder.select("both", {home / "old": None, home / "new": [3, 4]}, both)
    result = call_feeder("diff", home / "old", both, "--list")
    assert (result.returncode, result.stdout) == (1, "+ e\n+ f\n")
    result = call_feeder("diff", both, home / "old", "--list")
    assert (result.returncode, result.stdout) == (1, "- e\n- f\n")


def test_labels_of_a_selection_are_compared(home: Path) -> None:
    (home / "r.csv").write_text("b,wolf\n")
    arguments = ("--relabel", home / "r.csv", "--out", home / "r.sel")
    assert call_feeder("select", "r", home / "old", *arguments).returncode == 0
    result = call_feeder("diff", home / "old", home / "r.sel", "--list")
    assert (result.returncode, result.stdout) == (1, "= b\n")


@pytest.mark.parametrize(
    ("spec", "rows"),
    [
        (LabelSpec(kind="multi", width=2), (b"\x01", b"\x03")),
        (LabelSpec(kind="float", width=1), (bytes(4), b"\x00\x00\x80\x3f")),
    ],
)
def test_other_kinds_of_labels_are_compared(
    tmp_path: Path, spec: LabelSpec, rows: tuple[bytes, bytes]
) -> None:
    classes = ("cat", "dog") if spec.kind == "multi" else ()
    for folder, row in (("old", rows[0]), ("new", rows[1])):
        samples = [Sample(name="a", row=rows[0]), Sample(name="b", row=row)]
        write_set(tmp_path / folder, samples, labels=spec, classes=classes, shards=1)
    result = call_feeder("diff", tmp_path / "old", tmp_path / "new", "--list")
    assert (result.returncode, result.stdout) == (1, "= b\n")

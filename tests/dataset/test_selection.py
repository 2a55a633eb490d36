"""The file of a selection: what it holds comes back, in the promised order, or is refused."""

import itertools
import json
import resource
import struct
import tracemalloc
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.dataset.manifest import canonical_json
from feeder.dataset.selection import (
    MAGIC,
    PREAMBLE,
    SAMPLES_MAX,
    Selection,
    aligned,
    is_selection,
    merge_labels,
)
from feeder.dataset.selection_writer import merge_classes, merge_rows
from feeder.errors import ConfigError, DatasetError
from feeder.plan.labels import LabelSpec
from tests.dataset.selections import (
    CLASSES,
    draw_tables,
    member,
    resealed,
    selection_bytes,
    write_selection,
)

id_sets = st.lists(st.sets(st.integers(0, 2000), max_size=60), min_size=1, max_size=5).filter(any)


def sorted_ids(sets: list[set[int]]) -> list[np.ndarray]:
    return [np.array(sorted(ids), np.int64) for ids in sets]


def parsed(data: bytes) -> Selection:
    selection = Selection.parse(memoryview(data), "FILE")
    selection.check()
    return selection


# --- Order --------------------------------------------------------------------------------------


@given(st.lists(st.integers(0, 40), min_size=1, max_size=6))
def test_members_are_merged_in_proportion(counts: list[int]) -> None:
    rows = merge_rows([np.arange(count, dtype=np.int64) for count in counts])
    expected = sorted(
        (Fraction(2 * k + 1, 2 * count), number, k)
        for number, count in enumerate(counts)
        for k in range(count)
    )
    for row, (_, number, k) in enumerate(expected):
        assert rows[number][k] == row


def test_the_order_is_exact_at_the_largest_sizes() -> None:
    """At the last row, where numbers are largest: a double cannot tell these apart."""
    few = np.array([0, 1, 2])
    rows = merge_rows([few, np.zeros(0, np.int64)])
    assert rows[0].tolist() == [0, 1, 2]
    n, m, k = SAMPLES_MAX, SAMPLES_MAX - 1, SAMPLES_MAX - 2
    assert (2 * k + 1) * m + n < 2**63
    exact = sum(Fraction(2 * i + 1, 2 * m) < Fraction(2 * k + 1, 2 * n) for i in range(m - 3, m))
    shifted = ((2 * np.int64(k) + 1) * m + n - 1) // (2 * np.int64(n))
    assert int(shifted) == m - 3 + exact


@given(id_sets, st.data())
def test_every_range_is_a_fair_sample_and_one_span_of_each_member(
    sets: list[set[int]], data: st.DataObject
) -> None:
    selection = parsed(selection_bytes(sorted_ids(sets)))
    samples = selection.layout.samples
    first = data.draw(st.integers(0, samples - 1))
    end = data.draw(st.integers(first + 1, samples))
    groups = selection.locate(np.arange(first, end))
    chosen = [sorted(ids) for ids in sets if ids]
    assert selection.spans(first, end) == {
        group.member: (int(group.sample_ids[0]), int(group.sample_ids[-1]) + 1) for group in groups
    }
    for number, ids in enumerate(chosen):
        own = next((group.sample_ids.tolist() for group in groups if group.member == number), [])
        at = ids.index(own[0]) if own else 0
        assert own == ids[at : at + len(own)], "one span of the member's order"
        # At each end, every member is at most half a sample from its exact place.
        share = len(ids) / samples
        assert abs(len(own) - share * (end - first)) <= 1 + share * len(chosen), "its share"


@given(id_sets)
def test_ids_map_to_each_chosen_sample_once(sets: list[set[int]]) -> None:
    selection = parsed(selection_bytes(sorted_ids(sets)))
    everything = np.arange(selection.layout.samples)
    members, ids = selection.split(everything)
    chosen = [ids for ids in sets if ids]
    expected = {(number, own) for number, ids in enumerate(chosen) for own in ids}
    assert {*zip(members.tolist(), ids.tolist(), strict=True)} == expected
    assert len(everything) == len(expected)
    shuffled = np.random.default_rng(0).permutation(everything)
    rows = np.concatenate([group.rows for group in selection.locate(shuffled)])
    assert sorted(rows.tolist()) == everything.tolist()
    for group in selection.locate(shuffled):
        assert (selection.split(shuffled[group.rows])[1] == group.sample_ids).all()
    for number in range(len(chosen)):
        own_rows, own_ids = selection.rows_of(number)
        assert own_ids.tolist() == sorted(chosen[number])
        assert (members[own_rows] == number).all()


@pytest.mark.parametrize("sample_id", [-1, 5])
def test_ids_that_it_has_not_are_an_index_error(sample_id: int) -> None:
    selection = parsed(selection_bytes([[1, 2, 9], [0, 4]]))
    with pytest.raises(IndexError, match=f"sample {sample_id} is outside this selection's 0 .. 4"):
        selection.locate(np.array([0, sample_id]))


# --- Labels -------------------------------------------------------------------------------------


def test_classes_are_merged_by_name_in_the_order_of_their_first_appearance() -> None:
    assert merge_classes([("cat", "dog"), ("bird", "cat"), ()]) == ("cat", "dog", "bird")
    members = [member(0, 10), member(1, 10, classes=("bird", "cat"))]
    data = selection_bytes([[3], [5, 6]], members, classes=("cat", "dog", "bird"))
    selection = parsed(data)
    ids = np.arange(3)
    labels = np.full(3, -7)
    for group in selection.locate(ids):
        selection.take_labels(ids, group, np.zeros(len(group.rows), np.int64), labels)
    assert [selection.classes[label] for label in labels] == ["bird", "cat", "bird"]


def test_labels_of_its_own_replace_those_of_members() -> None:
    selection = parsed(selection_bytes([[3, 4], [5]], own_labels=[[1, 0], [1]]))
    ids = np.array([2, 0, 1])
    labels = np.full(3, -7)
    for group in selection.locate(ids):
        selection.take_labels(ids, group, np.zeros(len(group.rows), np.int64), labels)
    assert labels.tolist() == [0, 1, 1]


def test_rows_of_several_classes_are_widened_to_the_merged_ones() -> None:
    spec = LabelSpec(kind="multi", width=2)
    members = [
        member(0, 10, labels=spec),
        member(1, 10, labels=spec, classes=("bird", "cat")),
    ]
    classes = ("cat", "dog", "bird")
    labels = merge_labels({"a": spec, "b": spec}, classes)
    assert labels == LabelSpec(kind="multi", width=3)
    selection = parsed(selection_bytes([[3], [5]], members, classes=classes, labels=labels))
    ids, out = np.array([0, 1]), np.full((2, 3), 9, np.uint8)
    for group in selection.locate(ids):
        selection.take_labels(ids, group, np.array([[1, 0]], np.uint8), out)
    assert out.tolist() == [[1, 0, 0], [0, 0, 1]]


@pytest.mark.parametrize(
    ("other", "text"),
    [
        (LabelSpec(kind="none"), "a and b have different labels, index and none"),
        (LabelSpec(kind="float", width=2), "index and 2 floats"),
    ],
)
def test_kinds_of_labels_that_differ_are_one_line(other: LabelSpec, text: str) -> None:
    with pytest.raises(ConfigError, match=text):
        merge_labels({"a": LabelSpec(), "b": other}, CLASSES)


def test_floats_of_other_widths_are_one_line() -> None:
    specs = {name: LabelSpec(kind="float", width=w) for name, w in (("a", 2), ("b", 3))}
    with pytest.raises(ConfigError, match="a and b have different labels, 2 floats and 3 floats"):
        merge_labels(specs, ())


# --- Weights ------------------------------------------------------------------------------------


@given(id_sets, st.data())
def test_weights_are_those_of_their_samples(sets: list[set[int]], data: st.DataObject) -> None:
    ids = sorted_ids(sets)
    epochs = data.draw(st.sampled_from([(0,), (0, 1), (0, 4, 2**31 - 1)]))
    columns = [
        [1 + (own * 2_654_435_761 + column) % 2**31 for own in ids] for column in range(len(epochs))
    ]
    tables = draw_tables(columns, epochs=epochs, epoch_samples=31)  # type: ignore[arg-type]
    selection = parsed(selection_bytes(ids, draws=tables))
    assert selection.content == selection.compute_content()
    assert selection.samples == sum(map(len, sets))
    assert (selection.layout.samples, selection.layout.ids) == (31, selection.samples)
    draws = selection.layout.draws
    assert draws is not None
    assert (draws.epochs, draws.components) == (epochs, ((0, selection.samples, 1),))
    _, own = selection.split(np.arange(selection.samples))
    for column, weights in enumerate(draws.weights):
        assert (weights == 1 + (own * 2_654_435_761 + column) % 2**31).all()


@given(id_sets, st.data())
def test_the_components_of_a_mix_come_one_after_the_other(
    sets: list[set[int]], data: st.DataObject
) -> None:
    ids = sorted_ids(sets)
    parts = [data.draw(st.lists(st.integers(0, 2), min_size=len(i), max_size=len(i))) for i in ids]
    tables = draw_tables([ids], shares=[5, 7, 9], components=parts)
    if any(own.min(initial=1) == 0 for own in ids):  # a component may weigh nothing
        tables = draw_tables([[own + 1 for own in ids]], shares=[5, 7, 9], components=parts)
    selection = parsed(selection_bytes(ids, draws=tables))
    number_of = {
        (number, sample): part
        for number, (own, numbers) in enumerate(
            (own, numbers) for own, numbers in zip(ids, parts, strict=True) if len(own)
        )
        for sample, part in zip(own.tolist(), numbers, strict=True)
    }
    draws = selection.layout.draws
    assert draws is not None
    counts = [sum(part == number for part in number_of.values()) for number in range(3)]
    shares = [share for share, count in zip([5, 7, 9], counts, strict=True) if count]
    assert [part.share for part in draws.components] == shares
    members, own = selection.split(np.arange(selection.samples))
    rows = [number_of[place] for place in zip(members.tolist(), own.tolist(), strict=True)]
    assert rows == sorted(rows)
    assert [part.end - part.first for part in draws.components] == [n for n in counts if n]


# --- Fingerprint --------------------------------------------------------------------------------


def test_the_content_is_that_of_samples_classes_labels_and_draws_alone() -> None:
    def content(*arguments: Any, **fields: Any) -> str:
        return parsed(selection_bytes(*arguments, **fields)).content

    plain = content([[1, 2], [0]])
    renamed = [member(0, 1002, name="x", hint="../x"), member(1, 1000, hint="s3://b/y")]
    assert content([[1, 2], [0]], renamed, options={"where": "width > 3"}) == plain
    others = [
        content([[1, 3], [0]]),
        content([[1, 2], [0]], [member(2, 1002), member(1, 1000)]),
        content([[1, 2], [0]], own_labels=[[0, 0], [0]]),
        content([[1, 2], [0]], own_labels=[[0, 1], [0]]),
        content([[1, 2], [0]], classes=(*CLASSES, "bird")),
        content([[0], [1, 2]]),
    ]
    columns = [[[1, 1], [1]]]
    others += [
        content([[1, 2], [0]], draws=draw_tables(columns)),
        content([[1, 2], [0]], draws=draw_tables(columns, epoch_samples=101)),
        content([[1, 2], [0]], draws=draw_tables([[[1, 1], [2]]])),
        content([[1, 2], [0]], draws=draw_tables(columns * 2, epochs=(0, 1))),
        content([[1, 2], [0]], draws=draw_tables(columns * 2, epochs=(0, 2))),
        content([[1, 2], [0]], draws=draw_tables(columns, components=[[0, 0], [1]], shares=[1, 2])),
        content([[1, 2], [0]], draws=draw_tables(columns, components=[[0, 0], [1]], shares=[2, 1])),
    ]
    assert len({plain, *others}) == len(others) + 1
    assert parsed(selection_bytes([[1, 2], [0]])).compute_content() == plain


def test_members_without_samples_are_no_part_of_it() -> None:
    selection = parsed(selection_bytes([[], [4], []]))
    assert [m.name for m in selection.members] == ["m1"]


def test_the_size_is_its_part_of_the_members_sizes() -> None:
    members = [member(0, 100, size_bytes=999), member(1, 10, size_bytes=70)]
    selection = parsed(selection_bytes([[0, 50, 99], [9]], members))
    assert selection.layout.size_bytes == 999 * 3 // 100 + 7
    assert (selection.layout.samples, selection.layout.shards) == (4, 1)


# --- What is refused ----------------------------------------------------------------------------

VALID = selection_bytes([[1, 2, 700], [0, 4]], own_labels=[[0, 1, 1], [0, 0]])
WEIGHTED = selection_bytes(
    [[1, 2, 700], [0, 4]],
    draws=draw_tables(
        [[[1, 0, 3], [2, 2]], [[2, 1, 0], [0, 9]]],
        epochs=(0, 5),
        shares=[7, 3],
        components=[[0, 1, 0], [0, 1]],
    ),
)


@pytest.mark.parametrize("data", [VALID, WEIGHTED], ids=["plain", "weighted"])
def test_every_flipped_byte_is_noticed(data: bytes) -> None:
    header = struct.unpack_from("<I", data, 12)[0]
    places = {*range(24), *range(24, 24 + header, 37), *range(24 + header, len(data))}
    for place in places:
        damaged = bytearray(data)
        damaged[place] ^= 0x10
        with pytest.raises(DatasetError):
            parsed(bytes(damaged))


def test_every_truncation_is_noticed(tmp_path: Path) -> None:
    path = tmp_path / "FILE"
    for size_bytes in (*range(0, 40), len(VALID) - 1, len(VALID) - 8, len(VALID) + 8):
        path.write_bytes((VALID + bytes(8))[:size_bytes])
        with pytest.raises(DatasetError, match=r"FILE is (truncated|damaged|not a selection)"):
            Selection.open(path)


@pytest.mark.parametrize(("version", "remedy"), [(2, "upgrade feeder"), (0, "make it again")])
def test_another_version_is_one_line(version: int, remedy: str) -> None:
    data = resealed(MAGIC + struct.pack("<I", version) + VALID[12:])
    with pytest.raises(DatasetError, match=f"version {version}, this feeder reads 1: {remedy}"):
        parsed(data)


def with_header(of: bytes = VALID, **changes: Any) -> bytes:
    end = PREAMBLE.size + struct.unpack_from("<I", of, 12)[0]
    fields = json.loads(of[PREAMBLE.size : end]) | changes
    text = canonical_json(fields)
    head = of[:12] + struct.pack("<I", len(text)) + bytes(8) + text
    return resealed(head + bytes(aligned(len(head)) - len(head)) + of[aligned(end) :])


def changed_member(**changes: Any) -> bytes:
    end = PREAMBLE.size + struct.unpack_from("<I", VALID, 12)[0]
    members = json.loads(VALID[PREAMBLE.size : end])["members"]
    return with_header(members=[members[0] | changes, *members[1:]])


TABLES = [{"name": "sources", "dtype": "<i8"}, {"name": "labels", "dtype": "<i4"}]


@pytest.mark.parametrize(
    ("data", "text"),
    [
        (with_header(weights=[1]), "unknown field `weights`"),
        (with_header(tables=[*TABLES[:1], {"name": "weights", "dtype": "<u4"}]), "'weights' that"),
        (with_header(tables=TABLES[1:]), "tables are not those of a selection"),
        (with_header(tables=[TABLES[0], TABLES[0]]), "tables are not those"),
        (with_header(samples=4), "bytes, it should have"),
        (with_header(samples=0), "Expected `int` >= 1"),
        (with_header(members=[]), "of length >= 1"),
        (with_header(classes=["cat"]), "classes are not those of its datasets"),
        (with_header(classes=["cat", "dog", "cat"]), "classes are not those of its datasets"),
        (with_header(content="xyz"), "matching regex"),
        (with_header(labels={"kind": "none", "width": 1}), "labels are not those"),
        (changed_member(samples=2), "it counts 3 of 2 samples of a dataset"),
        (changed_member(labels={"kind": "none", "width": 1}), "its labels are of kind none"),
        (changed_member(labels={"kind": "text"}), "kind"),
        (changed_member(hint="a\0b"), "has a zero byte"),
        (changed_member(name="\ud800"), "surrogates not allowed"),
        (changed_member(chosen=2), "a row is no sample of its datasets"),
        (changed_member(samples=700), "a row is no sample of its datasets"),
    ],
)
def test_a_header_that_contradicts_itself_is_one_line(data: bytes, text: str) -> None:
    with pytest.raises(DatasetError, match=text) as caught:
        parsed(data)
    assert "\n" not in str(caught.value)
    assert "restore it or make it again" in str(caught.value)


DRAWS = {"epoch_samples": 100, "epochs": [0, 5], "components": [[0, 3, 7], [3, 5, 3]], "piece": 8}


@pytest.mark.parametrize(
    ("changes", "text"),
    [
        ({"epochs": [0]}, "it has a table 'weights-1' that this feeder does not know"),
        ({"epochs": [0, 5, 6]}, "its tables are not those of a selection"),
        ({"epochs": [1, 5]}, "its weights contradict each other"),
        ({"epochs": [0, 0]}, "its weights contradict each other"),
        ({"epochs": [5, 0]}, "its weights contradict each other"),
        ({"epochs": []}, "its weights contradict each other"),
        ({"epochs": [0, 2**31]}, "Expected `int` <= 2147483647"),
        ({"epochs": [0, -1]}, "Expected `int` >= 0"),
        ({"epochs": [0, True]}, "Expected `int`, got `bool`"),
        ({"piece": 12}, "the pieces of its weights are no power of two"),
        ({"epoch_samples": 0}, "Expected `int` >= 1"),
        ({"epoch_samples": 2**31}, "Expected `int` <= 2147483647"),
        ({"components": []}, "of length >= 1"),
        ({"components": [[0, 5]]}, "of length 3"),
        ({"components": [[0, 3, 7]]}, "its weights contradict each other"),
        ({"components": [[0, 3, 7], [3, 6, 3]]}, "the components of its mix contradict"),
        ({"components": [[0, 3, 7], [2, 5, 3]]}, "the components of its mix contradict"),
        ({"components": [[0, 0, 7], [0, 5, 3]]}, "the components of its mix contradict"),
        ({"components": [[0, 3, 0], [3, 5, 3]]}, "the components of its mix contradict"),
        ({"components": [[0, 3, -1], [3, 5, 3]]}, "the components of its mix contradict"),
        ({"components": [[0, 3, 2**63], [3, 5, 3]]}, "the components of its mix contradict"),
        ({"components": [[0, 1, 7], [1, 5, 3]]}, "a row is no sample of its datasets"),
        ({"components": [[0, 5, 1]]}, "a row is no sample of its datasets"),
        ({"more": 1}, "unknown field `more`"),
    ],
)
def test_draws_that_contradict_themselves_are_one_line(changes: dict[str, Any], text: str) -> None:
    assert parsed(with_header(WEIGHTED, draws=DRAWS)).header.draws is not None
    with pytest.raises(DatasetError, match=text) as caught:
        parsed(with_header(WEIGHTED, draws=DRAWS | changes))
    assert "\n" not in str(caught.value)
    assert "restore it or make it again" in str(caught.value)


def test_weights_without_draws_and_draws_without_weights_are_one_line() -> None:
    for data in (with_header(WEIGHTED, draws=None), with_header(VALID, draws=DRAWS)):
        with pytest.raises(DatasetError, match="table"):
            parsed(data)


@pytest.mark.parametrize("component", [0, 1])
@pytest.mark.parametrize("column", [0, 1])
def test_weights_that_are_all_0_are_found(column: int, component: int) -> None:
    """Of one component in one range of epochs."""
    selection = parsed(WEIGHTED)
    assert selection.header.draws is not None
    first, end, _ = selection.header.draws.components[component]
    at = aligned(PREAMBLE.size + struct.unpack_from("<I", WEIGHTED, 12)[0])
    at += 64 * (1 + column)  # the tables have up to 64 bytes each
    data = WEIGHTED[: at + 4 * first] + bytes(4 * (end - first)) + WEIGHTED[at + 4 * end :]
    with pytest.raises(DatasetError, match="weights of a component are all 0") as caught:
        parsed(resealed(data))
    assert "restore it or make it again" in str(caught.value)


@pytest.mark.parametrize(
    ("row", "source"),
    [(0, 2 << 48), (0, -1), (2, 0), (4, 5000), (0, 700)],
    ids=["no member", "negative", "twice", "beyond the member", "not ascending"],
)
def test_a_row_that_is_no_sample_is_found(row: int, source: int) -> None:
    at = aligned(PREAMBLE.size + struct.unpack_from("<I", VALID, 12)[0]) + 8 * row
    data = resealed(VALID[:at] + struct.pack("<q", source) + VALID[at + 8 :])
    with pytest.raises(DatasetError, match="a row is no sample of its datasets"):
        parsed(data)


@pytest.mark.parametrize("label", [-1, 2])
def test_a_label_without_a_class_is_found(label: int) -> None:
    data = resealed(VALID[:-4] + struct.pack("<i", label))
    with pytest.raises(DatasetError, match="a row is no sample of its datasets"):
        parsed(data)


def test_another_selection_than_the_expected_one_is_one_line(tmp_path: Path) -> None:
    content = write_selection(tmp_path / "FILE", VALID).content
    assert Selection.open(tmp_path / "FILE", content=content).content == content
    with pytest.raises(DatasetError, match=f"its fingerprint is {content}, it was {'0' * 32}"):
        Selection.open(tmp_path / "FILE", content="0" * 32)


def test_what_is_no_selection_is_recognised(tmp_path: Path) -> None:
    (tmp_path / "FILE").write_bytes(VALID)
    (tmp_path / "other").write_bytes(b"FEEDSHRD")
    assert is_selection(tmp_path / "FILE")
    assert not any(is_selection(tmp_path / name) for name in ("other", "gone", ""))
    with pytest.raises(DatasetError, match=r"gone cannot be read: No such file"):
        Selection.open(tmp_path / "gone")


# --- At scale -----------------------------------------------------------------------------------


@pytest.mark.extensive("14 million samples: 200 MB of files and some seconds")
def test_14_million_samples_are_mapped_without_an_object_for_each(tmp_path: Path) -> None:
    counts = 10_000_000, 4_000_000
    ids = [np.arange(count) * 2 for count in counts]
    members = [member(number, 2 * count, classes=CLASSES) for number, count in enumerate(counts)]
    (tmp_path / "FILE").write_bytes(selection_bytes(ids, members))
    tracemalloc.start()
    cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime
    selection = Selection.open(tmp_path / "FILE")
    cpu_s = resource.getrusage(resource.RUSAGE_SELF).ru_utime - cpu_s
    traced_bytes, peak_bytes = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert traced_bytes < 1 << 20, "tables are mapped"
    assert peak_bytes < 100 << 20, "checks take parts of them"
    assert cpu_s < 20, "not a call for each sample"
    batch = np.random.default_rng(0).integers(0, sum(counts), 256)
    assert sum(len(group.rows) for group in selection.locate(batch)) == 256
    for first, end in itertools.pairwise(range(0, sum(counts), 1_000_000)):
        spans = selection.spans(first, end)
        (a, b), (c, d) = spans[0], spans[1]
        assert abs((b - a) / 2 * 4 - (d - c) / 2 * 10) < 20, "in proportion"

"""The items of all containers: their order, names that clash, even shards, sides of a split."""

import shutil
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from feeder.dataset.files import LocalShard
from feeder.dataset.format import shard_name
from feeder.dataset.manifest import WORK_FOLDER_NAME, samples_in_shard
from feeder.dataset.reader import ShardReader
from feeder.errors import ConfigError
from feeder.pack.items import SourceItems, check_names, merge_lists
from feeder.pack.publish import Rows, balance_parts, plan_balance
from feeder.pack.split import SplitOptions, parse_share, select_items
from feeder.pack.work_folder import WorkFolder
from tests.source.item_lists import make_list
from tests.support.sources import call_feeder, make_source, run_inline
from tests.support.synthetic_sets import MULTI, expected_rows, write_labelled

_NAMES = st.lists(
    st.text("aAbB/.", min_size=1, max_size=6).filter(lambda name: name.strip("/.")),
    unique=True,
    max_size=12,
)


def _merge(folder: Path, *containers: list[str]) -> SourceItems:
    lists = [
        make_list(folder, [(name, 0) for name in names], container=number)
        for number, names in enumerate(containers)
    ]
    return merge_lists(folder, lists)


def _ordered(items: SourceItems, seed: int = 0) -> list[str]:
    return [items.name(int(row)) for row in items.order(np.arange(len(items)), seed)]


def test_order_depends_on_names_and_seed_only(tmp_path: Path) -> None:
    names = [f"c{n % 5}/{n:04d}.jpg" for n in range(200)]
    whole = _ordered(_merge(tmp_path / "one", names))
    assert sorted(whole) == sorted(names)
    assert whole != names
    half = [sum(name.startswith(f"c{number}") for name in whole[:100]) for number in range(5)]
    assert min(half) >= 8  # 20 expected
    parts = _merge(tmp_path / "parts", names[150:], [], names[:150])
    assert _ordered(parts) == whole
    assert _ordered(parts, seed=1) != whole
    fewer = _ordered(_merge(tmp_path / "fewer", names[:7] + names[8:]))
    assert fewer == [name for name in whole if name != names[7]]


@given(names=_NAMES, images=st.sets(st.integers(0, 11)))
@example(["a.a", "a.b"], {0, 1})
@example([".a", ".b"], {0, 1})
def test_two_images_that_would_unpack_to_one_name_are_refused(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], images: set[int]
) -> None:
    items = _merge(tmp_path_factory.mktemp("names"), names)
    are_images = {name for number, name in enumerate(names) if number in images}
    stems = {name[: name.rindex(".")] if _has_suffix(name) else name for name in are_images}
    if len(stems) < len(are_images):
        with pytest.raises(ConfigError, match="would unpack to the same name: rename one"):
            check_names(items, lambda item: item.name in are_images)
    else:
        check_names(items, lambda item: item.name in are_images)


def _has_suffix(name: str) -> bool:
    """Whether the last component has a suffix, as os.path.splitext has it."""
    return "." in name.rpartition("/")[2].lstrip(".")


def test_names_that_cannot_stand_together_are_an_error_or_a_warning(tmp_path: Path) -> None:
    items = _merge(tmp_path / "1", ["a/x.png", "b/y.jpg", "a/x.jpg"])
    with pytest.raises(ConfigError, match=r"^a/x.jpg and a/x.png in /somewhere/0.tar would unpack"):
        check_names(items, lambda item: True)
    items = _merge(tmp_path / "2", ["x.jpg", "y.jpg"], ["z.jpg", "y.jpg"])
    both = r"two items are called y.jpg, in /somewhere/0.tar and /somewhere/1.tar: rename one"
    with pytest.raises(ConfigError, match=both):
        check_names(items, lambda item: True)
    items = _merge(tmp_path / "3", ["a/x.jpg", "a/x.json", "a/x.txt", "b/x.jpg"])
    assert check_names(items, lambda item: item.name.endswith(".jpg")) == ""
    items = _merge(tmp_path / "4", ["a/x.jpg", "a/X.jpg", "A/x.jpg", "b/y.jpg"])
    warning = check_names(items, lambda item: True)
    assert "2 names differ from another only in case, as A/x.jpg and a/" in warning
    assert warning.endswith(": `feeder unpack` fails where case does not count")


# Balance


_COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def _apply(counts: list[int], changes: dict[int, list[Rows]]) -> list[list[tuple[int, int]]]:
    """The (part, row) of every sample in each part after the changes, applied in order."""
    parts = [[(part, row) for row in range(count)] for part, count in enumerate(counts)]
    after = [list(part) for part in parts]
    removed: set[int] = set()
    for changed, content in changes.items():
        assert not removed & {part for part, _, _ in content}, "takes from a rewritten part"
        after[changed] = [
            sample for part, first, count in content for sample in parts[part][first:][:count]
        ]
        removed.add(changed)
    return after


@given(_COUNTS)
@example([3, 3, 2])
@example([0])
def test_every_sample_is_kept_once_in_even_shards_and_no_other_part_changes(
    counts: list[int],
) -> None:
    changes = plan_balance(counts)
    after = _apply(counts, changes)
    samples = sum(counts)
    shards = min(samples, len(counts))
    sizes = [samples_in_shard(samples, shards, number) for number in range(shards)]
    assert [len(part) for part in after] == sizes + [0] * (len(counts) - shards)
    assert sorted(sample for part in after for sample in part) == [
        (part, row) for part, count in enumerate(counts) for row in range(count)
    ]
    assert {*changes} == {n for n, part in enumerate(after) if len(part) != counts[n]}
    receives = [len(content) > 1 for content in changes.values()]
    assert receives == sorted(receives, reverse=True)


def test_balance_of_an_example_whose_bytes_must_not_change() -> None:
    changes = plan_balance([5, 2, 5])
    assert changes == {1: [(1, 0, 2), (0, 4, 1), (2, 4, 1)], 0: [(0, 0, 4)], 2: [(2, 0, 4)]}
    assert [*changes] == [1, 0, 2]


def test_balanced_parts_keep_each_samples_label_row(tmp_path: Path) -> None:
    (tmp_path / WORK_FOLDER_NAME).mkdir()
    work = WorkFolder(tmp_path)
    counts = [5, 2]
    for part, count in enumerate(counts):
        write_labelled(tmp_path / "made", MULTI, samples=count, shards=1)
        shutil.copyfile(tmp_path / "made" / shard_name(0), work.part_path(part))
    balance_parts(work, plan_balance(counts), MULTI.stored_bytes)
    for part, samples in enumerate([[0, 1, 2, 3], [0, 1, 4]]):
        reader = ShardReader(LocalShard(work.shard_path(part)))
        records, label_rows, _, is_intact = reader.read_index()
        reader.close()
        rows = np.empty((len(records), MULTI.width), np.uint8)
        MULTI.decode_rows(label_rows, rows)
        assert is_intact
        assert np.array_equal(rows, expected_rows(np.array(samples), MULTI))
        assert records["source_checksum"].tolist() == [1 + sample for sample in samples]


# Splits


LISTED = [f"class{n % 7}/{n:05d}.jpg" for n in range(2003)]


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> SourceItems:
    folder = tmp_path_factory.mktemp("items")
    return merge_lists(folder, [make_list(folder, [(name, 0) for name in LISTED])])


def _selected(items: SourceItems, **options: object) -> set[str]:
    selection = select_items(items, SplitOptions(**options))  # type: ignore[arg-type]
    names = {items.name(int(row)) for row in selection.rows}
    assert {name for name in LISTED if selection.includes(name)} == names
    return names


def test_sides_of_a_fraction_are_the_whole_source(items: SourceItems) -> None:
    train = _selected(items, side="train", val_fraction=0.1)
    val = _selected(items, side="val", val_fraction=0.1)
    assert train | val == set(LISTED)
    assert not train & val
    assert 140 <= len(val) <= 260  # 200 expected, standard deviation 13
    assert val < _selected(items, side="val", val_fraction=0.2)


def test_the_sides_of_names_never_change(items: SourceItems) -> None:
    """Whatever the version: both sides of one source may be packed years apart."""
    val = sorted(_selected(items, side="val", val_fraction=0.1))
    assert val[:3] == ["class0/00049.jpg", "class0/00217.jpg", "class0/00273.jpg"]


def test_items_stay_on_their_side_when_others_are_removed(
    items: SourceItems, tmp_path: Path
) -> None:
    fewer = merge_lists(tmp_path, [make_list(tmp_path, [(name, 0) for name in LISTED[::3]])])
    options = SplitOptions(side="val", val_fraction=0.1)
    val = {fewer.name(int(row)) for row in select_items(fewer, options).rows}
    assert val == _selected(items, side="val", val_fraction=0.1) & set(LISTED[::3])


def test_a_list_names_the_validation_side(items: SourceItems, tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text("\n".join((*LISTED[5:8], "", LISTED[5])) + "\n")
    assert _selected(items, side="val", val_list=path) == set(LISTED[5:8])
    assert _selected(items, side="train", val_list=path) == {*LISTED[:5], *LISTED[8:]}


def test_a_list_by_an_editor_of_windows_is_read(items: SourceItems, tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    for end in ("\n", "\r\n"):
        path.write_text("".join(name + end for name in LISTED[5:8]), "utf-8-sig", newline="")
        assert _selected(items, side="val", val_list=path) == set(LISTED[5:8])


def test_lists_that_fit_nothing_are_refused(items: SourceItems, tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text(f"{LISTED[0]}\nclass9/x.jpg\nother.jpg\n")
    with pytest.raises(ConfigError, match=r"names 2 items .* does not have, first class9/x.jpg"):
        select_items(items, SplitOptions(side="val", val_list=path))
    path.write_text("\n\n")
    with pytest.raises(ConfigError, match="names nothing"):
        select_items(items, SplitOptions(side="val", val_list=path))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        select_items(items, SplitOptions(side="val", val_list=tmp_path / "missing"))
    path.write_text("\n".join(LISTED))
    with pytest.raises(ConfigError, match="--split train leaves nothing to pack"):
        select_items(items, SplitOptions(side="train", val_list=path))


def test_a_split_is_by_fraction_or_by_list(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="one of the two"):
        SplitOptions(side="val")
    with pytest.raises(ConfigError, match="one of the two"):
        SplitOptions(side="val", val_fraction=0.1, val_list=tmp_path)
    with pytest.raises(ConfigError, match="without them it names a split of the source"):
        SplitOptions(side="test", val_fraction=0.1)


def test_shares_are_percentages_or_fractions() -> None:
    for text, share in (("5%", 0.05), ("0.05", 0.05), ("12.5 %", 0.125)):
        assert parse_share(text) == pytest.approx(share)
    for text in ("", "0", "0%", "100%", "1", "5", "-3%", "5%%", "five", "nan"):
        with pytest.raises(ConfigError, match="give a share between 0 and 1"):
            parse_share(text)


def test_a_split_of_the_source_is_packed_by_its_name(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run_inline(monkeypatch, "pack.run")
    source = tmp_path / "src"
    for name, images in (("seg_train", 5), ("seg_test", 3)):
        make_source(source / name, images)
    train = source / "seg_train"
    for number, (path, options, status, text) in enumerate(
        (
            (source, "", 2, "has folders that are splits by name, seg_test and seg_train"),
            (source, "--split train --all-splits", 2, "give one of these"),
            (source, "--split train", 0, "packed 5 images of 3 classes"),
            (train, "--split train", 2, "seg_train"),  # it has no splits of its own
            (train, "--split train --val-fraction 1%", 0, "packed 5 images of 3 classes"),
            (source, "--all-splits", 0, "packed 8 images of 2 classes"),
        )
    ):
        result = call_feeder("pack", path, tmp_path / str(number), *options.split())
        assert (result.returncode, text in result.stdout + result.stderr) == (status, True), options
    assert (
        "the split seg_train is packed, of seg_test and seg_train"
        in call_feeder("pack", source, tmp_path / "again", "--split", "train").stderr
    )

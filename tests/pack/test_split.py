"""A split: both sides together are the source, and an item never changes sides."""

from pathlib import Path

import pytest

from feeder.errors import ConfigError
from feeder.pack.items import SourceItems, merge_lists
from feeder.pack.split import SplitOptions, parse_share, select_items
from tests.source.item_lists import make_list
from tests.support.sources import call_feeder, make_source, run_inline

_NAMES = [f"class{n % 7}/{n:05d}.jpg" for n in range(2003)]


@pytest.fixture(scope="module")
def items(tmp_path_factory: pytest.TempPathFactory) -> SourceItems:
    folder = tmp_path_factory.mktemp("items")
    return merge_lists(folder, [make_list(folder, [(name, 0) for name in _NAMES])])


def _selected(items: SourceItems, **options: object) -> set[str]:
    selection = select_items(items, SplitOptions(**options))  # type: ignore[arg-type]
    names = {items.name(int(row)) for row in selection.rows}
    assert {name for name in _NAMES if selection.includes(name)} == names
    return names


def test_sides_of_a_fraction_are_the_whole_source(items: SourceItems) -> None:
    train = _selected(items, side="train", val_fraction=0.1)
    val = _selected(items, side="val", val_fraction=0.1)
    assert train | val == set(_NAMES)
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
    fewer = merge_lists(tmp_path, [make_list(tmp_path, [(name, 0) for name in _NAMES[::3]])])
    options = SplitOptions(side="val", val_fraction=0.1)
    val = {fewer.name(int(row)) for row in select_items(fewer, options).rows}
    assert val == _selected(items, side="val", val_fraction=0.1) & set(_NAMES[::3])


def test_a_list_names_the_validation_side(items: SourceItems, tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text("\n".join((*_NAMES[5:8], "", _NAMES[5])) + "\n")
    assert _selected(items, side="val", val_list=path) == set(_NAMES[5:8])
    assert _selected(items, side="train", val_list=path) == {*_NAMES[:5], *_NAMES[8:]}


def test_a_list_by_an_editor_of_windows_is_read(items: SourceItems, tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    for end in ("\n", "\r\n"):
        path.write_text("".join(name + end for name in _NAMES[5:8]), "utf-8-sig", newline="")
        assert _selected(items, side="val", val_list=path) == set(_NAMES[5:8])
    path.write_text(_NAMES[5], "utf-16")
    with pytest.raises(ConfigError, match=r"--val-list: .*val\.txt is UTF-16: convert it"):
        select_items(items, SplitOptions(side="val", val_list=path))


def test_lists_that_fit_nothing_are_refused(items: SourceItems, tmp_path: Path) -> None:
    path = tmp_path / "val.txt"
    path.write_text(f"{_NAMES[0]}\nclass9/x.jpg\nother.jpg\n")
    with pytest.raises(ConfigError, match=r"names 2 items .* does not have, first class9/x.jpg"):
        select_items(items, SplitOptions(side="val", val_list=path))
    path.write_text("\n\n")
    with pytest.raises(ConfigError, match="names nothing"):
        select_items(items, SplitOptions(side="val", val_list=path))
    with pytest.raises(ConfigError, match="cannot be read: No such file"):
        select_items(items, SplitOptions(side="val", val_list=tmp_path / "missing"))
    path.write_text("\n".join(_NAMES))
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
            (source, "", 2, "holds seg_test and seg_train, by name no classes but splits"),
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
        "the split seg_train is packed, of seg_test and seg_train in"
        in call_feeder("pack", source, tmp_path / "again", "--split", "train").stderr
    )

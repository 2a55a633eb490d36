"""The items of all containers: their order, and names that cannot stand beside each other."""

import os
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.pack.items import SourceItems, check_names, merge_lists
from tests.source.item_lists import make_list

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
    parts = _merge(tmp_path / "parts", names[150:], [], names[:150])
    assert _ordered(parts) == whole
    assert _ordered(parts, seed=1) != whole
    fewer = _ordered(_merge(tmp_path / "fewer", names[:7] + names[8:]))
    assert fewer == [name for name in whole if name != names[7]]


def test_half_of_the_order_is_a_fair_sample(tmp_path: Path) -> None:
    names = [f"c{n % 5}/{n:04d}.jpg" for n in range(200)]
    half = _ordered(_merge(tmp_path, names))[:100]
    counts = [sum(name.startswith(f"c{number}") for name in half) for number in range(5)]
    assert min(counts) >= 8  # 20 expected


def test_names_with_equal_hashes_are_ordered_by_name(tmp_path: Path) -> None:
    items = _merge(tmp_path, ["b", "a", "c"])
    rows = np.array(items.rows)
    rows["name_key"] = 7
    items = replace(items, rows=rows)
    assert _ordered(items) == ["a", "b", "c"]


@given(names=_NAMES, images=st.sets(st.integers(0, 11)))
def test_two_images_that_would_unpack_to_one_name_are_refused(
    tmp_path_factory: pytest.TempPathFactory, names: list[str], images: set[int]
) -> None:
    items = _merge(tmp_path_factory.mktemp("names"), names)
    are_images = {name for number, name in enumerate(names) if number in images}
    stems = [name[: name.rindex(".")] if _has_suffix(name) else name for name in are_images]
    collide = len(set(stems)) < len(stems)
    if collide:
        with pytest.raises(ConfigError, match="would unpack to the same name: rename one"):
            check_names(items, lambda item: item.name in are_images)
    else:
        check_names(items, lambda item: item.name in are_images)


def _has_suffix(name: str) -> bool:
    """Return whether the last component has a suffix, as os.path.splitext has it."""
    base = name.rpartition("/")[2]
    return "." in base.lstrip(".")


def test_the_error_of_a_collision_names_both_images(tmp_path: Path) -> None:
    items = _merge(tmp_path, ["a/x.png", "b/y.jpg", "a/x.jpg"])
    with pytest.raises(ConfigError, match=r"^a/x.jpg and a/x.png in /somewhere/0.tar would unpack"):
        check_names(items, lambda item: True)


def test_an_image_and_other_files_may_share_a_stem(tmp_path: Path) -> None:
    items = _merge(tmp_path, ["a/x.jpg", "a/x.json", "a/x.txt", "b/x.jpg"])
    assert check_names(items, lambda item: item.name.endswith(".jpg")) == ""


def test_one_name_in_two_containers_is_refused_with_both(tmp_path: Path) -> None:
    items = _merge(tmp_path, ["x.jpg", "y.jpg"], ["z.jpg", "y.jpg"])
    with pytest.raises(
        ConfigError,
        match=r"two items are called y.jpg, in /somewhere/0.tar and /somewhere/1.tar: rename one",
    ):
        check_names(items, lambda item: True)


def test_names_that_differ_only_in_case_are_a_warning(tmp_path: Path) -> None:
    items = _merge(tmp_path, ["a/x.jpg", "a/X.jpg", "A/x.jpg", "b/y.jpg"])
    warning = check_names(items, lambda item: True)
    assert "2 names differ from another only in case, as A/x.jpg and a/" in warning
    assert warning.endswith(": `feeder unpack` fails where case does not count")


def test_lists_of_many_containers_keep_no_file_open(tmp_path: Path) -> None:
    before = len(os.listdir("/proc/self/fd"))
    items = _merge(tmp_path, *([f"{number}.jpg"] for number in range(50)))
    assert sorted(items.name(row) for row in range(50)) == sorted(f"{n}.jpg" for n in range(50))
    assert len(os.listdir("/proc/self/fd")) <= before + 2  # the merged items and their text

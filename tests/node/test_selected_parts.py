"""Sessions on selections, in terms of the datasets that a node process fetches."""

from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

from feeder.dataset.selection import Selection
from feeder.node.selected_parts import SelectedParts
from feeder.plan.epoch import ShardLayout
from feeder.session.admission import ServedDataset
from feeder.wire.messages import Sources, SourcesRequest
from tests.dataset.selections import member, selection_bytes

PIECE = 32


def cached() -> Any:
    manifest = SimpleNamespace(samples=10_000)
    return SimpleNamespace(piece=PIECE, pieces=-(-10_000 // PIECE), manifest=manifest)


def parts_of(*ids: list[int], names: tuple[str, ...], stored: tuple[str, ...]) -> SelectedParts:
    """A selection ``s`` of datasets under ``names``, of which those ``stored`` are in a store."""
    members = [member(number, 10_000, name=f"m{number}") for number in range(len(ids))]
    data = memoryview(selection_bytes(ids, members))
    selections = {"s": Selection.parse(data, "FILE")}
    return SelectedParts(selections, {"s": names}, {name: cached() for name in stored})


def split(parts: SelectedParts, name: str, ids: list[int]) -> list[tuple[str, list[int], bool]]:
    found = parts.split(name, np.array(ids))
    return [(dataset, own.tolist(), alone) for dataset, own, alone in found]


def test_a_dataset_is_its_own_part() -> None:
    parts = SelectedParts({}, {}, {"d": cached()})
    assert split(parts, "d", [5, 1]) == [("d", [5, 1], False)]
    assert parts.spread("d", [(0, 5), (7, 9)]) == {"d": [(0, 5), (7, 9)]}


def test_samples_are_fetched_of_datasets_in_a_store_only() -> None:
    dense = list(range(0, 64, 4))
    parts = parts_of(dense, dense, names=("d", ":local"), stored=("d",))
    assert split(parts, "s", [0, 1, 4, 6]) == [("d", [0, 8, 12], False)]
    assert split(parts, "s", [1, 3]) == []
    assert parts.spread("s", [(0, 4), (4, 6)]) == {"d": [(0, 5), (8, 9)]}


@pytest.mark.parametrize(("step", "is_alone"), [(PIECE // 2, False), (PIECE, True)])
def test_sparse_samples_are_fetched_alone_and_not_ahead(step: int, is_alone: bool) -> None:
    """One or two in a piece of 32, where under 1 in 20 is sparse."""
    parts = parts_of(list(range(0, 640, step)), names=("d",), stored=("d",))
    assert split(parts, "s", [1]) == [("d", [step], is_alone)]
    assert parts.spread("s", [(0, 2)]) == ({} if is_alone else {"d": [(0, step + 1)]})


def test_it_is_decided_by_piece() -> None:
    """Pieces 2, 3 and 6 are whole, 4 has none, and of 5 there is one sample."""
    whole = [*range(64, 128), *range(192, 224)]
    parts = parts_of(sorted([*whole, 170]), names=("d",), stored=("d",))
    rows = [0, 63, 64, 65]
    assert split(parts, "s", rows) == [("d", [64, 127, 192], False), ("d", [170], True)]
    assert parts.spread("s", [(10, 97), (0, 5)]) == {"d": [(74, 128), (192, 224), (64, 69)]}


def test_sources_are_those_of_the_members_by_their_own_names() -> None:
    parts = parts_of([3, 9], [4], names=("d", ":x"), stored=())
    served = ServedDataset(content="f", classes=(), layout=ShardLayout(samples=9, shards=1))
    request = SourcesRequest(dataset="s", sample_ids=(2, 0, 1, 2))
    assert parts.find_sources(request, {"s": served}) == Sources(
        datasets=tuple((f"m{n}", f"{n:032x}") for n in range(2)),
        rows=((0, 9), (0, 3), (1, 4), (0, 9)),
    )
    plain = SourcesRequest(dataset="d", sample_ids=(8, 5))
    assert parts.find_sources(plain, {"d": served}) == Sources(
        datasets=(("d", "f"),), rows=((0, 8), (0, 5))
    )

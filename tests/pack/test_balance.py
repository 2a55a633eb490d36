"""Balancing: no sample is lost, shards differ by at most one, few parts are rewritten."""

from hypothesis import given
from hypothesis import strategies as st

from feeder.dataset.manifest import samples_in_shard
from feeder.pack.publish import Rows, plan_balance

_COUNTS = st.lists(st.integers(0, 40), min_size=1, max_size=30)


def _apply(counts: list[int], changes: dict[int, list[Rows]]) -> list[list[tuple[int, int]]]:
    """Return the (part, row) of every sample in each part after the changes, applied in order."""
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
def test_every_sample_is_kept_once_and_shards_are_balanced(counts: list[int]) -> None:
    after = _apply(counts, plan_balance(counts))
    samples = sum(counts)
    shards = min(samples, len(counts))
    assert [len(part) for part in after[:shards]] == [
        samples_in_shard(samples, shards, number) for number in range(shards)
    ]
    assert not any(after[shards:])
    assert sorted(sample for part in after for sample in part) == [
        (part, row) for part, count in enumerate(counts) for row in range(count)
    ]


@given(_COUNTS)
def test_only_parts_of_a_wrong_size_change_and_receivers_come_first(counts: list[int]) -> None:
    changes = plan_balance(counts)
    after = _apply(counts, changes)
    changed = {part for part, samples in enumerate(after) if len(samples) != counts[part]}
    assert {*changes} == changed
    kinds = [len(content) > 1 for content in changes.values()]
    assert kinds == sorted(kinds, reverse=True)


@given(st.integers(1, 30), st.data())
def test_a_few_bad_files_change_few_parts(shards: int, data: st.DataObject) -> None:
    bad = data.draw(st.lists(st.integers(0, shards - 1), max_size=4))
    files = data.draw(st.integers(shards + 4, 2000))
    counts = [samples_in_shard(files, shards, number) for number in range(shards)]
    for part in bad:
        counts[part] = max(0, counts[part] - 1)
    assert len(plan_balance(counts)) <= 3 * len(bad)


def test_nothing_changes_without_quarantined_files() -> None:
    assert plan_balance([3, 3, 2]) == {}
    assert plan_balance([0]) == {}


def test_plan_of_an_example() -> None:
    changes = plan_balance([5, 2, 5])
    assert changes == {1: [(1, 0, 2), (0, 4, 1), (2, 4, 1)], 0: [(0, 0, 4)], 2: [(2, 0, 4)]}
    assert [*changes] == [1, 0, 2]

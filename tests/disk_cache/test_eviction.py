"""The order of eviction, and what it makes of a cache that is smaller than the dataset."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st
from numpy.typing import NDArray

from feeder.disk_cache.eviction import Holding, eviction_order
from feeder.disk_cache.ranges import split_pieces
from feeder.disk_cache.windows import Windows
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.lanes import piece_samples

PIECE_BYTES = 8 << 20


@st.composite
def holdings(draw: st.DrawFn) -> Holding:
    pieces = draw(st.integers(1, 40))

    def flags() -> NDArray[np.bool_]:
        return np.array(draw(st.lists(st.booleans(), min_size=pieces, max_size=pieces)))

    window = np.where(flags(), np.random.default_rng(pieces).permutation(pieces) + 1, 0)
    return Holding(
        there_bytes=flags() * np.int64(PIECE_BYTES),
        is_served=draw(st.booleans()),
        owned=flags() if draw(st.booleans()) else None,
        window=window if draw(st.booleans()) else None,
        held=flags() if draw(st.booleans()) else None,
    )


def grade(holding: Holding, piece: int) -> int:
    if holding.window is not None and holding.window[piece]:
        return 3
    if not holding.is_served:
        return 0
    return 1 + (holding.owned is None or bool(holding.owned[piece]))


@given(st.lists(holdings(), max_size=4), st.booleans())
def test_each_piece_that_is_there_and_not_held_comes_once_the_least_useful_first(
    several: list[Holding], with_windows: bool
) -> None:
    order = list(eviction_order(several, with_windows=with_windows))
    keys = [(number, piece) for number, piece, _ in order]
    expected = {
        (number, piece)
        for number, holding in enumerate(several)
        for piece in np.flatnonzero(holding.there_bytes).tolist()
        if (holding.held is None or not holding.held[piece])
        and (with_windows or grade(holding, piece) < 3)
    }
    assert len(keys) == len(set(keys))
    assert set(keys) == expected
    grades = [grade(several[number], piece) for number, piece in keys]
    assert grades == sorted(grades)
    assert all(size == several[number].there_bytes[piece] for number, piece, size in order)


def test_windows_go_last_what_was_added_last_before_the_rest() -> None:
    window = np.array([0, 7, 3, 0, 9])
    holding = Holding(there_bytes=np.full(5, 1), window=window)
    pieces = [piece for _, piece, _ in eviction_order([holding], with_windows=True)]
    assert set(pieces[:2]) == {0, 3}
    assert pieces[2:] == [4, 1, 2]


@given(st.integers(1, 300), st.integers(1, 300))
def test_the_order_of_a_piece_is_the_same_whatever_else_is_there(few: int, more: int) -> None:
    def order(pieces: int) -> list[int]:
        holding = Holding(there_bytes=np.full(pieces, PIECE_BYTES))
        return [piece for _, piece, _ in eviction_order([holding], with_windows=False)]

    short, long = sorted((few, more))
    assert [piece for piece in order(long) if piece < short] == order(short)


def test_all_is_owned_as_long_as_no_connection_owns_anything() -> None:
    windows = Windows()
    windows.own(1, "d", ())
    assert windows.owned("d", 4, 10) is None
    windows.own(2, "d", ((10, 20),))
    owned = windows.owned("d", 4, 10)
    assert owned is not None
    assert owned.tolist() == [False, True, False, False]


class Epochs:
    """The policy without a fetcher: a cache of ``budget`` pieces, and what epochs find in it."""

    def __init__(self, layout: ShardLayout, budget: int) -> None:
        self.layout = layout
        self.budget = budget
        self.piece = piece_samples(layout.samples, layout.size_bytes)
        self.there = np.zeros(-(-layout.samples // self.piece), np.bool_)
        self.most = 0
        """Pieces in the window."""

    def run(self, epoch: int) -> list[bool]:
        """Return for each part of a piece, when it came into the window, whether it was there."""
        plan = EpochPlan(
            self.layout,
            batch_size=64,
            seed=1,
            epoch=epoch,
            shuffle=True,
            last_batch=LastBatch.DROP,
            working_set=1 << 30,
        )
        windows, found = Windows(), []
        for index in range(plan.batches):
            for part in plan.pieces_ahead(index):
                pieces = split_pieces([part], self.piece)
                windows.enter(0, "d", pieces)
                found += self.there[list(pieces)].tolist()
                self.there[list(pieces)] = True
                self.evict(windows)
            windows.leave(0, "d", split_pieces(plan.pieces_behind(index), self.piece))
        return found

    def evict(self, windows: Windows) -> None:
        added = windows.added("d", len(self.there))
        self.most = max(self.most, int((added > 0).sum()))
        excess = int(self.there.sum()) - self.budget
        holding = Holding(there_bytes=self.there * np.int64(1), window=added)
        for _, piece, _ in eviction_order([holding] * (excess > 0), with_windows=False):
            if excess <= 0:
                return
            self.there[piece] = False
            excess -= 1


def test_a_smaller_cache_has_its_share_of_each_epoch_on_disk() -> None:
    samples, share = 80_000, 0.3
    layout = ShardLayout(samples=samples, shards=16, size_bytes=samples * 110_000)
    epochs = Epochs(layout, budget=0)
    pieces = len(epochs.there)
    epochs.budget = int(share * pieces)
    for epoch in range(3):
        found = np.mean(epochs.run(epoch))
        if epoch:  # what is being read and read ahead has to fit as well
            assert share - epochs.most / pieces - 0.01 < found < share + 0.01
    assert epochs.most < 0.2 * pieces

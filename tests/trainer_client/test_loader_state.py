"""A loader's state and cursor, without a feeder: one form, refusals with remedies."""

import json
from typing import Any

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feeder.errors import ConfigError
from trainer_client._state import Cursor, LoaderState, Position, check_step

GOOD: dict[str, Any] = {
    "version": 4,
    "epoch": 3,
    "step": 70,
    "world_size": 4,
    "batch_size": 64,
    "order_batch_size": 128,
    "lanes": 64,
    "working_set": 156_180,
    "piece": 64,
    "seed": 7,
    "dataset": "imagenet",
    "fingerprint": "a" * 32,
    "recipe": "b" * 32,
}


def state(**changes: object) -> LoaderState:
    return LoaderState.parse(GOOD | changes)


def check_fits(saved: LoaderState, loader: LoaderState) -> None:
    saved.check_order(loader)
    saved.check_global_batch(loader)


@pytest.mark.parametrize(
    "changes",
    [
        {"epoch": 0, "step": 0, "dataset": "served-elsewhere"},
        {"world_size": 8, "batch_size": 32},
        {"world_size": 1, "batch_size": 256, "order_batch_size": 256},
    ],
)
def test_position_name_and_split_of_the_global_batch_may_differ(changes: dict[str, Any]) -> None:
    check_fits(state(), state(**changes))
    assert LoaderState.parse(json.loads(json.dumps(GOOD | changes))).to_dict() == GOOD | changes


@pytest.mark.parametrize(
    ("saved", "loader", "message"),
    [
        # What is no state of this version.
        ({"more": 1}, {}, "unknown field `more`"),
        (
            {"version": 3},
            {},
            "^the state has version 3, this trainer_client reads 4, which has another order of "
            "samples: install the version that saved it, or begin the epoch again with "
            r"set_epoch\(\), without the state$",
        ),
        ({"version": True}, {}, "its version is no number"),
        ({"version": json.loads("[" * 900 + "]" * 900)}, {}, "its version is no number"),
        ({"epoch": -1}, {}, r"`int` >= 0 - at `\$.epoch`"),
        ({"fingerprint": "two\nlines"}, {}, r"at `\$.fingerprint`"),
        # What is one of another job.
        (
            {},
            {"fingerprint": "c" * 32, "dataset": "other"},
            "dataset 'imagenet' with fingerprint aaa.* this loader has 'other' with ccc.*: serve "
            "the dataset that the job began with",
        ),
        (
            {},
            {"recipe": "c" * 32},
            "recipe with fingerprint bbb.* has ccc.*: pass split, image_siz",
        ),
        ({}, {"seed": 8}, "of seed 7, this loader has 8: pass seed=7"),
        (
            {},
            {"world_size": 2},
            r"global batch of 256 rows \(world_size 4, batch_size 64\), but this loader has "
            "world_size 2 and batch_size 64: pass batch_size=128",
        ),
        ({}, {"world_size": 3}, "use a number of ranks that divides 256"),
    ],
)
def test_a_refusal_is_one_line_with_the_difference_and_the_remedy(
    saved: dict[str, Any], loader: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_fits(state(**saved), state(**loader))
    assert "\n" not in str(caught.value)


class CursorMachine(RuleBasedStateMachine):
    """A cursor through a loader's life; a fresh one resumes from its state at every point."""

    steps = 3

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor()
        self.next = Position(0, 0)  # where the documentation says that the next iterator begins
        self.remaining: list[Position] = []  # of the current epoch
        self.is_skipped = False

    @invariant()
    def a_fresh_cursor_resumes_with_the_same_batches(self) -> None:
        fresh = Cursor()
        fresh.load(self.cursor.at)
        expected = self.remaining or self.epoch_from(self.next)
        fresh.start()
        for position in expected:
            assert fresh.at == position
            fresh.advance(self.steps)
        assert fresh.at == fresh.next == Position(expected[0].epoch + 1, 0)
        assert self.cursor.next == self.next

    def epoch_from(self, position: Position) -> list[Position]:
        return [Position(position.epoch, step) for step in range(position.step, self.steps)]

    @rule(epoch=st.integers(0, 5))
    def choose(self, epoch: int) -> None:
        if epoch != self.next.epoch:
            self.next = Position(epoch, self.next.step if self.is_skipped else 0)
        self.cursor.set_epoch(epoch, is_between=not self.remaining)

    @rule(count=st.integers(0, 2))
    def skip(self, count: int) -> None:
        if self.next.step + count < self.steps and (self.is_skipped or not self.next.step):
            self.cursor.skip(count, self.steps, is_between=not self.remaining)
            self.next = Position(self.next.epoch, self.next.step + count)
            self.is_skipped |= count > 0

    @rule()
    def start(self) -> None:
        """Also in mid-epoch, which is left then."""
        assert self.cursor.start() == self.cursor.at == self.next
        self.remaining = self.epoch_from(self.next)
        self.next, self.is_skipped = Position(self.next.epoch + 1, 0), False

    @precondition(lambda self: self.remaining)
    @rule()
    def take(self) -> None:
        assert self.cursor.at == self.remaining.pop(0)
        self.cursor.advance(self.steps)

    @precondition(lambda self: not self.remaining)
    @rule(epoch=st.integers(0, 3), step=st.integers(0, 2))
    def resume(self, epoch: int, step: int) -> None:
        self.cursor, self.next, self.is_skipped = Cursor(), Position(epoch, step), False
        self.cursor.load(self.next)


TestCursor = CursorMachine.TestCase
TestCursor.settings = settings(
    max_examples=40, stateful_step_count=25, deadline=None, derandomize=True
)


def test_a_state_is_loaded_before_the_start_only_and_the_last_one_counts() -> None:
    cursor = Cursor()
    cursor.load(Position(2, 2))
    cursor.load(Position(1, 4))
    check_step(cursor.next, 5)
    with pytest.raises(ConfigError, match="step 4 of epoch 1, but epochs have 4 steps here"):
        check_step(cursor.next, 4)
    assert cursor.start() == cursor.at == Position(1, 4)
    with pytest.raises(ConfigError, match="has started, it is at step 4 of epoch 1: call"):
        cursor.load(Position(2, 2))
    assert cursor.at == Position(1, 4)


def test_batches_are_skipped_or_a_state_is_loaded_not_both() -> None:
    cursor = Cursor()
    cursor.load(Position(3, 1))
    with pytest.raises(ConfigError, match=r"either load_state_dict\(\) or skip_first_batches"):
        cursor.skip(1)
    cursor.load(Position(3, 0))
    cursor.skip(2)
    with pytest.raises(ConfigError, match="step 2 of epoch 3 already: call either"):
        cursor.load(Position(3, 0))
    assert cursor.start() == Position(3, 2)

"""A loader's state and cursor, without a feeder: one form, refusals with remedies."""

import contextlib
import json
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from feeder.errors import ConfigError
from feeder.plan.recipe import Recipe
from trainer_client._state import Cursor, LoaderState, Position, state_recipe

GOOD: dict[str, Any] = {
    "version": 3,
    "epoch": 3,
    "step": 70,
    "world_size": 4,
    "batch_size": 64,
    "order_batch_size": 128,
    "lanes": 512,
    "seed": 7,
    "dataset": "imagenet",
    "fingerprint": "a" * 32,
    "recipe": "b" * 32,
}

states = st.fixed_dictionaries(
    {
        "version": st.sampled_from([2, 3]),
        "epoch": st.integers(0, 2**31 - 2),
        "step": st.integers(0, 2**48 - 1),
        "world_size": st.integers(1, 2**32),
        "batch_size": st.integers(1, 65_536),
        "order_batch_size": st.integers(1, 65_536),
        "lanes": st.integers(1, 4096),
        "seed": st.integers(0, 2**64 - 1),
        "dataset": st.text(st.characters(codec="ascii"), min_size=1, max_size=128),
        "fingerprint": st.text("0123456789abcdef", min_size=32, max_size=32),
        "recipe": st.text("0123456789abcdef", min_size=32, max_size=32),
    }
)
anything = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text() | st.binary(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=5,
)


@settings(max_examples=50, deadline=None, derandomize=True)
@given(state=states)
def test_every_state_survives_a_round_trip_and_json(state: dict[str, Any]) -> None:
    assert LoaderState.parse(state).to_dict() == state
    assert LoaderState.parse(json.loads(json.dumps(state))).to_dict() == state


@settings(max_examples=60, deadline=None, derandomize=True)
@given(name=st.sampled_from(sorted(GOOD)), value=anything)
def test_a_field_of_another_type_or_range_is_refused_in_one_line(name: str, value: object) -> None:
    if type(value) is type(GOOD[name]):  # it may be in range
        with contextlib.suppress(ConfigError):
            assert LoaderState.parse(GOOD | {name: value}).to_dict() == GOOD | {name: value}
        return
    with pytest.raises(ConfigError) as caught:
        LoaderState.parse(GOOD | {name: value})
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 400


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"more": 1}, "unknown field `more`"),
        ({"version": 4}, "the state has version 4, this trainer_client reads up to 3: install"),
        (
            {"version": 1},  # it had no lanes
            r"^the state has version 1, and the order of epochs has changed since: begin the epoch "
            r"again with set_epoch\(\), without the state, or install the version that saved it$",
        ),
        ({"epoch": -1}, r"`int` >= 0 - at `\$.epoch`"),
        ({"step": 1.5}, r"`int`, got `float` - at `\$.step`"),
        ({"lanes": 16_385}, r"at `\$.lanes`"),
        ({"recipe": "\N{LINE SEPARATOR}"}, r"at `\$.recipe`"),
        ({"fingerprint": "two\nlines"}, r"at `\$.fingerprint`"),
    ],
)
def test_the_refusal_names_the_field(change: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        LoaderState.parse(GOOD | change)


def state(**changes: object) -> LoaderState:
    return LoaderState.parse(GOOD | changes)


def check_fits(saved: LoaderState, loader: LoaderState) -> None:
    saved.check_order(loader, former="e" * 32)
    saved.check_global_batch(loader)


@pytest.mark.parametrize(
    "changes",
    [
        {},
        {"epoch": 0, "step": 0},
        {"dataset": "served-elsewhere"},
        {"world_size": 8, "batch_size": 32},
        {"world_size": 1, "batch_size": 256, "order_batch_size": 256},
    ],
)
def test_position_name_and_split_of_the_global_batch_may_differ(changes: dict[str, Any]) -> None:
    check_fits(state(), state(**changes))


@pytest.mark.parametrize(
    ("loader", "message"),
    [
        (
            {"fingerprint": "c" * 32, "dataset": "other"},
            "dataset 'imagenet' with fingerprint aaa.* this loader has 'other' with ccc.*: serve",
        ),
        ({"recipe": "c" * 32}, "recipe with fingerprint bbb.* has ccc.*: pass split, image_size"),
        ({"seed": 8}, "of seed 7, this loader has 8: pass seed=7"),
        (
            {"world_size": 2},
            r"global batch of 256 rows \(world_size 4, batch_size 64\), this loader has 128 "
            r"\(world_size 2, batch_size 64\), but it must stay the same: pass batch_size=128",
        ),
    ],
)
def test_the_refusal_of_a_loader_has_the_difference_and_the_remedy(
    loader: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        check_fits(state(), state(**loader))
    assert "\n" not in str(caught.value)


def test_a_state_from_before_repacking_fits_the_repacked_dataset_only() -> None:
    saved = state(version=2, fingerprint="e" * 32)
    check_fits(saved, state())
    for former in ("", "d" * 32, "a" * 32):
        with pytest.raises(ConfigError) as caught:
            saved.check_order(state(dataset="again"), former=former)
        assert str(caught.value) == (
            f"the state is of dataset 'imagenet' with fingerprint {'e' * 32}, this loader has "
            f"'again' with {'a' * 32}, which was not repacked from it: serve what `feeder repack` "
            "makes of the dataset that the job began with, or start over without the state"
        )
    with pytest.raises(ConfigError, match="not repacked from it"):
        check_fits(state(version=2), state())  # a fingerprint means another thing there
    with pytest.raises(ConfigError, match="serve the dataset that the job began with"):
        check_fits(state(fingerprint="e" * 32), state())


def test_the_recipes_fingerprint_ignores_its_batch_sizes_and_lanes() -> None:
    recipe = Recipe.for_split("train", batch_size=64)
    smaller = Recipe.for_split("train", batch_size=32, order_batch_size=64, lanes=8)
    assert state_recipe(recipe) == state_recipe(smaller)
    for change in ({"image_size": 160}, {"scale": (0.3, 1.0)}, {"last_batch": "pad"}):
        assert state_recipe(msgspec.structs.replace(recipe, **change)) != state_recipe(recipe)


class CursorMachine(RuleBasedStateMachine):
    """A cursor through a loader's life; a fresh one resumes from its state at every point."""

    steps = 3

    def __init__(self) -> None:
        super().__init__()
        self.cursor = Cursor()
        self.next = Position(0, 0)  # where the documentation says that the next iterator begins
        self.remaining: list[Position] | None = None  # of the current epoch

    def epoch_from(self, position: Position) -> list[Position]:
        return [Position(position.epoch, step) for step in range(position.step, self.steps)]

    @invariant()
    def a_fresh_cursor_resumes_with_the_same_batches(self) -> None:
        fresh = Cursor()
        fresh.load(self.cursor.at)
        assert fresh.at == self.cursor.at, "state(load(s)) is not s"
        expected = self.remaining or self.epoch_from(self.next)
        seen = []
        fresh.start()
        for _ in expected:
            seen.append(fresh.at)
            fresh.advance(self.steps)
        assert seen == expected
        assert fresh.at == fresh.next == Position(expected[0].epoch + 1, 0)
        fresh.check(self.steps)

    @precondition(lambda self: self.remaining is None)
    @rule(epoch=st.integers(0, 5))
    def choose(self, epoch: int) -> None:
        if epoch != self.next.epoch:
            self.next = Position(epoch, 0)
        self.cursor.set_epoch(epoch)
        assert self.cursor.at == self.cursor.next == self.next

    @precondition(lambda self: self.remaining)
    @rule(epoch=st.integers(0, 5))
    def choose_in_mid_epoch(self, epoch: int) -> None:
        at = self.cursor.at
        if epoch != self.next.epoch:
            self.next = Position(epoch, 0)
        self.cursor.set_epoch(epoch, is_between=False)
        assert (self.cursor.at, self.cursor.next) == (at, self.next)

    @precondition(lambda self: self.remaining is None)
    @rule()
    def start(self) -> None:
        assert self.cursor.start() == self.cursor.at == self.next
        self.remaining = self.epoch_from(self.next)
        self.next = Position(self.next.epoch + 1, 0)

    @precondition(lambda self: self.remaining)
    @rule()
    def take(self) -> None:
        assert self.remaining is not None
        assert self.cursor.at == self.remaining.pop(0)
        self.cursor.advance(self.steps)

    @precondition(lambda self: self.remaining == [])
    @rule()
    def exhaust(self) -> None:
        self.remaining = None

    @precondition(lambda self: self.remaining)
    @rule()
    def break_and_begin_the_next_epoch(self) -> None:
        self.remaining = None
        self.start()

    @precondition(lambda self: self.remaining is None)
    @rule(epoch=st.integers(0, 3), step=st.integers(0, 2))
    def resume(self, epoch: int, step: int) -> None:
        self.cursor = Cursor()
        self.next = Position(epoch, step)
        self.cursor.load(self.next)


TestCursor = CursorMachine.TestCase
TestCursor.settings = settings(
    max_examples=30, stateful_step_count=25, deadline=None, derandomize=True
)


def test_a_state_is_loaded_before_the_start_only_and_the_last_one_counts() -> None:
    cursor = Cursor()
    cursor.load(Position(2, 2))
    cursor.load(Position(1, 4))
    cursor.check(5)
    with pytest.raises(ConfigError, match="step 4 of epoch 1, but epochs have 4 steps here"):
        cursor.check(4)
    assert cursor.start() == cursor.at == Position(1, 4)
    with pytest.raises(ConfigError, match="has started, it is at step 4 of epoch 1: call"):
        cursor.load(Position(2, 2))
    assert cursor.at == Position(1, 4)


def test_skipping_counts_from_the_next_position_and_not_after_a_loaded_step() -> None:
    cursor = Cursor()
    cursor.load(Position(3, 0))
    cursor.skip(2)
    assert cursor.start() == Position(3, 2)
    cursor.skip(1, is_between=False)
    assert (cursor.at, cursor.next) == (Position(3, 2), Position(4, 1))
    cursor.skip(2)
    cursor.set_epoch(7)
    assert cursor.start() == Position(7, 3)
    cursor.set_epoch(7)
    assert cursor.next == Position(7, 0), "batches are skipped once"
    cursor = Cursor()
    cursor.load(Position(3, 1))
    with pytest.raises(ConfigError, match=r"either load_state_dict\(\) or skip_first_batches"):
        cursor.skip(1)

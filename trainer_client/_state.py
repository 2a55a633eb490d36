"""A loader's position and its state dict: the part of a loader that a checkpoint keeps.

A state is a flat dict of integers and strings, under 1 KB as JSON, made in constant time:

    version                        of this dict
    epoch, step                    the next batch: step ``step`` of epoch ``epoch``, of every rank
    world_size, batch_size         their product, the global batch, must not change on resume
    order_batch_size, lanes,
    working_set, piece, seed       with the dataset, they determine the order of every epoch
    dataset, fingerprint           name and content fingerprint of the dataset
    recipe                         fingerprint of the recipe without what decides the order

Invariant: every position has one form, since ``step`` is below the number of steps: after an
epoch's last step comes step 0 of the next. All ranks take the same steps, so they have the same
state; only ``world_size`` and ``batch_size`` depend on their number.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final, NamedTuple, Self

import msgspec
from msgspec import Meta

from feeder.errors import ConfigError
from feeder.plan.epoch import MAX_EPOCH
from feeder.plan.lanes import LANES_LIMIT
from feeder.plan.recipe import MAX_BATCH_SIZE
from feeder.wire.messages import SampleCount

STATE_VERSION: Final = 4  # increment when the meaning of a key changes

_BatchSize = Annotated[int, Meta(ge=1, le=MAX_BATCH_SIZE)]
_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Fingerprint = Annotated[str, Meta(max_length=128, pattern=r"^[0-9A-Za-z]+\Z")]
_REMEDY: Final = "load the unchanged result of a loader's state_dict()"


class Position(NamedTuple):
    """The next batch of every rank."""

    epoch: int
    step: int


class Cursor:
    """A loader's position (``at``) and its next iterator's first one (``next``).

    They differ in the middle of an epoch only: the next iterator begins the next epoch, or the one
    that ``set_epoch`` chose. The number of steps in an epoch is passed wherever it matters, since a
    loader does not know it before its ranks. Not thread-safe, but any thread may read ``at``.
    """

    def __init__(self) -> None:
        self.at = self.next = Position(0, 0)
        self.has_started = False
        self._is_loaded = self._is_skipped = False  # since the last iterator began

    def load(self, position: Position) -> None:
        """Move to a position; ConfigError after the first ``start``."""
        if self.has_started:
            raise ConfigError(
                f"this loader has started, it is at step {self.at.step} of epoch {self.at.epoch}: "
                "call load_state_dict() before the first batch is taken"
            )
        self._check_way(self._is_skipped)
        self.at = self.next = position
        self._is_loaded = True

    def set_epoch(self, epoch: int, *, is_between: bool = True) -> None:
        """Choose the next iterator's epoch.

        It begins at step 0, after the batches to be skipped, or at the position that was loaded in
        this epoch. ``is_between`` is whether the position moves there now: no iterator has batches
        remaining.
        """
        if epoch != self.next.epoch:
            self.next = Position(epoch, self.next.step if self._is_skipped else 0)
        if is_between:
            self.at = self.next

    def skip(self, count: int, steps: int | None = None, *, is_between: bool = True) -> None:
        """Have the next iterator begin ``count`` steps later.

        Raises ConfigError after ``load``, and if an epoch has ``steps``, not enough of them.
        """
        self._check_way(self._is_loaded and self.next.step > 0)
        later = Position(self.next.epoch, self.next.step + count)
        if steps is not None:
            check_step(later, steps)
        self.next, self._is_skipped = later, self._is_skipped or count > 0
        if is_between:
            self.at = self.next

    def _check_way(self, is_placed: bool) -> None:
        if is_placed:
            raise ConfigError(
                f"the loader is to begin at step {self.next.step} of epoch {self.next.epoch} "
                "already: call either load_state_dict() or skip_first_batches(), not both"
            )

    def start(self) -> Position:
        """Begin an iterator at ``next``, and return that position."""
        self.has_started = True
        self._is_loaded = self._is_skipped = False
        self.at, self.next = self.next, Position(self.next.epoch + 1, 0)
        return self.at

    def advance(self, steps: int) -> None:
        """Move past the batch at ``at``, which the consumer has, in an epoch of ``steps``."""
        epoch, step = self.at
        self.at = Position(epoch, step + 1) if step + 1 < steps else self.next


def check_step(position: Position, steps: int) -> None:
    """Raise ConfigError if a position is past an epoch of ``steps`` steps."""
    if position.step >= steps:
        raise ConfigError(
            f"the next batch would be step {position.step} of epoch {position.epoch}, but epochs "
            f"have {steps:,} steps here: skip fewer batches, or {_REMEDY}"
        )


class LoaderState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A state with every field valid in type and range."""

    version: int = STATE_VERSION
    epoch: Annotated[int, Meta(ge=0, lt=MAX_EPOCH)]
    step: Annotated[int, Meta(ge=0, lt=2**48)]
    world_size: Annotated[int, Meta(ge=1, le=2**32)]
    batch_size: _BatchSize
    order_batch_size: _BatchSize
    lanes: Annotated[int, Meta(ge=1, le=LANES_LIMIT)]
    """Their number, also where the recipe leaves it to the dataset's size; likewise the next."""
    working_set: SampleCount
    piece: SampleCount
    seed: Annotated[int, Meta(ge=0)]
    dataset: _Name
    fingerprint: _Fingerprint
    recipe: _Fingerprint

    @classmethod
    def parse(cls, state: Mapping[str, object]) -> Self:
        """Parse a state dict; ConfigError when it is invalid or of another version."""
        if not isinstance(state, Mapping):
            raise ConfigError(f"a state is a dict, this is {type(state).__name__}: {_REMEDY}")
        version = state.get("version")
        if type(version) is not int or version < 1:
            # Its value is not shown: it may be nested as deep as its writer likes.
            raise ConfigError(f"this is no loader state: its version is no number; {_REMEDY}")
        if version != STATE_VERSION:
            raise ConfigError(
                f"the state has version {version}, this trainer_client reads {STATE_VERSION}, "
                "which has another order of samples: install the version that saved it, or begin "
                "the epoch again with set_epoch(), without the state"
            )
        try:
            return msgspec.convert(dict(state), cls)
        except msgspec.ValidationError as error:
            # The text may quote an arbitrary key: keep it on one line, and short.
            reason = str(error).encode("unicode_escape").decode()[:200]
            raise ConfigError(f"this is no loader state: {reason}; {_REMEDY}") from None

    @property
    def position(self) -> Position:
        return Position(self.epoch, self.step)

    def to_dict(self) -> dict[str, int | str]:
        return msgspec.structs.asdict(self)

    @property
    def order(self) -> dict[str, Any]:
        """The fields of a recipe that has this state's order."""
        return {
            "order_batch_size": self.order_batch_size,
            "lanes": self.lanes,
            "working_set": (self.working_set, self.piece),
        }

    def check_order(self, loader: "LoaderState") -> None:
        """Raise ConfigError if a loader with the state ``loader`` cannot have the same order.

        The name of its dataset may differ.
        """
        if self.fingerprint != loader.fingerprint:
            raise ConfigError(
                f"the state is of dataset {self.dataset!r} with fingerprint {self.fingerprint}, "
                f"this loader has {loader.dataset!r} with {loader.fingerprint}: serve the dataset "
                "that the job began with, or start over without the state"
            )
        if self.recipe != loader.recipe:
            raise ConfigError(
                f"the state is of a recipe with fingerprint {self.recipe}, this loader's has "
                f"{loader.recipe} (its order aside): pass split, image_size and recipe as in the "
                "job that saved it"
            )
        if self.seed != loader.seed:
            raise ConfigError(
                f"the state is of seed {self.seed}, this loader has {loader.seed}: pass "
                f"seed={self.seed}"
            )

    def check_global_batch(self, loader: "LoaderState") -> None:
        """Raise ConfigError if the ranks of a loader together take other numbers of rows a step."""
        rows = self.batch_size * self.world_size
        if rows != loader.batch_size * loader.world_size:
            batch_size, remainder = divmod(rows, loader.world_size)
            remedy = f"pass batch_size={batch_size}"
            if remainder:
                remedy = f"use a number of ranks that divides {rows}"
            raise ConfigError(
                f"the state is of a global batch of {rows} rows (world_size {self.world_size}, "
                f"batch_size {self.batch_size}), but this loader has world_size "
                f"{loader.world_size} and batch_size {loader.batch_size}: {remedy}"
            )

"""Where a loader is, and the dict that says so: what a checkpoint keeps of a loader.

A state is a flat dict of integers and strings, under 1 KB as JSON, made in constant time:

    version                        of this dict
    epoch, step                    the next batch: step ``step`` of epoch ``epoch``, of every rank
    world_size, batch_size         their product, the global batch, stays when a job goes on
    order_batch_size, seed         with the dataset, they decide the order of every epoch
    dataset, fingerprint           name and identity of the dataset
    recipe                         fingerprint of the recipe without its two batch sizes

Invariant: every position has one spelling, since ``step`` is below the number of steps: after an
epoch's last step comes step 0 of the next. Ranks take equal steps, so the state of any is that of
all, and none of it depends on how many of them there are but ``world_size`` and ``batch_size``.
"""

from collections.abc import Mapping
from typing import Annotated, Final, NamedTuple, Self

import msgspec
from msgspec import Meta

from feeder.errors import ConfigError
from feeder.plan.epoch import MAX_EPOCH, MAX_SEED
from feeder.plan.recipe import MAX_BATCH_SIZE, Recipe

STATE_VERSION: Final = 1  # raise it when keys change their meaning

_BatchSize = Annotated[int, Meta(ge=1, le=MAX_BATCH_SIZE)]
_Name = Annotated[str, Meta(min_length=1, max_length=128)]
_Fingerprint = Annotated[str, Meta(max_length=128, pattern=r"^[0-9A-Za-z]+\Z")]
_REMEDY: Final = "load what state_dict() of a FeederLoader gave, unchanged"


class Position(NamedTuple):
    """The next batch of every rank."""

    epoch: int
    step: int


class Cursor:
    """Where a loader is (``at``) and where its next iterator begins (``next``).

    They differ in the middle of an epoch only: the next iterator begins the next epoch. Not
    thread-safe, but ``at`` can be read by any thread.
    """

    def __init__(self, steps: int) -> None:
        """Stand at the start of epoch 0, of ``steps`` steps as every epoch has, at least one."""
        self.steps = steps
        self.at = self.next = Position(0, 0)
        self.has_started = False

    def load(self, position: Position) -> None:
        """Stand at a position; ConfigError once iterating began or an epoch was chosen."""
        if self.has_started:
            raise ConfigError(
                f"this loader has started, it is at step {self.at.step} of epoch {self.at.epoch}: "
                "call load_state_dict() on a new loader, before iter() and set_epoch()"
            )
        if position.step >= self.steps:
            raise ConfigError(
                f"the state is at step {position.step}, but epochs have {self.steps:,} steps here: "
                f"{_REMEDY}"
            )
        self.at = self.next = position

    def set_epoch(self, epoch: int) -> Position:
        """Choose the next epoch and return where it begins.

        That is its first step, but where a state was loaded in its middle and nothing iterated yet.
        """
        self.has_started = True
        if epoch != self.next.epoch:
            self.next = Position(epoch, 0)
        self.at = self.next
        return self.next

    def start(self) -> Position:
        """Begin to iterate; return where."""
        self.has_started = True
        self.at, self.next = self.next, Position(self.next.epoch + 1, 0)
        return self.at

    def advance(self) -> None:
        """Note that the consumer has the batch at ``at``."""
        epoch, step = self.at
        self.at = Position(epoch, step + 1) if step + 1 < self.steps else Position(epoch + 1, 0)


class LoaderState(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A state with every field of its type and in its range."""

    version: Annotated[int, Meta(ge=STATE_VERSION, le=STATE_VERSION)] = STATE_VERSION
    epoch: Annotated[int, Meta(ge=0, lt=MAX_EPOCH)]
    step: Annotated[int, Meta(ge=0, lt=2**48)]
    world_size: Annotated[int, Meta(ge=1, le=2**32)]
    batch_size: _BatchSize
    order_batch_size: _BatchSize
    seed: Annotated[int, Meta(ge=0)]
    dataset: _Name
    fingerprint: _Fingerprint
    recipe: _Fingerprint

    @classmethod
    def parse(cls, state: Mapping[str, object]) -> Self:
        """Return the state in a dict; ConfigError when it is not one, or of a later version."""
        if not isinstance(state, Mapping):
            raise ConfigError(f"a state is a dict, this is {type(state).__name__}: {_REMEDY}")
        version = state.get("version")
        if isinstance(version, int) and version > STATE_VERSION:
            raise ConfigError(
                f"the state has version {version}, this trainer_client reads up to "
                f"{STATE_VERSION}: install the version that saved it"
            )
        try:
            if "version" not in state:
                raise msgspec.ValidationError("Object missing required field `version`")
            parsed = msgspec.convert(dict(state), cls)
            if parsed.seed > MAX_SEED:
                raise msgspec.ValidationError(f"Expected `int` <= {MAX_SEED} - at `$.seed`")
        except msgspec.ValidationError as error:
            # It may quote a key: one line, and not the whole of it.
            reason = str(error).encode("unicode_escape").decode()[:200]
            raise ConfigError(f"this is no state of a loader: {reason}; {_REMEDY}") from None
        return parsed

    @property
    def position(self) -> Position:
        """The next batch."""
        return Position(self.epoch, self.step)

    def to_dict(self) -> dict[str, int | str]:
        """Return what ``parse`` takes."""
        return msgspec.structs.asdict(self)

    def check_fits(self, loader: "LoaderState") -> None:
        """Raise ConfigError that says what stands against going on with ``loader``, if anything.

        The dataset's name does not: its fingerprint is its identity.
        """
        if self.fingerprint != loader.fingerprint:
            raise ConfigError(
                f"the state is of dataset {self.dataset!r} with fingerprint {self.fingerprint}, "
                f"this loader has {loader.dataset!r} with {loader.fingerprint}: serve the dataset "
                "that the job began with, or begin anew without the state"
            )
        if self.recipe != loader.recipe:
            raise ConfigError(
                f"the state is of a recipe with fingerprint {self.recipe}, this loader's has "
                f"{loader.recipe} (batch sizes left aside): give split, image_size and recipe as "
                "the job did that saved it"
            )
        if self.seed != loader.seed:
            raise ConfigError(
                f"the state is of seed {self.seed}, this loader has {loader.seed}: pass "
                f"seed={self.seed}"
            )
        rows = self.batch_size * self.world_size
        if rows != loader.batch_size * loader.world_size:
            batch_size, left = divmod(rows, loader.world_size)
            remedy = f"pass batch_size={batch_size}"
            if left:
                remedy = f"use a number of ranks that divides {rows}"
            raise ConfigError(
                f"the state is of a global batch of {rows}, {self.world_size} ranks with "
                f"{self.batch_size} rows each; this loader has "
                f"{loader.batch_size * loader.world_size}, {loader.world_size} with "
                f"{loader.batch_size}, but it must stay the same: {remedy}"
            )


def state_recipe(recipe: Recipe) -> str:
    """Return the fingerprint of a recipe without its batch sizes, which may change."""
    return msgspec.structs.replace(recipe, batch_size=1, order_batch_size=1).fingerprint()

"""What training scripts and frameworks look for on a ``torch.utils.data.DataLoader``."""

import inspect
from abc import ABC, abstractmethod
from functools import cache
from typing import TYPE_CHECKING, Final, NoReturn

from feeder.plan.epoch import LastBatch
from feeder.plan.recipe import Recipe
from trainer_client._dataset import DatasetInfo
from trainer_client._ranks import RankSource

_OF_DATALOADER: Final = (
    *("collate_fn", "generator", "multiprocessing_context", "persistent_workers"),
    *("pin_memory_device", "prefetch_factor", "timeout", "worker_init_fn"),
)
"""What a DataLoader has and could be set there, in whole or in part; here it would do nothing."""


class LikeDataLoader(ABC):
    """The attributes of a DataLoader, and clear refusals of what a loader cannot be used for."""

    num_workers: Final = 0
    """As in a DataLoader; the feeder's workers are in the daemon."""
    pin_memory: Final = False
    """As in a DataLoader: batches are on the device already, or in ordinary memory."""
    batch_sampler: Final = None
    """As in a DataLoader; the order is the plan's."""

    recipe: Recipe
    dataset: DatasetInfo
    _ranks: RankSource
    _is_made = False
    """Whether the constructor is done, so that public attributes are fixed."""

    @property
    @abstractmethod
    def endpoint(self) -> str:
        """The endpoints, as they were given."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of steps in a whole epoch, the same for every rank."""

    @abstractmethod
    def set_epoch(self, epoch: int) -> None:
        """Make ``epoch`` the next iterator's."""

    @property
    def classes(self) -> tuple[str, ...]:
        """The dataset's class names by label."""
        return self.dataset.classes

    @property
    def samples(self) -> int:
        """The number of samples in the dataset, over all ranks."""
        return self.dataset.samples

    @property
    def fingerprint(self) -> str:
        """The dataset's content fingerprint."""
        return self.dataset.fingerprint

    @property
    def batch_size(self) -> int:
        """Rows of a batch, on each rank."""
        return self.recipe.batch_size

    @property
    def drop_last(self) -> bool:
        """Whether samples that do not fill a batch are left out, as in training."""
        return self.recipe.last_batch == LastBatch.DROP

    @property
    def rank(self) -> int:
        """This loader's rank; ConfigError while it is not known."""
        return self._ranks.peek().rank

    @property
    def world_size(self) -> int:
        """The number of ranks; ConfigError while it is not known."""
        return self._ranks.peek().world_size

    @property
    def sampler(self) -> "EpochSetter":
        """An object with this loader's ``set_epoch``, where scripts look for it."""
        return EpochSetter(self)

    if not TYPE_CHECKING:  # type checkers would take any attribute for one that can be set

        def __setattr__(self, name: str, value: object) -> None:
            """Refuse to change what a loader is made with, as that would have no effect.

            Attributes of other names may be added, as frameworks and scripts do.
            """
            if self._is_made and name[:1] != "_" and name in _fixed_names(type(self)):
                raise AttributeError(f"the loader of {self.endpoint}: {_explain_fixed(name, self)}")
            super().__setattr__(name, value)

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse access by index, as a DataLoader around this loader tries it."""
        raise TypeError(
            f"the loader of {self.endpoint} gives batches in its own order and has no item "
            f"{index!r}: iterate over the loader itself, it needs no DataLoader"
        )

    def __reduce__(self) -> NoReturn:
        """Refuse to be pickled or copied: threads and connections belong to one process."""
        raise TypeError(
            f"the loader of {self.endpoint} cannot be pickled or copied: make a loader in each "
            "process, and pass state_dict() on to resume at this one's position"
        )


@cache
def _arguments(kind: type[LikeDataLoader]) -> frozenset[str]:
    """Return the names of a class's arguments; what a subclass of the user's adds is not ours."""
    ours = next(each for each in kind.__mro__ if each.__module__.startswith("trainer_client."))
    return frozenset(inspect.signature(ours).parameters)


@cache
def _fixed_names(kind: type[LikeDataLoader]) -> frozenset[str]:
    names = {"epoch", *_OF_DATALOADER, *_arguments(kind), *Recipe.__struct_fields__}
    for base in kind.__mro__:
        if base.__module__.startswith("trainer_client."):
            names |= {*vars(base), *base.__annotations__}
    return frozenset(names)


def _explain_fixed(name: str, loader: LikeDataLoader) -> str:
    """Return why setting an attribute is refused, and what to do instead."""
    kind = type(loader).__name__
    if name == "epoch":
        return "epoch cannot be set: call set_epoch() before the next iter(loader)"
    if name in _arguments(type(loader)):
        return f"setting {name} would change nothing: make a new {kind} with {name}=…"
    if name in Recipe.__struct_fields__:
        return f"setting {name} would change nothing: make a new {kind} with recipe={{{name!r}: …}}"
    if name in _OF_DATALOADER:
        return f"setting {name} would do nothing: batches come ready from the feeder"
    return f"{name} cannot be set"


class EpochSetter:
    """A loader's ``sampler``."""

    __slots__ = ("_loader",)

    def __init__(self, loader: LikeDataLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the loader's next iterator."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of rows that this rank gets in an epoch, padding included."""
        rows = len(self._loader) * self._loader.batch_size
        return min(rows, self._loader.samples) if self._loader.world_size == 1 else rows

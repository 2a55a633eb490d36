"""What training scripts and frameworks look for on a ``torch.utils.data.DataLoader``."""

from abc import ABC, abstractmethod
from typing import Final, NoReturn

from feeder.plan.epoch import LastBatch
from feeder.plan.recipe import Recipe
from trainer_client._dataset import DatasetInfo
from trainer_client._ranks import RankSource


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
        """The identity of the dataset."""
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


class EpochSetter:
    """A loader's ``sampler``."""

    def __init__(self, loader: LikeDataLoader) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the loader's next iterator."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of rows that this rank gets in an epoch, padding included."""
        rows = len(self._loader) * self._loader.batch_size
        return min(rows, self._loader.samples) if self._loader.world_size == 1 else rows

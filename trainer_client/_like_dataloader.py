"""What training scripts look for on a ``torch.utils.data.DataLoader``, and on its dataset."""

import inspect
from dataclasses import dataclass
from functools import cache, cached_property
from itertools import zip_longest
from typing import TYPE_CHECKING, Any, Final, Literal, NoReturn

from feeder.errors import ConfigError
from feeder.plan.epoch import LastBatch
from feeder.plan.recipe import Recipe
from trainer_client._feed import Feed
from trainer_client._ranks import RankSource

# What a DataLoader has and could be set there, in whole or in part; here it would do nothing.
_OF_DATALOADER: Final = (
    "collate_fn",
    "generator",
    "multiprocessing_context",
    "persistent_workers",
    "pin_memory_device",
    "prefetch_factor",
    "timeout",
    "worker_init_fn",
)


@dataclass(frozen=True, kw_only=True)
class DatasetInfo:
    """The dataset of a loader; ``len()`` is its number of samples, ``str()`` its name."""

    name: str
    """The name that it is served by."""
    classes: tuple[str, ...]
    """The class names by label; none where ``label_kind`` is "float" or "none"."""
    fingerprint: str
    """The content fingerprint: a hash of images, labels, classes, order and number of shards."""
    samples: int
    """The number of samples, over all ranks; of a selection with weights or a mix, the number of
    draws of an epoch."""
    label_kind: Literal["index", "multi", "float", "none"] = "index"
    """What a sample has: one class, any number of classes, floats, or no label. ``Batch`` documents
    a batch's labels of each."""
    label_width: int = 1
    """The second dimension of a batch's labels where they are "multi" or "float", else 1."""

    def __len__(self) -> int:
        return self.samples

    def __getitem__(self, index: object) -> NoReturn:
        """Refuse access by index: the images are with the feeder."""
        raise TypeError(
            f"dataset {self.name!r} is a feeder's and has no item {index!r} here: iterate over the "
            "loader"
        )

    def __str__(self) -> str:
        return self.name

    @cached_property
    def class_to_idx(self) -> dict[str, int]:
        """The labels by class name, as torchvision's datasets have them."""
        return {name: label for label, name in enumerate(self.classes)}

    def check_classes(self, wanted: Any) -> None:
        """Raise ConfigError unless the classes are those of ``wanted``, label by label.

        ``wanted`` is a loader, whose labels must be of the same kind, or the list of class names by
        label.
        """
        other = getattr(wanted, "dataset", wanted)
        if isinstance(other, DatasetInfo) and other.label_kind != self.label_kind:
            raise ConfigError(
                f"dataset {self.name!r} has {describe_samples(self)}, dataset {other.name!r} of "
                f"classes_of has {describe_samples(other)}: pack both with labels of one kind"
            )
        names = tuple(getattr(wanted, "classes", wanted))
        if names == self.classes:
            return
        pairs = enumerate(zip_longest(self.classes, names))
        label, pair = next((label, pair) for label, pair in pairs if pair[0] != pair[1])
        here, there = ("missing" if name is None else repr(name) for name in pair)
        raise ConfigError(
            f"dataset {self.name!r} has {len(self.classes)} classes, classes_of has {len(names)}, "
            f"and class {label}, the first that differs, is {here} here and {there} there: pack "
            "this dataset with `feeder pack SRC DST --classes-of OTHER`, where OTHER is the other "
            "dataset as packed, so that equal labels mean the same class"
        )


def describe_samples(dataset: DatasetInfo) -> str:
    """For messages: "samples of 3 classes", or what else they have by the kind of the labels."""
    match dataset.label_kind:
        case "multi":
            return f"samples of any number of {dataset.label_width:,} classes"
        case "float":
            return (
                f"samples with {dataset.label_width:,} float{'s' * (dataset.label_width != 1)} each"
            )
        case "none":
            return "samples without labels"
        case _:
            classes = len(dataset.classes)
            return f"samples of {classes:,} class{'es' * (classes != 1)}"


class LikeDataLoader:
    """The attributes of a DataLoader, and clear refusals of what a loader cannot be used for."""

    num_workers: Final = 0
    """As in a DataLoader; the feeder's workers are in the daemon."""
    pin_memory: Final = False
    """As in a DataLoader: batches are on the device already, or in ordinary memory."""
    batch_sampler: Final = None
    """As in a DataLoader; the order is the plan's."""

    recipe: Recipe
    dataset: DatasetInfo
    _feed: Feed[Any]
    _ranks: RankSource
    _is_made = False  # the constructor is done, so that public attributes are fixed

    @property
    def endpoint(self) -> str:
        """The endpoints as they were given; of many the first three and their number."""
        return self._feed.name

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
                raise AttributeError(
                    f"the loader of {self.endpoint}: setting {name} would change nothing: make a "
                    f"new {type(self).__name__} instead, or choose its epoch with set_epoch()"
                )
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
def _fixed_names(kind: type[LikeDataLoader]) -> frozenset[str]:
    """What a loader is made of or with; other attributes are a subclass's or a script's own."""
    ours = [base for base in kind.__mro__ if base.__module__.startswith("trainer_client.")]
    names = {"epoch", *_OF_DATALOADER, *Recipe.__struct_fields__}
    names |= {*inspect.signature(ours[0]).parameters}
    for base in ours:
        names |= {*vars(base), *base.__annotations__}
    return frozenset(names)


class EpochSetter:
    """A loader's ``sampler``."""

    __slots__ = ("_loader",)

    def __init__(self, loader: Any) -> None:
        self._loader = loader

    def set_epoch(self, epoch: int) -> None:
        """Choose the epoch of the loader's next iterator."""
        self._loader.set_epoch(epoch)

    def __len__(self) -> int:
        """Return the number of rows that this rank gets in an epoch, padding included."""
        rows: int = len(self._loader) * self._loader.batch_size
        return min(rows, self._loader.samples) if self._loader.world_size == 1 else rows

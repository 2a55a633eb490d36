"""``NumpyLoader``: the batches of a feeder as numpy arrays, without torch.

    with NumpyLoader("ipc:///run/feeder/feeder.sock", dataset="name", batch_size=256) as loader:
        for images, labels in loader: ...  # int8 (256, 224, 224, 3)

Epochs, ranks and resuming are those of all loaders, see ``_base``.
"""

import os
import weakref
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError
from feeder.plan.packing import pixel_layout_of
from trainer_client._base import Loader
from trainer_client._batch import Batch, Origin
from trainer_client._feed import Delivery, LoaderOptions, Stage, describe_images
from trainer_client._host_normalise import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    HostNormaliser,
    Outputs,
    make_scaling,
    view_of,
)
from trainer_client._like_dataloader import DatasetInfo

Array = NDArray[Any]
ArrayType = Literal["int8", "float32"]


class BorrowedBatch(Batch[Array]):
    """A batch whose images lie in memory that the loader reuses when the next batch is taken.

    Reading ``images`` or taking the tuple apart is a ConfigError then. Arrays that were taken out
    before show the pixels of a later batch, as does code in C that reads a tuple's items itself:
    ``jax.tree.map``, jitted functions, copies, comparisons.
    """

    is_returned = False

    def __getitem__(self, index: Any) -> Any:
        if self.is_returned:
            raise self._used_late()
        return super().__getitem__(index)

    def __iter__(self) -> Iterator[Array]:
        if self.is_returned:
            raise self._used_late()
        return super().__iter__()

    def __repr__(self) -> str:
        if self.is_returned:
            return f"<batch {self.index} of epoch {self.epoch}, given back>"
        return super().__repr__()

    def _used_late(self) -> ConfigError:
        return ConfigError(
            f"batch {self.index} of epoch {self.epoch} was used after the next one was taken or "
            "the loader closed, when its memory is the feeder's again: copy what you keep, or "
            "leave copy=False out"
        )


class ArrayStage(Stage[Batch[Array]]):
    """Makes batches of normalised arrays, of copies, or of views of where the batch lies.

    ``copy`` is the loader's. With None a view keeps its buffer until nothing refers to it any more;
    while the loop holds its share of the buffers (``Delivery.views_max``), further batches are
    copied, so that a loop that keeps all of its batches never waits for a buffer.
    """

    def __init__(self, normaliser: HostNormaliser | None, copy: bool | None) -> None:
        """Normalise with ``normaliser``; None leaves the pixels as they are."""
        super().__init__()
        self._normaliser = normaliser
        self._copy = copy
        # With views the loop still holds a batch while it takes the next one.
        self.buffers_held = 2 if normaliser is None and copy is None else 1
        self._outputs = Outputs()
        self._views: dict[int, weakref.ref[Array] | None] = {}  # by buffer; None was only read
        self._borrowed: tuple[int, BorrowedBatch] | None = None

    def load(self, delivery: Delivery, buffer: int) -> Batch[Array]:
        if self._borrowed is not None:
            self._give_back(*self._borrowed)
        self._views[buffer] = None  # also when what follows raises
        rows, count = delivery.rows, delivery.count
        pixels = rows.all_pixels if delivery.has_groups else rows.pixels[:count]
        labels, ids = delivery.copy_labels()
        origin = Origin(ids, delivery.valid, delivery.epoch, delivery.index)
        if self._normaliser is not None:
            return Batch.of(self._normalise(self._normaliser, delivery), labels, origin)
        if self._copy is not None and not self._copy:
            pixels.flags.writeable = False
            batch = BorrowedBatch.of(_shape(pixels, delivery), labels, origin)
            del self._views[buffer]
            self._borrowed = buffer, batch
            return batch
        if self._copy is None and self._count_views() < delivery.views_max:
            view = view_of(pixels.data.toreadonly())
            self._views[buffer] = weakref.ref(view)
            images = view.view(pixels.dtype).reshape(pixels.shape)
        else:
            images = self._outputs.take(pixels.shape, pixels.dtype)
            images[:] = pixels
            images.flags.writeable = self._copy is not None  # else as a view, whichever it is
        return Batch.of(_shape(images, delivery), labels, origin)

    @staticmethod
    def _normalise(normaliser: HostNormaliser, delivery: Delivery) -> Any:
        count = delivery.count
        if not delivery.has_groups:
            return normaliser(delivery.rows.pixels[:count])
        images = []
        for number, group in enumerate(delivery.rows.groups):
            flat = normaliser(group.reshape(-1, *group.shape[2:]), group=number)
            images.append(flat.reshape(*group.shape[:2], *flat.shape[1:])[:, :count])
        return tuple(images)

    def reclaim(self) -> list[int]:
        """The buffers to which no array refers any more."""
        free: list[int] = []
        for buffer, view in self._views.items():  # twice a batch: a comprehension is a call
            if view is None or view() is None:
                free.append(buffer)
        for buffer in free:
            del self._views[buffer]
        return free

    def finish(self) -> list[int]:
        """Also what was borrowed: the consumer asks for the next batch, so it has read the last."""
        if self._borrowed is not None:
            self._give_back(*self._borrowed)
        return self.reclaim()

    def _give_back(self, buffer: int, batch: BorrowedBatch) -> None:
        batch.is_returned = True
        self._views[buffer] = self._borrowed = None

    def _count_views(self) -> int:
        return sum(view is not None and view() is not None for view in self._views.values())


def _shape(pixels: Array, delivery: Delivery) -> Any:
    """The images in a batch's pixels: those of each group, where the recipe has several crops."""
    if not delivery.has_groups:
        return pixels
    groups = delivery.rows.layout.groups(pixels)
    return tuple(group[:, : delivery.count] for group in groups)


class NumpyLoader(Loader[Batch[Array]]):
    """Batches from a feeder as numpy arrays: ``for images, labels in loader``. Needs no torch.

    With ``dtype="int8"``, ``images`` are int8 (N, S, S, 3) RGB pixels minus 128, or what the
    recipe's packing makes of them, in a read-only array. With ``dtype="float32"`` they are
    normalised, (N, S, S, 4) with a fourth channel of zeros, or (N, S, S, 3) with ``channels=3``.
    ``labels`` are int64 (N,) or, by the dataset's kind of labels, float32 (N, W), see ``Batch``.

    All arrays stay as they are for as long as they are kept. The int8 pixels are read where the
    feeder has written them, unless more than half of the window is kept: then batches are copied.
    ``copy=True`` copies all of them, into arrays that may be written to. ``copy=False`` copies
    none: the pixels are valid until the next batch is taken.

    Epochs, ranks and resuming are those of ``FeederLoader``.

    Use it as a context manager or call ``close()``. One thread may iterate at a time.
    """

    dtype: ArrayType
    """The type of the images: "int8" or "float32"."""

    def __init__(
        self,
        endpoint: str | os.PathLike[str] | Sequence[str],
        *,
        dataset: str,
        split: Literal["train", "val"] = "train",
        batch_size: int,
        seed: int = 0,
        image_size: int | Mapping[int, int] | Mapping[str, int] = 224,
        channels: Literal[3, 4] = 4,
        rank: int | None = None,
        world_size: int | None = None,
        dtype: ArrayType = "int8",
        copy: bool | None = None,
        window: int = 4,
        window_bytes: int = 2 << 30,
        timeout_s: float = 60.0,
        mean: Sequence[float] = IMAGENET_MEAN,
        std: Sequence[float] = IMAGENET_STD,
        recipe: Mapping[str, object] | None = None,
        classes_of: Loader[Any] | DatasetInfo | Iterable[str] | None = None,
        share_memory: bool = True,
        server_key: str | os.PathLike[str] | None = None,
        client_key: str | os.PathLike[str] | None = None,
        summary: Callable[[str], None] | None = None,
        job: str = "",
    ) -> None:
        """Connect and wait for the first feeder's welcome.

        The arguments are those of ``FeederLoader``, besides ``dtype`` and ``copy``, see above;
        ``channels``, ``mean`` and ``std`` are those of float32.
        ``rank`` and ``world_size`` must be given in every process that is one of several, unless
        torch.distributed knows them (for JAX: ``jax.process_index()``, ``jax.process_count()``).

        Raises what ``FeederLoader`` raises.
        """
        options = LoaderOptions.of(locals())
        made = options.make_recipe()
        if dtype not in get_args(ArrayType):
            raise ConfigError(f"dtype must be 'int8' or 'float32', got {dtype!r}")
        if dtype == "int8" and (tuple(mean), tuple(std)) != (IMAGENET_MEAN, IMAGENET_STD):
            raise ConfigError(
                "mean and std are for normalised images, int8 ones are not: pass dtype='float32', "
                "or leave mean and std out"
            )
        layout = pixel_layout_of(made.packing)
        if dtype == "int8" and layout.dtype != np.int8:
            raise ConfigError(
                f"dtype='int8' needs a recipe with a packing of int8, this one is {made.packing!r}:"
                " leave packing out of the recipe, or pass dtype='float32'"
            )
        self.dtype = dtype
        scaling = make_scaling(mean, std, channels=channels, value_type="float32")
        normaliser = HostNormaliser(scaling, made.packing) if dtype == "float32" else None

        def shape(size: int) -> tuple[int, int, int]:
            return layout.image_shape(size) if normaliser is None else (size, size, channels)

        stage = ArrayStage(normaliser, copy)
        described = f"{describe_images(made, shape)} {dtype} arrays"
        super().__init__(options, made, stage, described=described)

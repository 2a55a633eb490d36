"""A batch as the training loop gets it: a pair of arrays that knows where it comes from."""

from collections.abc import Callable, Iterable
from typing import Any, ClassVar, Generic, Self, TypeVar

from msgspec import Struct

Array = TypeVar("Array")


class Origin(Struct, frozen=True):
    """What a batch is, besides its images and labels."""

    sample_ids: Any
    valid: int
    epoch: int
    batch: int


class Batch(tuple[Array, Array], Generic[Array]):
    """One batch: the tuple ``(images, labels)``, with attributes.

    N is the batch size; S the image size; C is 4 or 3, the loader's ``channels``.

    Of a ``FeederLoader``, on its device: ``images`` (N, C, S, S) in the loader's dtype and memory
    format, normalised; ``labels`` as below; ``sample_ids`` int64 (N,), on the host.
    Of a ``NumpyLoader``: images as that class documents them, the rest as here but arrays.

    Of a recipe with ``crops``, ``images`` is a tuple with an array of (crops, N, …) for each group,
    also to be had as ``crops``.

    ``labels`` depend on the dataset's kind of labels, ``loader.dataset.label_kind``:

    - "index": int64 (N,), the class; in padding rows -100, which ``cross_entropy`` ignores.
    - "multi": float32 (N, classes), 1 for each class that a sample has, else 0, as
      ``binary_cross_entropy_with_logits`` takes them; in padding rows NaN.
    - "float": float32 (N, W) with W values a sample, also where W is 1; in padding rows NaN. A
      model with one output for each image returns (N, 1), too: with labels (N,) the difference of
      the two would silently be (N, N).
    - "none": int64 (N,), -1 in all rows; in padding rows -100.

    The first ``valid`` rows are real. On one rank all are: the last batch of an evaluation is
    short. Over several ranks all batches have N rows, and the rows after ``valid`` are padding with
    the sample id -1. A loss over NaN is NaN: take the first ``valid`` rows of outputs and labels.

    Frameworks that take tuples apart and put them together again with the class (``Batch(images,
    labels)`` or ``Batch((images, labels))``) get a Batch without ``sample_ids``, ``valid``,
    ``epoch`` and ``index``: reading one of these is an AttributeError then. ``to`` and
    ``pin_memory`` keep them.
    """

    _fields: ClassVar = ("images", "labels")  # as of a named tuple, which frameworks look for
    _origin: Origin | None = None

    def __new__(cls, images: Array | Iterable[Array], labels: Array | None = None) -> Self:
        """Make a batch of two arrays, or of an iterable of the two."""
        return super().__new__(cls, images if labels is None else (images, labels))  # type: ignore[arg-type]

    @classmethod
    def of(cls, images: Array, labels: Array, origin: Origin | None) -> Self:
        batch = tuple.__new__(cls, (images, labels))
        batch._origin = origin
        return batch

    @property
    def images(self) -> Array:
        """The images."""
        return self[0]

    @property
    def crops(self) -> tuple[Array, ...]:
        """The images of each group of crops, of a recipe that has ``crops``: ``images``, typed."""
        images: Any = self[0]
        if not isinstance(images, tuple):
            raise AttributeError("this batch has one crop a sample: read images instead")
        return images

    @property
    def labels(self) -> Array:
        """The labels: int64 (N,), or float32 (N, W) where a sample has several."""
        return self[1]

    @property
    def sample_ids(self) -> Array:
        """The samples' numbers in the dataset, int64 (N,), on the host; -1 in padding rows."""
        ids: Array = self._known("sample_ids").sample_ids
        return ids

    @property
    def valid(self) -> int:
        """How many rows are real; those after them pad."""
        return self._known("valid").valid

    @property
    def epoch(self) -> int:
        """The epoch that the batch belongs to."""
        return self._known("epoch").epoch

    @property
    def index(self) -> int:  # type: ignore[override]
        """The batch's number in the epoch, counted over all ranks."""
        return self._known("index").batch

    def to(self, device: Any, *, non_blocking: bool = False) -> Self:
        """Return the batch with images and labels on a torch device."""
        return self._map(lambda tensor: tensor.to(device, non_blocking=non_blocking))

    def pin_memory(self, device: Any = None) -> Self:
        """Return the batch in page-locked memory, if it is not on a device."""
        return self._map(
            lambda tensor: tensor.pin_memory() if tensor.device.type == "cpu" else tensor
        )

    def _map(self, change: Callable[[Any], Any]) -> Self:
        images: Any = self[0]
        changed: Any = tuple(map(change, images)) if isinstance(images, tuple) else change(images)
        return type(self).of(changed, change(self[1]), self._origin)

    def _asdict(self) -> dict[str, Array]:
        return {"images": self[0], "labels": self[1]}

    def _known(self, name: str) -> Origin:
        if self._origin is None:
            raise AttributeError(
                f"this Batch was put together from its parts, so its {name} is not known: use the "
                "batch that the loader returned, or its to() and pin_memory(), which keep it"
            )
        return self._origin

"""Kinds of labels: how they lie in a shard, in slots and on the wire, and what marks padding.

    kind    a sample has           in a shard                    rows of a batch    padding
    index   one class              in its record                 int64 (n,)         -100
    multi   any number of classes  ⌈width / 8⌉ bytes of bits     uint8 (n, width)   255
    float   width numbers          4 × width bytes, float32      float32 (n, width) NaN
    none    nothing                nothing                       int64 (n,), all -1 -100

Bits begin with the lowest of the first byte; everything is little-endian.

Invariant: no row of a sample equals padding: numbers are finite, and -100 and 255 are no labels.
"""

import math
import operator
from collections.abc import Iterable, Sequence
from typing import Any, Final, Literal, get_args

import msgspec
import numpy as np
from numpy.typing import NDArray

from feeder.errors import ConfigError

LabelKind = Literal["index", "multi", "float", "none"]
LabelChoice = Literal["index", "name", "one-hot", "multi", "multi-hot", "float", "none"]
"""``feeder pack --label-kind``: a kind of labels, and how those of a source are to be read."""
Uncertain = Literal["no", "yes", "leave-out"]
"""``feeder pack --uncertain``: what -1 and a missing value are in a row of 0 and 1."""
LabelRows = NDArray[np.int64] | NDArray[np.uint8] | NDArray[np.float32]
"""The labels of n rows, of ``LabelSpec.row_shape``."""

MULTI_WIDTH_MAX: Final = 65_536
FLOAT_WIDTH_MAX: Final = 4_096
STORED_BYTES_MAX: Final = 4 * FLOAT_WIDTH_MAX
"""Most bytes of a sample's labels in a shard; those of ``multi`` are fewer."""

NO_LABEL: Final = -1
"""The label of every sample where the kind is "none"."""

PADDING_LABEL: Final = -100
"""Of ``index`` and ``none``; torch's cross_entropy ignores it."""

_PADDING: Final[dict[LabelKind, float]] = {
    "index": PADDING_LABEL,
    "multi": 255,
    "float": math.nan,
    "none": PADDING_LABEL,
}
_WIDTHS_MAX: Final[dict[LabelKind, int]] = {
    "index": 1,
    "multi": MULTI_WIDTH_MAX,
    "float": FLOAT_WIDTH_MAX,
    "none": 1,
}
_DTYPES: Final[dict[LabelKind, np.dtype[Any]]] = {
    "index": np.dtype("<i8"),
    "multi": np.dtype("u1"),
    "float": np.dtype("<f4"),
    "none": np.dtype("<i8"),
}


class LabelSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What the labels of a dataset are; every one is valid, else ConfigError.

    ``width`` is the number of classes where the kind is "multi", the values of a sample where it is
    "float", else 1.
    """

    kind: LabelKind = "index"
    width: int = 1

    def __post_init__(self) -> None:
        if self.kind not in _WIDTHS_MAX:
            kinds = " or ".join(get_args(LabelKind))
            raise ConfigError(f"labels: kind must be {kinds}, got {str(self.kind)[:80]!r}")
        most = _WIDTHS_MAX[self.kind]
        if not (isinstance(self.width, int) and 1 <= self.width <= most):
            allowed = "1" if most == 1 else f"a whole number 1 .. {most}"
            shown = str(self.width)[:80]
            raise ConfigError(f"labels: width of {self.kind} must be {allowed}, got {shown}")

    @property
    def stored_bytes(self) -> int:
        """Bytes of a sample's labels in a shard, beside its record."""
        if self.kind == "multi":
            return -(-self.width // 8)
        return 4 * self.width if self.kind == "float" else 0

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a value in slots and on the wire."""
        return _DTYPES[self.kind]

    @property
    def row_shape(self) -> tuple[int, ...]:
        """The shape of one row; () where a row is one number.

        Rows of floats have an axis even if it is one value: labels (N,) against a model's output
        (N, 1) would silently broadcast to a loss over (N, N).
        """
        return (self.width,) if self.kind in ("multi", "float") else ()

    @property
    def row_bytes(self) -> int:
        """Bytes of one row in slots and on the wire."""
        return self.dtype.itemsize * math.prod(self.row_shape)

    @property
    def padding(self) -> float:
        """The value that fills padding rows."""
        return _PADDING[self.kind]

    def count_record_labels(self, classes: int) -> int:
        """Return the number that the label of every record is below; 1 where it has no meaning."""
        return classes if self.kind == "index" else 1

    def find_contradiction(self, classes: int) -> str | None:
        """Return how these labels contradict a dataset of ``classes`` classes, or None."""
        if self.kind == "index" and not classes:
            return "it has no classes"
        if self.kind == "multi" and classes != self.width:
            return f"it has {classes} classes, its labels are of {self.width}"
        if self.kind in ("float", "none") and classes:
            return f"it has {classes} classes, its labels are of kind {self.kind}"
        return None

    def describe(self, classes: int) -> str:
        """Return what a sample of a dataset with ``classes`` classes has, e.g. "3 classes"."""
        match self.kind:
            case "index":
                return "1 class" if classes == 1 else f"{classes:,} classes"
            case "multi":
                return f"any of {classes:,} classes"
            case "float":
                return f"{self.width:,} float{'s' * (self.width != 1)} a sample"
            case "none":
                return "no labels"

    def decode_rows(self, stored: NDArray[np.uint8], out: LabelRows) -> None:
        """Write the rows of n samples into ``out`` (n, *row_shape).

        ``stored`` (n, stored_bytes) is what ``encode_multi`` or ``encode_floats`` returned; kinds
        that store nothing beside the record have no rows to decode.
        """
        if self.kind == "multi":
            out[:] = np.unpackbits(stored, axis=1, count=self.width, bitorder="little")
        else:
            out[:] = stored.view("<f4")

    def find_fault(self, stored: bytes) -> str | None:
        """Return what is wrong with a sample's ``stored_bytes`` bytes, or None."""
        if self.kind == "multi" and self.width % 8 and stored[-1] >> self.width % 8:
            return f"its labels have a bit above the {self.width} classes"
        if self.kind == "float" and not np.isfinite(np.frombuffer(stored, "<f4")).all():
            return "its labels are not finite numbers"
        return None

    def encode_multi(self, classes: Iterable[int]) -> bytes:
        """Return the stored bytes of a sample's classes, numbers from 0; repeats are harmless.

        Raises ValueError, with the reason as one clause, for a class that does not exist.
        """
        bits = np.zeros(self.width, np.uint8)
        for each in classes:
            number = operator.index(each)
            if not 0 <= number < self.width:
                raise ValueError(f"there is no class {number}: classes are 0 .. {self.width - 1}")
            bits[number] = 1
        return np.packbits(bits, bitorder="little").tobytes()

    def encode_floats(self, values: Sequence[float]) -> bytes:
        """Return the stored bytes of a sample's values.

        Raises ValueError, with the reason as one clause, for another number of values than
        ``width``, and for one that is NaN or beyond float32: NaN marks padding.
        """
        if len(values) != self.width:
            raise ValueError(f"it has {len(values)} values, the dataset's samples {self.width}")
        with np.errstate(over="ignore"):
            row = np.array(values, np.float64).astype("<f4")
        if row.shape != (self.width,) or not np.isfinite(row).all():
            raise ValueError("its values are not all finite numbers in the range of float32")
        return row.tobytes()


INDEX_LABELS: Final = LabelSpec()
"""One class a sample."""

"""How often an epoch draws the chosen samples: the options of ``feeder select``, made to integers.

Weights are numbers of samples or of classes, or come from the number of samples of each class. They
become integers once: whole numbers up to 2**32 - 1 are kept; others are scaled so that the largest
is 2**32 - 1, and rounded to even, where those above 0 stay at least 1. From there on all arithmetic
is in integers (``feeder.plan.draws``).
"""

import csv
import math
import operator
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Final, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from feeder.choose.criteria import open_text_file, read_array
from feeder.errors import ConfigError
from feeder.plan.draws import DRAWS_MAX, WEIGHT_MAX
from feeder.plan.epoch import MAX_EPOCH
from feeder.plan.recipe_checks import hint_at_nearest
from feeder.process.path_text import decode_name, encode_name, printable

Balance = Literal["classes", "sqrt"]
BALANCES: Final[tuple[Balance, ...]] = get_args(Balance)

_SHARE_DIGITS: Final = 9
_KINDS: Final = ("name", "class")


@dataclass(frozen=True, slots=True, kw_only=True)
class WeightFile:
    """Weights by name, by class, or without either; exactly one of these is given."""

    where: str
    names: Mapping[bytes, float] | None = None
    classes: Mapping[str, float] | None = None
    values: NDArray[np.float64] | None = None
    """Of all samples of the DSTs, or of all classes: what their number says."""
    is_by_sample: bool = False
    """Values are known to be of samples."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Weighting:
    """How often samples are drawn. ``columns`` are by the epochs from which they hold."""

    columns: Mapping[int, WeightFile]
    balance: Balance | None = None
    mix: Mapping[str, int] | None = None
    """Share of each batch by DST, as whole numbers."""
    epoch_samples: int | None = None
    """None: as many draws as samples."""


def read_weighting(
    columns: Sequence[str], balance: Balance | None, mix: Sequence[str], epoch_samples: int | None
) -> Weighting | None:
    """Return what the options say, None where there are none; ConfigError."""
    if not (columns or balance or mix or epoch_samples is not None):
        return None
    if epoch_samples is not None:
        try:
            epoch_samples = operator.index(epoch_samples)
        except TypeError:
            raise ConfigError(
                f"--epoch-samples {epoch_samples}: it must be a whole number"
            ) from None
    if columns and balance:
        raise ConfigError("--weights and --balance: give one of them, both say how often")
    if epoch_samples is None and (mix or len(columns) > 1):
        raise ConfigError(
            "--mix and weights by epoch need --epoch-samples N, the same in all epochs"
        )
    if epoch_samples is not None and not 1 <= epoch_samples <= DRAWS_MAX:
        raise ConfigError(f"--epoch-samples {epoch_samples}: it must be 1 .. {DRAWS_MAX:,}")
    files = dict[int, WeightFile]()
    for text in columns:
        start, equals, path = text.partition("=")
        if not (equals and start.isdecimal() and len(start) <= len(str(MAX_EPOCH))):
            if len(columns) > 1 or not text:
                raise ConfigError(f"--weights {text}: write EPOCH=FILE, for each of several files")
            start, path = "0", text
        epoch = int(start)
        if epoch in files or epoch > MAX_EPOCH:
            raise ConfigError(f"--weights {text}: epoch {epoch} is given twice, or too large")
        files[epoch] = _read_file(f"--weights {text}", path)
    if files and 0 not in files:
        raise ConfigError(f"--weights: none holds at epoch 0, the first is {min(files)}=…")
    return Weighting(
        columns=dict(sorted(files.items())),
        balance=balance,
        mix=_read_mix(mix) if mix else None,
        epoch_samples=epoch_samples,
    )


def find_shares(mix: Mapping[str, int], texts: Sequence[str]) -> list[int]:
    """Return the share of each DST, which a mix names by its text or the last part of it."""
    shares = dict[str, int]()
    ends = [text.rstrip("/").rpartition("/")[2] for text in texts]
    for name, share in mix.items():
        matches = [text for text, end in zip(texts, ends, strict=True) if end == name]
        matches = [name] if name in texts else matches
        if not matches:
            raise ConfigError(f"--mix {name}: no DST has this name{hint_at_nearest(name, ends)}")
        if len(matches) > 1:
            raise ConfigError(f"--mix {name}: several DSTs have this name: give one's whole path")
        if matches[0] in shares:
            raise ConfigError(f"--mix {name}: {matches[0]} has a share already")
        shares[matches[0]] = share
    missing = [text for text in texts if text not in shares]
    if missing:
        raise ConfigError(f"--mix gives no share to {missing[0]}: each DST needs one")
    return [shares[text] for text in texts]


def balance_classes(labels: NDArray[np.int32], balance: Balance) -> NDArray[np.float64]:
    """Return weights (n,) of samples of these classes: one over how many the class has, or over the
    root of that."""
    counts = np.bincount(labels).astype(np.float64)
    if balance == "sqrt":
        counts = np.sqrt(counts)
    return 1.0 / counts[labels]


def weights_by_class(
    file: WeightFile, labels: NDArray[np.int32], classes: Sequence[str]
) -> NDArray[np.float64]:
    """Return the weights (n,) of samples of these classes; ConfigError for classes that do not
    exist, and for those of samples that have no weight."""
    assert file.classes is not None, "it has weights by class"
    numbers = {name: number for number, name in enumerate(classes)}
    by_class, is_missing = np.zeros(len(classes)), np.ones(len(classes), np.bool_)
    for name, weight in file.classes.items():
        if name not in numbers:
            raise ConfigError(
                f"{file.where}: there is no class {printable(name)}{hint_at_nearest(name, classes)}"
            )
        by_class[numbers[name]] = weight
        is_missing[numbers[name]] = False
    without = is_missing[labels]
    if without.any():
        name = classes[int(labels[without][0])]
        raise ConfigError(f"{file.where}: class {printable(name)} has samples and no weight")
    return by_class[labels]


def weights_by_name(file: WeightFile, names: Iterator[Sequence[bytes]]) -> NDArray[np.float64]:
    """Return the weights (n,) of samples of these names; ConfigError where one has none."""
    assert file.names is not None, "it has weights by name"
    parts = []
    for part in names:
        weights = [file.names.get(name, math.nan) for name in part]
        parts.append(np.array(weights, np.float64))
        if np.isnan(parts[-1]).any():
            name = decode_name(part[int(np.isnan(parts[-1]).argmax())])
            raise ConfigError(f"{file.where}: sample {printable(name)} has no weight")
    return np.concatenate(parts)


def to_integers(where: str, weights: NDArray[np.float64]) -> NDArray[np.uint32]:
    """Return weights (n,) as integers, as the module describes; ConfigError for what is none."""
    wrong = ~np.isfinite(weights) | (weights < 0)
    if wrong.any():
        raise ConfigError(
            f"{where}: a weight is {weights[wrong][0]}: weights are numbers from 0 on"
        )
    largest = float(weights.max())
    if largest == 0:
        raise ConfigError(f"{where}: all weights are 0: no sample would be drawn")
    if largest <= WEIGHT_MAX and not (weights % 1).any():
        return weights.astype(np.uint32)
    scaled = np.rint(weights / largest * WEIGHT_MAX)
    return np.maximum(scaled, weights > 0).astype(np.uint32)


def _read_mix(texts: Sequence[str]) -> dict[str, int]:
    """Return the shares, times the same power of ten, without common divisors."""
    shares = dict[str, int]()
    for text in texts:
        name, _, value = text.rpartition("=")
        try:
            share = Decimal(value).scaleb(_SHARE_DIGITS)
        except ArithmeticError:  # no number, or one beyond what Decimal has
            share = Decimal("nan")
        if not name or not share.is_finite() or share <= 0 or share > 10**18:
            raise ConfigError(f"--mix {text}: write DST=SHARE with a share above 0, as in A=0.7")
        if share != int(share):
            raise ConfigError(f"--mix {text}: a share has {_SHARE_DIGITS} digits at most")
        if name in shares:
            raise ConfigError(f"--mix {text}: {name} has a share already")
        shares[name] = int(share)
    divisor = math.gcd(*shares.values())
    return {name: share // divisor for name, share in shares.items()}


def _read_file(where: str, path: str) -> WeightFile:
    if path.endswith(".npy"):
        return WeightFile(where=where, values=_read_array(where, path))
    rows = dict[str, float]()
    try:
        with open_text_file(path) as file:
            lines = csv.reader(file, strict=True)
            head = next(lines, [])
            if len(head) != 2 or head[0] not in _KINDS or head[1] != "weight":
                raise ConfigError(
                    f"{where}: its first line must be name,weight or class,weight, it is "
                    f"{printable(','.join(head)[:80])!r}"
                )
            for number, row in enumerate(lines, 2):
                if row:
                    _add_row(rows, row, f"{where}: line {number}")
    except OSError as error:
        raise ConfigError(f"{where}: it cannot be read: {error.strerror}") from None
    except csv.Error as error:
        raise ConfigError(f"{where}: it is not CSV: {error}") from None
    if head[0] == "class":
        return WeightFile(where=where, classes=rows)
    return WeightFile(where=where, names={encode_name(name): w for name, w in rows.items()})


def _add_row(rows: dict[str, float], row: Sequence[str], where: str) -> None:
    try:
        name, text = row
        weight = float(text)
    except ValueError:
        raise ConfigError(
            f"{where} is {printable(','.join(row)[:80])!r}, not a name and a number"
        ) from None
    if name in rows:
        raise ConfigError(f"{where} gives {printable(name)} a second weight")
    if not (math.isfinite(weight) and weight >= 0):
        raise ConfigError(
            f"{where}: weight {text} of {printable(name)}: weights are numbers from 0 on"
        )
    rows[name] = weight


def _read_array(where: str, path: str) -> NDArray[np.float64]:
    values = read_array(where, path)
    if values.ndim != 1 or values.dtype.kind not in "iuf":
        raise ConfigError(f"{where}: it must be an array of numbers (n,)")
    return values.astype(np.float64)

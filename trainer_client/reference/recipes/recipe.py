"""The training recipe: all that decides a job's result, apart from the datasets.

Invariant: every ``TrainingRecipe`` is valid; making one checks type and range of every key. A key's
type, default and explanation stand once, here: recipe files, the command line, ``--show`` and the
run's folder use them. Values come from three places, the later ones first: the command line, a
recipe file in TOML (one that Feeder ships or the user's own), the defaults.

The recipe of the data, which the feeder applies, is in two of its keys: ``data`` and ``val_data``
hold fields of ``feeder.plan.recipe`` for training and for evaluation.
"""

import json
import math
import tomllib
from collections.abc import Iterable, Mapping
from dataclasses import Field, dataclass, field, fields, replace
from importlib.resources import files
from pathlib import Path
from typing import Any, Final, Literal, Self, get_args, get_type_hints

import msgspec

from feeder.errors import ConfigError
from feeder.plan.recipe import Recipe
from feeder.plan.recipe_checks import hint_at_nearest

TABLES: Final = ("data", "val_data")
"""The keys that hold fields of the data's recipe."""
_OWN_KEYS: Final = {  # fields of the data's recipe that follow from keys of this one
    "batch_size": "global_batch",
    "image_size": "image_size",
    "last_batch": "global_batch",
    "split": "data and val_data",
}


def _key(default: Any, about: str, low: float | None = None, high: float | None = None) -> Any:
    """Return the dataclass field of a key with its explanation and its range."""
    meta = {"about": about, "low": low, "high": high}
    if isinstance(default, dict):
        return field(default_factory=dict, metadata=meta)
    return field(default=default, metadata=meta)


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """How a model is trained; the defaults are the usual ones for ResNet-50 on ImageNet."""

    model: str = _key("resnet50", "the architecture; timm:NAME where timm is installed")
    zero_init_last: bool = _key(
        True, "the last norm of each residual block starts at zero (Goyal et al. 2017)"
    )
    group_width: int = _key(
        1, "channels in a group of EfficientNet's spatial convolutions (16 in the IPU work)", 1
    )
    expansion: int = _key(6, "expansion of EfficientNet's blocks (4 in the IPU work)", 1)

    epochs: int = _key(90, "passes over the training set", 0)
    image_size: int | Mapping[str, int] = _key(
        224, 'side of the images, pixels; by epoch as {"0" = 128, "30" = 160}', 8
    )
    val_image_size: int = _key(0, "side of the images in evaluations; 0: as image_size", 0)
    global_batch: int = _key(
        0, "images in a step, over all ranks; 0: --batch-size (256) x ranks x accumulation", 0
    )
    accumulation: int = _key(
        0,
        "micro-batches that a rank adds up in a step; 0: what global_batch and --batch-size need",
        0,
    )

    optimiser: Literal["sgd", "rmsprop-tf", "lars"] = _key(
        "sgd", "SGD, RMSProp as TensorFlow defines it, or LARS"
    )
    base_lr: float = _key(0.1, "learning rate for a step of base_batch images", 0)
    base_batch: int = _key(
        256, "the learning rate is base_lr x global batch / base_batch; 0: base_lr as it is", 0
    )
    lr: float = _key(0.0, "learning rate whatever the batch; 0: from base_lr", 0)
    momentum: float = _key(0.9, "of SGD, RMSProp and LARS", 0)
    nesterov: bool = _key(False, "Nesterov's momentum, of SGD and LARS")
    weight_decay: float = _key(5e-5, "of kernels and matrices; norms and biases have none", 0)
    decay_vectors: bool = _key(False, "weight decay for norms and biases, too")
    rmsprop_decay: float = _key(0.9, "decay of RMSProp's mean square", 0, 1)
    rmsprop_epsilon: float = _key(1e-3, "added to RMSProp's mean square, inside the root", 0)
    lars_trust: float = _key(0.001, "coefficient of LARS's trust ratio", 0)
    lars_epsilon: float = _key(0.0, "added to the trust ratio's denominator", 0)
    lars_unscaled: bool = _key(
        False, "LARS's learning rate outside of the momentum (Kumar et al. 2019)"
    )
    clip_norm: float = _key(0.0, "largest norm of the gradient; 0: not clipped", 0)

    warmup_epochs: float = _key(5.0, "epochs over which the learning rate rises linearly", 0)
    schedule: Literal["cosine", "polynomial", "steps"] = _key(
        "cosine", "how the learning rate falls after that"
    )
    schedule_power: float = _key(2.0, "of the polynomial schedule", 0)
    end_lr: float = _key(0.0, "learning rate at the end of the polynomial schedule", 0)
    step_epochs: tuple[float, ...] = _key((), "epochs at which the steps schedule falls")
    step_every_epochs: float = _key(0.0, "or it falls every so many epochs; 0: at step_epochs", 0)
    step_factor: float = _key(0.1, "by which it falls each time", 0, 1)

    label_smoothing: float = _key(0.1, "share of the label that goes to all classes", 0, 1)
    mixup: float = _key(0.0, "alpha of mixup, on the device; 0: off", 0)
    cutmix: float = _key(0.0, "alpha of CutMix, on the device; 0: off", 0)
    ema_decay: float = _key(0.0, "decay of the averaged weights; 0: no average", 0, 1)
    ema_every_steps: int = _key(1, "steps between updates of the average", 1)

    batch_norm_ranks: int = _key(1, "ranks that compute batch-norm statistics together", 1)
    bucket_mb: float = _key(25.0, "size of a bucket of gradients, MB", 0)
    reduction: Literal["flat", "two-level"] = _key(
        "flat", "how gradients are reduced; two-level: within each host, then between hosts"
    )
    compression: Literal["none", "float16", "bfloat16"] = _key(
        "none", "type of gradients while they are reduced"
    )
    precision: Literal["auto", "float32", "bfloat16", "float16"] = _key(
        "auto", "of the forward and backward pass; auto: half precision on CUDA, float32 on a CPU"
    )
    weights: Literal["float32", "bfloat16", "float16"] = _key(
        "float32", "type of the weights; half precision keeps no float32 copy"
    )
    rounding: Literal["stochastic", "nearest"] = _key(
        "stochastic", "of half-precision weights after an update"
    )
    recompute: tuple[str, ...] = _key(
        (), 'modules whose activations are computed again in the backward pass, as "layer?.*"'
    )

    eval_every_epochs: int = _key(1, "epochs between evaluations; the last is evaluated anyway", 1)
    target_accuracy: float = _key(0.0, "top-1 accuracy that ends the run; 0: none", 0, 1)
    time_budget: str = _key("", 'time that ends the run, such as "90s", "5m" or "1.5h"')
    seed: int = _key(0, "of order, crops, mixing and weights", 0)
    data: Mapping[str, object] = _key({}, "fields of the data's recipe, for training")
    val_data: Mapping[str, object] = _key({}, "fields of the data's recipe, for evaluation")

    def __post_init__(self) -> None:
        """Check every key; ConfigError names key, value and range."""
        for name in KEYS:
            object.__setattr__(self, name, _checked(name, getattr(self, name)))
        if self.time_budget:
            parse_duration(self.time_budget)
        self._check_together()

    def _check_together(self) -> None:
        if self.schedule == "steps" and bool(self.step_epochs) == bool(self.step_every_epochs):
            raise ConfigError(
                "the steps schedule needs one of step_epochs, as [30, 60, 80], and "
                "step_every_epochs; set the other to [] or 0"
            )
        if (
            list(self.step_epochs) != sorted({*self.step_epochs})
            or min(self.step_epochs, default=1) <= 0
        ):
            raise ConfigError(f"step_epochs must rise from above 0, got {list(self.step_epochs)}")
        if self.nesterov and not self.momentum:
            raise ConfigError("nesterov needs a momentum above 0, got 0")
        if not self.bucket_mb:
            raise ConfigError("bucket_mb must be above 0, got 0")
        if self.weights != "float32" and self.precision not in ("auto", self.weights):
            raise ConfigError(
                f"weights {self.weights} need precision {self.weights} or auto, got "
                f"{self.precision}: change one of the two"
            )

        if isinstance(self.image_size, Mapping) and not self.val_image_size:
            raise ConfigError(
                "val_image_size must be given where image_size changes by epoch, got 0"
            )

    @property
    def eval_image_size(self) -> int:
        """Side of the images in evaluations."""
        return self.val_image_size or self.first_image_size

    @property
    def first_image_size(self) -> int:
        """Side of the images of epoch 0."""
        size = self.image_size
        return size if isinstance(size, int) else {int(key): size[key] for key in size}[0]

    def changed(self, changes: Mapping[str, object]) -> Self:
        """Return the recipe with ``changes``; ConfigError for an unknown key or a bad value."""
        _check_keys(changes, "the recipe")
        return replace(self, **changes)  # type: ignore[arg-type]

    def to_dict(self) -> dict[str, object]:
        values = {name: getattr(self, name) for name in KEYS}
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in values.items()
        }


KEYS: Final[Mapping[str, "Field[Any]"]] = {each.name: each for each in fields(TrainingRecipe)}
"""Every key by name."""

KINDS: Final = get_type_hints(TrainingRecipe)
"""The type of every key."""

_SUFFIX: Final = ".toml"
_BOUND: Final = 2**63 - 1  # of all numbers, which TOML and JSON can then hold
_WANTED: Final[Mapping[Any, str]] = {
    bool: "true or false",
    str: "a text",
    int: "a whole number",
    float: "a finite number",
    tuple[float, ...]: "a list of numbers",
    tuple[str, ...]: "a list of texts",
}


def shipped_recipes() -> list[str]:
    names = (each.name for each in files(__package__).iterdir())
    return sorted(name.removesuffix(_SUFFIX) for name in names if name.endswith(_SUFFIX))


def compose_recipe(
    named: str | None, changes: Mapping[str, Any]
) -> tuple[TrainingRecipe, dict[str, str]]:
    """Take a recipe by name or file and change it, as the command line asks for.

    Also returns the origin of each key that is not a default, and of each field of a table as
    "data.NAME". In ``changes``, ``data`` and ``val_data`` add to the recipe's fields. ConfigError
    for an unknown recipe or key, and a value out of range.
    """
    merged: dict[str, Any] = {table: {} for table in TABLES}
    origins: dict[str, str] = {}
    file = read_recipe(named) if named else {}
    for values, origin in ((file, named or ""), (changes, "command line")):
        for key, value in values.items():
            if key in TABLES and isinstance(value, Mapping):
                merged[key] = {**merged[key], **value}
                origins |= {f"{key}.{field}": origin for field in value}
            else:
                merged[key] = value
                origins[key] = origin
    return TrainingRecipe().changed(merged), origins


def read_recipe(named: str) -> dict[str, Any]:
    """Return the keys of a recipe: one that Feeder ships, or a TOML file.

    Raises ConfigError when there is none, when it is no TOML, and for an unknown key.
    """
    shipped = shipped_recipes()
    path = files(__package__).joinpath(named + _SUFFIX) if named in shipped else Path(named)
    try:
        values = tomllib.loads(path.read_text(encoding="utf-8"))
    except (tomllib.TOMLDecodeError, UnicodeDecodeError) as error:
        raise ConfigError(f"recipe {named} is no TOML ({error}): mend the file") from None
    except (OSError, ValueError) as error:
        reason = error.strerror if isinstance(error, OSError) else str(error)
        raise ConfigError(
            f"there is no recipe {named!r} ({reason}): use one of {', '.join(shipped)}"
            f"{hint_at_nearest(named, shipped)}, or the name of a TOML file"
        ) from None
    _check_keys(values, f"recipe {named}")
    return values


def show_recipe(recipe: TrainingRecipe, name: str, origins: Mapping[str, str]) -> str:
    """Return the recipe as a TOML file with every key, its explanation and its origin."""
    lines = [f"# Recipe {name}: every key that is in effect, and where it came from."]
    for key, value in recipe.to_dict().items():
        about = KEYS[key].metadata["about"]
        if key in TABLES and isinstance(
            value, Mapping
        ):  # these come last, as a table has all keys after it
            lines += ["", f"# {about}", f"[{key}]"]
            for field, data in value.items():
                origin = origins.get(f"{key}.{field}", "default")
                lines.append(f"{field} = {format_value(data)}  # {origin}")
            continue
        line = f"{key} = {format_value(value)}"
        if key == "lr" and not recipe.lr and recipe.global_batch and recipe.base_batch:
            line += f"  # so {recipe.base_lr * recipe.global_batch / recipe.base_batch:g}"
        lines += ["", f"# {about} ({origins.get(key, 'default')})", line]
    return "\n".join(lines) + "\n"


def parse_value(key: str, text: str) -> object:
    """Return the value of a key from the command line: as in TOML, or plain text."""
    default = KEYS[key].default
    if isinstance(default, str):
        return text
    if isinstance(default, bool):
        return {"true": True, "false": False}.get(text.lower(), text)
    value = _parse_toml(text)
    if isinstance(default, tuple) and not isinstance(value, list):
        return [_parse_toml(part.strip()) for part in text.split(",")]
    return value


def format_value(value: object) -> str:
    """Return a value as TOML writes it."""
    if isinstance(value, Mapping):
        return (
            f"{{{', '.join(f'{format_value(key)} = {format_value(value[key])}' for key in value)}}}"
        )
    if isinstance(value, list | tuple):
        return f"[{', '.join(map(format_value, value))}]"
    return json.dumps(value, ensure_ascii=False)  # equal for numbers, texts and booleans


def _parse_toml(text: str) -> object:
    try:
        return tomllib.loads(f"value = {text}")["value"]
    except (tomllib.TOMLDecodeError, ValueError, RecursionError):
        return text


def parse_duration(text: str) -> float:
    """Return the seconds of a text such as "90s", "5m", "1.5h" or "600"."""
    units = {"s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
    number, unit = (text[:-1], text[-1]) if text[-1:] in units else (text, "s")
    try:
        seconds = float(number) * units[unit]
    except ValueError:
        seconds = math.nan
    if not 0 < seconds < math.inf:
        raise ConfigError(f'time_budget must be a time such as "90s", "5m" or "1.5h", got {text!r}')
    return seconds


def _check_keys(names: Iterable[str], where: str) -> None:
    """Raise ConfigError for the first name that is no key, with the nearest one or its place."""
    for name in names:
        if name in Recipe.__struct_fields__ and name not in KEYS:
            raise ConfigError(
                f"{where} has an unknown key {name!r}: as a field of the data's recipe it belongs "
                "in [data] or [val_data] (--data-recipe, --val-data-recipe)"
            )
        if name not in KEYS:
            hint = hint_at_nearest(name, KEYS, " (--show lists the keys)")
            raise ConfigError(f"{where} has an unknown key {name!r}{hint}")


def _checked(name: str, value: object) -> object:
    """Return ``value`` in the key's type; ConfigError unless it has that type and range."""
    if name in TABLES:
        return _check_data(name, value)
    kind = KINDS[name]
    if name == "image_size":
        if isinstance(value, Mapping):
            sizes = Recipe.for_split("train", batch_size=1, image_size=value)
            if not sizes.phases:
                return sizes.image_size
            return {f"{epoch}": size for epoch, size in value.items()}
        kind = int
    low, high = KEYS[name].metadata["low"], KEYS[name].metadata["high"]
    wanted = _WANTED.get(kind) or f"one of {', '.join(get_args(kind))}"
    if kind in (int, float):
        wanted += f", {low} or more" if high is None else f", {low} .. {high}"
    least = -_BOUND if low is None else low
    most = _BOUND if high is None else high
    try:
        is_whole = kind is int and isinstance(value, float) and value.is_integer()
        result = msgspec.convert(int(value) if is_whole else value, kind)  # type: ignore[call-overload]
        values = result if isinstance(result, tuple) else (result,)
        if all(isinstance(each, str) or least <= each <= most for each in values):
            return result
    except msgspec.ValidationError:
        pass
    raise ConfigError(f"{name} must be {wanted}, got {value!r}")


def _check_data(table: str, values: object) -> object:
    """Return ``values``; ConfigError unless the feeder's recipe takes them."""
    if not isinstance(values, Mapping):
        raise ConfigError(f"{table} must be a table of NAME = VALUE, got {values!r}")
    for name in values:
        if name in _OWN_KEYS:
            raise ConfigError(f"{table} must not have {name}: it follows from {_OWN_KEYS[name]}")
        if name == "phases":
            raise ConfigError(f"{table} must not have phases: give image_size by epoch")
        if name == "crops":
            raise ConfigError(
                f"{table} must not have crops: this job trains on one crop a sample, see "
                "docs/examples/self_supervised.py for several"
            )
        if name in KEYS and name not in Recipe.__struct_fields__:
            raise ConfigError(
                f"{table} must not have {name}: it is a key of the training recipe (--"
                f"{name.replace('_', '-')}), which the job applies and the feeder does not"
            )
    # The sides are the least that there are, as they only matter together.
    probe = {"batch_size": 1, "image_size": 8, "resize_size": 8} | dict(values)
    Recipe.for_split("val" if table == "val_data" else "train", **probe)
    return values

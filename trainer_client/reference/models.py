"""The reference job's models by name, and weights for them from ordinary files.

Ours are the ResNets and EfficientNets; ``timm:NAME`` is any model of timm, which is imported only
for that. All read four channels, and their weights load from three-channel files (``stem``).
A name or a file that does not fit is a ConfigError of one line, before a model has changed.
"""

import importlib
import struct
import warnings
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn

from feeder.errors import ConfigError, ResourceError
from feeder.plan.recipe_checks import hint_at_nearest
from feeder.process.regular_file import open_regular_file
from trainer_client.reference.checkpoints import DAMAGE, check_sums
from trainer_client.reference.efficientnet import EXPANSION, SCALES, EfficientNet
from trainer_client.reference.recipes.recipe import TrainingRecipe
from trainer_client.reference.resnet import MODELS as RESNETS
from trainer_client.reference.stem import CHANNELS, adapt_stem, widen_stem

MODELS: Final[Sequence[str]] = (*RESNETS, *SCALES)
"""The names of our models."""
TIMM: Final = "timm:"

# What torch.load also raises on damaged files of before torch 1.6, which are no zip archives.
_OLD_DAMAGE: Final = AssertionError, AttributeError, LookupError, OverflowError, TypeError
_DAMAGE: Final = (*DAMAGE, *_OLD_DAMAGE, struct.error)


def make_model(recipe: TrainingRecipe, num_classes: int) -> nn.Module:
    """Return a model with random weights: logits (N, num_classes) of images (N, 4, H, W).

    ConfigError as ``check_model``.
    """
    check_model(recipe)
    name = recipe.model
    if name in SCALES:
        group_width, expansion = recipe.group_width, recipe.expansion
        scale = SCALES[name]
        return EfficientNet(scale, num_classes, group_width=group_width, expansion=expansion)
    if name in RESNETS:
        return RESNETS[name](num_classes, zero_init_last=recipe.zero_init_last)
    try:
        model: nn.Module = _import_timm(name).create_model(
            name.removeprefix(TIMM), num_classes=num_classes, in_chans=CHANNELS
        )
    except (TypeError, ValueError, LookupError, AssertionError, RuntimeError) as error:
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"model {name!r} cannot be made with {CHANNELS} channels and {num_classes} classes "
            f"({reason}): name another one"
        ) from error
    adapt_stem(model)
    return model


def check_model(recipe: TrainingRecipe) -> None:
    """Raise ConfigError for an unknown model, and for an option that it has no use for.

    For a timm name this imports timm.
    """
    name = recipe.model
    if name.startswith(TIMM):
        known = _import_timm(name).list_models()
        plain = name.removeprefix(TIMM)
        if plain not in known:
            # Without the tag of published weights, which timm's names may end with.
            untagged, listed = plain.partition(".")[0], " (timm.list_models() lists them)"
            hint = hint_at_nearest(untagged, known, listed, show=lambda model: TIMM + model)
            raise ConfigError(f"timm has no model {plain!r}{hint}")
    elif name not in MODELS:
        raise ConfigError(
            f"model must be one of {', '.join(MODELS)}, or timm:NAME, got {name!r}"
            f"{hint_at_nearest(name, MODELS)}"
        )
    for option, default in (("group_width", 1), ("expansion", EXPANSION)):
        if name not in SCALES and getattr(recipe, option) != default:
            raise ConfigError(
                f"{option} is an option of the EfficientNets, model {name!r} has none: remove it"
            )
    if name.startswith(TIMM) and not recipe.zero_init_last:
        raise ConfigError(
            f"zero_init_last is an option of our ResNets, model {name!r} starts as timm makes it: "
            "remove it"
        )


def load_weights(model: nn.Module, path: Path) -> None:
    """Load a state dict of three or four channels from a file into ``model``, on any device.

    The file is what ``torch.save`` makes of a dict of tensors by name, also under the key
    "state_dict" or "model", and also with DistributedDataParallel's "module." before each name.
    Raises ResourceError when it cannot be read, ConfigError when it is damaged or does not fit:
    the message has the first weight that differs.
    """
    content = _read(path)
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not content or not all(map(_is_weight, content.items())):
        raise ConfigError(f"{path} has no state dict, of tensors by name: name another file")
    state = dict(content)
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    widen_stem(model, state)
    own = model.state_dict()
    for name in (*own, *state):
        here, there = (
            f"shape {tuple(each[name].shape)}" if name in each else "nothing"
            for each in (own, state)
        )
        is_count = name.endswith("num_batches_tracked") and name not in state  # old files lack it
        if here != there and not is_count:
            raise ConfigError(
                f"{path} does not fit the model: {name} has {there} in the file, {here} in the "
                "model: name weights of this model and number of classes"
            )
    model.load_state_dict(state)


def _is_weight(item: tuple[object, object]) -> bool:
    return isinstance(item[0], str) and isinstance(item[1], torch.Tensor)


def _read(path: Path) -> Any:
    try:
        file = open_regular_file(path)
    except OSError as error:
        raise ResourceError(
            f"cannot read the weights {path} ({error.strerror}): name a readable file"
        ) from error
    with file, warnings.catch_warnings():  # of odd bytes, beside the error that they cause
        warnings.simplefilter("ignore")
        try:
            if file.read(4) == b"PK\x03\x04":
                check_sums(file)
            file.seek(0)
            return torch.load(file, map_location="cpu", weights_only=True)
        except _DAMAGE as error:
            reason = str(error).partition("\n")[0]
            raise ConfigError(
                f"{path} is no file of weights, or damaged ({reason}): name another one"
            ) from None


def _import_timm(name: str) -> Any:
    try:
        return importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:  # torchvision, which it imports, raises either
        if isinstance(error, ModuleNotFoundError) and error.name == "timm":
            reason, remedy = "it is not installed", "pip install timm"
        else:
            reason = f"its import fails: {str(error).partition(chr(10))[0]}"
            remedy = "repair its installation"
        raise ConfigError(
            f"model {name!r} needs timm ({reason}): {remedy}, or name one of {', '.join(MODELS)}"
        ) from error

"""The reference job's models by name, and weights for them from ordinary files.

Ours are the ResNets and EfficientNets; ``timm:NAME`` is any model of timm, which is imported only
for that. All read four channels, and their weights load from three-channel files (``stem``).
A name or a file that does not fit is a ConfigError of one line.
"""

import importlib
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from torch import nn

from feeder.errors import ConfigError
from feeder.plan.recipe_checks import hint_at_nearest
from trainer_client.reference.checkpoints import read_saved
from trainer_client.reference.efficientnet import EXPANSION, SCALES, EfficientNet
from trainer_client.reference.recipes.recipe import TrainingRecipe
from trainer_client.reference.resnet import MODELS as RESNETS
from trainer_client.reference.stem import CHANNELS, adapt_stem

MODELS: Final[Sequence[str]] = (*RESNETS, *SCALES)
"""The names of our models."""
TIMM: Final = "timm:"


def make_model(recipe: TrainingRecipe, num_classes: int) -> nn.Module:
    """Return a model with random weights: logits (N, num_classes) of images (N, 4, H, W).

    ConfigError as ``check_model``.
    """
    check_model(recipe)
    name = recipe.model
    if name in SCALES:
        width, expansion = recipe.group_width, recipe.expansion
        return EfficientNet(SCALES[name], num_classes, group_width=width, expansion=expansion)
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
    Raises ResourceError when it cannot be read, ConfigError when it is damaged or does not fit.
    """
    content = read_saved(path, "file of weights")
    for key in ("state_dict", "model"):
        if isinstance(content, dict) and isinstance(content.get(key), dict):
            content = content[key]
    if not isinstance(content, dict) or not all(isinstance(name, str) for name in content):
        raise ConfigError(f"{path} has no state dict, of tensors by name: name another file")
    state = dict(content)
    nn.modules.utils.consume_prefix_in_state_dict_if_present(state, "module.")
    try:
        model.load_state_dict(state)
    except RuntimeError as error:
        reason = str(error).split("\n")[1].strip().rstrip(".")  # the first weight that differs
        raise ConfigError(
            f"{path} does not fit the model ({reason}): name weights of this model and number of "
            "classes"
        ) from error


def _import_timm(name: str) -> Any:
    try:
        return importlib.import_module("timm")
    except (ImportError, RuntimeError) as error:  # torchvision, which it imports, raises either
        reason = str(error).partition("\n")[0]
        raise ConfigError(
            f"model {name!r} needs timm, which cannot be imported ({reason}): pip install timm, or "
            f"name one of {', '.join(MODELS)}"
        ) from error

"""Which types a job computes in: autocast and the scale of the loss.

Weights are float32 unless the recipe sets another type, and so are norms and losses. In half
precision the forward and backward pass run under autocast; float16 has too few exponents for small
gradients, so its loss is scaled (Micikevicius et al. 2018), bfloat16's is not.
"""

from collections.abc import Mapping
from typing import Final

import torch

from trainer_client.reference.recipes.recipe import TrainingRecipe

_TYPES: Final[Mapping[str, torch.dtype]] = {
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


def half_type(recipe: TrainingRecipe, device: torch.device) -> torch.dtype:
    """Return the type of the forward pass: the recipe's or, by "auto", the device's fastest."""
    if recipe.precision != "auto":
        return _TYPES[recipe.precision]
    if recipe.weights != "float32":
        return _TYPES[recipe.weights]
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def weight_type(recipe: TrainingRecipe) -> torch.dtype:
    """Return the type of the weights."""
    return _TYPES[recipe.weights]


def make_autocast(recipe: TrainingRecipe, device: torch.device) -> torch.autocast:
    """Return the context of every forward pass; it may be entered again and again."""
    half = half_type(recipe, device)
    return torch.autocast(device.type, dtype=half, enabled=half != torch.float32)


def make_scaler(recipe: TrainingRecipe, device: torch.device) -> torch.amp.GradScaler:
    """Return the scaler of the loss, which does nothing unless the type is float16."""
    enabled = half_type(recipe, device) == torch.float16
    return torch.amp.GradScaler(device.type, enabled=enabled)

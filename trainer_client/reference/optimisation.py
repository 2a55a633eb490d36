"""The learning rate, the parameter groups and the optimiser that a recipe asks for.

Cosine decay is of Loshchilov and Hutter (2016, "SGDR", without restarts), the polynomial of power 2
of MLPerf's ResNet-50 reference, decay at given epochs and linear scaling with the batch of Goyal et
al. (2017), decay every few epochs of EfficientNet (Tan and Le 2019: 0.97 every 2.4 epochs).

Invariant: a learning rate is a pure function of the step, so a resumed job needs no state of it and
may change ``epochs``. The schedules of ``torch.optim.lr_scheduler`` count their calls and compute
most learning rates from the one before; their warm-ups and boundaries are whole numbers of calls,
and those of a recipe, such as 2.4 epochs, are not.
"""

import bisect
import math
from typing import Any

import torch
from torch import nn

from trainer_client.reference.optimisers.optimisers import LARS, RMSpropTF
from trainer_client.reference.recipes.recipe import TrainingRecipe


def peak_lr(recipe: TrainingRecipe, global_batch: int) -> float:
    """Return the learning rate after the warm-up: the recipe's, scaled with the global batch."""
    if recipe.lr:
        return recipe.lr
    if not recipe.base_batch:
        return recipe.base_lr
    return recipe.base_lr * global_batch / recipe.base_batch


def lr_factor(recipe: TrainingRecipe, lr: float, steps_per_epoch: int, step: int) -> float:
    """Return the share of the peak learning rate ``lr`` at ``step`` (from 0), in 0 .. 1.

    It rises linearly over the warm-up: the first step is above 0, the step after the warm-up has 1.
    Cosine and polynomial then fall to ``end_lr`` at the end of the job. Boundaries of the steps
    schedule count from the first step of the job, the warm-up included, as in the sources; those
    within the warm-up take effect at its end.
    """
    warmup_steps = recipe.warmup_epochs * steps_per_epoch
    if step < warmup_steps:
        return (step + 1) / (warmup_steps + 1)
    if recipe.schedule == "steps":
        if recipe.step_every_epochs:
            falls = math.floor(step / (recipe.step_every_epochs * steps_per_epoch))
        else:
            boundaries = [epoch * steps_per_epoch for epoch in recipe.step_epochs]
            falls = bisect.bisect_right(boundaries, step)
        return recipe.step_factor**falls
    length = max(1.0, recipe.epochs * steps_per_epoch - warmup_steps)
    progress = min(1.0, (step - warmup_steps) / length)
    if recipe.schedule == "cosine":
        share = 0.5 * (1 + math.cos(math.pi * progress))
    else:
        share = (1 - progress) ** recipe.schedule_power
    end = min(1.0, recipe.end_lr / lr) if lr else 0.0
    return end + (1 - end) * share


def parameter_groups(model: nn.Module, recipe: TrainingRecipe) -> list[dict[str, Any]]:
    """Return two groups for an optimiser: kernels and matrices, then biases and norms.

    Biases and the gains of norms do not decay (He et al. 2019, "Bag of tricks") unless
    ``decay_vectors`` is set, and LARS has no trust ratio for them (MLPerf's ResNet-50 reference).
    Parameters are in the order of their names, so that the order of construction does not matter to
    a saved optimiser.
    """
    parameters = [parameter for _, parameter in sorted(model.named_parameters())]
    vector_decay = recipe.weight_decay if recipe.decay_vectors else 0.0
    return [
        {
            "params": [each for each in parameters if each.ndim > 1],
            "weight_decay": recipe.weight_decay,
            "trust": True,
        },
        {
            "params": [each for each in parameters if each.ndim <= 1],
            "weight_decay": vector_decay,
            "trust": False,
        },
    ]


def make_optimiser(
    recipe: TrainingRecipe, lr: float, groups: list[dict[str, Any]]
) -> torch.optim.Optimizer:
    """Return the recipe's optimiser of ``parameter_groups``."""
    momentum, nesterov = recipe.momentum, recipe.nesterov
    if recipe.optimiser == "sgd":
        return torch.optim.SGD(groups, lr=lr, momentum=momentum, nesterov=nesterov)
    if recipe.optimiser == "rmsprop-tf":
        rho, eps = recipe.rmsprop_decay, recipe.rmsprop_epsilon
        return RMSpropTF(groups, lr=lr, momentum=momentum, rho=rho, eps=eps)
    return LARS(
        groups,
        lr=lr,
        momentum=momentum,
        eta=recipe.lars_trust,
        eps=recipe.lars_epsilon,
        nesterov=nesterov,
        unscaled_momentum=recipe.lars_unscaled,
    )

"""The optimiser and the schedule that a recipe asks for."""

from collections.abc import Callable
from typing import Any

import torch
from torch import nn

from trainer_client.reference.optimisers.lars import LARS
from trainer_client.reference.optimisers.parameter_groups import parameter_groups
from trainer_client.reference.optimisers.rmsprop_tf import RMSpropTF
from trainer_client.reference.optimisers.schedules import Schedule, scaled_lr
from trainer_client.reference.recipes.recipe import TrainingRecipe

Groups = list[dict[str, Any]]


def peak_lr(recipe: TrainingRecipe, global_batch: int) -> float:
    """Return the learning rate after the warm-up: the recipe's, scaled with the global batch."""
    if recipe.lr:
        return recipe.lr
    if not recipe.base_batch:
        return recipe.base_lr
    return scaled_lr(recipe.base_lr, recipe.base_batch, global_batch)


def make_schedule(recipe: TrainingRecipe, lr: float, steps_per_epoch: int) -> Schedule:
    """Return the shares of the peak learning rate ``lr``, one for each step of the job."""
    return Schedule(
        kind=recipe.schedule,
        warmup_steps=recipe.warmup_epochs * steps_per_epoch,
        total_steps=recipe.epochs * steps_per_epoch,
        power=recipe.schedule_power,
        end_factor=min(1.0, recipe.end_lr / lr) if lr else 0.0,
        step_at=tuple(epoch * steps_per_epoch for epoch in recipe.step_epochs),
        step_every=recipe.step_every_epochs * steps_per_epoch,
        step_factor=recipe.step_factor,
    )


def make_groups(model: nn.Module, recipe: TrainingRecipe) -> Groups:
    """Return the parameters with weight decay, and those without."""
    return parameter_groups(
        model, weight_decay=recipe.weight_decay, decay_vectors=recipe.decay_vectors
    )


def optimiser_maker(recipe: TrainingRecipe, lr: float) -> Callable[[Groups], torch.optim.Optimizer]:
    """Return what makes the recipe's optimiser of parameter groups."""

    def make(groups: Groups) -> torch.optim.Optimizer:
        if recipe.optimiser == "lars":
            return LARS(
                groups,
                lr=lr,
                momentum=recipe.momentum,
                eta=recipe.lars_trust,
                eps=recipe.lars_epsilon,
                nesterov=recipe.nesterov,
                unscaled_momentum=recipe.lars_unscaled,
            )
        if recipe.optimiser == "rmsprop-tf":
            return RMSpropTF(
                groups,
                lr=lr,
                momentum=recipe.momentum,
                rho=recipe.rmsprop_decay,
                eps=recipe.rmsprop_epsilon,
            )
        return torch.optim.SGD(groups, lr=lr, momentum=recipe.momentum, nesterov=recipe.nesterov)

    return make

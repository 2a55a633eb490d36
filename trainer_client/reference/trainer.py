"""One model in training: its optimiser, and what happens in a step.

    micro-batch ─► mixing ─► forward under autocast ─► loss ─► backward        for each micro-batch
    gradients, averaged over ranks and micro-batches ─► clip ─► update ─► averaged weights

A step of several micro-batches equals one of the large batch for a model without batch norm. With
it, statistics are those of each micro-batch ("ghost batches", Hoffer et al. 2017).

Losses stay on the device until an epoch ends or a line is due: reading one waits for the device.
"""

import contextlib
import math
import shlex
from collections.abc import Iterable, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from feeder.errors import ConfigError
from trainer_client._batch import Batch
from trainer_client._mixing import Mixing
from trainer_client.reference.models import load_weights, make_model
from trainer_client.reference.optimisation import (
    lr_factor,
    make_optimiser,
    parameter_groups,
    peak_lr,
)
from trainer_client.reference.optimisers.half_weights import HalfWeights
from trainer_client.reference.optimisers.moving_average import MovingAverage
from trainer_client.reference.options import BatchPlan
from trainer_client.reference.parallel.batch_norm import distribute_batch_norm
from trainer_client.reference.parallel.reduction import wrap
from trainer_client.reference.place import Place, seed_rank
from trainer_client.reference.recipes.recipe import TrainingRecipe, format_value
from trainer_client.reference.recompute import recompute_at
from trainer_client.reference.stem import CHANNELS

_MAY_CHANGE: Final = {
    *("epochs", "global_batch", "accumulation", "batch_norm_ranks", "bucket_mb", "reduction"),
    *("compression", "recompute", "eval_every_epochs", "target_accuracy", "time_budget"),
    *("val_image_size", "val_data"),
}
"""Keys of the recipe that a resumed job may change; the global batch is compared as a number."""
_TYPES: Final = {"float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}


class Trainer:
    """The model, its optimiser, its schedule and its averaged weights."""

    def __init__(
        self,
        recipe: TrainingRecipe,
        plan: BatchPlan,
        place: Place,
        *,
        classes: int,
        steps_per_epoch: int,
        init: Path | None = None,
    ) -> None:
        """Make the model, with the weights in the file ``init`` or random ones."""
        self.recipe, self.plan = recipe, plan
        self.steps_done, self._steps_per_epoch = 0, steps_per_epoch
        self.lr = peak_lr(recipe, plan.global_batch)
        torch.manual_seed(recipe.seed)
        model = make_model(recipe, classes)
        if init is not None:
            load_weights(model, init)
        model = model.to(device=place.device, memory_format=torch.channels_last)  # type: ignore[call-overload]
        model = distribute_batch_norm(model, recipe.batch_norm_ranks, place.device)
        self.weights = HalfWeights(
            model,
            parameter_groups(model, recipe),
            partial(make_optimiser, recipe, self.lr),
            dtype=_TYPES[recipe.weights],
            seed=recipe.seed,
            is_stochastic=recipe.rounding == "stochastic",
        )
        self.optimiser = self.weights.optimiser
        self.plain_model = model
        self.average: MovingAverage | None = None
        if recipe.ema_decay:
            self.average = MovingAverage(model, recipe.ema_decay, recipe.ema_every_steps)
        recompute_at(model, recipe.recompute)
        self.model: nn.Module = model
        if place.ranks > 1:
            self.model = wrap(
                model,
                device=place.device,
                bucket_mb=recipe.bucket_mb,
                reduction=recipe.reduction,
                compression=recipe.compression,
            )
        self.mixing: Mixing | None = None
        if recipe.mixup or recipe.cutmix:
            self.mixing = Mixing(
                classes, mixup_alpha=recipe.mixup, cutmix_alpha=recipe.cutmix, seed=recipe.seed
            )
        self.loss = nn.CrossEntropyLoss(label_smoothing=recipe.label_smoothing)
        self.autocast = make_autocast(recipe, place.device)
        # float16 has too few exponents for small gradients (Micikevicius et al. 2018).
        is_scaled = half_type(recipe, place.device) == torch.float16
        self.scaler = torch.amp.GradScaler(place.device.type, enabled=is_scaled)
        if place.ranks > 1:
            self._settle_buckets(place)
        seed_rank(place, seed=recipe.seed, steps_done=0)

    def _settle_buckets(self, place: Place) -> None:
        """Run a pass on zeros, after which DDP has its final buckets.

        After its first backward pass DDP divides the gradients into buckets by their order, and the
        order of adding up over three ranks or more changes with it. A resumed job must not differ.
        """
        buffers = [buffer.clone() for buffer in self.plain_model.buffers()]
        side = self.recipe.first_image_size
        images = torch.zeros(2, CHANNELS, side, side, device=place.device)
        with self.autocast:
            loss = self.model(images.contiguous(memory_format=torch.channels_last)).sum()
        (loss * 0).backward()
        self.model.zero_grad(set_to_none=True)
        with torch.no_grad():
            for buffer, value in zip(self.plain_model.buffers(), buffers, strict=True):
                buffer.copy_(value)

    def step(self, batches: Iterable[Batch[torch.Tensor]]) -> torch.Tensor:
        """Train on the micro-batches of one step; return this rank's loss, on the device."""
        factor = lr_factor(self.recipe, self.lr, self._steps_per_epoch, self.steps_done)
        for group in self.optimiser.param_groups:
            group["lr"] = self.lr * factor
        parts = self.plan.accumulation
        losses = []
        for number, batch in enumerate(batches, 1):
            context: contextlib.AbstractContextManager[None] = contextlib.nullcontext()
            if number < parts and isinstance(self.model, DistributedDataParallel):
                context = self.model.no_sync()  # gradients are reduced with the last part's
            with context:
                loss = self._forward(batch) / parts
                self.scaler.scale(loss).backward()  # type: ignore[no-untyped-call]
            if number == parts or self.model is self.plain_model:
                self.weights.collect_gradients()  # they add up in float32; DDP adds in half
            losses.append(loss.detach())
        if self.recipe.clip_norm:
            self.scaler.unscale_(self.optimiser)
            parameters = [each for group in self.optimiser.param_groups for each in group["params"]]
            nn.utils.clip_grad_norm_(parameters, self.recipe.clip_norm)
        self.scaler.step(self.optimiser)
        self.scaler.update()
        self.optimiser.zero_grad(set_to_none=True)
        if self.average is not None:
            self.average.update(self.steps_done)
        self.steps_done += 1
        return losses[0] if parts == 1 else torch.stack(losses).sum()

    def _forward(self, batch: Batch[torch.Tensor]) -> torch.Tensor:
        images, labels = batch
        if self.mixing is not None:
            images, labels = self.mixing(images, labels, epoch=batch.epoch, index=batch.index)
        try:
            with self.autocast:
                loss: torch.Tensor = self.loss(self.model(images), labels)
        except ValueError as error:
            if "more than 1 value per channel" not in str(error):
                raise
            raise ConfigError(
                "batch norm needs more than one value of a channel, the last layers have one: use "
                "a larger --batch-size or --image-size"
            ) from error
        return loss

    def current_lr(self) -> float:
        return float(self.optimiser.param_groups[0]["lr"])

    def state_dict(self) -> dict[str, Any]:
        """Return the state that resumes training: equal in all ranks, for any number of them."""
        return {
            "recipe": self.recipe.to_dict(),
            "global_batch": self.plan.global_batch,
            "steps_done": self.steps_done,
            "model": self.plain_model.state_dict(),
            "average": None if self.average is None else self.average.state_dict(),
            "optimiser": self.weights.state_dict(),
            "scaler": self.scaler.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume at ``state``, which ``check_recipe`` has accepted.

        Raises KeyError, RuntimeError, TypeError or ValueError when it is of another job.
        """
        self.plain_model.load_state_dict(state["model"])
        self.weights.load_state_dict(state["optimiser"])
        self.scaler.load_state_dict(state["scaler"])
        if self.average is not None:
            self.average.load_state_dict(state["average"])
        self.steps_done = int(state["steps_done"])

    def check_recipe(self, state: Mapping[str, Any]) -> None:
        """Raise ConfigError for a key that must not change, with what to pass instead."""
        here = {**self.recipe.to_dict(), "global batch": self.plan.global_batch}
        saved = {**state["recipe"], "global batch": state["global_batch"]}
        for name in ("model", "global batch", *here):
            was, value = saved.get(name, here[name]), here[name]
            is_close = isinstance(value, float) and math.isclose(was, value)
            if name in _MAY_CHANGE or was == value or is_close:
                continue
            was, value = (x if isinstance(x, str) else format_value(x) for x in (was, value))
            option = f"--{name.replace('_', '-').replace(' ', '-')} {shlex.quote(was)}"
            if name == "data":
                option = "the same --data-recipe"
            raise ConfigError(
                f"the checkpoint is of {name} {was}, this job has {value}: pass {option}"
            )


def half_type(recipe: TrainingRecipe, device: torch.device) -> torch.dtype:
    """Return the type of the forward pass: the recipe's or, by "auto", the device's fastest."""
    chosen = recipe.weights if recipe.precision == "auto" else recipe.precision
    if chosen != "float32" or recipe.precision == "float32":
        return _TYPES[chosen]
    if device.type != "cuda":
        return torch.float32
    return torch.bfloat16 if torch.cuda.is_bf16_supported() else torch.float16


def make_autocast(recipe: TrainingRecipe, device: torch.device) -> torch.autocast:
    """Return the context of every forward pass; it may be entered again and again."""
    half = half_type(recipe, device)
    return torch.autocast(device.type, dtype=half, enabled=half != torch.float32)

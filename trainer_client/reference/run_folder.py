"""What a run's folder keeps beside results and checkpoints: recipe, versions, plan, weights.

DIR/recipe.toml    every key in effect, and where it came from; itself a recipe
DIR/plan.json      versions, seed, dataset and order: what decides the samples of each step
DIR/weights.pt     at the end: an ordinary state dict of three channels, of four if --init gave
                   the fourth weights; weights-averaged.pt, too
"""

import io
import json
import platform
from pathlib import Path

import msgspec
import numpy as np
import torch
from torch import nn

import feeder
from feeder.errors import ConfigError
from trainer_client._loader import FeederLoader
from trainer_client.reference.options import TrainingOptions
from trainer_client.reference.recipes.recipe_file import EffectiveRecipe
from trainer_client.reference.results import RunInfo
from trainer_client.reference.stem import three_channel_state
from trainer_client.reference.tracking.output_file import (
    make_folder,
    replace_file,
)
from trainer_client.reference.trainer import Trainer


def begin_folder(
    folder: Path, options: TrainingOptions, run: RunInfo, loader: FeederLoader
) -> None:
    """Write recipe and plan; ResourceError when that fails."""
    effective = EffectiveRecipe(
        recipe=options.recipe, name=options.recipe_name, origins=options.recipe_origins
    )
    plan = {
        "versions": {
            "feeder": feeder.__version__,
            "torch": torch.__version__,
            "numpy": np.__version__,
            "python": platform.python_version(),
        },
        "seed": run.seed,
        "dataset": loader.dataset.name,
        "fingerprint": loader.dataset.fingerprint,
        "data_recipe": msgspec.to_builtins(loader.recipe),
        "data_recipe_fingerprint": loader.recipe.fingerprint(),
        "ranks": run.ranks,
        "global_batch": run.global_batch,
        "batch_size": loader.batch_size,
        "steps_per_epoch": run.steps_per_epoch,
        "epochs": run.epochs,
        "device": run.device,
        "threads": torch.get_num_threads(),
        "val_dataset": options.val_dataset,
        "val_samples": run.val_samples,
    }
    make_folder(folder)
    replace_file(folder / "recipe.toml", effective.to_toml().encode())
    replace_file(folder / "plan.json", (json.dumps(plan, indent=2) + "\n").encode())


def keep_weights(folder: Path, trainer: Trainer) -> None:
    """Write the weights as ordinary state dicts; ResourceError when that fails."""
    models = {"weights.pt": trainer.plain_model}
    if trainer.averaged_model is not None:
        models["weights-averaged.pt"] = trainer.averaged_model
    for name, model in models.items():
        content = io.BytesIO()
        torch.save(_ordinary_state(model), content)
        replace_file(folder / name, content.getvalue())


def _ordinary_state(model: nn.Module) -> dict[str, torch.Tensor]:
    """Return three channels if the fourth has no weights and the stem is an ordinary one."""
    try:
        return three_channel_state(model)
    except ConfigError:
        return dict(model.state_dict())

"""Compares our models with torchvision's and timm's: ``compare_models.py``, as JSON lines.

Each line is of one model: what was found, for check_models.py to judge. Weights, biases and running
statistics are random, so that no block is the identity and no constant is hidden by a 0 or a 1.
"""

import json
import sys
from typing import Any, Final

import timm
import torch
import torchvision
from torch import nn

from trainer_client.reference.models import MODELS, TIMM, make_model
from trainer_client.reference.recipes.recipe import TrainingRecipe
from trainer_client.reference.stem import find_stem, three_channel_state

SIDE: Final = 64
IMAGES: Final = 4
CLASSES: Final = 1000
TIMM_MODELS: Final = (
    "resnet18",
    "resnet26d",
    "tf_efficientnet_b0",
    "convnext_atto",
    "resnetv2_50x1_bit",
)


def randomise(model: nn.Module) -> None:
    """Give norms random gains, biases and running statistics, the latter near those of images.

    Without the nearness the signal fades from block to block, and no image changes the output.
    """
    norms = [module for module in model.modules() if isinstance(module, nn.BatchNorm2d)]
    momenta = [norm.momentum for norm in norms]
    for norm in norms:
        nn.init.uniform_(norm.weight, 0.5, 1.5)
        nn.init.normal_(norm.bias, std=0.2)
        norm.momentum = 1.0
    with torch.no_grad():
        model.train()(torch.randn(IMAGES, 3, SIDE, SIDE))
    for norm, momentum in zip(norms, momenta, strict=True):
        norm.momentum = momentum
        norm.running_mean += 0.2 * norm.running_var.sqrt() * torch.randn_like(norm.running_mean)
        norm.running_var *= torch.empty_like(norm.running_var).uniform_(0.7, 1.4)
    for module in model.modules():
        if isinstance(module, nn.Conv2d | nn.Linear) and module.bias is not None:
            nn.init.normal_(module.bias, std=0.2)


def difference(model: nn.Module, other: nn.Module, *, train: bool) -> dict[str, float]:
    """Return the outputs' largest difference and their spread over images; of the same draws."""
    torch.manual_seed(7)
    images = torch.randn(IMAGES, 3, SIDE, SIDE)
    padded = nn.functional.pad(images, (0, 0, 0, 0, 0, 1))
    outputs = []
    for each, batch in ((model, padded), (other, images)):
        torch.manual_seed(8)  # dropout and stochastic depth
        with torch.no_grad():
            outputs.append(each.train(train)(batch.contiguous(memory_format=torch.channels_last)))
    largest = outputs[1].abs().max().item()
    return {
        "difference": (outputs[0] - outputs[1]).abs().max().item() / largest,
        "spread": outputs[1].std(dim=0).mean().item() / largest,
    }


def shapes(state: dict[str, torch.Tensor]) -> list[tuple[str, tuple[int, ...]]]:
    return [(name, tuple(each.shape)) for name, each in state.items()]


def compare(name: str, model: nn.Module, other: nn.Module) -> dict[str, Any]:
    """Load the other's random weights, compare, and load what training changed back."""
    randomise(other)
    model.load_state_dict(other.state_dict())
    found: dict[str, Any] = {"model": name, "eval": difference(model, other, train=False)}
    found["train"] = difference(model, other, train=True)  # also changes the running statistics
    found["eval after"] = difference(model, other, train=False)
    cut = three_channel_state(model)
    found["same names and shapes"] = shapes(cut) == shapes(other.state_dict())
    with torch.no_grad():
        for each in other.parameters():
            each.zero_()
    other.load_state_dict(cut)  # strictly
    found["eval of saved"] = difference(model, other, train=False)
    return found


def report(found: dict[str, Any]) -> None:
    sys.stdout.write(json.dumps(found) + "\n")
    sys.stdout.flush()


def main() -> None:
    torch.set_num_threads(1)
    torch.manual_seed(0)
    for name in MODELS:
        if name != "small":
            other = torchvision.models.get_model(name.replace("-", "_"), num_classes=CLASSES)
            report(compare(name, make_model(TrainingRecipe(model=name), CLASSES), other))
    for name in TIMM_MODELS:
        model = make_model(TrainingRecipe(model=TIMM + name), 7)
        conv = next(each for each in model.modules() if isinstance(each, nn.Conv2d))
        found: dict[str, Any] = {"model": TIMM + name, "channels": conv.in_channels}
        found["outputs"] = tuple(model.eval()(torch.randn(2, 4, SIDE, SIDE)).shape)
        if find_stem(model) is None:
            found["stem"] = type(conv).__name__
        else:
            found["fourth channel"] = conv.weight[:, 3:].abs().max().item()
            found |= compare(TIMM + name, model, timm.create_model(name, num_classes=7))
        report(found)


main()

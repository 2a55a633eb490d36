"""The four-channel stem: ordinary weights load, and are saved as such."""

import copy
from collections.abc import Callable

import pytest
import torch
from torch import nn

from feeder.errors import ConfigError
from trainer_client.reference.efficientnet import SCALES, EfficientNet, Stage
from trainer_client.reference.resnet import BasicBlock, ResNet
from trainer_client.reference.stem import adapt_stem, find_stem, three_channel_state

torch.set_num_threads(1)  # more threads only slow down models this small


def make_resnet(channels: int) -> nn.Module:
    return ResNet(BasicBlock, (1, 1, 1, 1), num_classes=3, width=8, channels=channels)


def make_efficientnet(channels: int) -> nn.Module:
    stages = (Stage(3, 1, 16, 1, is_expanded=False), Stage(5, 2, 24, 2))
    scale = SCALES["efficientnet-b0"]
    return EfficientNet(scale, num_classes=3, channels=channels, stages=stages)


class Normalised(nn.Conv2d):
    """A convolution of other weights than those stored, as timm's StdConv2d."""


def randomise(model: nn.Module) -> nn.Module:
    """Make no block the identity, as if trained; returns the model in evaluation mode."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.1)
    return model.eval()


makers = pytest.mark.parametrize("make", [make_resnet, make_efficientnet])


@makers
def test_three_channel_weights_load_and_are_saved_unchanged(
    make: Callable[[int], nn.Module],
) -> None:
    torch.manual_seed(3)
    plain, model = randomise(make(3)), make(4).eval()
    model.load_state_dict(plain.state_dict())
    images = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        expected = plain(images)
        found = model(nn.functional.pad(images, (0, 0, 0, 0, 0, 1)))
    assert expected.std() > 0.01
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    saved = three_channel_state(model)
    assert [*saved] == [*plain.state_dict()]
    assert all(torch.equal(saved[name], each) for name, each in plain.state_dict().items())


@makers
def test_the_fourth_channels_weights_stay_zero_in_training(
    make: Callable[[int], nn.Module],
) -> None:
    model = make(4)
    name = find_stem(model)
    assert name is not None
    before = model.get_parameter(name).detach().clone()
    optimiser = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9, weight_decay=1e-4)
    images = nn.functional.pad(torch.randn(4, 3, 32, 32), (0, 0, 0, 0, 0, 1))
    for _ in range(2):
        optimiser.zero_grad()
        nn.functional.cross_entropy(model(images), torch.tensor([0, 1, 2, 0])).backward()
        optimiser.step()
    after = model.get_parameter(name).detach()
    assert not torch.equal(after[:, :3], before[:, :3])
    assert not before[:, 3].any()
    assert not after[:, 3].any()
    three_channel_state(model)


def test_a_copy_of_a_model_loads_three_channels_too() -> None:
    model = copy.deepcopy(make_resnet(4))  # as a moving average of the weights is
    model.load_state_dict(make_resnet(3).state_dict())


def test_saving_leaves_the_model_and_its_other_tensors_alone() -> None:
    model = make_resnet(4)
    state = three_channel_state(model)
    stem = state["conv1.weight"]
    assert stem.shape == (8, 3, 7, 7)
    assert stem.untyped_storage().nbytes() == stem.numel() * 4  # not the model's four channels
    assert model.get_parameter("conv1.weight").shape == (8, 4, 7, 7)
    assert state["fc.weight"].data_ptr() == model.get_parameter("fc.weight").data_ptr()


def test_weights_of_the_fourth_channel_cannot_be_cut_off() -> None:
    model = make_resnet(4)
    with torch.no_grad():
        model.get_parameter("conv1.weight")[5, 3, 0, 0] = 1e-6
    with pytest.raises(ConfigError, match=r"^conv1\.weight has weights for a fourth channel"):
        three_channel_state(model)


def test_an_ordinary_model_is_saved_as_it_is() -> None:
    model = make_resnet(3)
    saved = three_channel_state(model)
    assert all(torch.equal(saved[name], each) for name, each in model.state_dict().items())


@pytest.mark.parametrize(
    "first",
    [nn.Conv2d(48, 8, 3), Normalised(4, 8, 3), nn.Conv2d(4, 8, 3, groups=4), nn.Linear(4, 8)],
    ids=["48 channels", "normalised weights", "depthwise", "no convolution"],
)
def test_another_first_layer_is_no_stem(first: nn.Module) -> None:
    model = nn.Sequential(first)
    if isinstance(first, nn.Conv2d):
        model.append(nn.Conv2d(4, 8, 3))  # a later convolution is no stem, whatever it reads
    before = copy.deepcopy(model.state_dict())
    adapt_stem(model)
    assert find_stem(model) is None
    assert all(torch.equal(before[name], each) for name, each in model.state_dict().items())
    with pytest.raises(ConfigError, match=r"^Sequential cannot be saved for three channels: "):
        three_channel_state(model)

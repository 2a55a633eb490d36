"""ResNets, EfficientNets and their stem of four channels: torchvision's names, sizes and rules."""

import math
from collections.abc import Callable

import pytest
import torch
from torch import nn

from trainer_client.reference.efficientnet import (
    SCALES,
    Block,
    EfficientNet,
    Stage,
    StochasticDepth,
)
from trainer_client.reference.resnet import CHANNELS, MODELS, ResNet
from trainer_client.reference.stem import three_channel_state

torch.set_num_threads(1)  # more threads only slow down models this small
PARAMETERS = {  # of models for three channels and 1000 classes
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
    "efficientnet-b0": 5_288_548,
    "efficientnet-b1": 7_794_184,
    "efficientnet-b2": 9_109_994,
    "efficientnet-b3": 12_233_232,
    "efficientnet-b4": 19_341_616,
    "efficientnet-b5": 30_389_784,
}
NAMES = {
    "resnet50": (
        320,
        "conv1.weight bn1.running_var layer1.0.conv3.weight layer1.0.downsample.0.weight "
        "layer1.0.downsample.1.num_batches_tracked layer3.5.bn3.bias layer4.2.conv2.weight "
        "fc.weight fc.bias",
    ),
    "efficientnet-b0": (
        360,
        "features.0.0.weight features.0.1.running_var features.1.0.block.0.0.weight "
        "features.1.0.block.1.fc1.bias features.1.0.block.2.1.num_batches_tracked "
        "features.2.1.block.2.fc2.weight features.7.0.block.3.0.weight features.8.1.bias "
        "classifier.1.weight classifier.1.bias",
    ),
}
SMALL = (Stage(3, 1, 16, 1, is_expanded=False), Stage(5, 2, 24, 2))


def make_resnet(channels: int = CHANNELS) -> nn.Module:
    return ResNet((1, 1, 1, 1), 3, width=8, channels=channels)


def make_efficientnet(channels: int = CHANNELS, **options: int) -> EfficientNet:
    return EfficientNet(SCALES["efficientnet-b0"], 3, stages=SMALL, channels=channels, **options)


makers = pytest.mark.parametrize("make", [make_resnet, make_efficientnet])


def on_meta(name: str, **options: int) -> nn.Module:
    """Return a model without memory for its weights."""
    with torch.device("meta"):
        if name in SCALES:
            return EfficientNet(SCALES[name], **options)
        return MODELS[name](**options)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


def blocks_of(model: nn.Module) -> list[list[Block]]:
    stages = (each for each in model.features if isinstance(each[0], Block))
    return [[block for block in stage if isinstance(block, Block)] for stage in stages]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameters_are_torchvisions_and_the_fourth_channels(name: str) -> None:
    model = on_meta(name)
    stem = convolutions(model)[0]
    fourth = stem.out_channels * stem.kernel_size[0] ** 2
    assert count_parameters(model) == PARAMETERS[name] + fourth
    names = list(model.state_dict())
    count, some = NAMES.get(name, (len(names), ""))
    assert len(names) == count
    assert {*some.split()} <= {*names}


@pytest.mark.parametrize(("name", "norm", "blocks"), [("small", "bn2", 4), ("resnet50", "bn3", 16)])
def test_gains_of_each_blocks_last_norm_start_at_zero_as_asked(
    name: str, norm: str, blocks: int
) -> None:
    for zero_init_last in (True, False):
        state = MODELS[name](3, zero_init_last=zero_init_last).state_dict()
        gains = {key: each for key, each in state.items() if "bn" in key and key.endswith("weight")}
        zeros = [key for key, gain in gains.items() if gain.eq(0).all()]
        assert len(zeros) == (blocks if zero_init_last else 0)
        assert all(key.endswith(f"{norm}.weight") and key.startswith("layer") for key in zeros)
        assert all(gain.eq(1).all() for key, gain in gains.items() if key not in zeros)


def test_b0_has_the_papers_stages() -> None:
    widths, depths = [16, 24, 40, 80, 112, 192, 320], [1, 2, 2, 3, 3, 4, 1]
    model = on_meta("efficientnet-b0")
    stages = blocks_of(model)
    assert [len(stage) for stage in stages] == depths
    assert [convolutions(stage[-1])[-1].out_channels for stage in stages] == widths
    assert model.classifier[0].p == 0.2
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    assert {(each.eps, each.momentum) for each in norms} == {(1e-5, 0.1)}
    shortcuts = [[block.has_shortcut for block in stage] for stage in stages]
    assert shortcuts == [[False, *[True] * (depth - 1)] for depth in depths]
    dropped = [block.stochastic_depth.probability for stage in stages for block in stage]
    assert dropped == pytest.approx([0.2 * number / 16 for number in range(16)])
    layers = convolutions(model)
    assert math.prod(each.stride[0] for each in layers) == 32
    assert {each.kernel_size[0] for each in layers[1:]} == {1, 3, 5}
    for each in layers[1:]:
        assert each.padding[0] == each.kernel_size[0] // 2
        assert each.groups == (1 if each.kernel_size == (1, 1) else each.in_channels)


def test_the_grouped_variant_has_groups_of_16_and_expands_4_times() -> None:
    plain, grouped = (
        on_meta("efficientnet-b0", **options) for options in ({}, {"group_width": 16})
    )
    both = on_meta("efficientnet-b0", group_width=16, expansion=4)
    assert count_parameters(grouped) > count_parameters(plain)
    assert 1.0 < count_parameters(both) / count_parameters(plain) < 1.2
    for before, after in zip(convolutions(plain)[1:], convolutions(both)[1:], strict=True):
        assert (after.kernel_size, after.stride) == (before.kernel_size, before.stride)
        assert after.groups == (1 if after.kernel_size == (1, 1) else after.in_channels / 16)
    (first,), *stages = blocks_of(both)
    assert convolutions(first)[0].in_channels == 32  # as outside the block
    for block in (block for stage in stages for block in stage):
        expand, spatial, *_ = convolutions(block)
        assert spatial.in_channels == expand.out_channels == 4 * expand.in_channels
    assert [*plain.state_dict()] == [*both.state_dict()]
    model = make_efficientnet(group_width=16, expansion=1)
    assert {len(block.block) for stage in blocks_of(model) for block in stage} == {3}
    assert model(torch.randn(2, 4, 32, 32)).shape == (2, 3)


def test_stochastic_depth_drops_whole_rows_and_keeps_the_mean_in_training_only() -> None:
    torch.manual_seed(5)
    drop = StochasticDepth(0.2)
    output = drop(torch.ones(10_000, 2, 1, 3)).flatten(1)
    assert set(output[:, 0].tolist()) == {0.0, 1.25}
    assert (output == output[:, :1]).all()
    dropped = (output[:, 0] == 0).float().mean().item()
    assert abs(dropped - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 10_000)  # four standard errors
    features = torch.randn(8, 2, 3, 3)
    assert drop.eval()(features) is features
    model, images = make_efficientnet(), torch.randn(8, 4, 32, 32)
    with torch.no_grad():
        assert not torch.equal(model(images), model(images))
        model.eval()
        assert torch.equal(model(images), model(images))


def randomise(model: nn.Module) -> nn.Module:
    """Make no block the identity, as if trained; returns the model in evaluation mode."""
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.running_mean, std=0.1)
    return model.eval()


@makers
def test_three_channel_weights_load_and_are_saved_unchanged(
    make: Callable[[int], nn.Module],
) -> None:
    torch.manual_seed(3)
    plain, model = randomise(make(3)), make(4).eval()
    state = plain.state_dict()
    shapes = [each.shape for each in state.values()]
    model.load_state_dict(state)
    assert [each.shape for each in state.values()] == shapes, "loading changed the caller's dict"
    images = torch.randn(2, 3, 48, 48)
    with torch.no_grad():
        expected = plain(images)
        found = model(nn.functional.pad(images, (0, 0, 0, 0, 0, 1)))
    assert expected.std() > 0.01
    assert torch.allclose(found, expected, rtol=1e-4, atol=1e-5)
    saved = three_channel_state(model)
    assert [*saved] == [*state]
    assert all(torch.equal(saved[name], each) for name, each in state.items())
    ordinary = three_channel_state(plain)
    assert all(torch.equal(ordinary[name], each) for name, each in state.items())


def test_weights_of_the_fourth_channel_are_not_cut_off_and_saving_leaves_the_model() -> None:
    model = make_resnet()
    state = three_channel_state(model)
    stem = state["conv1.weight"]
    assert stem.shape == (8, 3, 7, 7)
    assert stem.untyped_storage().nbytes() == stem.numel() * 4  # not the model's four channels
    assert model.get_parameter("conv1.weight").shape == (8, 4, 7, 7)
    assert state["fc.weight"].data_ptr() == model.get_parameter("fc.weight").data_ptr()
    with torch.no_grad():
        model.get_parameter("conv1.weight")[5, 3, 0, 0] = 1e-6
    assert three_channel_state(model)["conv1.weight"].shape == (8, 4, 7, 7)

"""ResNets with a stem of four channels, and the small model."""

import pytest
import torch
from torch import nn

from trainer_client.reference.resnet import (
    CHANNELS,
    MODELS,
    BasicBlock,
    Bottleneck,
    ResNet,
    resnet50,
    resnet_small,
)

torch.set_num_threads(1)  # more threads only slow down models this small
PARAMETERS = {  # of every ResNet for three channels and 1000 classes
    "resnet18": 11_689_512,
    "resnet34": 21_797_672,
    "resnet50": 25_557_032,
    "resnet101": 44_549_160,
}


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def three_channel_resnet(width: int = 64) -> ResNet:
    torch.manual_seed(3)
    model = ResNet(Bottleneck, (3, 4, 6, 3), num_classes=1000, channels=3, width=width)
    for module in model.modules():
        if isinstance(module, nn.BatchNorm2d):  # as if trained: no block is the identity
            nn.init.uniform_(module.weight, 0.5, 1.5)
            nn.init.normal_(module.bias, std=0.1)
            nn.init.uniform_(module.running_var, 0.5, 1.5)
    return model.eval()


def test_a_three_channel_resnet50_has_the_usual_parameters() -> None:
    assert count_parameters(three_channel_resnet()) == PARAMETERS["resnet50"]


@pytest.mark.parametrize("name", PARAMETERS)
def test_parameter_counts_are_torchvisions_and_the_fourth_channels(name: str) -> None:
    with torch.device("meta"):
        assert count_parameters(MODELS[name]()) == PARAMETERS[name] + 64 * 7 * 7


@pytest.mark.parametrize(
    ("block", "norm"), [(BasicBlock, "bn2"), (Bottleneck, "bn3")], ids=["basic", "bottleneck"]
)
def test_blocks_begin_as_published_on_request(
    block: type[BasicBlock] | type[Bottleneck], norm: str
) -> None:
    model = ResNet(block, (1, 2, 1, 1), num_classes=3, width=8, zero_init_last=False)
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    assert all(each.weight.eq(1).all() for each in norms)
    assert model.get_parameter(f"layer2.1.{norm}.weight").eq(1).all()


def test_parameter_names_are_torchvisions() -> None:
    names = list(resnet50().state_dict())
    assert len(names) == 320
    for name in (
        "conv1.weight",
        "bn1.running_var",
        "layer1.0.conv3.weight",
        "layer1.0.downsample.0.weight",
        "layer1.0.downsample.1.num_batches_tracked",
        "layer3.5.bn3.bias",
        "layer4.2.conv2.weight",
        "fc.weight",
        "fc.bias",
    ):
        assert name in names


def test_a_checkpoint_for_three_channels_loads_and_gives_the_same_outputs() -> None:
    plain = three_channel_resnet()
    checkpoint = plain.state_dict()
    model = resnet50().eval()
    model.load_state_dict(checkpoint)
    assert checkpoint["conv1.weight"].shape == (64, 3, 7, 7), "loading changed the caller's dict"
    images = torch.randn(2, 3, 64, 64)
    with torch.no_grad():
        padded = nn.functional.pad(images, (0, 0, 0, 0, 0, 1))
        padded = padded.contiguous(memory_format=torch.channels_last)
        assert torch.allclose(model(padded), plain(images), rtol=1e-3, atol=1e-3)


def test_a_checkpoint_for_three_channels_loads_inside_another_module() -> None:
    wrapped = nn.Sequential(resnet_small(3))
    state = wrapped.state_dict()
    state["0.conv1.weight"] = state["0.conv1.weight"][:, :3] + 1
    wrapped.load_state_dict(state)
    stem = wrapped.get_parameter("0.conv1.weight")
    assert torch.equal(stem[:, :3], state["0.conv1.weight"])
    assert not stem[:, 3].any()


def test_a_checkpoint_for_four_channels_loads() -> None:
    state = resnet_small(3).state_dict()
    state["conv1.weight"] += 1
    model = resnet_small(3)
    model.load_state_dict(state)
    assert torch.equal(model.get_parameter("conv1.weight"), state["conv1.weight"])


def test_a_checkpoint_with_another_stem_is_refused() -> None:
    state = resnet_small(3).state_dict()
    state["conv1.weight"] = state["conv1.weight"][:, :1]
    with pytest.raises(RuntimeError, match=r"size mismatch for conv1\.weight"):
        resnet_small(3).load_state_dict(state)


def test_the_stride_is_in_the_bottlenecks_3x3_convolution() -> None:
    blocks = {
        name: [conv.stride for conv in (module.conv1, module.conv2, module.conv3)]
        for name, module in resnet50().named_modules()
        if isinstance(module, Bottleneck)
    }
    assert len(blocks) == 16
    for name, strides in blocks.items():
        first = name in ("layer2.0", "layer3.0", "layer4.0")
        assert strides == [(1, 1), (2, 2) if first else (1, 1), (1, 1)]


def test_every_block_begins_as_the_identity_and_ignores_the_fourth_channel() -> None:
    model = resnet50()
    gains = [block.bn3.weight for block in model.modules() if isinstance(block, Bottleneck)]
    assert len(gains) == 16
    assert not any(gain.any() for gain in gains)
    assert not model.conv1.weight[:, 3].any()
    assert model.conv1.weight[:, :3].all()


@pytest.mark.parametrize("name", MODELS)
def test_models_run_on_the_loaders_batches(name: str) -> None:
    model = MODELS[name](7).to(memory_format=torch.channels_last).eval()
    images = torch.zeros(2, CHANNELS, 64, 64).contiguous(memory_format=torch.channels_last)
    with torch.no_grad():
        assert model(images).shape == (2, 7)


def test_the_small_model_learns() -> None:
    torch.manual_seed(0)
    model = resnet_small(2)
    images, labels = torch.randn(16, 4, 32, 32), torch.arange(16) % 2
    images[labels == 1] += 0.5
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    losses = []
    for _ in range(12):
        loss = nn.functional.cross_entropy(model(images), labels)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert losses[-1] < losses[0] / 2

"""Models: torchvision's names, sizes and rules, four channels, and weights from files."""

import math
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from feeder.errors import ConfigError
from trainer_client.reference.efficientnet import (
    SCALES,
    Block,
    EfficientNet,
    Stage,
    StochasticDepth,
)
from trainer_client.reference.models import MODELS, check_model, load_weights, make_model
from trainer_client.reference.recipes.recipe import TrainingRecipe
from trainer_client.reference.resnet import ResNet
from trainer_client.reference.stem import CHANNELS, three_channel_state

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
NAMES = {  # how many, and some of them
    "resnet50": (320, "conv1.weight layer1.0.downsample.1.num_batches_tracked layer4.2.bn3.bias"),
    "efficientnet-b0": (
        360,
        "features.0.1.running_var features.1.0.block.1.fc1.bias features.2.1.block.2.fc2.weight "
        "features.7.0.block.3.0.weight features.8.1.bias classifier.1.weight",
    ),
}
SMALL = (Stage(3, 1, 16, 1, is_expanded=False), Stage(5, 2, 24, 2))


def make_resnet(channels: int = CHANNELS) -> nn.Module:
    return ResNet((1, 1, 1, 1), 3, width=8, channels=channels)


def make_efficientnet(channels: int = CHANNELS, **options: int) -> EfficientNet:
    return EfficientNet(SCALES["efficientnet-b0"], 3, stages=SMALL, channels=channels, **options)


makers = pytest.mark.parametrize("make", [make_resnet, make_efficientnet])


def on_meta(name: str, classes: int = 1000, **options: int) -> nn.Module:
    """Return a model of three or four channels without memory for its weights."""
    with torch.device("meta"):
        return make_model(TrainingRecipe(model=name, **options), classes)


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
        model = make_model(TrainingRecipe(model=name, zero_init_last=zero_init_last), 3)
        state = model.state_dict()
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


# --- Models by name -------------------------------------------------------------------------------


class FakeTimm(ModuleType):
    """A module of timm's two functions, with one model."""

    def list_models(self) -> list[str]:
        return ["resnet18", "resnet18d", "vit_tiny_patch16_224"]

    def create_model(self, name: str, *, num_classes: int, in_chans: int) -> nn.Module:
        if name != "resnet18":
            raise TypeError("unexpected keyword argument 'in_chans'\nand more")
        pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(nn.Conv2d(in_chans, 8, 3), pooled, nn.Linear(8, num_classes))


def make(name: str, classes: int) -> nn.Module:
    return make_model(TrainingRecipe(model=name), classes)


@pytest.fixture
def small() -> nn.Module:
    return make("small", 3)


def save(path: Path, content: object, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def error_of(model: nn.Module, path: Path) -> str:
    """Return the line with which ``load_weights`` fails."""
    with pytest.raises(ConfigError) as raised:
        load_weights(model, path)
    line = str(raised.value)
    assert line.startswith(f"{path} ")
    assert "\n" not in line
    return line.removeprefix(f"{path} ")


def check_options(name: str, **options: object) -> None:
    check_model(TrainingRecipe().changed({"model": name, **options}))


def test_every_model_has_a_logit_for_each_class_and_four_channels() -> None:
    assert [*MODELS] == [
        *("resnet18", "resnet34", "resnet50", "resnet101", "small"),
        *(f"efficientnet-b{number}" for number in range(6)),
    ]
    for name in ("resnet50", "small", "efficientnet-b0"):
        images = torch.empty(2, 4, 64, 64, device="meta")
        assert on_meta(name, 7)(images).shape == (2, 7)


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        ("resnet-50", {}, f"model must be one of {', '.join(MODELS)}, or timm:NAME, got 'resnet-"),
        ("resnet50", {"group_width": 16}, "group_width is an option of the EfficientNets, model"),
        ("timm:resnet18", {"zero_init_last": False}, "zero_init_last is an option of our ResNets"),
        ("timm:resnet19d", {}, "timm has no model 'resnet19d'; nearest is timm:resnet18d"),
    ],
)
def test_what_does_not_fit_is_one_line(
    name: str, options: dict[str, object], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", FakeTimm("timm"))
    with pytest.raises(ConfigError) as caught:
        check_options(name, **options)
    assert str(caught.value).startswith(line)
    check_options("efficientnet-b0", zero_init_last=False)  # as it is anyhow


def test_a_timm_model_needs_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    match = r"^model 'timm:resnet18' needs timm, which cannot be imported \(.*\): pip install timm"
    with pytest.raises(ConfigError, match=match):
        check_options("timm:resnet18")


def test_a_timm_model_reads_four_channels_of_which_the_last_begins_at_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "timm", FakeTimm("timm"))
    model = make("timm:resnet18", 7)
    assert model(torch.zeros(2, 4, 8, 8)).shape == (2, 7)
    stem = model.get_parameter("0.weight")
    assert stem[:, :3].all()
    assert not stem[:, 3].any()
    state = model.state_dict()
    state["0.weight"] = torch.ones(8, 3, 3, 3)
    model.load_state_dict(state)
    assert stem.sum() == 8 * 3 * 9


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("kind", ["model", "module.", "colours", "old"])
def test_weights_load_from_a_file(
    tmp_path: Path, small: nn.Module, kind: str, zipped: bool
) -> None:
    """As scripts save them: under a key, by DDP, for three channels, without counts of batches."""
    state = small.state_dict()
    content: dict[str, Any] = dict(state)
    if kind == "model":
        content = {"epoch": 3, kind: state}
    elif kind == "module.":
        content = {"state_dict": {f"module.{name}": each for name, each in state.items()}}
    elif kind == "colours":
        content["conv1.weight"] = state["conv1.weight"][:, :3]
    elif kind == "old":
        content = {name: each for name, each in state.items() if "num_batches" not in name}
    path = save(tmp_path / "w.pt", content, _use_new_zipfile_serialization=zipped)
    model = make("small", 3)
    load_weights(model, path)
    here, there = model.state_dict(), small.state_dict()
    assert [*here] == [*there]
    assert all(torch.equal(here[name], there[name]) for name in here)


@pytest.mark.parametrize(
    ("name", "weight", "reason"),
    [
        ("fc.weight", torch.ones(7, 128), "size mismatch for fc.weight: copying "),
        ("fc.bias", None, 'Missing key(s) in state_dict: "fc.bias"'),
        ("extra", torch.ones(2), 'Unexpected key(s) in state_dict: "extra"'),
    ],
)
def test_weights_of_another_model_are_refused_by_the_first_that_differs(
    tmp_path: Path, small: nn.Module, name: str, weight: torch.Tensor | None, reason: str
) -> None:
    state = small.state_dict()
    state.pop(name, None)
    state |= {} if weight is None else {name: weight}
    line = error_of(small, save(tmp_path / "w.pt", state))
    assert line.startswith(f"does not fit the model ({reason}")


@pytest.mark.parametrize("content", [[1, 2], {"weight": 3}, {1: torch.ones(1)}])
def test_a_file_of_something_else_is_refused(
    tmp_path: Path, small: nn.Module, content: object
) -> None:
    line = error_of(small, save(tmp_path / "w.pt", content))
    assert line.startswith(("has no state dict, of tensors by name", "does not fit the model ("))


def test_a_damaged_file_is_refused(tmp_path: Path, small: nn.Module) -> None:
    """Checkpoints are read by the same rules, and have a test for each kind of damage."""
    path = save(tmp_path / "w.pt", small.state_dict(), _use_new_zipfile_serialization=False)
    before = path.read_bytes()  # as torch wrote it before 1.6
    contents = [before[:size] for size in (0, 1, 1009, len(before) // 2, len(before) - 1)]
    generator = torch.Generator().manual_seed(1)
    for beginning in (b"", b"\x80\x02", b"PK\x03\x04"):
        noise = torch.randint(256, (10, 97), dtype=torch.uint8, generator=generator)
        contents += [beginning + bytes(row) for row in noise.tolist()]
    for content in contents:
        path.write_bytes(content)
        assert error_of(small, path).startswith("is no file of weights, or damaged (")
    # A module's class would be imported by pickle, and then runs code.
    assert "damaged (Weights only" in error_of(small, save(path, small))

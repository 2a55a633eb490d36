"""EfficientNets: the scaling rule, torchvision's names and sizes, what is random in training."""

import math

import pytest
import torch
from torch import nn

from feeder.errors import ConfigError
from trainer_client.reference.efficientnet import (
    RESOLUTIONS,
    SCALES,
    Block,
    EfficientNet,
    Stage,
    StochasticDepth,
    count_groups,
    efficientnet,
    round_channels,
    scale_depth,
)

torch.set_num_threads(1)  # more threads only slow down models this small
PARAMETERS = {  # of every EfficientNet for three channels and 1000 classes
    "efficientnet-b0": 5_288_548,
    "efficientnet-b1": 7_794_184,
    "efficientnet-b2": 9_109_994,
    "efficientnet-b3": 12_233_232,
    "efficientnet-b4": 19_341_616,
    "efficientnet-b5": 30_389_784,
}
SMALL = (Stage(3, 1, 16, 1, is_expanded=False), Stage(5, 2, 24, 2))


def make_small(**options: int) -> EfficientNet:
    return EfficientNet(SCALES["efficientnet-b0"], num_classes=3, stages=SMALL, **options)


def on_meta(name: str, **options: int) -> EfficientNet:
    """Return a model without memory for its weights."""
    with torch.device("meta"):
        return efficientnet(name, **options)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())


def blocks_of(model: EfficientNet) -> list[list[Block]]:
    stages = (each for each in model.features if isinstance(each[0], Block))
    return [[block for block in stage if isinstance(block, Block)] for stage in stages]


def convolutions(model: nn.Module) -> list[nn.Conv2d]:
    return [module for module in model.modules() if isinstance(module, nn.Conv2d)]


@pytest.mark.parametrize("name", SCALES)
def test_parameter_counts_are_torchvisions_and_the_fourth_channels(name: str) -> None:
    model = on_meta(name)
    fourth = 9 * convolutions(model)[0].out_channels
    assert count_parameters(model) == PARAMETERS[name] + fourth


def test_parameter_names_are_torchvisions() -> None:
    names = list(on_meta("efficientnet-b0").state_dict())
    assert len(names) == 360
    for name in (
        "features.0.0.weight",
        "features.0.1.running_var",
        "features.1.0.block.0.0.weight",
        "features.1.0.block.1.fc1.bias",
        "features.1.0.block.2.1.num_batches_tracked",
        "features.2.1.block.2.fc2.weight",
        "features.7.0.block.3.0.weight",
        "features.8.1.bias",
        "classifier.1.weight",
        "classifier.1.bias",
    ):
        assert name in names


@pytest.mark.parametrize(
    ("exact", "rounded"),
    [
        (1, 8),
        (8, 8),
        (11.9, 16),
        (12, 16),
        (17.6, 16),
        (19.9, 24),
        (35.2, 32),
        (51.2, 48),
        (60, 64),
    ],
)
def test_channels_are_rounded_to_multiples_of_8_never_over_a_tenth_down(
    exact: float, rounded: int
) -> None:
    assert round_channels(exact) == rounded


def test_depth_is_rounded_up() -> None:
    assert [scale_depth(4, depth) for depth in (1.0, 1.1, 1.2, 1.4, 1.8, 2.2)] == [4, 5, 5, 6, 8, 9]


@pytest.mark.parametrize(
    ("name", "widths", "depths"),
    [
        ("efficientnet-b0", [16, 24, 40, 80, 112, 192, 320], [1, 2, 2, 3, 3, 4, 1]),
        ("efficientnet-b2", [16, 24, 48, 88, 120, 208, 352], [2, 3, 3, 4, 4, 5, 2]),
        ("efficientnet-b5", [24, 40, 64, 128, 176, 304, 512], [3, 5, 5, 7, 7, 9, 3]),
    ],
)
def test_one_rule_scales_all_models(name: str, widths: list[int], depths: list[int]) -> None:
    stages = blocks_of(on_meta(name))
    assert [len(stage) for stage in stages] == depths
    assert [convolutions(stage[-1])[-1].out_channels for stage in stages] == widths


def test_larger_models_are_for_larger_images_and_drop_more() -> None:
    assert [*RESOLUTIONS.values()] == [224, 240, 260, 300, 380, 456]
    dropouts = [on_meta(name).classifier[0].p for name in SCALES]
    assert dropouts == [0.2, 0.2, 0.3, 0.3, 0.4, 0.4]


@pytest.mark.parametrize(
    ("name", "constants"), [("efficientnet-b4", (1e-5, 0.1)), ("efficientnet-b5", (1e-3, 0.01))]
)
def test_norms_have_torchvisions_constants(name: str, constants: tuple[float, float]) -> None:
    norms = [each for each in on_meta(name).modules() if isinstance(each, nn.BatchNorm2d)]
    assert {(norm.eps, norm.momentum) for norm in norms} == {constants}


def test_the_image_shrinks_32_times_and_kernels_are_centred() -> None:
    model = on_meta("efficientnet-b0")
    assert math.prod(each.stride[0] for each in convolutions(model)) == 32
    assert all(each.padding[0] == each.kernel_size[0] // 2 for each in convolutions(model))


def test_depthwise_convolutions_are_those_of_more_than_one_pixel() -> None:
    _, *others = convolutions(on_meta("efficientnet-b3"))
    assert {each.kernel_size[0] for each in others} == {1, 3, 5}
    for each in others:
        assert each.groups == (1 if each.kernel_size == (1, 1) else each.in_channels)


def test_the_grouped_variant_has_groups_of_16_and_expands_4_times() -> None:
    plain, grouped = (
        on_meta("efficientnet-b0"),
        on_meta("efficientnet-b0", group_width=16, expansion=4),
    )
    for before, after in zip(convolutions(plain)[1:], convolutions(grouped)[1:], strict=True):
        assert after.kernel_size == before.kernel_size
        assert after.stride == before.stride
        assert after.groups == (1 if after.kernel_size == (1, 1) else after.in_channels / 16)
    (first,), *stages = blocks_of(grouped)
    assert convolutions(first)[0].in_channels == 32  # as outside the block
    for stage in stages:
        for block in stage:
            expand, spatial, *_ = convolutions(block)
            assert spatial.in_channels == expand.out_channels == 4 * expand.in_channels
    assert [*plain.state_dict()] == [*grouped.state_dict()]


def test_groups_cost_parameters_and_a_smaller_expansion_saves_them() -> None:
    plain = count_parameters(on_meta("efficientnet-b0"))
    assert count_parameters(on_meta("efficientnet-b0", group_width=16)) > plain
    assert count_parameters(on_meta("efficientnet-b0", expansion=4)) < plain
    both = count_parameters(on_meta("efficientnet-b0", group_width=16, expansion=4))
    assert 1.0 < both / plain < 1.2


@pytest.mark.parametrize(
    ("channels", "width", "groups"),
    [(96, 16, 6), (96, 1, 96), (40, 16, 2), (24, 16, 1), (120, 16, 6), (8, 16, 1), (120, 50, 2)],
)
def test_groups_are_equal_and_at_least_as_wide_as_asked_if_there_are_two(
    channels: int, width: int, groups: int
) -> None:
    assert count_groups(channels, width) == groups
    assert channels % groups == 0
    assert groups == 1 or channels // groups >= width


def test_the_grouped_variant_runs() -> None:
    model = make_small(group_width=16, expansion=4)
    assert model(torch.randn(2, 4, 32, 32)).shape == (2, 3)


def test_an_expansion_of_one_has_no_expanding_convolution() -> None:
    blocks = [block for stage in blocks_of(make_small(expansion=1)) for block in stage]
    assert {len(block.block) for block in blocks} == {3}


@pytest.mark.parametrize("option", ["group_width", "expansion"])
def test_an_option_below_one_is_refused(option: str) -> None:
    with pytest.raises(ConfigError, match=f"^{option} must be 1 or more, got 0$"):
        make_small(**{option: 0})


@pytest.mark.parametrize("name", ["efficientnet-b0", "efficientnet-b5"])
def test_blocks_are_dropped_more_often_towards_the_end(name: str) -> None:
    blocks = [block for stage in blocks_of(on_meta(name)) for block in stage]
    found = [block.stochastic_depth.probability for block in blocks]
    assert found == pytest.approx([0.2 * number / len(blocks) for number in range(len(blocks))])


def test_stochastic_depth_drops_whole_rows_and_keeps_the_mean() -> None:
    torch.manual_seed(5)
    drop = StochasticDepth(0.2)
    output = drop(torch.ones(10_000, 2, 1, 3)).flatten(1)
    assert set(output[:, 0].tolist()) == {0.0, 1.25}
    assert (output == output[:, :1]).all()
    dropped = (output[:, 0] == 0).float().mean().item()
    assert abs(dropped - 0.2) < 4 * math.sqrt(0.2 * 0.8 / 10_000)  # four standard errors


def test_stochastic_depth_changes_nothing_in_evaluation() -> None:
    features = torch.randn(8, 2, 3, 3)
    assert StochasticDepth(0.5).eval()(features) is features
    assert StochasticDepth(0.0)(features) is features


def test_outputs_are_random_only_in_training() -> None:
    torch.manual_seed(0)
    model, images = make_small(), torch.randn(8, 4, 32, 32)
    with torch.no_grad():
        assert not torch.equal(model(images), model(images))
        model.eval()
        assert torch.equal(model(images), model(images))


def test_the_shortcut_is_where_a_block_keeps_its_shape() -> None:
    stages = blocks_of(on_meta("efficientnet-b1"))
    found = [[block.has_shortcut for block in stage] for stage in stages]
    assert found == [[False, *[True] * (len(stage) - 1)] for stage in stages]


def test_weights_start_as_torchvisions() -> None:
    torch.manual_seed(0)
    model = EfficientNet(SCALES["efficientnet-b0"], num_classes=100, stages=SMALL)
    for each in convolutions(model):
        outputs = each.out_channels * each.kernel_size[0] ** 2
        weight = each.weight[:, :3] if each.in_channels == 4 else each.weight
        spread = math.sqrt(2 / outputs)
        assert abs(weight.std().item() / spread - 1) < 4 / math.sqrt(2 * weight.numel())
        assert each.bias is None or not each.bias.any()
    linear = model.classifier[1]
    assert 0.099 < linear.weight.abs().max().item() <= 0.1
    assert not linear.bias.any()
    norms = [each for each in model.modules() if isinstance(each, nn.BatchNorm2d)]
    assert all(norm.weight.eq(1).all() and not norm.bias.any() for norm in norms)


def test_it_learns() -> None:
    torch.manual_seed(0)
    model = make_small()
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

"""EfficientNet-B0 to B5 for batches of four channels, made by one scaling rule (Tan & Le 2019).

A model's scale multiplies the channels of B0's stages (rounded to multiples of 8) and their numbers
of blocks (rounded up). The published scales are powers of 1.1 and 1.2 that the authors rounded in
no regular way, so they are a table here. Modules have torchvision's names and initialisation, so
its checkpoints load; ``stem`` converts their three channels.

Options select a variant that is faster on hardware that convolves many channels at a time (Masters
et al. 2021): groups of 16 channels in the depthwise convolutions, and an expansion of 4 in place of
6, which keeps the cost near the original's.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Final, NamedTuple

import torch
from torch import nn

from trainer_client.reference.stem import CHANNELS, adapt_stem

EXPANSION: Final = 6
_CHANNELS_UNIT: Final = 8
_STEM_WIDTH: Final = 32
_DROPPED_BLOCKS: Final = 0.2  # the probability at the end of the network (Huang et al. 2016)
_HEAD_EXPANSION: Final = 4


class Scale(NamedTuple):
    """What distinguishes one EfficientNet from the others."""

    width: float  # multiplies channels
    depth: float  # multiplies the number of blocks
    dropout: float  # before the classifier
    norm_eps: float = 1e-5  # the norms' constants are torchvision's: its weights depend on them
    norm_momentum: float = 0.1


SCALES: Final[Mapping[str, Scale]] = {
    "efficientnet-b0": Scale(1.0, 1.0, 0.2),
    "efficientnet-b1": Scale(1.0, 1.1, 0.2),
    "efficientnet-b2": Scale(1.1, 1.2, 0.3),
    "efficientnet-b3": Scale(1.2, 1.4, 0.3),
    "efficientnet-b4": Scale(1.4, 1.8, 0.4),
    "efficientnet-b5": Scale(1.6, 2.2, 0.4, norm_eps=1e-3, norm_momentum=0.01),
}


class Stage(NamedTuple):
    """Blocks of one width in B0; the first has the stride."""

    kernel: int
    stride: int
    width: int
    blocks: int
    is_expanded: bool = True  # or its blocks have no more channels inside than outside


STAGES: Final[Sequence[Stage]] = (
    Stage(3, 1, 16, 1, is_expanded=False),
    Stage(3, 2, 24, 2),
    Stage(5, 2, 40, 2),
    Stage(3, 2, 80, 3),
    Stage(5, 1, 112, 3),
    Stage(5, 2, 192, 4),
    Stage(3, 1, 320, 1),
)


class StochasticDepth(nn.Module):
    """Zeroes an image's features with a probability while training (Huang et al. 2016)."""

    def __init__(self, probability: float) -> None:
        super().__init__()
        self.probability = probability

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return (N, …) with some rows zeroed and the others scaled to keep the mean."""
        if not self.training or self.probability == 0.0:
            return features
        kept = 1.0 - self.probability
        rows = features.new_empty((features.shape[0], *(1 for _ in features.shape[1:])))
        return features * rows.bernoulli_(kept).div_(kept)


class SqueezeExcitation(nn.Module):
    """Scales each channel by a gate computed from all channels' means (Hu et al. 2018)."""

    def __init__(self, channels: int, squeezed: int) -> None:
        super().__init__()
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.fc1 = nn.Conv2d(channels, squeezed, 1)
        self.fc2 = nn.Conv2d(squeezed, channels, 1)
        self.activation = nn.SiLU(inplace=True)
        self.scale_activation = nn.Sigmoid()

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        squeezed: torch.Tensor = self.activation(self.fc1(self.avgpool(features)))
        gates: torch.Tensor = self.scale_activation(self.fc2(squeezed))
        return features * gates


class Block(nn.Module):
    """An inverted bottleneck: 1×1 expansion, grouped convolution, gates, 1×1 projection."""

    def __init__(
        self,
        channels: int,
        inner: int,
        width: int,
        kernel: int,
        stride: int,
        *,
        scale: Scale,
        group_width: int,
        dropped: float,
    ) -> None:
        super().__init__()
        groups = count_groups(inner, group_width)
        self.block = nn.Sequential()
        if inner != channels:
            self.block.append(_conv_norm(channels, inner, 1, scale=scale))
        self.block.append(_conv_norm(inner, inner, kernel, stride, groups=groups, scale=scale))
        self.block.append(SqueezeExcitation(inner, max(1, channels // 4)))
        self.block.append(_conv_norm(inner, width, 1, scale=scale)[:2])  # without activation
        self.stochastic_depth = StochasticDepth(dropped)
        self.has_shortcut = stride == 1 and channels == width

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        result: torch.Tensor = self.block(features)
        return features + self.stochastic_depth(result) if self.has_shortcut else result


class EfficientNet(nn.Module):
    """Stem, seven stages of blocks, 1×1 convolution, average over the image, linear layer."""

    def __init__(
        self,
        scale: Scale,
        num_classes: int = 1000,
        *,
        channels: int = CHANNELS,
        group_width: int = 1,
        expansion: int = EXPANSION,
        stages: Sequence[Stage] = STAGES,
    ) -> None:
        """Build the model of ``scale``.

        ``group_width`` is the number of channels that the 3×3 and 5×5 convolutions combine,
        ``expansion`` the factor of channels within the blocks of all stages but the first.
        """
        super().__init__()
        width = round_channels(_STEM_WIDTH * scale.width)
        self.features = nn.Sequential(_conv_norm(channels, width, 3, 2, scale=scale))
        depths = [math.ceil(stage.blocks * scale.depth) for stage in stages]
        built = 0
        for stage, depth in zip(stages, depths, strict=True):
            blocks = nn.Sequential()
            for number in range(depth):
                wider = round_channels(stage.width * scale.width)
                inner = width * (expansion if stage.is_expanded else 1)
                stride = 1 if number else stage.stride
                dropped = _DROPPED_BLOCKS * built / sum(depths)
                block = Block(
                    width,
                    inner,
                    wider,
                    stage.kernel,
                    stride,
                    scale=scale,
                    group_width=group_width,
                    dropped=dropped,
                )
                blocks.append(block)
                width = wider
                built += 1
            self.features.append(blocks)
        self.features.append(_conv_norm(width, _HEAD_EXPANSION * width, 1, scale=scale))
        self.avgpool = nn.AdaptiveAvgPool2d(1)
        self.classifier = nn.Sequential(
            nn.Dropout(scale.dropout, inplace=True),
            nn.Linear(_HEAD_EXPANSION * width, num_classes),
        )
        self.apply(_initialise)
        adapt_stem(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (N, num_classes) of normalised images (N, 4, H, W)."""
        features: torch.Tensor = self.avgpool(self.features(images))
        logits: torch.Tensor = self.classifier(torch.flatten(features, 1))
        return logits


def round_channels(channels: float) -> int:
    """Return the nearest multiple of 8, or the next above if that were over 10 % fewer."""
    rounded = int(channels + _CHANNELS_UNIT / 2) // _CHANNELS_UNIT * _CHANNELS_UNIT
    rounded = max(_CHANNELS_UNIT, rounded)
    return rounded if rounded >= 0.9 * channels else rounded + _CHANNELS_UNIT


def count_groups(channels: int, group_width: int) -> int:
    """Return the number of equal groups, of ``group_width`` or else the next width that divides."""
    most = max(1, channels // group_width)
    return next(groups for groups in range(most, 0, -1) if channels % groups == 0)


def _conv_norm(
    channels: int, width: int, kernel: int, stride: int = 1, *, groups: int = 1, scale: Scale
) -> nn.Sequential:
    padding = (kernel - 1) // 2
    return nn.Sequential(
        nn.Conv2d(channels, width, kernel, stride, padding, groups=groups, bias=False),
        nn.BatchNorm2d(width, eps=scale.norm_eps, momentum=scale.norm_momentum),
        nn.SiLU(inplace=True),
    )


def _initialise(module: nn.Module) -> None:
    """Initialise as torchvision does: He et al. (2015b) by fan-out, uniform in the classifier."""
    if isinstance(module, nn.Conv2d):
        nn.init.kaiming_normal_(module.weight, mode="fan_out")
        if module.bias is not None:
            nn.init.zeros_(module.bias)
    elif isinstance(module, nn.Linear):
        limit = 1.0 / math.sqrt(module.out_features)
        nn.init.uniform_(module.weight, -limit, limit)
        nn.init.zeros_(module.bias)

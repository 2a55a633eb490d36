"""ResNets for batches of four channels, and a small relative of them for the demo.

The architecture is that of He et al. (2015) in the usual variant 1.5: a bottleneck's stride is in
its 3×3 convolution. By default each block's last batch norm starts with a gain of 0, so that every
block begins as the identity (Goyal et al. 2017). Modules have torchvision's names, so its
checkpoints load; ``stem`` converts their three channels.
"""

from collections.abc import Mapping, Sequence
from typing import Final, Protocol

import torch
from torch import nn

from trainer_client.reference.stem import CHANNELS as CHANNELS  # importable from here, too
from trainer_client.reference.stem import adapt_stem


class BasicBlock(nn.Module):
    """Two 3×3 convolutions and a shortcut."""

    expansion: Final = 1

    def __init__(
        self, channels: int, width: int, stride: int, *, zero_init_last: bool = True
    ) -> None:
        super().__init__()
        self.conv1 = _conv(channels, width, 3, stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3)
        self.bn2 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(channels, width, stride)
        nn.init.constant_(self.bn2.weight, 0.0 if zero_init_last else 1.0)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return (N, width, H / stride, W / stride)."""
        shortcut = features if self.downsample is None else self.downsample(features)
        residual: torch.Tensor = self.relu(self.bn1(self.conv1(features)))
        residual = self.bn2(self.conv2(residual))
        output: torch.Tensor = self.relu(residual + shortcut)
        return output


class Bottleneck(nn.Module):
    """1×1, 3×3 with the stride, 1×1 to four times the width, and a shortcut."""

    expansion: Final = 4

    def __init__(
        self, channels: int, width: int, stride: int, *, zero_init_last: bool = True
    ) -> None:
        super().__init__()
        self.conv1 = _conv(channels, width, 1)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = _conv(width, width * self.expansion, 1)
        self.bn3 = nn.BatchNorm2d(width * self.expansion)
        self.relu = nn.ReLU(inplace=True)
        self.downsample = _shortcut(channels, width * self.expansion, stride)
        nn.init.constant_(self.bn3.weight, 0.0 if zero_init_last else 1.0)

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        """Return (N, 4 * width, H / stride, W / stride)."""
        shortcut = features if self.downsample is None else self.downsample(features)
        residual: torch.Tensor = self.relu(self.bn1(self.conv1(features)))
        residual = self.relu(self.bn2(self.conv2(residual)))
        residual = self.bn3(self.conv3(residual))
        output: torch.Tensor = self.relu(residual + shortcut)
        return output


class ResNet(nn.Module):
    """Stem, four stages of blocks, average over the image, one linear layer."""

    def __init__(
        self,
        block: type[BasicBlock] | type[Bottleneck],
        blocks: Sequence[int],
        *,
        num_classes: int,
        width: int = 64,
        channels: int = CHANNELS,
        zero_init_last: bool = True,
    ) -> None:
        """Build four stages of ``blocks`` each; ``width`` is the first's and doubles in each.

        ``zero_init_last`` is whether the gain of each block's last norm starts at 0, or else at 1.
        """
        super().__init__()
        self.conv1 = _conv(channels, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        self._channels = width
        self._zero_init_last = zero_init_last
        self.layer1 = self._make_stage(block, width, blocks[0], 1)
        self.layer2 = self._make_stage(block, width * 2, blocks[1], 2)
        self.layer3 = self._make_stage(block, width * 4, blocks[2], 2)
        self.layer4 = self._make_stage(block, width * 8, blocks[3], 2)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(width * 8 * block.expansion, num_classes)
        adapt_stem(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (N, num_classes) of normalised images (N, 4, H, W)."""
        features: torch.Tensor = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        features = self.layer4(self.layer3(self.layer2(self.layer1(features))))
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(features), 1))
        return logits

    def _make_stage(
        self, block: type[BasicBlock] | type[Bottleneck], width: int, count: int, stride: int
    ) -> nn.Sequential:
        blocks: list[nn.Module] = []
        for number in range(count):
            blocks.append(
                block(
                    self._channels,
                    width,
                    stride if number == 0 else 1,
                    zero_init_last=self._zero_init_last,
                )
            )
            self._channels = width * block.expansion
        return nn.Sequential(*blocks)


def resnet18(num_classes: int = 1000, *, zero_init_last: bool = True) -> ResNet:
    """Return a ResNet-18: 11,689,512 parameters for three channels, 3,136 more for the fourth."""
    return ResNet(BasicBlock, (2, 2, 2, 2), num_classes=num_classes, zero_init_last=zero_init_last)


def resnet34(num_classes: int = 1000, *, zero_init_last: bool = True) -> ResNet:
    """Return a ResNet-34: 21,797,672 parameters for three channels, 3,136 more for the fourth."""
    return ResNet(BasicBlock, (3, 4, 6, 3), num_classes=num_classes, zero_init_last=zero_init_last)


def resnet50(num_classes: int = 1000, *, zero_init_last: bool = True) -> ResNet:
    """Return a ResNet-50: 25,557,032 parameters for three channels, 3,136 more for the fourth."""
    return ResNet(Bottleneck, (3, 4, 6, 3), num_classes=num_classes, zero_init_last=zero_init_last)


def resnet101(num_classes: int = 1000, *, zero_init_last: bool = True) -> ResNet:
    """Return a ResNet-101: 44,549,160 parameters for three channels, 3,136 more for the fourth."""
    return ResNet(Bottleneck, (3, 4, 23, 3), num_classes=num_classes, zero_init_last=zero_init_last)


def resnet_small(num_classes: int = 10, *, zero_init_last: bool = True) -> ResNet:
    """Return a ResNet-10 of a quarter of the width, which a CPU can train in a minute."""
    return ResNet(
        BasicBlock,
        (1, 1, 1, 1),
        num_classes=num_classes,
        width=16,
        zero_init_last=zero_init_last,
    )


class ResNetFactory(Protocol):
    """Builds a ResNet with random weights."""

    def __call__(self, num_classes: int = ..., *, zero_init_last: bool = ...) -> ResNet:
        """Return a model of ``num_classes`` logits."""
        ...


MODELS: Final[Mapping[str, ResNetFactory]] = {
    "resnet18": resnet18,
    "resnet34": resnet34,
    "resnet50": resnet50,
    "resnet101": resnet101,
    "small": resnet_small,
}


def _conv(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(channels, width, kernel, stride=stride, padding=(kernel - 1) // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv


def _shortcut(channels: int, width: int, stride: int) -> nn.Sequential | None:
    if stride == 1 and channels == width:
        return None
    return nn.Sequential(_conv(channels, width, 1, stride), nn.BatchNorm2d(width))

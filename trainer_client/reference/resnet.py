"""ResNets for batches of four channels, and a small relative of them for the demo.

The architecture is that of He et al. (2015) in the usual variant 1.5: a bottleneck's stride is in
its 3×3 convolution. By default each block's last batch norm starts with a gain of 0, so that every
block begins as the identity (Goyal et al. 2017). Modules have torchvision's names, so its
checkpoints load; ``stem`` converts their three channels.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from typing import Final

import torch
from torch import nn

from trainer_client.reference.stem import CHANNELS as CHANNELS  # importable from here, too
from trainer_client.reference.stem import adapt_stem


class Block(nn.Module):
    """Two 3×3 convolutions, or 1×1, 3×3 and 1×1 to four times the width, and a shortcut.

    The stride is in the first 3×3 convolution: (N, width * expansion, H / stride, W / stride).
    """

    def __init__(
        self, channels: int, width: int, stride: int, *, is_bottleneck: bool, zero_init_last: bool
    ) -> None:
        super().__init__()
        self.is_bottleneck = is_bottleneck
        first, wider = (1, 4 * width) if is_bottleneck else (3, width)
        self.conv1 = _conv(channels, width, first, 1 if is_bottleneck else stride)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = _conv(width, width, 3, stride if is_bottleneck else 1)
        self.bn2 = last = nn.BatchNorm2d(width)
        if is_bottleneck:
            self.conv3 = _conv(width, wider, 1)
            self.bn3 = last = nn.BatchNorm2d(wider)
        nn.init.constant_(last.weight, 0.0 if zero_init_last else 1.0)
        self.relu = nn.ReLU(inplace=True)
        self.downsample: nn.Module | None = None
        if stride != 1 or channels != wider:
            self.downsample = nn.Sequential(
                _conv(channels, wider, 1, stride), nn.BatchNorm2d(wider)
            )

    def forward(self, features: torch.Tensor) -> torch.Tensor:
        shortcut = features if self.downsample is None else self.downsample(features)
        residual: torch.Tensor = self.bn2(self.conv2(self.relu(self.bn1(self.conv1(features)))))
        if self.is_bottleneck:
            residual = self.bn3(self.conv3(self.relu(residual)))
        output: torch.Tensor = self.relu(residual + shortcut)
        return output


class ResNet(nn.Module):
    """Stem, four stages of blocks, average over the image, one linear layer."""

    def __init__(
        self,
        blocks: Sequence[int],
        num_classes: int = 1000,
        *,
        width: int = 64,
        channels: int = CHANNELS,
        is_bottleneck: bool = False,
        zero_init_last: bool = True,
    ) -> None:
        """Build four stages of ``blocks`` each; ``width`` is the first's and doubles in each."""
        super().__init__()
        self.conv1 = _conv(channels, width, 7, 2)
        self.bn1 = nn.BatchNorm2d(width)
        self.relu = nn.ReLU(inplace=True)
        self.maxpool = nn.MaxPool2d(kernel_size=3, stride=2, padding=1)
        inner = width
        for stage, count in enumerate(blocks):
            layers = nn.Sequential()
            for number in range(count):
                stride = 2 if stage and not number else 1
                kind = {"is_bottleneck": is_bottleneck, "zero_init_last": zero_init_last}
                layers.append(Block(inner, width << stage, stride, **kind))
                inner = (width << stage) * (4 if is_bottleneck else 1)
            self.add_module(f"layer{stage + 1}", layers)
        self.avgpool = nn.AdaptiveAvgPool2d((1, 1))
        self.fc = nn.Linear(inner, num_classes)
        adapt_stem(self)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        """Return logits (N, num_classes) of normalised images (N, 4, H, W)."""
        features: torch.Tensor = self.maxpool(self.relu(self.bn1(self.conv1(images))))
        for stage in range(1, 5):
            features = self.get_submodule(f"layer{stage}")(features)
        logits: torch.Tensor = self.fc(torch.flatten(self.avgpool(features), 1))
        return logits


resnet18 = partial(ResNet, (2, 2, 2, 2))
resnet50 = partial(ResNet, (3, 4, 6, 3), is_bottleneck=True)
# A ResNet-10 of a quarter of the width, which a CPU can train in a minute.
resnet_small = partial(ResNet, (1, 1, 1, 1), width=16)

MODELS: Final[Mapping[str, Callable[..., ResNet]]] = {
    "resnet18": resnet18,
    "resnet34": partial(ResNet, (3, 4, 6, 3)),
    "resnet50": resnet50,
    "resnet101": partial(ResNet, (3, 4, 23, 3), is_bottleneck=True),
    "small": resnet_small,
}


def _conv(channels: int, width: int, kernel: int, stride: int = 1) -> nn.Conv2d:
    conv = nn.Conv2d(channels, width, kernel, stride=stride, padding=(kernel - 1) // 2, bias=False)
    nn.init.kaiming_normal_(conv.weight, mode="fan_out", nonlinearity="relu")
    return conv

"""mixup and CutMix: each image of a batch is mixed with the one before it, on the device.

mixup (Zhang et al. 2017) is a weighted sum of two images, CutMix (Yun et al. 2019) pastes a box of
one into the other; labels are mixed in the same shares. The definitions are those of
``torchvision.transforms.v2``, and the two give equal tensors for equal draws.

Invariant: a batch's draws are a pure function of (seed, epoch, index), so a resumed job mixes as
an uninterrupted one. The draws are made on the host: nothing waits for the device.
"""

import math
from typing import Final

import numpy as np
import torch
from torch import nn

from feeder.errors import ConfigError
from feeder.plan.rng import Purpose, derive_key

Box = tuple[int, int, int, int]
CUTMIX_SHARE: Final = 0.5  # of the batches, where both kinds are on: as in torchvision's references


class Mixing:
    """mixup and CutMix: mixes batches of one class a sample on the device, with soft labels.

    What is drawn for a batch depends on the seed, the epoch and the batch's index alone, so a
    resumed job mixes as an uninterrupted one.
    """

    def __init__(self, classes: int, *, mixup_alpha: float, cutmix_alpha: float, seed: int) -> None:
        """Draw shares from Beta(alpha, alpha); an alpha of 0 turns its kind off, but not both.

        Where both are on, half of the batches take each. Raises ConfigError for other alphas.
        """
        alphas = mixup_alpha, cutmix_alpha
        are_numbers = all(isinstance(each, int | float) and 0 <= each < math.inf for each in alphas)
        if not (are_numbers and any(alphas)):
            raise ConfigError(
                "mixup_alpha and cutmix_alpha must be numbers of 0 or more, one of them above 0, "
                f"got {mixup_alpha!r} and {cutmix_alpha!r}"
            )
        self._classes = classes
        self._mixup_alpha = mixup_alpha
        self._cutmix_alpha = cutmix_alpha
        self._seed = seed

    def __call__(
        self, images: torch.Tensor, labels: torch.Tensor, *, epoch: int, index: int
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """Return mixed images, as ``images`` (N, C, H, W) in type and memory format, and labels.

        ``labels`` are int64 (N,), each a class: a batch with padding is not allowed. The returned
        ones are float32 (N, classes) and add up to 1. Both results are new tensors. ``index`` is
        the batch's in its epoch, over all ranks.
        """
        if not isinstance(images, torch.Tensor):
            raise ConfigError("Mixing takes the images of one crop, not those of all crops")
        height, width = images.shape[2:]
        share, box = self.draw(epoch=epoch, index=index, height=height, width=width)
        mixed = mix_images(images, share) if box is None else paste_box(images, box)
        return mixed, mix_labels(labels, self._classes, share)

    def draw(self, *, epoch: int, index: int, height: int, width: int) -> tuple[float, Box | None]:
        """Return the share of each image that remains, and for CutMix the box (x, y, w, h)."""
        key = derive_key(Purpose.MIXING, self._seed, epoch, index)
        generator = np.random.Generator(np.random.PCG64(key))
        is_cutmix = self._cutmix_alpha > 0
        if is_cutmix and self._mixup_alpha > 0:
            is_cutmix = generator.random() < CUTMIX_SHARE
        if not is_cutmix:
            return float(generator.beta(self._mixup_alpha, self._mixup_alpha)), None
        share = float(generator.beta(self._cutmix_alpha, self._cutmix_alpha))
        centre = int(generator.integers(width)), int(generator.integers(height))
        box = cutmix_box(share, centre, height, width)
        return 1.0 - box[2] * box[3] / (width * height), box


def cutmix_box(share: float, centre: tuple[int, int], height: int, width: int) -> Box:
    """Return the box (x, y, w, h) about ``centre`` (x, y), cut off at the image's borders.

    Before that, and but for rounding down, it has ``1 - share`` of the image's area.
    """
    half = 0.5 * math.sqrt(1.0 - share)
    half_width, half_height = int(half * width), int(half * height)
    left, top = max(centre[0] - half_width, 0), max(centre[1] - half_height, 0)
    right, bottom = min(centre[0] + half_width, width), min(centre[1] + half_height, height)
    return left, top, right - left, bottom - top


def mix_images(images: torch.Tensor, share: float) -> torch.Tensor:
    """Return ``share`` of each image plus the rest of the one before it, the last one's first."""
    return _previous(images).mul_(1.0 - share).add_(images.mul(share))


def paste_box(images: torch.Tensor, box: Box) -> torch.Tensor:
    """Return ``images`` with the pixels of the image before in ``box`` (x, y, w, h)."""
    left, top, width, height = box
    rows, columns = slice(top, top + height), slice(left, left + width)
    pasted = images.clone()
    pasted[..., rows, columns] = _previous(images[..., rows, columns])
    return pasted


def mix_labels(labels: torch.Tensor, classes: int, share: float) -> torch.Tensor:
    """Return float32 (N, classes) of int64 ``labels`` (N,), mixed as ``mix_images`` does."""
    return mix_images(nn.functional.one_hot(labels, classes).float(), share)


def _previous(batch: torch.Tensor) -> torch.Tensor:
    """Return a copy of ``batch`` moved by one row, in its memory format."""
    # On CUDA, torch.roll returns a channels_last batch in another format.
    return torch.cat((batch[-1:], batch[:-1]))

"""Compares our mixup and CutMix with torchvision's: ``compare_mixing.py``, as JSON lines.

Each line is of one batch: torchvision draws at random, we mix by the numbers that it drew. The
share comes from its Beta distribution, a box from the numbers of its two calls of ``randint``.
"""

import json
import sys
from collections.abc import Callable
from typing import Any

import torch
from torchvision.transforms import v2

from trainer_client.reference.mixing import cutmix_box, mix_images, mix_labels, paste_box

CLASSES, ROWS, HEIGHT, WIDTH, TIMES = 7, 5, 31, 44, 50
randint = torch.randint
drawn: list[float] = []


def record(draw: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
    def call(*arguments: Any, **options: Any) -> torch.Tensor:
        values = draw(*arguments, **options)
        drawn.append(values.item())
        return values

    return call


def compare(kind: str, alpha: float, dtype: torch.dtype) -> dict[str, object]:
    images = torch.randn(ROWS, 4, HEIGHT, WIDTH).to(dtype)
    labels = randint(CLASSES, (ROWS,))
    theirs = (v2.MixUp if kind == "mixup" else v2.CutMix)(alpha=alpha, num_classes=CLASSES)
    drawn.clear()
    theirs._dist.sample = record(theirs._dist.sample)
    torch.randint = record(randint)
    their_images, their_labels = theirs(images, labels)
    torch.randint = randint
    share = drawn[0]
    if kind == "mixup":
        mixed = mix_images(images, share)
    else:
        centre_x, centre_y = map(int, drawn[1:])
        box = cutmix_box(share, (centre_x, centre_y), HEIGHT, WIDTH)
        share = 1.0 - box[2] * box[3] / (WIDTH * HEIGHT)
        mixed = paste_box(images, box)
    soft = mix_labels(labels, CLASSES, share)
    return {
        "kind": kind,
        "dtype": str(dtype).removeprefix("torch."),
        "alpha": alpha,
        "draws": len(drawn),
        "share": share,
        "types": (mixed.dtype, soft.dtype) == (their_images.dtype, their_labels.dtype),
        "images": torch.equal(mixed, their_images),
        "labels": torch.equal(soft, their_labels),
    }


torch.manual_seed(0)
for kind in ("mixup", "cutmix"):
    for dtype in (torch.float32, torch.bfloat16, torch.float16):
        for number in range(TIMES):
            found = compare(kind, (0.2, 1.0)[number % 2], dtype)
            sys.stdout.write(f"{json.dumps(found)}\n")

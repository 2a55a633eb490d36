"""Compares augmentations with torchvision's: ``compare_augmentations.py``, as JSON lines.

Both get the same draws: those of our streams, in place of torch's. Both use the environment's
Pillow. Each line is of one recipe and image size: the images that differ, and for the blur the
largest difference and the share of levels that differ.
"""

import itertools
import json
import sys
from collections.abc import Callable, Iterable, Iterator
from typing import Any, Final
from unittest import mock

import numpy as np
import torch
from PIL import Image
from torchvision import transforms
from torchvision.transforms import autoaugment, functional

from feeder.plan.augment import plan_augmentations
from feeder.plan.recipe import Recipe
from feeder.plan.rng import Stream, uniforms
from feeder.sample.augment_ops import apply_steps

SEED: Final = 5
SAMPLES: Final = {8: 100, 32: 200, 97: 50, 224: 20, 600: 2}
AUGMIX_OPERATIONS: Final = 13

Draws = list[float]


def picture(sample: int, size: int) -> Image.Image:
    """Shapes in a narrow range of colours, or noise, as the sample's number has it."""
    rng = np.random.default_rng(sample)
    if sample % 3 == 0:
        return Image.fromarray(rng.integers(0, 256, (size, size, 3), np.uint8))
    coarse = rng.normal(rng.integers(60, 190, 3), rng.integers(4, 70), (5, 5, 3))
    image = Image.fromarray(coarse.clip(0, 255).astype(np.uint8))
    return image.resize((size, size), Image.Resampling.BICUBIC)


def torch_integers(integers: Iterable[int]) -> Any:
    """Let torch.randint return these, in order."""
    return mock.patch("torch.randint", side_effect=[torch.tensor([each]) for each in integers])


def torch_draw(draw: float) -> Any:
    return mock.patch("torch.rand", return_value=torch.tensor([draw], dtype=torch.float64))


def auto_augment(draws: Draws, image: Image.Image, _: Recipe) -> Image.Image:
    policy, *rest = draws
    transform = transforms.AutoAugment()
    params = (
        int(policy * len(transform.policies)),
        torch.tensor(rest[::2], dtype=torch.float64),
        torch.tensor([int(sign >= 0.5) for sign in rest[1::2]]),
    )
    with mock.patch.object(transforms.AutoAugment, "get_params", return_value=params):
        return transform(image)


def negative(sign: float) -> int:
    return int(sign < 0.5)


def rand_augment(draws: Draws, image: Image.Image, recipe: Recipe) -> Image.Image:
    transform = transforms.RandAugment(recipe.rand_augment_ops, recipe.rand_augment_magnitude)
    space = [*transform._augmentation_space(31, (1, 1)).values()]

    def integers() -> Iterator[int]:
        for choice, sign in zip(draws[::2], draws[1::2], strict=True):
            yield int(choice * len(space))
            if space[int(choice * len(space))][1]:
                yield negative(sign)

    with torch_integers(integers()):
        return transform(image)


def trivial_augment(draws: Draws, image: Image.Image, _: Recipe) -> Image.Image:
    transform = transforms.TrivialAugmentWide()
    choice, strength, sign = draws
    space = [*transform._augmentation_space(31).values()]
    magnitudes, signed = space[int(choice * len(space))]
    numbers = [int(choice * len(space))]
    numbers += [int(strength * 31)] * (magnitudes.ndim > 0) + [negative(sign)] * signed
    with torch_integers(numbers):
        return transform(image)


def _lengths(cuts: Draws, alpha: int) -> torch.Tensor:
    """The Dirichlet distribution as the lengths between sorted cuts of 0 .. 1."""
    ends = [0.0, *sorted(cuts)[alpha - 1 :: alpha], 1.0]
    return torch.tensor([[b - a for a, b in itertools.pairwise(ends)]])


def augmix(draws: Draws, image: Image.Image, recipe: Recipe) -> Image.Image:
    """Its operations are Pillow's instead of those on tensors, and take the nearest pixel.

    But for Posterize, which is the same on both, and on tensors keeps 0 bits, too.
    """
    width, alpha, depth = recipe.augmix_width, recipe.augmix_alpha, recipe.augmix_depth
    transform = transforms.AugMix(
        recipe.augmix_severity,
        width,
        depth or -1,
        float(alpha),
        interpolation=functional.InterpolationMode.NEAREST,
    )
    apply_either = autoaugment._apply_op

    def apply(batch: torch.Tensor, name: str, *arguments: Any, **options: Any) -> torch.Tensor:
        if name == "Posterize":
            return apply_either(batch, name, *arguments, **options)
        image = apply_either(functional.to_pil_image(batch[0]), name, *arguments, **options)
        return functional.pil_to_tensor(image)[None]

    first, end = 2 * alpha - 1, (2 + width) * alpha - 2
    weights = _lengths(draws[:first], alpha), _lengths(draws[first:end], alpha)
    space = [*transform._augmentation_space(10, (1, 1)).values()]
    assert len(space) == AUGMIX_OPERATIONS

    def integers() -> Iterator[int]:
        for chain in np.array_split(np.array(draws[end:]), width):
            length = depth or 1 + int(chain[0] * 3)
            if not depth:
                yield length
            for choice, strength, sign in chain[1 : 1 + 3 * length].reshape(-1, 3).tolist():
                magnitudes, signed = space[int(choice * len(space))]
                yield int(choice * len(space))
                if magnitudes.ndim:
                    yield int(strength * recipe.augmix_severity)
                if signed:
                    yield negative(sign)

    with (
        torch_integers(integers()),
        mock.patch.object(autoaugment, "_apply_op", apply),
        mock.patch.object(transform, "_sample_dirichlet", side_effect=weights),
    ):
        return transform(image)


def jitter(draws: Draws, image: Image.Image, recipe: Recipe) -> Image.Image:
    fields = [recipe.brightness, recipe.contrast, recipe.saturation, recipe.hue]
    factors = [low + u * (high - low) for u, (low, high) in zip(draws, fields, strict=False)]
    order = [*itertools.permutations(range(4))][int(draws[4] * 24)]
    params = (torch.tensor(order), *factors)
    transform = transforms.RandomApply([transforms.ColorJitter(*fields)], recipe.jitter_probability)
    with (
        mock.patch.object(transforms.ColorJitter, "get_params", return_value=params),
        torch_draw(draws[5]),
    ):
        return transform(image)


def by_chance(transform: Callable[[Recipe], Any]) -> Callable[[Draws, Image.Image, Recipe], Any]:
    def apply(draws: Draws, image: Image.Image, recipe: Recipe) -> Image.Image:
        with torch_draw(draws[0]):
            return transform(recipe)(image)

    return apply


def blur(draws: Draws, image: Image.Image, recipe: Recipe) -> Image.Image:
    low, high = recipe.blur_sigma
    size = recipe.blur_kernel_size or 2 * (recipe.image_size // 10 // 2) + 1  # SimCLR's
    transform = transforms.GaussianBlur(size, recipe.blur_sigma)
    sigma = low + draws[1] * (high - low)
    with mock.patch.object(transforms.GaussianBlur, "get_params", return_value=sigma):
        return transform(image)


FEW: Final = {"rand_augment_ops": 3, "rand_augment_magnitude": 21}
JITTER: Final = {"brightness": 0.4, "contrast": 0.4, "saturation": 0.2, "hue": 0.1}
MIX: Final = {"augmix_severity": 10, "augmix_width": 2, "augmix_depth": 4, "augmix_alpha": 3}
CASES: Final[tuple[tuple[dict[str, Any], Stream, int, Callable[..., Image.Image]], ...]] = (
    ({"auto_augment": "auto-augment"}, Stream.AUTO_AUGMENT, 5, auto_augment),
    ({"auto_augment": "rand-augment"}, Stream.RAND_AUGMENT, 4, rand_augment),
    ({"auto_augment": "rand-augment", **FEW}, Stream.RAND_AUGMENT, 6, rand_augment),
    ({"auto_augment": "trivial-augment-wide"}, Stream.TRIVIAL_AUGMENT, 3, trivial_augment),
    ({"auto_augment": "augmix"}, Stream.AUGMIX, 3 + 3 * 10, augmix),
    ({"auto_augment": "augmix", **MIX}, Stream.AUGMIX, 10 + 2 * 13, augmix),
    ({**JITTER, "jitter_probability": 0.8}, Stream.JITTER, 6, jitter),
    (
        {"greyscale_probability": 0.5},
        Stream.GREYSCALE,
        1,
        by_chance(lambda recipe: transforms.RandomGrayscale(recipe.greyscale_probability)),
    ),
    (
        {"vertical_flip_probability": 0.5},
        Stream.VERTICAL_FLIP,
        1,
        by_chance(lambda recipe: transforms.RandomVerticalFlip(recipe.vertical_flip_probability)),
    ),
    (
        {"solarise_probability": 0.5, "solarise_threshold": 100},
        Stream.SOLARISE,
        1,
        by_chance(lambda recipe: transforms.RandomSolarize(100, recipe.solarise_probability)),
    ),
    ({"blur_probability": 1.0}, Stream.BLUR, 2, blur),
    ({"blur_probability": 1.0, "blur_kernel_size": 9}, Stream.BLUR, 2, blur),
    ({"blur_probability": 1.0, "blur_sigma": (0.05, 9.0)}, Stream.BLUR, 2, blur),
)


def linspace(start: float, end: float, steps: int, **_: Any) -> torch.Tensor:
    """torch.linspace as on a CPU that fuses no multiplication with an addition.

    Where it does, bin 15 of TrivialAugmentWide's translations is 15.999999, cut to 15 pixels.
    """
    low, high = torch.tensor(start), torch.tensor(end)
    step, index = (high - low) / max(steps - 1, 1), torch.arange(steps, dtype=torch.float32)
    return torch.where(index < steps // 2, low + step * index, high - step * index.flip(0))


def compare(
    fields: dict[str, Any],
    stream: Stream,
    count: int,
    theirs: Callable[..., Image.Image],
    size: int,
) -> dict[str, Any]:
    ids = np.arange(SAMPLES[size])
    recipe = Recipe.for_split("train", batch_size=1, image_size=size, **fields)
    planned = plan_augmentations(recipe, seed=SEED, epoch=1, sample_ids=ids)
    draws = uniforms(SEED, 1, ids, stream, count).tolist()
    differing, levels, largest, changed = 0, 0, 0, 0
    for sample, (augmentation, row) in enumerate(zip(planned, draws, strict=True)):
        image = picture(sample, size)
        ours = np.asarray(apply_steps(image, augmentation.steps)).astype(int)
        difference = np.abs(ours - np.asarray(theirs(row, image, recipe)))
        differing += bool(difference.any())
        levels += int(np.count_nonzero(difference))
        largest = max(largest, int(difference.max()))
        changed += bool((ours != np.asarray(image)).any())
    return {
        "fields": fields,
        "size": size,
        "images": len(ids),
        "changed": changed,
        "differing": differing,
        "largest": largest,
        "share": levels / (len(ids) * size * size * 3),
    }


def main() -> None:
    torch.set_num_threads(1)
    with mock.patch("torch.linspace", linspace):
        for case, size in itertools.product(CASES, SAMPLES):
            sys.stdout.write(json.dumps(compare(*case, size=size)) + "\n")
            sys.stdout.flush()


main()

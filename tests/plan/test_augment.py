"""The augmentations of each sample: torchvision's rules, independent streams, fair choices."""

import math
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.plan.augment import Augmentation, is_augmented, plan_augmentations
from feeder.plan.auto_augment import (
    OPERATIONS,
    rand_augment_magnitudes,
    trivial_augment_magnitudes,
)
from feeder.plan.crop import TRIES, plan_crops
from feeder.plan.erasing import NOISE_MEAN, NOISE_STD
from feeder.plan.recipe import MEAN_COLOUR, Recipe
from feeder.plan.rng import Stream, uniforms
from tests.plan.fairness import chi_square_z, ks_statistic
from trainer_client import IMAGENET_MEAN, IMAGENET_STD

ALL_ON: dict[str, Any] = {
    "auto_augment": "rand-augment",
    "brightness": 0.4,
    "contrast": 0.4,
    "saturation": 0.4,
    "hue": 0.1,
    "vertical_flip_probability": 0.5,
    "greyscale_probability": 0.5,
    "blur_probability": 0.5,
    "solarise_probability": 0.5,
    "erasing_probability": 0.5,
}
POLICIES = ("rand-augment", "trivial-augment-wide", "auto-augment", "augmix")
OF_ITS_OWN = {  # operations that no policy and no jitter has here, by their field
    "vertical_flip_probability": "vertical-flip",
    "greyscale_probability": "greyscale",
    "blur_probability": "blur",
}


def recipe_of(**fields: Any) -> Recipe:
    return Recipe.for_split("train", batch_size=1, **fields)


def plan(recipe: Recipe, ids: Any = 500, *, seed: int = 1, epoch: int = 0) -> list[Augmentation]:
    return plan_augmentations(
        recipe, seed=seed, epoch=epoch, sample_ids=np.arange(ids) if isinstance(ids, int) else ids
    )


def erased(augmentation: Augmentation) -> tuple[Any, ...] | None:
    box = augmentation.erasure
    return None if box is None else (box.x, box.y, box.width, box.height, box.levels.tolist())


@pytest.mark.parametrize(
    ("auto", "names"),
    [
        (
            "rand-augment",
            "rotate saturation, contrast equalise, translate-x autocontrast, brightness solarise, "
            "equalise rotate",
        ),
        ("trivial-augment-wide", "translate-x, equalise, , translate-y, solarise"),
    ],
)
def test_a_new_operation_changes_no_draw_of_the_others(auto: str, names: str) -> None:
    """The list that draws index is torchvision's: with one more, all of these would be others."""
    assert " ".join(OPERATIONS) == (
        "identity shear-x shear-y translate-x translate-y rotate brightness saturation contrast "
        "sharpness posterise solarise autocontrast equalise"
    )
    planned = plan(recipe_of(auto_augment=auto), 5)
    assert ", ".join(" ".join(name for name, _ in each.steps) for each in planned) == names


def _torchvision_space(shear: float, move: float, turn: float, enhance: float, bits: int) -> Any:
    """_augmentation_space of RandAugment and TrivialAugmentWide, with torch itself."""
    # Imported here, as that takes as long as collecting all pure tests; and each process collects.
    import torch

    return {
        "shear-x": torch.linspace(0.0, shear, 31),
        "shear-y": torch.linspace(0.0, shear, 31),
        "translate-x": torch.linspace(0.0, move, 31),
        "translate-y": torch.linspace(0.0, move, 31),
        "rotate": torch.linspace(0.0, turn, 31),
        "brightness": torch.linspace(0.0, enhance, 31),
        "saturation": torch.linspace(0.0, enhance, 31),
        "contrast": torch.linspace(0.0, enhance, 31),
        "sharpness": torch.linspace(0.0, enhance, 31),
        "posterise": 8 - (torch.arange(31) / (30 / bits)).round().int(),
        "solarise": torch.linspace(255.0, 0.0, 31),
    }


def _check_space(ours: Any, theirs: Any) -> None:
    assert set(ours) == set(theirs)
    for operation, magnitudes in theirs.items():
        expected = magnitudes.numpy()
        # torch's last bit depends on whether the CPU fuses multiply and add, which makes bin 15 of
        # TrivialAugmentWide 15.999999 and so 15 pixels on some; here it is 16 on all.
        bits = np.spacing(expected.max(), dtype=np.float32)
        assert np.abs(ours[operation] - expected).max() <= bits, operation
        assert ours[operation].dtype == np.float32
        if operation.startswith(("translate", "posterise")):
            sure = np.abs(expected - np.rint(expected)) > bits
            sure |= expected == np.rint(expected)
            whole = ours[operation].astype(int)
            assert np.array_equal(whole[sure], expected.astype(int)[sure]), operation


@pytest.mark.parametrize("size", [8, 32, 96, 176, 224, 331, 662])
def test_magnitudes_are_torchvisions(size: int) -> None:
    theirs = _torchvision_space(0.3, 150.0 / 331.0 * size, 30.0, 0.9, 4)
    _check_space(rand_augment_magnitudes(size), theirs)
    _check_space(trivial_augment_magnitudes(), _torchvision_space(0.99, 32.0, 135.0, 0.99, 6))


def test_rand_augment_of_224_at_magnitude_9() -> None:
    """The amounts of the usual setting, computed by hand."""
    steps = {step for each in plan(recipe_of(auto_augment="rand-augment")) for step in each.steps}
    amounts: dict[str, list[float]] = {}
    for operation, amount in sorted(steps):
        amounts.setdefault(operation, []).append(round(amount, 5))
    assert amounts == {
        "shear-x": [-0.09, 0.09],
        "shear-y": [-0.09, 0.09],
        "translate-x": [-30.0, 30.0],  # 150 / 331 * 224 * 9 / 30 = 30.45
        "translate-y": [-30.0, 30.0],
        "rotate": [-9.0, 9.0],
        "brightness": [0.73, 1.27],
        "saturation": [0.73, 1.27],
        "contrast": [0.73, 1.27],
        "sharpness": [0.73, 1.27],
        "posterise": [7.0],  # 8 - round(9 / 7.5)
        "solarise": [178.5],
        "autocontrast": [0.0],
        "equalise": [0.0],
    }


def _check_choice(rows: list[Augmentation], places: int) -> None:
    """Each operation is as frequent as the others."""
    names = [name for each in rows for name, _ in each.steps]
    counts = [names.count(operation) for operation in OPERATIONS[1:]]
    counts.append(places * len(rows) - len(names))  # identity
    assert abs(chi_square_z(np.array(counts), places * len(rows) / len(OPERATIONS))) < 4


def test_rand_augment_chooses_operations_and_signs_uniformly() -> None:
    few, rows = (
        plan(recipe_of(auto_augment="rand-augment", rand_augment_ops=ops), 14_000) for ops in (2, 3)
    )
    _check_choice(rows, 3)
    turns = np.array([amount > 0 for r in rows for name, amount in r.steps if name == "rotate"])
    assert abs(turns.mean() - 0.5) < 2 / math.sqrt(len(turns))
    for less, more in zip(few, rows, strict=True):
        assert more.steps[: len(less.steps)] == less.steps


def test_trivial_augment_applies_one_operation_of_random_strength() -> None:
    rows = plan(recipe_of(auto_augment="trivial-augment-wide"), 14_000)
    assert {len(each.steps) for each in rows} == {0, 1}
    _check_choice(rows, 1)
    rotations = np.array([s[1] for each in rows for s in each.steps if s[0] == "rotate"])
    bins = np.bincount(np.rint(np.abs(rotations) / 4.5).astype(int), minlength=31)
    assert len(bins) == 31
    assert abs(chi_square_z(bins, len(rotations) / 31)) < 4
    moves = {abs(s[1]) for each in rows for s in each.steps if s[0].startswith("translate")}
    assert moves == {32 * strength // 30 for strength in range(31)}, "whole pixels, cut"


def test_jitter_draws_uniform_factors_in_every_order() -> None:
    rows = plan(recipe_of(brightness=0.4, contrast=(0.5, 2), saturation=0.3, hue=0.1), 9600)
    orders: dict[tuple[str, ...], int] = {}
    amounts: dict[str, list[float]] = {}
    for each in rows:
        order = tuple(name for name, _ in each.steps)
        orders[order] = orders.get(order, 0) + 1
        for name, amount in each.steps:
            amounts.setdefault(name, []).append(amount)
    assert len(orders) == 24
    assert abs(chi_square_z(np.array(list(orders.values())), 400)) < 4
    bounds = {
        "brightness": (0.6, 1.4),
        "contrast": (0.5, 2.0),
        "saturation": (0.7, 1.3),
        "hue": (-0.1, 0.1),
    }
    assert set(amounts) == set(bounds)
    for name, (low, high) in bounds.items():
        drawn = np.array(amounts[name])
        assert drawn.min() >= low
        assert drawn.max() < high
        assert ks_statistic(drawn, np.linspace(low, high, 9600)) < 1.95, name


@pytest.mark.parametrize("probability", [0.2, 1.0])
def test_greyscale_comes_with_its_probability(probability: float) -> None:
    rows = plan(recipe_of(greyscale_probability=probability), 10_000)
    assert {each.steps for each in rows} <= {(("greyscale", 0.0),), ()}
    assert abs(np.mean([len(each.steps) for each in rows]) - probability) < 0.016


@pytest.mark.parametrize(
    ("field", "step"),
    [
        ("vertical_flip_probability", ("vertical-flip", 0.0)),
        ("solarise_probability", ("solarise", 128.0)),
    ],
)
def test_flips_and_solarisation_come_with_their_probability(field: str, step: Any) -> None:
    rows = plan(recipe_of(**{field: 0.2}), 10_000)
    assert {each.steps for each in rows} == {(step,), ()}
    assert abs(np.mean([len(each.steps) for each in rows]) - 0.2) < 0.016


def test_a_jitter_with_a_probability_is_the_same_jitter_or_none() -> None:
    always, sometimes = (plan(recipe_of(hue=0.1, jitter_probability=p), 10_000) for p in (1, 0.8))
    assert all(b.steps in (a.steps, ()) for a, b in zip(always, sometimes, strict=True))
    assert abs(np.mean([bool(each.steps) for each in sometimes]) - 0.8) < 0.016
    assert not any(each.steps for each in plan(recipe_of(hue=0.1, jitter_probability=0)))


def test_blurs_come_with_their_probability_and_uniform_sigmas() -> None:
    rows = plan(recipe_of(blur_probability=0.3), 10_000)
    blurs = [step[1] for each in rows for step in each.steps]
    assert abs(len(blurs) / 10_000 - 0.3) < 0.018
    sigmas = np.array([blur.sigma for blur in blurs])
    assert sigmas.min() >= 0.1
    assert sigmas.max() < 2.0
    assert ks_statistic(sigmas, np.linspace(0.1, 2.0, 10_000)) < 1.95
    for blur in blurs:
        assert 1 <= len(blur.weights) <= 12  # a kernel of 23
        assert [*blur.weights] == sorted(blur.weights, reverse=True)
        assert abs(2 * sum(blur.weights) - blur.weights[0] - 1) < 1e-5
    same = plan(recipe_of(blur_probability=1, blur_kernel_size=9), 10_000)
    chosen = [each.steps[0][1].sigma for each, one in zip(same, rows, strict=True) if one.steps]
    assert chosen == sigmas.tolist()


def erase_by_hand(draws: list[float], recipe: Recipe) -> tuple[int, int, int, int] | None:
    """torchvision's RandomErasing.forward and get_params, line by line; x, y, width, height."""
    size = recipe.image_size
    if not draws[0] < recipe.erasing_probability:
        return None
    low, high = recipe.erasing_scale
    log_low, log_high = (math.log(ratio) for ratio in recipe.erasing_ratio)
    for attempt in range(TRIES):
        area = size * size * (low + draws[1 + attempt] * (high - low))
        ratio = math.exp(log_low + draws[1 + TRIES + attempt] * (log_high - log_low))
        height = round(math.sqrt(area * ratio))
        width = round(math.sqrt(area / ratio))
        if not (height < size and width < size):
            continue
        if not height or not width:
            return None  # torchvision then erases nothing
        y = math.floor(draws[-2] * (size - height + 1))
        x = math.floor(draws[-1] * (size - width + 1))
        return x, y, width, height
    return None


@settings(max_examples=40)
@given(
    size=st.integers(8, 300),
    probability=st.floats(0.1, 1),
    scale=st.tuples(st.floats(0, 0.5), st.floats(0.5, 1)),
    ratio=st.tuples(st.floats(0.05, 1), st.floats(1, 20)),
    seed=st.integers(0, 2**64 - 1),
)
def test_erasing_follows_torchvisions_rules(
    size: int, probability: float, scale: Any, ratio: Any, seed: int
) -> None:
    recipe = recipe_of(
        image_size=size, erasing_probability=probability, erasing_scale=scale, erasing_ratio=ratio
    )
    draws = uniforms(seed, 3, np.arange(60), Stream.ERASING, 2 * TRIES + 3).tolist()
    for each, row in zip(plan(recipe, 60, seed=seed, epoch=3), draws, strict=True):
        box = erased(each)
        assert (box[:4] if box else None) == erase_by_hand(row, recipe)
        assert box is None or box[4] == list(MEAN_COLOUR)


def test_erasing_uses_the_mean_and_deviation_of_the_clients() -> None:
    assert (NOISE_MEAN, NOISE_STD) == (IMAGENET_MEAN, IMAGENET_STD)
    mean, std = np.array(IMAGENET_MEAN), np.array(IMAGENET_STD)
    assert np.abs((np.array(MEAN_COLOUR) / 255 - mean) / std).max() < 0.01
    noisy = plan(recipe_of(erasing_probability=1, erasing_value="noise"), 20)
    levels = np.concatenate([e.erasure.levels.reshape(-1, 3) for e in noisy if e.erasure])
    values = (levels / 255 - mean) / std
    assert np.abs(values.mean(axis=0)).max() < 0.02
    assert np.abs(values.std(axis=0) - 1).max() < 0.05  # levels cut the tails off
    correlation = np.corrcoef(values.T)
    assert np.abs(correlation - np.eye(3)).max() < 0.02


@settings(max_examples=30)
@given(
    seed=st.integers(0, 2**64 - 1),
    epoch=st.integers(0, 2**32 - 1),
    ids=st.lists(st.integers(0, 2**40), min_size=1, max_size=9),
    auto=st.sampled_from(POLICIES),
    value=st.sampled_from(["noise", (1, 2, 3)]),
)
def test_a_row_depends_on_its_sample_only(
    seed: int, epoch: int, ids: list[int], auto: str, value: Any
) -> None:
    recipe = recipe_of(**ALL_ON | {"auto_augment": auto, "erasing_value": value}, image_size=16)
    together = plan(recipe, np.array(ids), seed=seed, epoch=epoch)
    for sample_id, each in zip(ids, together, strict=True):
        alone = plan(recipe, np.array([sample_id]), seed=seed, epoch=epoch)[0]
        assert alone.steps == each.steps
        assert erased(alone) == erased(each)


def is_solarised(augmentation: Augmentation) -> bool:
    """By its own field: RandAugment's threshold is another, and no last step."""
    return augmentation.steps[-1] == ("solarise", 128.0)


@pytest.mark.parametrize("off", list(ALL_ON))
def test_disabling_one_augmentation_does_not_change_the_others_or_the_crops(off: str) -> None:
    everything = recipe_of(**ALL_ON)
    without = recipe_of(**{name: value for name, value in ALL_ON.items() if name != off})
    for all_on, fewer in zip(plan(everything), plan(without), strict=True):
        assert erased(fewer) == (None if off == "erasing_probability" else erased(all_on))
        # Flip, RandAugment, four jitters, greyscale, blur, solarise.
        names = [name for name, _ in all_on.steps]
        kept, first = [*all_on.steps], int(names[0] == "vertical-flip")
        last = len(names) - sum(name in ("greyscale", "blur") for name in names)
        last -= is_solarised(all_on)
        if off == "auto_augment":
            del kept[first : last - 4]
        elif off in ("brightness", "contrast", "saturation", "hue"):
            del kept[names.index(off, last - 4)]
        elif off == "solarise_probability":
            del kept[len(kept) - is_solarised(all_on) :]
        elif off in OF_ITS_OWN:
            kept = [step for step in kept if step[0] != OF_ITS_OWN[off]]
        assert fewer.steps == tuple(kept)
    sides = np.full(100, 400)
    crops = [
        plan_crops(recipe, seed=1, epoch=0, sample_ids=np.arange(100), widths=sides, heights=sides)
        for recipe in (everything, without, recipe_of())
    ]
    for other in crops[1:]:
        assert (crops[0].boxes == other.boxes).all()
        assert (crops[0].flips == other.flips).all()


@pytest.mark.parametrize("change", [{"seed": 2}, {"epoch": 1}])
def test_seed_and_epoch_change_every_kind_of_draw(change: dict[str, int]) -> None:
    rows, others = (plan(recipe_of(**ALL_ON), 200, **fields) for fields in ({}, change))
    assert not any(one.steps == other.steps for one, other in zip(rows, others, strict=True))
    boxes, other_boxes = ({box[:4] for e in each if (box := erased(e))} for each in (rows, others))
    assert len(boxes & other_boxes) < 5


@pytest.mark.parametrize(
    ("fields", "stream"),
    [
        ({"auto_augment": "rand-augment"}, Stream.RAND_AUGMENT),
        ({"auto_augment": "trivial-augment-wide"}, Stream.TRIVIAL_AUGMENT),
        ({"brightness": 0.4}, Stream.JITTER),
        ({"hue": 0.1}, Stream.JITTER),
        ({"auto_augment": "auto-augment"}, Stream.AUTO_AUGMENT),
        ({"auto_augment": "augmix"}, Stream.AUGMIX),
        ({"vertical_flip_probability": 0.5}, Stream.VERTICAL_FLIP),
        ({"greyscale_probability": 0.5}, Stream.GREYSCALE),
        ({"blur_probability": 0.5}, Stream.BLUR),
        ({"solarise_probability": 0.5}, Stream.SOLARISE),
        ({"erasing_probability": 0.5}, Stream.ERASING),
    ],
)
def test_each_augmentation_draws_from_its_own_stream_if_it_is_on(
    fields: dict[str, Any], stream: Stream, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn: list[Stream] = []

    def record(seed: int, epoch: int, ids: Any, stream: Stream, count: int) -> Any:
        drawn.append(stream)
        return uniforms(seed, epoch, ids, stream, count)

    for module in ("augment", "auto_augment"):
        monkeypatch.setattr(f"feeder.plan.{module}.uniforms", record)
    monkeypatch.setattr("feeder.plan.erasing.uniforms", record)
    default = recipe_of(packing="uint8-chw-rgb", interpolation="bicubic")
    assert not is_augmented(default)
    assert all(e.steps == () and e.erasure is None for e in plan(default))
    assert not drawn
    assert is_augmented(recipe_of(**fields))
    plan(recipe_of(**fields))
    assert drawn == [stream]

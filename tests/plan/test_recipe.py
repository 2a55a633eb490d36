"""Recipes: defaults of the splits, ranges of all fields, equal fingerprints for equal recipes."""

import hashlib
import json
import math
from typing import Any, get_args

import msgspec
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.epoch import LastBatch, ShardLayout
from feeder.plan.packing import Packing
from feeder.plan.recipe import AutoAugment, Recipe, parse_field

TRAIN = Recipe.for_split("train", batch_size=256)
VAL = Recipe.for_split("val", batch_size=256)

recipes = st.builds(
    Recipe,
    split=st.sampled_from(["train", "val"]),
    batch_size=st.integers(1, 65_536),
    order_batch_size=st.integers(0, 65_536),
    lanes=st.integers(0, 4096),
    working_set=st.integers(0, 2**60) | st.tuples(st.integers(1, 2**48), st.integers(1, 2**48)),
    image_size=st.integers(8, 2048),
    crop=st.sampled_from(["random-resized", "centre"]),
    scale=st.tuples(st.floats(1e-6, 1), st.floats(1e-6, 1)).map(lambda pair: tuple(sorted(pair))),
    ratio=st.tuples(st.floats(0.01, 100), st.floats(0.01, 100)).map(
        lambda pair: tuple(sorted(pair))
    ),
    resize_size=st.integers(4096, 8192),
    flip_probability=st.floats(0, 1),
    partial_decode=st.booleans(),
    dct_scaling=st.booleans(),
    shuffle=st.booleans(),
    last_batch=st.sampled_from(LastBatch),
    packing=st.sampled_from(get_args(Packing)),
    interpolation=st.sampled_from(["bilinear", "bicubic", "box"]),
    auto_augment=st.sampled_from(get_args(AutoAugment)),
    rand_augment_ops=st.integers(1, 16),
    rand_augment_magnitude=st.integers(0, 30),
    brightness=st.floats(0, 9),
    contrast=st.tuples(st.floats(0, 1), st.floats(1, 10)),
    hue=st.floats(0, 0.5),
    greyscale_probability=st.floats(0, 1),
    erasing_probability=st.floats(0, 1),
    erasing_scale=st.tuples(st.floats(0, 0.5), st.floats(0.5, 1)),
    erasing_value=st.just("noise") | st.tuples(*[st.integers(0, 255)] * 3),
    augmix_severity=st.integers(1, 10),
    augmix_width=st.integers(1, 10),
    augmix_depth=st.integers(0, 10),
    augmix_alpha=st.integers(1, 10),
    jitter_probability=st.floats(0, 1),
    vertical_flip_probability=st.floats(0, 1),
    blur_probability=st.floats(0, 1),
    blur_sigma=st.tuples(st.floats(0.01, 1), st.floats(1, 100)),
    blur_kernel_size=st.sampled_from([0, 1, 9, 15]),
    solarise_probability=st.floats(0, 1),
    solarise_threshold=st.integers(0, 255),
)


def test_val_crops_the_centre_in_order_and_pads_unless_overridden() -> None:
    assert (VAL.crop, VAL.flip_probability) == ("centre", 0.0)
    assert (VAL.dct_scaling, VAL.shuffle, VAL.last_batch) == (False, False, LastBatch.PAD)
    recipe = Recipe.for_split(
        "val", batch_size=8, image_size=160, last_batch="drop", scale=[0.5, 1]
    )
    assert (recipe.image_size, recipe.last_batch) == (160, LastBatch.DROP)
    assert isinstance(recipe.last_batch, LastBatch)
    assert recipe.scale == (0.5, 1.0)


@pytest.mark.parametrize(
    ("field", "message"),
    [
        ("flip_probabilty", "no field 'flip_probabilty'; nearest is 'flip_prob"),
        ("solarize_probability", "'solarize_probability'; nearest is 'solarise_probability'"),
        ("blur_probabilty", "'blur_probabilty'; nearest is 'blur_prob"),
        ("zoom", r"'zoom'; the fields are split, batch_size, .*, solarise_threshold$"),
        ("mixup", "'mixup': samples are mixed on the device, by the train"),
    ],
)
def test_an_unknown_field_names_the_nearest_one(field: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        Recipe.for_split("train", batch_size=8, **{field: 0.1})


REFUSED: dict[str, dict[str, list[object]]] = {
    "train or val": {"split": ["test", 3]},
    "random-resized or centre": {"crop": ["center"]},
    "int8-hwc-rgb or int8-hwc-rgbx or int8-chw-rgb or": {"packing": ["float32"]},
    "bilinear or bicubic or box or bilinear-no-antialias": {"interpolation": ["lanczos"]},
    "none or rand-augment or trivial-augment-wide or auto-augment or augmix": {
        "auto_augment": ["autoaugment", None]
    },
    "drop or pad": {"last_batch": ["keep", None]},
    "true or false": {"dct_scaling": [1], "partial_decode": ["no"], "shuffle": ["yes"]},
    "a whole number 1 .. 10": {
        "augmix_severity": [0, 11],
        "augmix_width": [0, 11],
        "augmix_alpha": [0, 0.5],
    },
    "a whole number 0 .. 10": {"augmix_depth": [-1, 11]},
    "a whole number 0 .. 255": {
        "blur_kernel_size": [-1, 256, 9.5],
        "solarise_threshold": [-1, 256],
    },
    "a whole number 1 .. 16": {"rand_augment_ops": [0, 17]},
    "a whole number 0 .. 30": {"rand_augment_magnitude": [-1, 31]},
    "a whole number 1 .. 65536": {"batch_size": [0, 65_537, 2.0, "8", True]},
    "a whole number 0 .. 65536": {"order_batch_size": [-1, 65_537, None]},
    "a whole number 0 .. 4096": {"lanes": [-1, 4097, None]},
    f"a whole number 0 .. {2**60}": {"working_set": [-1, 2**60 + 1, "16 GiB", (1, 2, 3)]},
    "a whole number 8 .. 2048": {"image_size": [7, 2049]},
    "a whole number 8 .. 8192": {"resize_size": [7, 8193]},
    "a number 0 .. 1": {
        "flip_probability": [-0.1, 1.1, math.nan, "0.5", True],
        "greyscale_probability": [1.5],
        "erasing_probability": ["often"],
        "jitter_probability": [None],
        "vertical_flip_probability": [-1],
        "blur_probability": [math.inf],
        "solarise_probability": [2],
    },
    "a number 0 .. 9 or two factors": {
        "brightness": [-0.1],
        "contrast": [9.5],
        "saturation": [True],
    },
    "0 <= least <= greatest <= 10": {"brightness": [(0.5, 10.5), (1.5, 0.5)]},
    "a number 0 .. 0.5 or two turns": {"hue": [0.6, math.nan]},
    "-0.5 <= least <= greatest <= 0.5": {"hue": [(-0.6, 0.1)]},
    "0 <= least <= greatest <= 1": {"erasing_scale": [(0.1, 1.5)]},
    "0.01 <= least <= greatest <= 100": {
        "erasing_ratio": [(0.0, 1.0)],
        "ratio": [(0.009, 1.0), (1.0, math.inf)],
        "blur_sigma": [(0.0, 2.0), (2.0, 0.1), (1.0, 101.0)],
    },
    "1e-06 <= least <= greatest <= 1": {
        "scale": [(0.0, 1.0), (0.5, 1.1), (0.9, 0.1), (0.1, math.nan), (0.1, 10**400)],
    },
    "two numbers (least, greatest)": {"scale": [0.5, (0.1, 0.2, 0.3), ("0.1", "0.2")]},
    "three levels (red, green, blue) 0 .. 255": {"erasing_value": ["random", (1, 2), 0]},
}
"""Values by what their field must be."""


@pytest.mark.parametrize("allowed", REFUSED)
def test_a_bad_field_is_refused_with_its_name_value_and_range(allowed: str) -> None:
    for field, values in REFUSED[allowed].items():
        for value in values:
            with pytest.raises(ConfigError) as caught:
                Recipe.for_split(**{"split": "train", "batch_size": 256, field: value})  # type: ignore[arg-type]
            message = str(caught.value)
            assert message.startswith(f"recipe: {field} must be ")
            assert allowed in message
            assert message.endswith(f"got {value!r}")
            assert "\n" not in message


def test_a_centre_crop_must_fit_into_the_resized_image() -> None:
    with pytest.raises(
        ConfigError, match=r"resize_size must be a whole number 288 \.\. 8192 .*256"
    ):
        Recipe.for_split("val", batch_size=8, image_size=288)
    assert Recipe.for_split("val", batch_size=8, image_size=256).resize_size == 256
    assert Recipe.for_split("train", batch_size=8, image_size=288).image_size == 288


@pytest.mark.parametrize(("kernel", "size"), [(8, 224), (2, 8), (17, 8), (63, 31)])
def test_a_blurs_kernel_is_odd_and_reaches_past_one_edge_only(kernel: int, size: int) -> None:
    with pytest.raises(ConfigError, match=f"an odd number below twice .* {size}, .* got {kernel}$"):
        Recipe.for_split("train", batch_size=8, image_size=size, blur_kernel_size=kernel)
    largest = min(2 * size - 1, 255)
    recipe = Recipe.for_split("train", batch_size=8, image_size=size, blur_kernel_size=largest)
    assert recipe.blur_radius == largest // 2


@pytest.mark.parametrize(("size", "kernel"), [(224, 23), (96, 9), (32, 3), (8, 1), (2048, 205)])
def test_a_blurs_kernel_is_a_tenth_of_the_side_by_default(size: int, kernel: int) -> None:
    """SimCLR's: kernel_size = image_size // 10, radius = kernel_size // 2."""
    recipe = Recipe.for_split("train", batch_size=8, image_size=size)
    assert 2 * recipe.blur_radius + 1 == kernel


def test_the_fingerprint_is_pinned() -> None:
    # These change only together with _FINGERPRINT_VERSION: clients and nodes compare them.
    assert TRAIN.fingerprint() == "67a04156ae27559a5d25bb26d52e2b8e"
    assert VAL.fingerprint() == "161b6a7ee5c0c6915510dbeb7e558c61"


def test_every_field_changes_the_fingerprint() -> None:
    changes: dict[str, Any] = {
        "split": "val",
        "batch_size": 257,
        "order_batch_size": 257,
        "lanes": 8,
        "working_set": 2**30,
        "image_size": 225,
        "phases": [{"epoch": 30, "image_size": 256}],
        "crops": [{"count": 2, "size": 224}],
        "crop": "centre",
        "scale": (0.08, 0.99),
        "ratio": (0.75, 1.34),
        "resize_size": 257,
        "flip_probability": 0.25,
        "partial_decode": False,
        "dct_scaling": False,
        "shuffle": False,
        "last_batch": LastBatch.PAD,
        "packing": "uint8-chw-rgb",
        "interpolation": "bicubic",
        "auto_augment": "rand-augment",
        "rand_augment_ops": 3,
        "rand_augment_magnitude": 10,
        "brightness": (0.6, 1.4),
        "contrast": (0.6, 1.4),
        "saturation": (0.6, 1.4),
        "hue": (-0.1, 0.1),
        "greyscale_probability": 0.2,
        "erasing_probability": 0.25,
        "erasing_scale": (0.02, 0.4),
        "erasing_ratio": (0.3, 3.0),
        "erasing_value": "noise",
        "augmix_severity": 4,
        "augmix_width": 2,
        "augmix_depth": 2,
        "augmix_alpha": 2,
        "jitter_probability": 0.8,
        "vertical_flip_probability": 0.5,
        "blur_probability": 0.5,
        "blur_sigma": (0.1, 1.0),
        "blur_kernel_size": 9,
        "solarise_probability": 0.2,
        "solarise_threshold": 100,
    }
    assert set(changes) == set(Recipe.__struct_fields__)
    prints = {
        msgspec.structs.replace(TRAIN, **{name: value}).fingerprint()
        for name, value in changes.items()
    }
    assert len(prints) == len(changes)
    assert TRAIN.fingerprint() not in prints


def test_fields_at_their_defaults_are_no_part_of_the_fingerprint() -> None:
    """So that states and clients from before a new field agree with those after it."""
    fields = {"split": "train", "batch_size": 256, "crop": "random-resized", "shuffle": True}
    fields |= {"dct_scaling": True, "last_batch": "drop", "version": 2}
    text = json.dumps(fields, sort_keys=True, separators=(",", ":"))
    digest = hashlib.blake2b(text.encode(), digest_size=16).hexdigest()
    assert TRAIN.fingerprint() == digest
    assert msgspec.structs.replace(TRAIN, hue=(-0.0, 0.0)).fingerprint() == digest


def test_a_recipe_without_its_order_is_the_same_for_all_orders() -> None:
    order = {"batch_size": 32, "order_batch_size": 64, "lanes": 8, "working_set": (9, 3)}
    other = msgspec.structs.replace(TRAIN, **order)
    assert other.without_order() == TRAIN.without_order()
    for change in ({"image_size": 160}, {"scale": (0.3, 1.0)}, {"last_batch": "pad"}):
        changed = msgspec.structs.replace(TRAIN, **change)
        assert changed.without_order() != TRAIN.without_order()


def test_plan_epoch_uses_the_fields_of_the_recipe() -> None:
    layout = ShardLayout(samples=1009, shards=7)
    recipe = Recipe.for_split("val", batch_size=5, order_batch_size=12, shuffle=True, lanes=3)
    plan = recipe.plan_epoch(layout, seed=4, epoch=2)
    assert (plan.layout, plan.batch_size, plan.order_batch_size) == (layout, 5, 12)
    assert plan.shape.lanes == 3
    assert (plan.seed, plan.epoch, plan.shuffle, plan.last_batch) == (4, 2, True, LastBatch.PAD)


def test_plain_bilinear_requires_dct_scaling_off() -> None:
    plain = Recipe.for_split("train", batch_size=8, interpolation="bilinear-no-antialias")
    assert not plain.dct_scaling
    with pytest.raises(ConfigError, match="dct_scaling must be false for interpolation bilinear"):
        msgspec.structs.replace(plain, dct_scaling=True)


@pytest.mark.parametrize(
    ("text", "field"),
    [
        ("brightness=0.4", ("brightness", 0.4)),
        ("scale=[0.3, 1]", ("scale", [0.3, 1])),
        ("auto_augment=rand-augment", ("auto_augment", "rand-augment")),
        ("dct_scaling = false", ("dct_scaling", False)),
        ("erasing_value=noise", ("erasing_value", "noise")),
        *((f"scale={value}", ("scale", value)) for value in ("[" * 5000, "9" * 5000)),
    ],
)
def test_a_field_can_be_written_as_text(text: str, field: tuple[str, object]) -> None:
    assert parse_field(text) == field
    with pytest.raises(ConfigError, match=r"recipe: 'rand-augment' is not NAME=VALUE"):
        parse_field("rand-augment")


def test_bad_value_is_shortened_in_the_error() -> None:
    nested: object = 0
    for _ in range(5000):
        nested = [nested]
    for value in (nested, "x" * 5000, 10**5000, [1] * 5000):
        for field in ("crop", "batch_size", "scale", "hue", "brightness", "erasing_value"):
            with pytest.raises(ConfigError, match=f"recipe: {field} must be") as caught:
                Recipe.for_split("train", **{"batch_size": 1, field: value})  # type: ignore[arg-type]
            assert len(str(caught.value)) < 300


@pytest.mark.parametrize(
    "fields",
    [
        {"batch_size": np.int64(256), "scale": [0.08, 1], "last_batch": "drop"},
        {"flip_probability": np.float64(0.5), "order_batch_size": 256},
        {"brightness": 0, "contrast": 0.0, "hue": -0.0},
    ],
)
def test_equal_values_of_other_types_have_one_fingerprint(fields: dict[str, Any]) -> None:
    same = Recipe.for_split("train", **{"batch_size": 256, **fields})
    assert same == TRAIN
    assert same.fingerprint() == TRAIN.fingerprint()
    assert type(same.batch_size) is int


@pytest.mark.parametrize(
    ("field", "number", "interval"),
    [
        ("brightness", 0.4, (0.6, 1.4)),
        ("contrast", 2, (0.0, 3.0)),
        ("saturation", (0.5, 0.5), (0.5, 0.5)),
        ("hue", 0.1, (-0.1, 0.1)),
    ],
)
def test_single_jitter_number_means_the_same_interval_as_in_torchvision(
    field: str, number: object, interval: tuple[float, float]
) -> None:
    recipe = Recipe.for_split("train", batch_size=8, **{field: number})  # type: ignore[arg-type]
    assert getattr(recipe, field) == interval


def _check_round_trip(recipe: Recipe) -> None:
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(recipe), type=Recipe)
    assert decoded == recipe
    assert decoded.fingerprint() == recipe.fingerprint()


NEVER: tuple[object, ...] = (
    *(None, {}, [], b"x", "", "x", "__import__('os')", {"__reduce__": "os.system"}, [[]]),
    *(-1, 2**63, -(2**62), 1e308, -1e-9, math.inf, -math.inf, math.nan, [math.nan, 1.0]),
    *([1.0], [1, 2, 3, 4], [2.0, 1.0], [-1.0, 1.0], [0.0, 1e9], ["a", "b"], [None, None]),
)
"""Values that are valid for no field of a recipe."""


@pytest.mark.parametrize("name", Recipe.__struct_fields__)
def test_decoding_refuses_fields_of_wrong_type_or_range(name: str) -> None:
    for value in NEVER:
        if name in ("crops", "phases") and value == []:  # which is none
            continue
        frame = msgspec.msgpack.encode({**msgspec.to_builtins(TRAIN), name: value})
        with pytest.raises((ConfigError, msgspec.ValidationError)):
            msgspec.msgpack.decode(frame, type=Recipe)
    with pytest.raises(msgspec.ValidationError, match="mixup"):
        msgspec.convert({**msgspec.to_builtins(TRAIN), "mixup": 0.2}, Recipe)
    with pytest.raises(AttributeError):
        setattr(TRAIN, name, None)


@given(st.sampled_from(Recipe.__struct_fields__), st.data())
def test_any_decoded_recipe_survives_another_round_trip(name: str, data: st.DataObject) -> None:
    leaf = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    value = data.draw(leaf | st.lists(leaf, max_size=4))
    frame = msgspec.msgpack.encode({**msgspec.to_builtins(TRAIN), name: value})
    try:
        recipe = msgspec.msgpack.decode(frame, type=Recipe)
    except (ConfigError, msgspec.ValidationError):
        return
    _check_round_trip(recipe)
    assert 1 <= recipe.batch_size <= 65_536
    assert 8 <= recipe.image_size <= 2048

"""Recipes: defaults of the splits, ranges of all fields, equal fingerprints for equal recipes."""

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
from feeder.plan.recipe import Recipe, parse_field

TRAIN = Recipe.for_split("train", batch_size=256)
VAL = Recipe.for_split("val", batch_size=256)

recipes = st.builds(
    Recipe,
    split=st.sampled_from(["train", "val"]),
    batch_size=st.integers(1, 65_536),
    order_batch_size=st.integers(0, 65_536),
    lanes=st.integers(0, 4096),
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
    auto_augment=st.sampled_from(["none", "rand-augment", "trivial-augment-wide"]),
    rand_augment_ops=st.integers(1, 16),
    rand_augment_magnitude=st.integers(0, 30),
    brightness=st.floats(0, 9),
    contrast=st.tuples(st.floats(0, 1), st.floats(1, 10)),
    hue=st.floats(0, 0.5),
    greyscale_probability=st.floats(0, 1),
    erasing_probability=st.floats(0, 1),
    erasing_scale=st.tuples(st.floats(0, 0.5), st.floats(0.5, 1)),
    erasing_value=st.just("noise") | st.tuples(*[st.integers(0, 255)] * 3),
)


def test_train_crops_at_random_shuffles_and_drops() -> None:
    assert msgspec.structs.asdict(TRAIN) == {
        "split": "train",
        "batch_size": 256,
        "order_batch_size": 256,
        "lanes": 0,
        "image_size": 224,
        "crop": "random-resized",
        "scale": (0.08, 1.0),
        "ratio": (0.75, 4 / 3),
        "resize_size": 256,
        "flip_probability": 0.5,
        "partial_decode": True,
        "dct_scaling": True,
        "shuffle": True,
        "last_batch": LastBatch.DROP,
        "packing": "int8-hwc-rgb",
        "interpolation": "bilinear",
        "auto_augment": "none",
        "rand_augment_ops": 2,
        "rand_augment_magnitude": 9,
        "brightness": (1.0, 1.0),
        "contrast": (1.0, 1.0),
        "saturation": (1.0, 1.0),
        "hue": (0.0, 0.0),
        "greyscale_probability": 0.0,
        "erasing_probability": 0.0,
        "erasing_scale": (0.02, 0.33),
        "erasing_ratio": (0.3, 3.3),
        "erasing_value": (124, 116, 104),
    }


def test_val_crops_the_centre_in_order_and_pads() -> None:
    assert (VAL.crop, VAL.flip_probability) == ("centre", 0.0)
    assert (VAL.dct_scaling, VAL.shuffle, VAL.last_batch) == (False, False, LastBatch.PAD)


def test_overrides_replace_the_defaults_of_the_split() -> None:
    recipe = Recipe.for_split(
        "val", batch_size=8, image_size=160, last_batch="drop", scale=[0.5, 1]
    )
    assert (recipe.image_size, recipe.last_batch) == (160, LastBatch.DROP)
    assert isinstance(recipe.last_batch, LastBatch)
    assert recipe.scale == (0.5, 1.0)


def test_an_unknown_field_names_the_nearest_one() -> None:
    with pytest.raises(ConfigError, match="no field 'flip_probabilty'; nearest is 'flip_prob"):
        Recipe.for_split("train", batch_size=8, flip_probabilty=0.1)
    with pytest.raises(
        ConfigError, match=r"'zoom'; the fields are split, batch_size, .*, erasing_"
    ):
        Recipe.for_split("train", batch_size=8, zoom=2)
    with pytest.raises(ConfigError, match="'mixup': samples are mixed on the device, by the train"):
        Recipe.for_split("train", batch_size=8, mixup=0.2)


@pytest.mark.parametrize(
    ("field", "value", "allowed"),
    [
        ("split", "test", "train or val"),
        ("split", 3, "train or val"),
        ("crop", "center", "random-resized or centre"),
        ("packing", "float32", "int8-hwc-rgb or int8-hwc-rgbx or int8-chw-rgb or"),
        ("interpolation", "lanczos", "bilinear or bicubic or box or bilinear-no-antialias"),
        ("auto_augment", "autoaugment", "none or rand-augment or trivial-augment-wide"),
        ("auto_augment", None, "none or rand-augment or trivial-augment-wide"),
        ("rand_augment_ops", 0, "a whole number 1 .. 16"),
        ("rand_augment_magnitude", 31, "a whole number 0 .. 30"),
        ("brightness", -0.1, "a number 0 .. 9 or two factors"),
        ("contrast", 9.5, "a number 0 .. 9 or two factors"),
        ("saturation", True, "a number 0 .. 9 or two factors"),
        ("brightness", (0.5, 10.5), "0 <= least <= greatest <= 10"),
        ("brightness", (1.5, 0.5), "0 <= least <= greatest <= 10"),
        ("hue", 0.6, "a number 0 .. 0.5 or two turns"),
        ("hue", (-0.6, 0.1), "-0.5 <= least <= greatest <= 0.5"),
        ("hue", math.nan, "a number 0 .. 0.5 or two turns"),
        ("greyscale_probability", 1.5, "a number 0 .. 1"),
        ("erasing_probability", "often", "a number 0 .. 1"),
        ("erasing_scale", (0.1, 1.5), "0 <= least <= greatest <= 1"),
        ("erasing_ratio", (0.0, 1.0), "0.01 <= least <= greatest <= 100"),
        ("erasing_value", "random", "three levels (red, green, blue) 0 .. 255"),
        ("erasing_value", (1, 2), "three levels (red, green, blue) 0 .. 255"),
        ("erasing_value", 0, "three levels (red, green, blue) 0 .. 255"),
        ("last_batch", "keep", "drop or pad"),
        ("last_batch", None, "drop or pad"),
        ("dct_scaling", 1, "true or false"),
        ("partial_decode", "no", "true or false"),
        ("shuffle", "yes", "true or false"),
        ("batch_size", 0, "a whole number 1 .. 65536"),
        ("batch_size", 65_537, "a whole number 1 .. 65536"),
        ("batch_size", 2.0, "a whole number 1 .. 65536"),
        ("batch_size", "8", "a whole number 1 .. 65536"),
        ("batch_size", True, "a whole number 1 .. 65536"),
        ("order_batch_size", -1, "a whole number 0 .. 65536"),
        ("order_batch_size", 65_537, "a whole number 0 .. 65536"),
        ("order_batch_size", None, "a whole number 0 .. 65536"),
        ("lanes", -1, "a whole number 0 .. 4096"),
        ("lanes", 4097, "a whole number 0 .. 4096"),
        ("lanes", None, "a whole number 0 .. 4096"),
        ("image_size", 7, "a whole number 8 .. 2048"),
        ("image_size", 2049, "a whole number 8 .. 2048"),
        ("resize_size", 7, "a whole number 8 .. 8192"),
        ("resize_size", 8193, "a whole number 8 .. 8192"),
        ("flip_probability", -0.1, "a number 0 .. 1"),
        ("flip_probability", 1.1, "a number 0 .. 1"),
        ("flip_probability", math.nan, "a number 0 .. 1"),
        ("flip_probability", "0.5", "a number 0 .. 1"),
        ("flip_probability", True, "a number 0 .. 1"),
        ("scale", (0.0, 1.0), "1e-06 <= least <= greatest <= 1"),
        ("scale", (0.5, 1.1), "1e-06 <= least <= greatest <= 1"),
        ("scale", (0.9, 0.1), "1e-06 <= least <= greatest <= 1"),
        ("scale", (0.1, math.nan), "1e-06 <= least <= greatest <= 1"),
        ("scale", (0.1, 10**400), "1e-06 <= least <= greatest <= 1"),
        ("scale", 0.5, "two numbers (least, greatest)"),
        ("scale", (0.1, 0.2, 0.3), "two numbers (least, greatest)"),
        ("scale", ("0.1", "0.2"), "two numbers (least, greatest)"),
        ("ratio", (0.009, 1.0), "0.01 <= least <= greatest <= 100"),
        ("ratio", (1.0, math.inf), "0.01 <= least <= greatest <= 100"),
    ],
)
def test_a_bad_field_is_refused_with_its_name_value_and_range(
    field: str, value: object, allowed: str
) -> None:
    arguments: dict[str, Any] = {"split": "train", "batch_size": 256, field: value}
    with pytest.raises(ConfigError) as caught:
        Recipe.for_split(**arguments)
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


def test_the_fingerprint_is_pinned() -> None:
    # These change only together with _FINGERPRINT_VERSION: clients and nodes compare them.
    assert TRAIN.fingerprint() == "c6334931930f34db8b658578e9dbc641"
    assert VAL.fingerprint() == "6c2c9a3e6e11f75119db64f24d8d6538"


def test_every_field_changes_the_fingerprint() -> None:
    changes: dict[str, Any] = {
        "split": "val",
        "batch_size": 257,
        "order_batch_size": 257,
        "lanes": 8,
        "image_size": 225,
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
    }
    assert set(changes) == set(Recipe.__struct_fields__)
    prints = {
        msgspec.structs.replace(TRAIN, **{name: value}).fingerprint()
        for name, value in changes.items()
    }
    assert len(prints) == len(changes)
    assert TRAIN.fingerprint() not in prints


def test_explicit_order_batch_size_equal_to_batch_size_changes_nothing() -> None:
    explicit = Recipe.for_split("train", batch_size=256, order_batch_size=256)
    assert explicit == TRAIN
    assert explicit.fingerprint() == TRAIN.fingerprint()
    other = Recipe.for_split("train", batch_size=128, order_batch_size=256)
    assert (other.batch_size, other.order_batch_size) == (128, 256)
    assert other.fingerprint() != Recipe.for_split("train", batch_size=128).fingerprint()


def test_plan_epoch_uses_the_fields_of_the_recipe() -> None:
    layout = ShardLayout(samples=1009, shards=7)
    recipe = Recipe.for_split("val", batch_size=5, order_batch_size=12, shuffle=True, lanes=3)
    plan = recipe.plan_epoch(layout, seed=4, epoch=2)
    assert (plan.layout, plan.batch_size, plan.order_batch_size) == (layout, 5, 12)
    assert plan.lanes == 3
    assert (plan.seed, plan.epoch, plan.shuffle, plan.last_batch) == (4, 2, True, LastBatch.PAD)


def test_single_jitter_number_means_the_same_interval_as_in_torchvision() -> None:
    recipe = Recipe.for_split(
        "train", batch_size=8, brightness=0.4, contrast=2, saturation=(0.5, 0.5), hue=0.1
    )
    assert recipe.brightness == (0.6, 1.4)
    assert recipe.contrast == (0.0, 3.0)
    assert recipe.saturation == (0.5, 0.5)
    assert recipe.hue == (-0.1, 0.1)
    off = Recipe.for_split("train", batch_size=256, brightness=0, contrast=0.0, hue=-0.0)
    assert off.fingerprint() == TRAIN.fingerprint()


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
    ],
)
def test_a_field_can_be_written_as_text(text: str, field: tuple[str, object]) -> None:
    assert parse_field(text) == field


@pytest.mark.parametrize("value", ["[" * 5000, "9" * 5000])
def test_value_beyond_json_limits_stays_text(value: str) -> None:
    assert parse_field(f"scale={value}") == ("scale", value)
    with pytest.raises(ConfigError, match="recipe: scale must be two numbers"):
        Recipe.for_split("train", batch_size=1, scale=value)


def test_bad_value_is_shortened_in_the_error() -> None:
    nested: object = 0
    for _ in range(5000):
        nested = [nested]
    for value in (nested, "x" * 5000, 10**5000, [1] * 5000):
        for field in ("crop", "batch_size", "scale", "hue", "brightness", "erasing_value"):
            with pytest.raises(ConfigError, match=f"recipe: {field} must be") as caught:
                Recipe.for_split("train", **{"batch_size": 1, field: value})  # type: ignore[arg-type]
            assert len(str(caught.value)) < 300


def test_text_without_equals_sign_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"recipe: 'rand-augment' is not NAME=VALUE"):
        parse_field("rand-augment")


def test_equal_values_of_other_types_have_one_fingerprint() -> None:
    same = Recipe.for_split(
        "train",
        batch_size=np.int64(256),  # type: ignore[arg-type]
        scale=[0.08, 1],
        flip_probability=np.float64(0.5),
        last_batch="drop",
    )
    assert same == TRAIN
    assert same.fingerprint() == TRAIN.fingerprint()
    assert type(same.batch_size) is int
    zero = Recipe.for_split("train", batch_size=256, flip_probability=0)
    negative_zero = Recipe.for_split("train", batch_size=256, flip_probability=-0.0)
    assert zero.fingerprint() == negative_zero.fingerprint()


@given(recipe=recipes)
def test_a_recipe_survives_encoding_with_its_fingerprint(recipe: Recipe) -> None:
    decoded = msgspec.msgpack.decode(msgspec.msgpack.encode(recipe), type=Recipe)
    assert decoded == recipe
    assert decoded.fingerprint() == recipe.fingerprint()


def test_decoding_checks_ranges_and_refuses_unknown_fields() -> None:
    fields = msgspec.to_builtins(TRAIN)
    with pytest.raises(ConfigError, match="batch_size must be"):
        msgspec.convert({**fields, "batch_size": 0}, Recipe)
    with pytest.raises(msgspec.ValidationError, match="mixup"):
        msgspec.convert({**fields, "mixup": 0.2}, Recipe)


def test_a_recipe_cannot_be_changed() -> None:
    with pytest.raises(AttributeError):
        TRAIN.batch_size = 5  # type: ignore[misc]


NEVER: tuple[object, ...] = (
    *(None, {}, [], b"x", "", "x", "__import__('os')", {"__reduce__": "os.system"}, [[]]),
    *(-1, 2**63, -(2**62), 1e308, -1e-9, math.inf, -math.inf, math.nan, [math.nan, 1.0]),
    *([1.0], [1, 2, 3, 4], [2.0, 1.0], [-1.0, 1.0], [0.0, 1e9], ["a", "b"], [None, None]),
)
"""Values that are valid for no field of a recipe."""


@pytest.mark.parametrize("name", Recipe.__struct_fields__)
def test_decoding_refuses_fields_of_wrong_type_or_range(name: str) -> None:
    for value in NEVER:
        frame = msgspec.msgpack.encode({**msgspec.to_builtins(TRAIN), name: value})
        with pytest.raises((ConfigError, msgspec.ValidationError)):
            msgspec.msgpack.decode(frame, type=Recipe)


@given(st.sampled_from(Recipe.__struct_fields__), st.data())
def test_any_decoded_recipe_survives_another_round_trip(name: str, data: st.DataObject) -> None:
    leaf = st.none() | st.booleans() | st.integers(-(2**63), 2**64 - 1) | st.floats() | st.text()
    value = data.draw(leaf | st.lists(leaf, max_size=4))
    frame = msgspec.msgpack.encode({**msgspec.to_builtins(TRAIN), name: value})
    try:
        recipe = msgspec.msgpack.decode(frame, type=Recipe)
    except (ConfigError, msgspec.ValidationError):
        return
    again = msgspec.msgpack.decode(msgspec.msgpack.encode(recipe), type=Recipe)
    assert again == recipe
    assert 1 <= recipe.batch_size <= 65_536
    assert 8 <= recipe.image_size <= 2048

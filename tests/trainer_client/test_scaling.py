"""Scale, bias and tables: exact values against fractions, and arguments that are refused."""

from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from trainer_client._scaling import (
    IMAGENET_MEAN,
    IMAGENET_STD,
    VALUE_TYPES,
    Scaling,
    ValueType,
    make_scaling,
    round_values,
)


def nearest_float32(exact: Fraction) -> np.float32:
    """Return the float32 nearest to ``exact``; the even one of two."""
    near = np.float32(float(exact))
    near_ones = [np.nextafter(near, np.float32(way)) for way in (-np.inf, np.inf)]
    return min(
        [near, *near_ones],
        key=lambda each: (abs(Fraction(float(each)) - exact), int(each.view(np.uint32)) & 1),
    )


def assert_rounded_once(scaling: Scaling) -> None:
    table = scaling.table("float32")
    for channel, (scale, bias) in enumerate(zip(scaling.scale, scaling.bias, strict=True)):
        for level in range(256):
            exact = Fraction(float(scale)) * (level - 128) + Fraction(float(bias))
            assert table[channel, level] == nearest_float32(exact)


def test_every_level_of_imagenets_scaling_is_rounded_once() -> None:
    scaling = make_scaling(IMAGENET_MEAN, IMAGENET_STD, channels=4, value_type="float32")
    assert_rounded_once(scaling)
    assert not scaling.table("float32")[3].any()


def test_a_sum_that_float64_rounds_to_a_tie_is_rounded_once() -> None:
    """The products are 2**-24 + 2**-54 and 2**-24 - 2**-54, next to half of float32's spacing."""
    steps = (65, 77)
    scale = np.ldexp(np.float32([(2**30 + 1) // 65, (2**30 - 1) // 77, 0]), -54)
    scaling = Scaling(scale=scale, bias=np.float32([1, 1 + 2**-23, 0]))
    assert_rounded_once(scaling)
    table = scaling.table("float32")
    for channel, step in enumerate(steps):
        assert table[channel, 128 + step] == 1 + 2**-23
        twice = np.float64(scale[channel]) * step + scaling.bias[channel]
        assert np.float32(twice) != 1 + 2**-23


@settings(max_examples=20, deadline=None)
@given(
    mean=st.tuples(*[st.floats(-3, 3)] * 3),
    std=st.tuples(*[st.floats(1e-6, 1e6)] * 3),
)
def test_any_mean_and_deviation_is_rounded_once(
    mean: tuple[float, ...], std: tuple[float, ...]
) -> None:
    assert_rounded_once(make_scaling(mean, std, channels=3, value_type="float32"))


def test_bfloat16_is_rounded_to_nearest_even() -> None:
    one = 0x3F80
    cases = {0x8000: one, 0x8001: one + 1, 0x7FFF: one, 0x18000: one + 2, 0x17FFF: one + 1}
    values = np.array([(one << 16) + below for below in cases], np.uint32).view(np.float32)
    assert round_values(values, "bfloat16").tolist() == [*cases.values()]


@pytest.mark.parametrize("channels", [2, 5, 0, True, 3.0, "3", None])
def test_other_numbers_of_channels_are_refused(channels: int) -> None:
    with pytest.raises(ConfigError, match=r"^channels must be 3 .* or 4 .*, got .*$"):
        make_scaling(IMAGENET_MEAN, IMAGENET_STD, channels=channels, value_type="float32")


@pytest.mark.parametrize(
    ("mean", "std", "message"),
    [
        ((0.5, 0.5), IMAGENET_STD, "mean must be three numbers"),
        ((0.5, 0.5, float("nan")), IMAGENET_STD, "mean must be three numbers"),
        ("abc", IMAGENET_STD, "mean must be three numbers"),
        (0.5, IMAGENET_STD, "mean must be three numbers"),
        (IMAGENET_MEAN, (1, 1, float("inf")), "std must be three numbers"),
        (IMAGENET_MEAN, (1, 0, 1), "std must be above 0"),
        (IMAGENET_MEAN, (1, -1, 1), "std must be above 0"),
    ],
)
def test_other_means_and_deviations_are_refused(
    mean: tuple[float, ...], std: tuple[float, ...], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        make_scaling(mean, std, channels=4, value_type="float32")


@pytest.mark.parametrize(
    ("value_type", "too_small", "enough"),
    [("float16", 1e-6, 1e-4), ("float32", 1e-40, 1e-36), ("bfloat16", 1e-39, 1e-36)],
)
def test_levels_that_the_type_cannot_hold_are_refused(
    value_type: ValueType, too_small: float, enough: float
) -> None:
    make_scaling(IMAGENET_MEAN, (enough,) * 3, channels=3, value_type=value_type)
    with pytest.raises(ConfigError, match=f"^{value_type} cannot hold .* use a larger std"):
        make_scaling(IMAGENET_MEAN, (1, too_small, 1), channels=3, value_type=value_type)


def test_any_whole_number_of_channels_will_do() -> None:
    scaling = make_scaling(IMAGENET_MEAN, IMAGENET_STD, channels=np.int64(3), value_type="float32")  # type: ignore[arg-type]
    assert scaling.channels == 3


def test_other_types_are_refused() -> None:
    with pytest.raises(ConfigError, match="dtype must be float16, bfloat16 or float32, got int16"):
        make_scaling(IMAGENET_MEAN, IMAGENET_STD, channels=3, value_type="int16")  # type: ignore[arg-type]
    assert {*VALUE_TYPES} == {"float32", "float16", "bfloat16"}

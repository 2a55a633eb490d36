"""Normalisation against the formula in float64, and the lifetimes of staged buffers."""

import logging
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.plan.packing import Packing, pack_levels, pixel_layout_of
from trainer_client import IMAGENET_MEAN, IMAGENET_STD, denormalise, normalise
from trainer_client._device import Normaliser

CPU = torch.device("cpu")
# Half a unit in the last place for values up to 4; float32 adds the rounding of two operations.
TOLERANCE = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 1e-6}


def random_pixels(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, (*shape, 3), dtype=torch.int8, generator=generator)


def expected_images(
    pixels: torch.Tensor,
    mean: tuple[float, ...] = IMAGENET_MEAN,
    std: tuple[float, ...] = IMAGENET_STD,
) -> torch.Tensor:
    """Return (x + 128 - mean * 255) / (std * 255) and a fourth channel of 0, float64 NCHW."""
    mean64 = torch.tensor(mean, dtype=torch.float64) * 255
    std64 = torch.tensor(std, dtype=torch.float64) * 255
    rgb = (pixels.to(torch.float64) + 128 - mean64) / std64
    return torch.nn.functional.pad(rgb, (0, 1)).permute(0, 3, 1, 2)


@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_pixel_value_is_normalised_within_the_dtypes_precision(dtype: torch.dtype) -> None:
    pixels = torch.arange(-128, 128, dtype=torch.int8).view(1, 16, 16, 1).repeat(2, 1, 1, 3)
    images = Normaliser(CPU, dtype)(pixels)
    assert images.dtype == dtype
    error = (images.to(torch.float64) - expected_images(pixels)).abs().max().item()
    assert error <= TOLERANCE[dtype]


@settings(max_examples=60, deadline=None)
@given(
    shape=st.tuples(st.integers(1, 5), st.integers(1, 130), st.integers(1, 130)),
    dtype=st.sampled_from(list(TOLERANCE)),
    seed=st.integers(0, 1000),
)
def test_the_cpus_form_equals_the_plain_function_for_any_shape(
    shape: tuple[int, int, int], dtype: torch.dtype, seed: int
) -> None:
    """Shapes end in the middle of rows and of blocks."""
    pixels = random_pixels(*shape, seed=seed)
    normaliser = Normaliser(CPU, dtype)
    images = normaliser(pixels)
    assert images.shape == (shape[0], 4, *shape[1:])
    assert images.is_contiguous(memory_format=torch.channels_last)
    plain = normalise(pixels, normaliser._scale, normaliser._bias, dtype)
    assert torch.equal(images, plain)


@pytest.mark.parametrize("count", [1, 2, 255, 257, 8191, 8192, 8193, 16_384, 16_385, 24_831])
def test_the_edges_of_blocks(count: int) -> None:
    pixels = random_pixels(1, 1, count)
    images = Normaliser(CPU, torch.float32)(pixels)
    assert torch.allclose(images.double(), expected_images(pixels), atol=1e-6)


def test_the_fourth_channel_is_exactly_zero() -> None:
    images = Normaliser(CPU, torch.float16)(random_pixels(3, 17, 19))
    assert torch.count_nonzero(images[:, 3]) == 0


def test_reused_scratch_affects_neither_earlier_nor_later_batches() -> None:
    normaliser = Normaliser(CPU, torch.float16)
    first, second = random_pixels(3, 40, 40), random_pixels(2, 7, 5, seed=1)
    fresh = Normaliser(CPU, torch.float16)(second)
    held = normaliser(first)
    copy = held.clone()
    assert torch.equal(normaliser(second), fresh)
    assert torch.equal(held, copy)


def test_other_means_and_deviations() -> None:
    mean, std = (0.1, 0.9, 0.5), (1.0, 0.01, 0.3)
    pixels = random_pixels(2, 9, 9)
    images = Normaliser(CPU, torch.float32, mean, std)(pixels)
    assert torch.allclose(images.double(), expected_images(pixels, mean, std), atol=1e-4)


@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_denormalise_restores_the_pixels(dtype: torch.dtype) -> None:
    pixels = random_pixels(2, 16, 16)
    shown = denormalise(Normaliser(CPU, dtype)(pixels))
    assert shown.dtype == torch.uint8
    assert torch.equal(shown, (pixels.to(torch.int16) + 128).to(torch.uint8))


def test_the_plain_function_compiles_to_one_graph() -> None:
    """The graph has no break; torch's "eager" backend needs no C++ compiler."""
    compiled = torch.compile(normalise, backend="eager", fullgraph=True)
    pixels = random_pixels(2, 8, 8)
    normaliser = Normaliser(CPU, torch.float16, compiler=lambda function: compiled)
    assert torch.equal(normaliser(pixels), Normaliser(CPU, torch.float16)(pixels))
    assert normaliser.compile_failures == 0


@pytest.mark.parametrize("packing", get_args(Packing))
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_every_packing_of_the_same_levels_normalises_to_the_same_bits(
    packing: Packing, dtype: torch.dtype
) -> None:
    pixels = random_pixels(3, 37, 37)
    levels = pixels.numpy().view(np.uint8) ^ np.uint8(0x80)
    layout = pixel_layout_of(packing)
    packed = np.full((3, *layout.image_shape(37)), 77, layout.dtype)
    for rgb, row in zip(levels, packed, strict=True):
        pack_levels(rgb, layout, row)
    before = packed.copy()
    expected = Normaliser(CPU, dtype)(pixels)
    for compiler in (None, lambda function: function):
        normaliser = Normaliser(CPU, dtype, packing=packing, compiler=compiler)
        images = normaliser(torch.from_numpy(packed))
        assert torch.equal(images, expected)
        assert images.is_contiguous(memory_format=torch.channels_last)
        assert normaliser.compile_failures == 0
    assert np.array_equal(packed, before), "normalising changed the batch"


def test_every_packing_compiles_to_one_graph() -> None:
    for packing in get_args(Packing):
        torch._dynamo.reset()  # which limits recompilations of one function
        compiled = torch.compile(normalise, backend="eager", fullgraph=True)
        layout = pixel_layout_of(packing)
        pixels = torch.from_numpy(np.zeros((2, *layout.image_shape(8)), layout.dtype))
        normaliser = Normaliser(
            CPU,
            torch.float16,
            packing=packing,
            compiler=lambda function, compiled=compiled: compiled,
        )
        expected = Normaliser(CPU, torch.float16, packing=packing)(pixels)
        assert torch.equal(normaliser(pixels), expected)
        assert normaliser.compile_failures == 0


def test_a_failure_to_compile_is_counted_and_logged_once(
    caplog: pytest.LogCaptureFixture,
) -> None:
    calls = []

    def compile_badly(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        def fail(*arguments: object) -> torch.Tensor:
            calls.append(arguments)
            raise RuntimeError("no triton\nand a long story")

        return fail

    normaliser = Normaliser(CPU, torch.float16, compiler=compile_badly)
    pixels = random_pixels(2, 8, 8)
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            assert torch.equal(normaliser(pixels), Normaliser(CPU, torch.float16)(pixels))
    assert len(calls) == normaliser.compile_failures == 1
    assert [record.getMessage() for record in caplog.records] == [
        "normalise runs uncompiled, compiling failed: no triton"
    ]


def test_out_of_memory_is_no_failure_to_compile() -> None:
    """A job that frees memory and continues keeps the fast form."""
    outcomes = iter([torch.OutOfMemoryError("tried to allocate 2 GiB"), None])

    def run(*arguments: object) -> torch.Tensor:
        outcome = next(outcomes)
        if outcome is not None:
            raise outcome
        return normalise(*arguments)  # type: ignore[arg-type]

    normaliser = Normaliser(CPU, torch.float16, compiler=lambda function: run)
    pixels = random_pixels(2, 8, 8)
    with pytest.raises(torch.OutOfMemoryError):
        normaliser(pixels)
    assert torch.equal(normaliser(pixels), Normaliser(CPU, torch.float16)(pixels))
    assert next(outcomes, "exhausted") == "exhausted"
    assert normaliser.compile_failures == 0

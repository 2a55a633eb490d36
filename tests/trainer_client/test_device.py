"""Normalisation against the formula in float64, and the lifetimes of staged buffers."""

import functools
import itertools
import logging
from collections.abc import Callable
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.errors import ConfigError
from feeder.plan.packing import Packing, pack_levels, pixel_layout_of
from trainer_client import IMAGENET_MEAN, IMAGENET_STD, _device, denormalise, normalise
from trainer_client._device import Normaliser
from trainer_client._host_normalise import VERSIONS, HostNormaliser

CPU = torch.device("cpu")
# Half a unit in the last place for values up to 4; float32 adds the rounding of two operations.
TOLERANCE = {torch.float16: 2**-10, torch.bfloat16: 2**-7, torch.float32: 1e-6}


def random_pixels(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, (*shape, 3), dtype=torch.int8, generator=generator)


@pytest.fixture(params=["as built", "without the C part"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms that a CPU has; where the C part is not built they are one."""
    if request.param != "as built":
        with_numpy = functools.partial(HostNormaliser, version="numpy")
        monkeypatch.setattr(_device, "HostNormaliser", with_numpy)
    return str(request.param)


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
def test_every_pixel_value_is_normalised_within_the_dtypes_precision(
    dtype: torch.dtype, form: str
) -> None:
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


@pytest.mark.parametrize("packing", get_args(Packing))
@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_both_memory_formats_have_the_same_bits(
    dtype: torch.dtype, channels: int, packing: Packing, form: str
) -> None:
    layout = pixel_layout_of(packing)
    packed = np.empty((3, *layout.image_shape(21)), layout.dtype)
    for image, levels in zip(packed, random_pixels(3, 21, 21).numpy(), strict=True):
        pack_levels(levels.view(np.uint8) ^ 0x80, layout, image)
    pixels = torch.from_numpy(packed)
    last, first = (
        Normaliser(CPU, dtype, channels=channels, memory_format=memory_format, packing=packing)(
            pixels
        )
        for memory_format in (torch.channels_last, torch.contiguous_format)
    )
    assert last.is_contiguous(memory_format=torch.channels_last)
    assert first.is_contiguous()
    assert first.shape == last.shape == (3, channels, 21, 21)
    bits = torch.int32 if dtype == torch.float32 else torch.int16
    assert torch.equal(first.view(bits), last.contiguous().view(bits))


def test_what_is_compiled_gives_the_memory_format() -> None:
    compiled: list[Callable[..., torch.Tensor]] = []

    def keep(function: Callable[..., torch.Tensor]) -> Callable[..., torch.Tensor]:
        compiled.append(function)
        return function

    pixels = random_pixels(2, 9, 7)
    contiguous = torch.contiguous_format
    images = Normaliser(CPU, torch.float32, memory_format=contiguous, compiler=keep)(pixels)
    assert len(compiled) == 1
    assert images.is_contiguous()
    assert torch.equal(images, Normaliser(CPU, torch.float32, compiler=keep)(pixels))


@pytest.mark.parametrize("count", [1, 2, 255, 257, 8191, 8192, 8193, 16_384, 16_385, 24_831])
def test_the_edges_of_blocks(count: int, form: str) -> None:
    pixels = random_pixels(1, 1, count)
    images = Normaliser(CPU, torch.float32)(pixels)
    assert torch.allclose(images.double(), expected_images(pixels), atol=1e-6)


def test_the_fourth_channel_is_exactly_zero(form: str) -> None:
    images = Normaliser(CPU, torch.float16)(random_pixels(3, 17, 19))
    assert torch.count_nonzero(images[:, 3]) == 0


def test_reused_memory_affects_neither_earlier_nor_later_batches(form: str) -> None:
    normaliser = Normaliser(CPU, torch.float16)
    first, second = random_pixels(3, 40, 40), random_pixels(2, 7, 5, seed=1)
    fresh = Normaliser(CPU, torch.float16)(second)
    held = normaliser(first)
    copy = held.clone()
    assert torch.equal(normaliser(second), fresh)
    assert torch.equal(held, copy)


def test_other_means_and_deviations(form: str) -> None:
    mean, std = (0.1, 0.9, 0.5), (1.0, 0.01, 0.3)
    pixels = random_pixels(2, 9, 9)
    images = Normaliser(CPU, torch.float32, mean, std)(pixels)
    assert torch.allclose(images.double(), expected_images(pixels, mean, std), atol=1e-4)


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_denormalise_restores_the_pixels(dtype: torch.dtype, channels: int) -> None:
    pixels = random_pixels(2, 16, 16)
    shown = denormalise(Normaliser(CPU, dtype, channels=channels)(pixels))
    assert shown.dtype == torch.uint8
    assert torch.equal(shown, (pixels.to(torch.int16) + 128).to(torch.uint8))


@pytest.mark.skipif(VERSIONS == ("numpy",), reason="there is no C compiler")
@pytest.mark.parametrize("dtype", TOLERANCE)
def test_the_c_part_gives_the_bits_of_the_blocks(
    dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    """torch's addcmul is a fused multiply-add, as the C part's is, on CPUs that have one."""
    if "AVX" not in torch.backends.cpu.get_cpu_capability():
        pytest.skip("torch rounds twice on this CPU")
    pixels = random_pixels(5, 97, 101)
    native = Normaliser(CPU, dtype)
    assert native._host is not None
    with_numpy = functools.partial(HostNormaliser, version="numpy")
    monkeypatch.setattr(_device, "HostNormaliser", with_numpy)
    blocks = Normaliser(CPU, dtype)
    assert blocks._host is None
    assert torch.equal(native(pixels), blocks(pixels))
    assert not torch.signbit(native(pixels)[:, 3].float()).any()


def test_memory_is_used_again_once_no_tensor_refers_to_it() -> None:
    """A tensor, a view of one and numpy's view of it keep a batch's values as they are."""
    normaliser = Normaliser(CPU, torch.bfloat16)
    pixels = random_pixels(4, 50, 50)
    fresh = normaliser(pixels).clone()
    address = None
    for hold in (
        lambda images: images,
        lambda images: images[1:, 2],
        lambda images: images.view(torch.uint16).numpy()[1:],
        lambda images: images.permute(0, 2, 3, 1).reshape(-1).unbind()[77],
        lambda images: torch.nn.Parameter(images).detach(),
    ):
        held = hold(normaliser(pixels))
        before = held.copy() if isinstance(held, np.ndarray) else held.clone()
        for seed in range(5):
            normaliser(random_pixels(4, 50, 50, seed=seed + 1))
        assert (held == before).all()
        del held
    for _ in range(5):
        images = normaliser(pixels)
        assert torch.equal(images, fresh)
        if normaliser._host is not None:
            assert address in (None, images.data_ptr())
        address = images.data_ptr()
        del images


@pytest.mark.parametrize("channels", [2, 1, 5, True])
def test_another_number_of_channels_is_refused(channels: int) -> None:
    with pytest.raises(ConfigError, match=r"^channels must be 3"):
        Normaliser(CPU, torch.float32, channels=channels)


def test_a_dtype_that_cannot_hold_the_levels_is_refused() -> None:
    with pytest.raises(ConfigError, match=r"^float16 cannot hold"):
        Normaliser(CPU, torch.float16, std=(1e-6, 1, 1))
    with pytest.raises(ConfigError, match=r"^dtype must be .*, got torch.int8"):
        Normaliser(CPU, torch.int8)


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
    packing: Packing, dtype: torch.dtype, form: str
) -> None:
    pixels = random_pixels(3, 37, 37)
    levels = pixels.numpy().view(np.uint8) ^ np.uint8(0x80)
    layout = pixel_layout_of(packing)
    packed = np.full((3, *layout.image_shape(37)), 77, layout.dtype)
    for rgb, row in zip(levels, packed, strict=True):
        pack_levels(rgb, layout, row)
    before = packed.copy()
    expected = Normaliser(CPU, dtype)(pixels)
    for channels in (3, 4):
        for compiler in (None, lambda function: function):
            normaliser = Normaliser(
                CPU, dtype, channels=channels, packing=packing, compiler=compiler
            )
            images = normaliser(torch.from_numpy(packed))
            assert images.dtype == dtype
            assert images.shape == (3, channels, 37, 37)
            assert torch.equal(images, expected[:, :channels])
            assert images.is_contiguous(memory_format=torch.channels_last)
            assert normaliser.compile_failures == 0
    assert np.array_equal(packed, before), "normalising changed the batch"


def test_every_packing_compiles_to_one_graph() -> None:
    for channels, packing in itertools.product((3, 4), get_args(Packing)):
        torch._dynamo.reset()  # which limits recompilations of one function
        compiled = torch.compile(normalise, backend="eager", fullgraph=True)
        layout = pixel_layout_of(packing)
        pixels = torch.from_numpy(np.zeros((2, *layout.image_shape(8)), layout.dtype))
        normaliser = Normaliser(
            CPU,
            torch.float16,
            channels=channels,
            packing=packing,
            compiler=lambda function, compiled=compiled: compiled,
        )
        expected = Normaliser(CPU, torch.float16, channels=channels, packing=packing)(pixels)
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

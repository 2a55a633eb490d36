"""Normalising into tensors, to the same bits in every form; the device and its defaults."""

import functools
import itertools
import logging
from collections.abc import Callable
from typing import Any, get_args
from unittest.mock import Mock

import numpy as np
import pytest
import torch

from feeder.plan.packing import Packing, pack_levels, pixel_layout_of
from tests.trainer_client.test_batch import make_batch
from trainer_client import _device, denormalise, normalise
from trainer_client._device import Normaliser, resolve_device
from trainer_client._host_normalise import HostNormaliser
from trainer_client._staging import CopiesInFlight

CPU = torch.device("cpu")
DTYPES = (torch.float16, torch.bfloat16, torch.float32)
MEMORY_FORMATS = (torch.channels_last, torch.contiguous_format)


def random_pixels(*shape: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(-128, 128, (*shape, 3), dtype=torch.int8, generator=generator)


def pack(pixels: torch.Tensor, packing: Packing) -> torch.Tensor:
    """Pack square images; what a fourth stored channel has must not count."""
    layout = pixel_layout_of(packing)
    packed = np.full((len(pixels), *layout.image_shape(pixels.shape[1])), 77, layout.dtype)
    for levels, image in zip(pixels.numpy().view(np.uint8) ^ 0x80, packed, strict=True):
        pack_levels(levels, layout, image)
    return torch.from_numpy(packed)


@pytest.fixture(params=["as built", "without the C part"])
def form(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Both forms that a CPU has; where the C part is not built they are one."""
    if request.param != "as built":
        with_numpy = functools.partial(HostNormaliser, version="numpy")
        monkeypatch.setattr(_device, "HostNormaliser", with_numpy)
    return str(request.param)


@pytest.mark.parametrize("packing", get_args(Packing))
def test_every_packing_of_the_same_levels_normalises_to_the_same_bits(
    packing: Packing, form: str
) -> None:
    """In either memory format, by the plain function, too."""
    pixels = random_pixels(3, 37, 37)
    packed = pack(pixels, packing)
    before = packed.clone()
    for dtype, channels, memory_format, compiler in itertools.product(
        DTYPES, (3, 4), MEMORY_FORMATS, (None, lambda function: function)
    ):
        normaliser = Normaliser(
            CPU,
            dtype,
            channels=channels,
            memory_format=memory_format,
            packing=packing,
            compiler=compiler,
        )
        images = normaliser(packed)
        assert (images.dtype, images.shape) == (dtype, (3, channels, 37, 37))
        assert images.is_contiguous(memory_format=memory_format)
        assert torch.equal(images, Normaliser(CPU, dtype)(pixels)[:, :channels])
        assert normaliser.compile_failures == 0
    assert torch.equal(packed, before), "normalising changed the batch"


@pytest.mark.parametrize("channels", [3, 4])
@pytest.mark.parametrize("dtype", [torch.float16, torch.float32])
def test_denormalise_restores_the_pixels(dtype: torch.dtype, channels: int) -> None:
    pixels = random_pixels(2, 16, 16)
    shown = denormalise(Normaliser(CPU, dtype, channels=channels)(pixels))
    assert shown.dtype == torch.uint8
    assert torch.equal(shown, (pixels.to(torch.int16) + 128).to(torch.uint8))


def test_memory_is_used_again_once_no_tensor_refers_to_it(form: str) -> None:
    """A tensor, a view of one and numpy's view of it keep a batch's values as they are."""
    normaliser = Normaliser(CPU, torch.bfloat16)
    pixels = random_pixels(4, 50, 50)
    fresh = normaliser(pixels).clone()
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
            normaliser(random_pixels(*((4, 50, 50) if seed else (2, 7, 5)), seed=seed + 1))
        assert (held == before).all()
        del held
    addresses = set()
    for _ in range(5):
        images = normaliser(pixels)
        assert torch.equal(images, fresh)
        addresses.add(images.data_ptr())
        del images
    assert len(addresses) == 1


def test_a_loop_that_keeps_its_first_batches_uses_the_memory_of_the_others_again(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """It holds the latest batch, too, while it takes the next."""
    normaliser, pixels = Normaliser(CPU, torch.float32), random_pixels(2, 50, 50)
    allocate = Mock(side_effect=np.empty)
    monkeypatch.setattr(np, "empty", allocate)
    kept = [normaliser(pixels) for _ in range(2)]
    for _ in range(10):
        images = normaliser(pixels)
    assert torch.equal(images, kept[0])
    assert allocate.call_count == 4


# --- Compiled, as on CUDA -------------------------------------------------------------------------


def test_it_is_compiled_once_to_one_graph_as_are_functions_of_a_batch() -> None:
    """The graph has no break; torch's "eager" backend needs no C++ compiler."""
    compile_whole = functools.partial(torch.compile, backend="eager", fullgraph=True)
    normaliser = Normaliser(CPU, torch.float16, compiler=compile_whole)
    pixels = random_pixels(2, 8, 8)
    assert torch.equal(normaliser(pixels), Normaliser(CPU, torch.float16)(pixels))
    assert normaliser.compile_failures == 0

    def add(batch: Any) -> Any:
        images, labels = batch
        return images.sum() + labels.sum()

    assert compile_whole(add)(make_batch()) == add(make_batch())


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


# --- Copies to the device -------------------------------------------------------------------------


def make_events(count: int) -> list[Mock]:
    """Copies that are not done."""
    return [Mock(query=Mock(return_value=False)) for _ in range(count)]


def test_a_buffer_is_not_free_before_its_copy_is_done() -> None:
    copies, (event,) = CopiesInFlight(), make_events(1)
    copies.add(event, 4)
    assert copies.reclaim() == []
    event.query.return_value = True
    assert copies.reclaim() == [4]
    assert copies.reclaim() == []


def test_the_host_waits_for_the_oldest_copies_when_it_is_too_far_ahead() -> None:
    """And for all of them before it has no next batch."""
    copies, events = CopiesInFlight(), make_events(3)
    for number, event in enumerate(events):
        copies.add(event, number)
    assert copies.reclaim() == [0, 1]
    assert [event.synchronize.called for event in events] == [True, True, False]
    assert copies.reclaim(all_of_them=True) == [2]
    assert events[2].synchronize.called


# --- Defaults and refusals ------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("current", "local_rank", "index"),
    [(0, None, 0), (0, "2", 2), (1, "2", 1), (0, "4", 0), (0, "some", 0)],
)
def test_the_default_device_is_this_processes_own(
    monkeypatch: pytest.MonkeyPatch, current: int, local_rank: str | None, index: int
) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: current)
    monkeypatch.setattr(torch.cuda, "device_count", lambda: 4)
    monkeypatch.delenv("LOCAL_RANK", raising=False)
    if local_rank is not None:
        monkeypatch.setenv("LOCAL_RANK", local_rank)
    assert resolve_device(None) == torch.device("cuda", index)
    assert resolve_device("cuda:3") == torch.device("cuda", 3)
    assert resolve_device("cpu") == CPU

"""Half-precision weights updated in float32: small updates, resumes, loss scaling, accumulation."""

import io
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import nn

from feeder.errors import ConfigError
from trainer_client.reference.optimisers.lars import LARS
from trainer_client.reference.optimisers.parameter_groups import parameter_groups
from trainer_client.reference.optimisers.rmsprop_tf import RMSpropTF
from trainer_client.reference.optimisers.stochastic_rounding import (
    HALF_DTYPES,
    HalfWeights,
    Rounding,
)
from trainer_client.reference.resnet import resnet_small

torch.set_num_threads(1)
half = pytest.mark.parametrize("dtype", HALF_DTYPES)
MakeOptimiser = Callable[[list[dict[str, Any]]], torch.optim.Optimizer]


def make_sgd(groups: list[dict[str, Any]]) -> torch.optim.Optimizer:
    return torch.optim.SGD(groups, lr=0.05, momentum=0.9)


def wrap(model: nn.Module, make_optimiser: MakeOptimiser = make_sgd, **options: Any) -> HalfWeights:
    groups = parameter_groups(model, weight_decay=0.0)
    settings = {"dtype": torch.bfloat16, "seed": 1, **options}
    return HalfWeights(model, groups, make_optimiser, **settings)


def make_network(seed: int = 0) -> nn.Sequential:
    torch.manual_seed(seed)
    return nn.Sequential(nn.Linear(4, 32), nn.Tanh(), nn.Linear(32, 1))


def backward(model: nn.Module, step: int, dtype: torch.dtype, scale: float = 1.0) -> float:
    """Take the gradient of the squared error of a linear function; return the error."""
    points = torch.rand(64, 4, generator=torch.Generator().manual_seed(step))
    wanted = points[:, :1] - 2 * points[:, 1:2]
    with torch.autocast("cpu", dtype=dtype):
        loss = (model(points).float() - wanted).square().mean()
    (loss * scale).backward()
    return loss.detach().item()


@half
@pytest.mark.parametrize(("rounding", "expected"), [("stochastic", 0.95), ("nearest", 1.0)])
def test_tiny_updates_add_up_on_average_and_are_lost_by_rounding_to_nearest(
    rounding: Rounding, expected: float, dtype: torch.dtype
) -> None:
    model = nn.Linear(100, 100, bias=False)
    nn.init.ones_(model.weight)
    weights = wrap(
        model, lambda groups: torch.optim.SGD(groups, lr=1e-4), dtype=dtype, rounding=rounding
    )
    for _ in range(500):  # each far below half the spacing: 2**-10 in float16, 2**-7 in bfloat16
        weights.zero_grad()
        model.weight.grad = torch.ones_like(model.weight)
        weights.step()
    assert model.weight.dtype == dtype
    # A step's variance is at most spacing * update: 500 steps of 10,000 weights.
    tolerance = 4 * (500 * 2.0**-8 * 1e-4 / 10_000) ** 0.5
    assert model.weight.float().mean().item() == pytest.approx(expected, abs=tolerance)
    assert (model.weight == 1).all() == (rounding == "nearest")


@half
def test_small_learning_rates_train_as_in_float32_and_worse_when_rounded_to_nearest(
    dtype: torch.dtype,
) -> None:
    def final_loss(rounding: Rounding | None) -> float:
        model = make_network()
        optimiser: torch.optim.Optimizer | HalfWeights
        if rounding is None:
            optimiser = torch.optim.SGD(model.parameters(), lr=1e-4)
        else:
            optimiser = wrap(
                model,
                lambda groups: torch.optim.SGD(groups, lr=1e-4),
                dtype=dtype,
                rounding=rounding,
                keep_vectors=False,
            )
        losses = []
        for step in range(500):
            losses.append(backward(model, step, dtype))
            optimiser.step()
            optimiser.zero_grad()
        return sum(losses[-50:]) / 50

    in_float32 = final_loss(None)
    assert final_loss("stochastic") == pytest.approx(in_float32, rel=0.02)
    assert final_loss("nearest") > 1.05 * in_float32


@pytest.mark.parametrize(
    "make_optimiser",
    [
        make_sgd,
        lambda groups: LARS(groups, lr=1.0, eta=0.02),
        lambda groups: RMSpropTF(groups, lr=1e-3),
        lambda groups: torch.optim.AdamW(groups, lr=1e-3),
    ],
    ids=["SGD", "LARS", "RMSpropTF", "AdamW"],
)
@half
def test_a_small_network_converges_with_every_optimiser(
    make_optimiser: MakeOptimiser, dtype: torch.dtype
) -> None:
    model = make_network()
    weights = wrap(model, make_optimiser, dtype=dtype)
    losses = []
    for step in range(300):
        losses.append(backward(model, step, dtype))
        weights.step()
        weights.zero_grad()
    assert sum(losses[-20:]) < 0.3 * sum(losses[:20])


def test_between_steps_no_float32_weights_take_memory() -> None:
    model = make_network()
    weights = wrap(model)
    for step in range(2):
        backward(model, step, torch.bfloat16)
        weights.step()
        kernels = weights.param_groups[0]["params"]
        assert [kernel.shape for kernel in kernels] == [(32, 4), (1, 32)]
        assert [kernel.untyped_storage().nbytes() for kernel in kernels] == [4, 4]
        assert {weights.optimiser.state[each]["momentum_buffer"].dtype for each in kernels} == {
            torch.float32
        }
    assert {p.dtype for p in model.parameters() if p.ndim > 1} == {torch.bfloat16}
    assert {p.dtype for p in model.parameters() if p.ndim == 1} == {torch.float32}


@half
@pytest.mark.parametrize("rounding", ["stochastic", "nearest"])
def test_a_resumed_job_continues_bit_by_bit(dtype: torch.dtype, rounding: Rounding) -> None:
    def start(seed: int) -> tuple[nn.Module, HalfWeights]:
        model = make_network(seed)
        return model, wrap(model, dtype=dtype, rounding=rounding)

    def run(model: nn.Module, weights: HalfWeights, steps: range) -> None:
        for step in steps:
            weights.zero_grad()
            backward(model, step, dtype)
            weights.step()

    model, weights = start(0)
    run(model, weights, range(5))
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "weights": weights.state_dict()}, file)
    run(model, weights, range(5, 10))
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other, resumed = start(7)
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["weights"])
    run(other, resumed, range(5, 10))
    for name, value in model.state_dict().items():
        assert torch.equal(value, other.state_dict()[name]), name


def test_another_seed_rounds_otherwise_and_the_same_seed_alike() -> None:
    def final_weight(seed: int) -> torch.Tensor:
        model = make_network()
        weights = wrap(model, seed=seed)
        for step in range(3):
            backward(model, step, torch.bfloat16)
            weights.step()
        return model[0].weight.detach()

    assert torch.equal(final_weight(1), final_weight(1))
    assert not torch.equal(final_weight(1), final_weight(2))


def test_a_schedule_acts_on_the_optimiser() -> None:
    model = make_network()
    weights = wrap(model)
    schedule = torch.optim.lr_scheduler.LambdaLR(weights.optimiser, lambda step: 0.5**step)
    for step in range(3):
        backward(model, step, torch.bfloat16)
        weights.step()
        schedule.step()
    assert [group["lr"] for group in weights.param_groups] == [0.05 / 8] * 2


def test_gradients_of_micro_batches_add_up_in_float32() -> None:
    model = nn.Linear(1, 1, bias=False)
    nn.init.zeros_(model.weight)
    weights = wrap(model, lambda groups: torch.optim.SGD(groups, lr=1.0))
    for gradient in (1.0, 2.0**-10):  # bfloat16 has no sum of the two
        model.weight.grad = torch.full_like(model.weight, gradient)
        weights.collect_gradients()
        assert model.weight.grad is None
    weights.collect_gradients()
    (stand_in,) = weights.param_groups[0]["params"]
    assert stand_in.grad.item() == 1 + 2.0**-10


def test_zero_grad_drops_gradients_collected_or_not() -> None:
    model = nn.Linear(2, 2)
    weights = wrap(model)
    before = model.weight.detach().clone()
    for is_collected in (True, False):
        for parameter in model.parameters():
            parameter.grad = torch.ones_like(parameter)
        if is_collected:
            weights.collect_gradients()
        weights.zero_grad()
        weights.step()
    assert torch.equal(model.weight, before)


def test_float16_trains_with_a_loss_scaler_which_skips_overflows() -> None:
    model = make_network()
    weights = wrap(model, dtype=torch.float16)
    scaler = torch.amp.GradScaler("cpu", init_scale=2.0**10)
    losses = []
    for step in range(100):
        scale = float("inf") if step == 50 else scaler.get_scale()
        before = [each.detach().clone() for each in model.parameters()]
        losses.append(backward(model, step, torch.float16, scale))
        scaler.scale(torch.zeros(()))  # begins the step, as scaling the loss would
        weights.collect_gradients()
        scaler.unscale_(weights.optimiser)
        stand_ins = [each for group in weights.param_groups for each in group["params"]]
        nn.utils.clip_grad_norm_(stand_ins, 1.0)
        scaler.step(weights.optimiser)
        scaler.update()
        weights.zero_grad()
        is_same = all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
        assert is_same == (step == 50)
    assert scaler.get_scale() == 2.0**9
    assert sum(losses[-10:]) < 0.5 * sum(losses[:10])


@pytest.mark.parametrize("keep_vectors", [True, False])
@half
def test_a_residual_network_takes_a_step(keep_vectors: bool, dtype: torch.dtype) -> None:
    model = resnet_small(3).to(memory_format=torch.channels_last)
    weights = wrap(model, dtype=dtype, keep_vectors=keep_vectors)
    images = torch.rand(2, 4, 32, 32).to(memory_format=torch.channels_last)
    images[:, 3] = 0
    with torch.autocast("cpu", dtype=dtype):
        loss = model(images).float().square().sum()
    loss.backward()
    before = model.fc.weight.detach().clone()
    weights.step()
    assert not torch.equal(model.fc.weight, before)
    assert model.conv1.weight.dtype == dtype
    assert model.conv1.weight.is_contiguous(memory_format=torch.channels_last)
    assert model.fc.bias.dtype == (torch.float32 if keep_vectors else dtype)
    assert model.bn1.weight.dtype == model.bn1.running_mean.dtype == torch.float32
    assert (model.conv1.weight[:, 3] == 0).all(), "the fourth channel has no gradient"


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"dtype": torch.float32}, "must be bfloat16 or float16 to be rounded, got torch.float32"),
        ({"rounding": "up"}, "rounding must be one of stochastic, nearest, got 'up'"),
    ],
)
def test_an_invalid_option_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        wrap(nn.Linear(1, 1), **options)

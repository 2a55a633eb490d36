"""The average of the weights against its formula, over resumes, and for half-precision models."""

import io

import pytest
import torch
import torch.distributed as dist
from torch import nn

from feeder.errors import ConfigError
from trainer_client.reference.optimisers.moving_average import MovingAverage
from trainer_client.reference.resnet import ResNet, resnet_small

torch.set_num_threads(1)


def make_model() -> ResNet:
    torch.manual_seed(3)
    return resnet_small(3)


def train_step(model: nn.Module, seed: int) -> None:
    generator = torch.Generator().manual_seed(seed)
    model.train()
    images = torch.rand(4, 4, 32, 32, generator=generator)
    images[:, 3] = 0
    model(images).square().sum().backward()
    with torch.no_grad():
        for parameter in model.parameters():
            assert parameter.grad is not None
            parameter -= 0.01 * parameter.grad
            parameter.grad = None


@pytest.mark.parametrize("warm_up", [False, True])
def test_weights_and_batch_norm_statistics_are_averaged_by_the_formula(warm_up: bool) -> None:
    model = make_model()
    average = MovingAverage(model, 0.8, warm_up=warm_up)
    expected = {name: value.double() for name, value in model.state_dict().items()}
    for step in range(5):
        train_step(model, step)
        assert average.update(step)
        decay = min(0.8, (1 + step) / (10 + step)) if warm_up else 0.8
        for name, value in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                expected[name] = value.double()
            else:
                expected[name] = decay * expected[name] + (1 - decay) * value.double()
    found = average.model.state_dict()
    assert found["bn1.num_batches_tracked"] == 5
    assert not torch.equal(found["bn1.running_mean"], model.bn1.running_mean)
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-6, atol=1e-7)


def test_it_averages_only_every_so_many_steps() -> None:
    model = nn.Linear(2, 2)
    average = MovingAverage(model, 0.5, every_steps=3)
    assert [average.update(step) for step in range(7)] == [False, False, True] * 2 + [False]


def test_before_the_first_update_it_is_the_model_and_then_moves_alone() -> None:
    model = make_model()
    average = MovingAverage(model, 0.9)
    images = torch.rand(2, 4, 32, 32)
    assert not average.model.training
    assert torch.equal(average.model(images), model.eval()(images))
    train_step(model, 0)
    assert not torch.equal(average.model(images), model.eval()(images))


def test_it_has_no_gradient_and_its_fourth_input_channel_stays_zero() -> None:
    model = make_model()
    average = MovingAverage(model, 0.9)
    for step in range(3):
        train_step(model, step)
        average.update(step)
    averaged = average.model
    assert isinstance(averaged, ResNet)
    assert not any(parameter.requires_grad for parameter in averaged.parameters())
    assert not averaged(torch.rand(1, 4, 32, 32)).requires_grad
    assert (averaged.conv1.weight[:, 3] == 0).all()
    assert (averaged.conv1.weight[:, :3] != 0).any()
    assert all(parameter.requires_grad for parameter in model.parameters())


def test_a_checkpoint_for_three_channels_loads_into_the_average() -> None:
    average = MovingAverage(make_model(), 0.9)
    state = average.state_dict()
    weight = state["model"]["conv1.weight"].clone()
    state["model"] = {**state["model"], "conv1.weight": weight[:, :3]}
    average.load_state_dict(state)
    assert torch.equal(average.model.state_dict()["conv1.weight"], weight)


def test_a_resumed_average_continues_bit_by_bit() -> None:
    model = make_model()
    average = MovingAverage(model, 0.9)
    for step in range(3):
        train_step(model, step)
        average.update(step)
    file = io.BytesIO()
    torch.save({"model": model.state_dict(), "average": average.state_dict()}, file)
    for step in range(3, 6):
        train_step(model, step)
        average.update(step)
    file.seek(0)
    saved = torch.load(file, weights_only=True)
    other = make_model()
    resumed = MovingAverage(other, 0.9)
    other.load_state_dict(saved["model"])
    resumed.load_state_dict(saved["average"])
    for step in range(3, 6):
        train_step(other, step)
        resumed.update(step)
    for name, value in average.model.state_dict().items():
        assert torch.equal(value, resumed.model.state_dict()[name]), name


def test_the_average_of_half_precision_weights_is_float32_and_keeps_small_updates() -> None:
    model = nn.Linear(1, 1, bias=False, dtype=torch.bfloat16)
    nn.init.ones_(model.weight)
    average = MovingAverage(model, 0.999, warm_up=False)
    nn.init.constant_(model.weight, 1.25)
    average.update(0)
    weight = average.model.state_dict()["weight"]
    assert weight.dtype == torch.float32
    assert weight.item() == pytest.approx(1.00025, rel=1e-6)
    assert weight.bfloat16() == 1


def test_a_distributed_batch_norm_shares_its_process_group_with_the_average() -> None:
    group = dist.ProcessGroup(dist.HashStore(), 0, 1)
    model = nn.Sequential(nn.SyncBatchNorm(3, process_group=group), nn.SyncBatchNorm(3))
    average = MovingAverage(model, 0.9)
    with torch.no_grad():
        model[0].running_mean += 1
    average.update(0)
    assert [norm.process_group for norm in average.model.children()] == [group, None]
    images = torch.zeros(2, 3, 4, 4)
    torch.testing.assert_close(average.model(images), images - 0.9, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize(
    ("decay", "every_steps", "message"),
    [
        (1.5, 1, r"^ema_decay must be a number 0 \.\. 1, got 1.5$"),
        (0.9, 0, "^ema_every_steps must be 1 or more, got 0$"),
    ],
)
def test_an_invalid_option_is_refused(decay: float, every_steps: int, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        MovingAverage(nn.Linear(1, 1), decay, every_steps)

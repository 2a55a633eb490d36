"""The average of the weights against its formula, over resumes, and for half-precision models."""

import pytest
import torch
from torch import nn

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


@pytest.mark.parametrize("every", [1, 2])
def test_weights_and_batch_norm_statistics_are_averaged_by_the_formula(every: int) -> None:
    model = make_model()
    average = MovingAverage(model, 0.2, every_steps=every)
    expected = {name: value.double() for name, value in model.state_dict().items()}
    images = torch.rand(2, 4, 32, 32)
    assert torch.equal(average.model(images), model.eval()(images)), "begins equal to the model"
    for step in range(6):
        train_step(model, step)
        average.update(step)
        if (step + 1) % every:
            continue
        number = step // every
        decay = min(0.2, (1 + number) / (10 + number))  # reaches 0.2
        for name, value in model.state_dict().items():
            if name.endswith("num_batches_tracked"):
                expected[name] = value.double()
            else:
                expected[name] = decay * expected[name] + (1 - decay) * value.double()
    found = average.model.state_dict()
    assert found["bn1.num_batches_tracked"] == 6
    assert not torch.equal(found["bn1.running_mean"], model.bn1.running_mean)
    for name, value in expected.items():
        torch.testing.assert_close(found[name].double(), value, rtol=1e-6, atol=1e-7)
    assert not average.model.training
    assert not any(parameter.requires_grad for parameter in average.model.parameters())
    assert not found["conv1.weight"][:, 3].any(), "the fourth channel stays zero"

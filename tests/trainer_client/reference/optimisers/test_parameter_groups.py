"""Which parameters decay and which LARS trusts, in an order that only names decide."""

from collections import OrderedDict

import pytest
import torch
from torch import nn

from trainer_client.reference.optimisers.lars import LARS
from trainer_client.reference.optimisers.parameter_groups import parameter_groups
from trainer_client.reference.resnet import resnet_small

torch.set_num_threads(1)


def names_of(model: nn.Module, parameters: list[nn.Parameter]) -> list[str]:
    names = {id(parameter): name for name, parameter in model.named_parameters()}
    return [names[id(parameter)] for parameter in parameters]


def test_kernels_and_matrices_decay_and_biases_and_norms_do_not() -> None:
    model = resnet_small(3)
    kernels, vectors = parameter_groups(model, weight_decay=0.1)
    assert (kernels["weight_decay"], kernels["trust"]) == (0.1, True)
    assert (vectors["weight_decay"], vectors["trust"]) == (0.0, False)
    norms = [p for m in model.modules() if isinstance(m, nn.BatchNorm2d) for p in m.parameters()]
    assert {id(p) for p in (*norms, model.fc.bias)} == {id(p) for p in vectors["params"]}
    assert len(kernels["params"]) + len(vectors["params"]) == len(list(model.parameters()))


def test_vectors_decay_by_option_and_stay_without_trust() -> None:
    _, vectors = parameter_groups(resnet_small(3), weight_decay=0.1, decay_vectors=True)
    assert (vectors["weight_decay"], vectors["trust"]) == (0.1, False)


def test_the_order_is_that_of_the_names_not_of_construction() -> None:
    parts = [(name, nn.Linear(2, 2)) for name in ("c", "a", "b")]
    one, other = nn.Sequential(OrderedDict(parts)), nn.Sequential(OrderedDict(reversed(parts)))
    for first, second in zip(
        parameter_groups(one, weight_decay=0.1),
        parameter_groups(other, weight_decay=0.1),
        strict=True,
    ):
        names = names_of(one, first["params"])
        assert names == names_of(other, second["params"]) == sorted(names)
        assert len(names) == 3


@pytest.mark.parametrize("optimiser", [torch.optim.SGD, LARS])
def test_optimisers_take_the_groups(optimiser: type[torch.optim.Optimizer]) -> None:
    model = nn.Linear(3, 2)
    nn.init.ones_(model.bias)
    made = optimiser(parameter_groups(model, weight_decay=0.5), lr=0.1)
    before = model.weight.detach().clone()
    for parameter in model.parameters():
        parameter.grad = torch.zeros_like(parameter)
    made.step()
    torch.testing.assert_close(model.weight.detach(), before * (1 - 0.1 * 0.5))
    assert (model.bias == 1).all()

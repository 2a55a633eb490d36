"""Distributed batch norm on 4 ranks, compared with one process that has the whole batch."""

import pytest
import torch
import torch.distributed as dist
from torch import nn

from feeder.errors import ConfigError
from tests.trainer_client.reference.parallel.ranks import Results, run_ranks
from trainer_client.reference.parallel.batch_norm import (
    check_batch_norm_ranks,
    distribute_batch_norm,
)
from trainer_client.reference.resnet import resnet_small

torch.set_num_threads(1)

CPU = torch.device("cpu")
SHARES = [2, 1, 3, 2]  # samples of each rank
RANKS = len(SHARES)
GROUPS = [RANKS, 2]


def make_layer() -> nn.BatchNorm2d:
    torch.manual_seed(1)
    layer = nn.BatchNorm2d(3, eps=1e-3).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def make_pass(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch whose mean is large beside its deviation, and the weights of its loss."""
    torch.manual_seed(10 + number)
    features = 100 + torch.randn(sum(SHARES), 3, 2, 5, dtype=torch.float64)
    return features, torch.randn_like(features)


def run_layer(layer: nn.Module, first: int, end: int) -> Results:
    """Two passes over the rows of the ranks ``first`` .. ``end`` - 1, and one in evaluation."""
    results: Results = {}
    rows = slice(sum(SHARES[:first]), sum(SHARES[:end]))
    for number in range(2):
        features, weights = (values[rows] for values in make_pass(number))
        features.requires_grad_()
        output = layer(features)
        (output * weights).sum().backward()
        results |= {f"output {number}": output.detach(), f"gradient {number}": features.grad}
    layer.eval()
    results["evaluation"] = layer(features).detach()
    results |= {f"total {name}": each.grad for name, each in layer.named_parameters()}
    return results | {f"buffer {name}": each for name, each in layer.named_buffers()}


def check_conversion_for_cuda() -> None:
    """The model for CUDA, where this process has no device to run it on."""
    model = distribute_batch_norm(resnet_small(5), 2, torch.device("cuda"))
    norms = [each for each in model.modules() if isinstance(each, nn.SyncBatchNorm)]
    first = 2 * (dist.get_rank() // 2)
    for norm in norms:
        assert dist.get_process_group_ranks(norm.process_group) == [first, first + 1]
    plain = resnet_small(5)
    assert len(norms) == sum(isinstance(each, nn.BatchNorm2d) for each in plain.modules())
    assert model.state_dict().keys() == plain.state_dict().keys()


def work_in_rank() -> Results:
    rank, results = dist.get_rank(), {}
    for group in GROUPS:
        layer = distribute_batch_norm(make_layer(), group, CPU)
        found = run_layer(layer, rank, rank + 1)
        results |= {f"{group}/{key}": value for key, value in found.items()}
    check_conversion_for_cuda()
    with pytest.raises(ConfigError, match=r"is for nn.BatchNorm2d, and 1 is BatchNorm1d: use .* 1"):
        distribute_batch_norm(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)), RANKS, CPU)
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return run_ranks(work_in_rank, RANKS, tmp_path_factory.mktemp("ranks"))


@pytest.mark.parametrize(("group", "first"), [(RANKS, 0), (2, 0), (2, 2)])
def test_a_layer_over_some_ranks_equals_one_with_their_whole_batch(
    ranks: list[Results], group: int, first: int
) -> None:
    expected = run_layer(make_layer(), first, first + group)
    prefix = f"{group}/"
    assert {key for key in ranks[0] if key.startswith(prefix)} == {prefix + key for key in expected}
    for key, value in expected.items():
        each = [rank[prefix + key] for rank in ranks[first : first + group]]
        if key.startswith("total"):
            actual = torch.stack(each).sum(0)
        elif key.startswith("buffer"):
            actual, value = torch.stack(each), torch.stack([value] * group)
        else:
            actual = torch.cat(each)
        torch.testing.assert_close(actual, value.detach(), rtol=1e-10, atol=1e-10)


def test_one_rank_leaves_the_model_and_groups_that_do_not_divide_the_ranks_are_refused() -> None:
    model = resnet_small(5)
    assert distribute_batch_norm(model, 1, CPU) is model
    norms = {type(each) for each in model.modules() if isinstance(each, nn.BatchNorm2d)}
    assert norms == {nn.BatchNorm2d}
    check_batch_norm_ranks(2, 4)
    for ranks, world_size, end in ((3, 4, "4 ranks: use 1 or 2 or 4"), (2, 1, "1 rank: use 1")):
        with pytest.raises(ConfigError) as caught:
            check_batch_norm_ranks(ranks, world_size)
        assert str(caught.value) == f"batch_norm_ranks {ranks} does not divide the {end}"

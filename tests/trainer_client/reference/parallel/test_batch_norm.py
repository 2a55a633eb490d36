"""Distributed batch norm on 4 ranks, compared with one process that has the whole batch."""

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from feeder.errors import ConfigError
from tests.trainer_client.reference.parallel.ranks import Results, run_ranks
from trainer_client.reference.parallel.batch_norm import (
    check_batch_norm_ranks,
    distribute_batch_norm,
)
from trainer_client.reference.resnet import resnet_small

torch.set_num_threads(1)

CPU = torch.device("cpu")
STEPS = 4
SAMPLES = 8
CLASSES = 5
STATISTICS = ("running_mean", "running_var", "num_batches_tracked")
SHARES = [2, 1, 3, 2]  # samples of each rank for one layer
RANKS = len(SHARES)
LAYERS = {
    "usual": {},
    "cumulative": {"momentum": None},
    "bare": {"affine": False, "eps": 1e-3},
    "untracked": {"track_running_stats": False},
}


def make_layer(name: str) -> nn.BatchNorm2d:
    torch.manual_seed(1)
    layer = nn.BatchNorm2d(3, **LAYERS[name]).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def make_pass(number: int, samples: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A batch whose mean is large beside its deviation, and the weights of its loss."""
    torch.manual_seed(10 + number)
    features = 100 + torch.randn(samples, 3, 2, 5, dtype=torch.float64)
    return features, torch.randn_like(features)


def run_layer(layer: nn.Module, shares: list[int], rank: int | None) -> Results:
    """Two passes over the rows of ``rank``, or over all of them, and one in evaluation."""
    results: Results = {}
    rows = slice(None) if rank is None else slice(sum(shares[:rank]), sum(shares[: rank + 1]))
    for number in range(2):
        features, weights = (values[rows] for values in make_pass(number, sum(shares)))
        features.requires_grad_()
        output = layer(features)
        (output * weights).sum().backward()
        results |= {f"output {number}": output.detach(), f"gradient {number}": features.grad}
    layer.eval()
    results["evaluation"] = layer(features).detach()
    results |= {f"total {name}": each.grad for name, each in layer.named_parameters()}
    return results | {f"buffer {name}": each for name, each in layer.named_buffers()}


def make_model() -> nn.Module:
    torch.manual_seed(2)
    model = resnet_small(CLASSES).double()
    for name, parameter in model.named_parameters():
        if parameter.ndim == 1:  # the last norms of blocks begin at zero
            nn.init.normal_(parameter, mean=float("bn" in name), std=0.3)
    return model


def make_step(number: int) -> tuple[torch.Tensor, torch.Tensor]:
    torch.manual_seed(20 + number)
    images = torch.randn(SAMPLES, 4, 32, 32, dtype=torch.float64)
    return images, torch.randint(CLASSES, (SAMPLES,))


def train_rank(batch_norm_ranks: int) -> Results:
    """Train the rank's share in DDP; return losses, the first step's gradients and the end."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    share = slice(rank * SAMPLES // ranks, (rank + 1) * SAMPLES // ranks)
    plain = distribute_batch_norm(make_model(), batch_norm_ranks, CPU)
    model = DistributedDataParallel(plain)
    results, losses = {}, []
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number in range(STEPS):
        images, labels = make_step(number)
        loss = nn.functional.cross_entropy(model(images[share]), labels[share])
        optimiser.zero_grad()
        loss.backward()
        if number == 0:
            results = {f"gradient {n}": p.grad.clone() for n, p in plain.named_parameters()}
        optimiser.step()
        losses.append(loss.detach())
    return results | {"losses": torch.stack(losses), **plain.state_dict()}


def train_whole(groups: int) -> Results:
    """Train as ``groups`` groups of ranks do; the first group keeps the statistics."""
    model = make_model()
    results, losses = {}, []
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05, momentum=0.9)
    for number in range(STEPS):
        optimiser.zero_grad()
        total = torch.zeros(())
        for group, (images, labels) in enumerate(
            zip(*(each.chunk(groups) for each in make_step(number)), strict=True)
        ):
            kept = [buffer.clone() for buffer in model.buffers()]
            loss = nn.functional.cross_entropy(model(images), labels) / groups
            loss.backward()
            total = total + loss.detach()
            for buffer, value in zip(model.buffers(), kept, strict=True):
                if group > 0:
                    buffer.copy_(value)
        if number == 0:
            results = {f"gradient {n}": p.grad.clone() for n, p in model.named_parameters()}
        optimiser.step()
        losses.append(total)
    return results | {"losses": torch.stack(losses), **model.state_dict()}


def check_conversion_for_cuda() -> None:
    """The model for CUDA, where this process has no device to run it on."""
    model = distribute_batch_norm(make_model(), 2, torch.device("cuda"))
    norms = [each for each in model.modules() if isinstance(each, nn.SyncBatchNorm)]
    first = 2 * (dist.get_rank() // 2)
    for norm in norms:
        assert dist.get_process_group_ranks(norm.process_group) == [first, first + 1]
    plain = make_model()
    assert len(norms) == sum(isinstance(each, nn.BatchNorm2d) for each in plain.modules())
    assert model.state_dict().keys() == plain.state_dict().keys()


def work_in_rank() -> Results:
    """All that one rank does: layers over all ranks, then models over groups of each size."""
    rank, ranks = dist.get_rank(), dist.get_world_size()
    results: Results = {}
    for name in LAYERS:
        layer = distribute_batch_norm(make_layer(name), ranks, CPU)
        results |= {f"{name}/{k}": v for k, v in run_layer(layer, SHARES, rank).items()}
    check_conversion_for_cuda()
    with pytest.raises(ConfigError, match=r"is for nn.BatchNorm2d, and 1 is BatchNorm1d: use .* 1"):
        distribute_batch_norm(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)), ranks, CPU)
    for group in (2, RANKS):
        results |= {f"{group}/{name}": each for name, each in train_rank(group).items()}
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    return run_ranks(work_in_rank, RANKS, tmp_path_factory.mktemp("ranks"))


def check_equal(actual: torch.Tensor, expected: torch.Tensor, name: str) -> None:
    torch.testing.assert_close(
        actual, expected, rtol=1e-10, atol=1e-10, msg=lambda text: f"{name}: {text}"
    )


@pytest.mark.parametrize("name", LAYERS)
def test_a_layer_over_all_ranks_equals_one_with_the_whole_batch(
    ranks: list[Results], name: str
) -> None:
    expected = run_layer(make_layer(name), SHARES, None)
    prefix = f"{name}/"
    assert {key for key in ranks[0] if key.startswith(prefix)} == {prefix + key for key in expected}
    for key, value in expected.items():
        each = [rank[prefix + key] for rank in ranks]
        if key.startswith("total"):
            check_equal(torch.stack(each).sum(0), value, key)
        elif key.startswith("buffer"):
            for rank in each:
                check_equal(rank, value, key)
        elif name == "untracked" and key == "evaluation":  # of a rank's own samples, as in torch
            alone = make_layer(name).eval()
            features = make_pass(1, sum(SHARES))[0].split(SHARES)
            for rank, own in zip(each, features, strict=True):
                check_equal(rank, alone(own).detach(), key)
        else:
            check_equal(torch.cat(each), value, key)


def test_a_model_in_ddp_trains_as_one_process_with_the_large_batch(ranks: list[Results]) -> None:
    for group in (2, RANKS):
        expected = train_whole(RANKS // group)
        losses = torch.stack([rank[f"{group}/losses"] for rank in ranks]).mean(0)
        check_equal(losses, expected.pop("losses"), "losses")
        for rank in ranks:
            for name, value in expected.items():
                is_own = name.endswith(STATISTICS) and rank is not ranks[0]
                if group < RANKS and is_own:
                    continue  # ranks keep their group's until DDP sends them the first rank's
                check_equal(rank[f"{group}/{name}"], value, name)


def test_one_rank_leaves_the_model_and_groups_that_do_not_divide_the_ranks_are_refused() -> None:
    model = make_model()
    assert distribute_batch_norm(model, 1, CPU) is model
    norms = {type(each) for each in model.modules() if isinstance(each, nn.BatchNorm2d)}
    assert norms == {nn.BatchNorm2d}
    check_batch_norm_ranks(2, 4)
    for ranks, world_size, end in (
        (3, 4, "4 ranks: use 1 or 2 or 4"),
        (8, 4, "4 ranks: use 1 or 2 or 4"),
        (2, 1, "1 rank: use 1"),
    ):
        with pytest.raises(ConfigError) as caught:
            check_batch_norm_ranks(ranks, world_size)
        assert str(caught.value) == f"batch_norm_ranks {ranks} does not divide the {end}"

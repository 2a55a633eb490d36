"""Reductions of gradients on 4 ranks, as 2 hosts of 2: each against the mean over the ranks."""

import os
from collections.abc import Iterator
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from torch import nn

from feeder.errors import ConfigError
from tests.trainer_client.reference.parallel.ranks import Results, run_ranks
from trainer_client.reference.parallel.reduction import TwoLevel, wrap
from trainer_client.reference.resnet import resnet_small

torch.set_num_threads(1)

CPU = torch.device("cpu")
RANKS, RANKS_PER_HOST = 4, 2
LENGTHS = (1, 2, 7, 64)  # of vectors, with and without padding
MICRO_BATCHES = 2

USUAL = {"bucket_mb": 25.0, "reduction": "flat", "compression": "none"}
WAYS = {
    "flat": USUAL,
    "flat float16": {**USUAL, "compression": "float16"},
    "two-level": {**USUAL, "reduction": "two-level"},
    "two-level, small buckets": {**USUAL, "reduction": "two-level", "bucket_mb": 0.25},
    "two-level float16": {**USUAL, "reduction": "two-level", "compression": "float16"},
    "two-level, one host": {**USUAL, "reduction": "two-level"},
    "two-level, single ranks": {**USUAL, "reduction": "two-level"},
}
HOSTS = {"two-level, one host": str(RANKS), "two-level, single ranks": "1"}
FLAT = {"flat", "flat float16", "two-level, one host", "two-level, single ranks"}


def backward(model: nn.Module, rank: int) -> Results:
    """Return the gradients of a step of micro-batches; only the last one is reduced."""
    torch.manual_seed(100 + rank)
    for number in range(MICRO_BATCHES):
        images = torch.randn(2, 4, 32, 32, dtype=torch.float64)
        last = number == MICRO_BATCHES - 1 or not hasattr(model, "no_sync")
        with nullcontext() if last else model.no_sync():
            nn.functional.cross_entropy(model(images), torch.tensor([0, 1])).backward()
    return {name: each.grad.clone() for name, each in model.named_parameters()}


def make_model() -> nn.Module:
    torch.manual_seed(1)
    model = resnet_small(5).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bn2.weight"):  # else the blocks' other gradients are zero
            nn.init.ones_(parameter)
    return model


def count_reductions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the length of each vector that two levels reduce."""
    lengths: list[int] = []
    average = TwoLevel.average

    def note(groups: TwoLevel, bucket: torch.Tensor) -> None:
        lengths.append(bucket.numel())
        average(groups, bucket)

    monkeypatch.setattr(TwoLevel, "average", note)
    return lengths


def check_refusals(rank: int) -> None:
    """All ranks must raise the error: one that does not would wait for the others."""
    for ranks_per_host, have in (("3", "3 to 3"), ("1" if rank == 0 else "3", "1 to 3"), ("", "0")):
        os.environ["LOCAL_WORLD_SIZE"] = ranks_per_host
        with pytest.raises(ConfigError, match=f"as many ranks on each host, and .* is {have}"):
            wrap(make_model(), device=CPU, **{**USUAL, "reduction": "two-level"})


def work_in_rank() -> Results:
    rank = dist.get_rank()
    results: Results = {}
    for name, options in WAYS.items():
        with pytest.MonkeyPatch.context() as patch:
            lengths = count_reductions(patch)
            patch.setenv("LOCAL_WORLD_SIZE", HOSTS.get(name, str(RANKS_PER_HOST)))
            model = wrap(make_model(), device=CPU, **options)
            gradients = backward(model, rank)
            first = len(lengths)
            model.zero_grad()
            again = backward(model, rank)  # DDP has rebuilt its buckets meanwhile
        if options["compression"] == "none":  # else it rounds, in an order that the buckets decide
            torch.testing.assert_close(again, gradients, rtol=1e-9, atol=1e-12)
        results |= {f"{name}/{k.removeprefix('module.')}": v for k, v in gradients.items()}
        results[f"reductions/{name}"] = torch.tensor(
            [first, len(lengths) - first, sum(lengths[:first])]
        )
    groups = TwoLevel(RANKS_PER_HOST, CPU)
    for length in LENGTHS:
        vector = rank + 1 + torch.arange(float(length))
        groups.average(vector)
        results[f"vector {length}"] = vector
    check_refusals(rank)
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Results]]:
    folder = tmp_path_factory.mktemp("ranks")
    return run_ranks(work_in_rank, RANKS, folder, ranks_per_host=RANKS_PER_HOST)


@pytest.fixture(scope="module")
def alone() -> Results:
    """Each parameter's gradients in all ranks (RANKS, ...), computed without the others."""
    each = [backward(make_model(), rank) for rank in range(RANKS)]
    return {name: torch.stack([own[name] for own in each]) for name in each[0]}


@pytest.mark.parametrize("way", WAYS)
def test_every_rank_has_the_average_of_all_gradients(
    ranks: list[Results], alone: Results, way: str
) -> None:
    # Half precision rounds five times: a conversion, a division and three additions.
    precision, least = (5 * 2**-11, 5 * 2**-24) if "float16" in way else (1e-14, 1e-14)
    for name, gradients in alone.items():
        values = ranks[0][f"{way}/{name}"]
        error = (values - gradients.mean(0)).abs()
        assert torch.all(error <= precision * gradients.abs().mean(0) + least), name
        for rank in ranks:
            assert torch.equal(rank[f"{way}/{name}"], values), "ranks must stay equal"


def test_small_buckets_are_reduced_one_by_one(ranks: list[Results]) -> None:
    values = sum(each.numel() for each in make_model().parameters())
    for way in WAYS:
        first, again, total = ranks[0][f"reductions/{way}"].tolist()
        if way in FLAT:
            assert (first, again, total) == (0, 0, 0)
            continue
        assert total == values, "each gradient once, without those of the other micro-batches"
        assert first == 1, "DDP divides into buckets after the first step"
        assert again >= (4 if way == "two-level, small buckets" else 1)


@pytest.mark.parametrize("length", LENGTHS)
def test_vectors_of_any_length_are_averaged(ranks: list[Results], length: int) -> None:
    expected = (RANKS + 1) / 2 + torch.arange(float(length))
    for rank in ranks:
        torch.testing.assert_close(rank[f"vector {length}"], expected)


def test_bfloat16_is_refused_on_the_cpu() -> None:
    with pytest.raises(ConfigError, match=r"bfloat16 is for CUDA devices, .* cpu: use float16 or"):
        wrap(make_model(), device=CPU, **{**USUAL, "compression": "bfloat16"})

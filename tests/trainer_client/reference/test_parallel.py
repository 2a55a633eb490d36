"""What ranks share: random numbers, votes, batches, batch norm and gradients.

Four ranks, as two hosts with two ranks each, are compared with one that has the whole batch.
"""

import os
from contextlib import nullcontext

import pytest
import torch
import torch.distributed as dist
from hypothesis import given
from hypothesis import strategies as st
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from feeder.errors import ConfigError
from tests.trainer_client.reference.jobs import Results, run_ranks
from tests.trainer_client.reference.test_step import make_block_model, take_steps
from trainer_client.reference.options import BatchPlan
from trainer_client.reference.parallel.batch_norm import (
    GroupBatchNorm2d,
    check_batch_norm_ranks,
    distribute_batch_norm,
)
from trainer_client.reference.parallel.reduction import TwoLevel, wrap
from trainer_client.reference.place import (
    Place,
    Stop,
    StopVote,
    gather_random_states,
    restore_random_state,
    seed_rank,
)
from trainer_client.reference.recipes.recipe import TrainingRecipe
from trainer_client.reference.recompute import recompute_at
from trainer_client.reference.resnet import resnet_small

torch.set_num_threads(1)
CPU = torch.device("cpu")
SHARES = [2, 1, 3, 2]  # samples of each rank, for batch norm
RANKS, RANKS_PER_HOST = len(SHARES), 2


def work_in_rank() -> Results:
    """All that needs other ranks, in one process group."""
    results = reduce_in_rank() | normalise_in_rank() | recompute_in_rank()
    check_refusals()
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> list[Results]:
    folder = tmp_path_factory.mktemp("ranks")
    return run_ranks(work_in_rank, RANKS, folder, ranks_per_host=RANKS_PER_HOST)


# --- Place and plan -------------------------------------------------------------------------------


def draw() -> list[float]:
    return torch.rand(5).tolist()


def test_each_rank_resumes_its_own_random_numbers_and_other_ranks_begin_anew() -> None:
    states, drawn = [], []
    for rank in range(2):
        seed_rank(Place(device=CPU, rank=rank, ranks=2), seed=3, steps_done=0)
        states.append(torch.get_rng_state())
        drawn.append(draw())
    assert drawn[0] != drawn[1]
    gathered = {"cpu": torch.stack(states)}
    for rank in range(2):
        place = Place(device=CPU, rank=rank, ranks=2)
        restore_random_state(gathered, place, seed=3, steps_done=9)
        assert draw() == drawn[rank]
    alone, seen = Place(device=CPU), []
    for steps in (9, 9, 10):
        restore_random_state(gathered, alone, seed=3, steps_done=steps)
        seen.append(draw())
    assert seen[0] == seen[1] != seen[2]
    assert seen[0] not in drawn
    own = gather_random_states(alone)
    first = draw()
    restore_random_state(own, alone, seed=3, steps_done=0)
    assert draw() == first


class OtherRank:
    """Another rank in an all_reduce with MAX."""

    def __init__(self, *values: int) -> None:
        self.values = torch.tensor(values)
        self.is_over = False

    def all_reduce(self, tensor: torch.Tensor, *_: object, **__: object) -> "OtherRank":
        tensor.copy_(torch.maximum(tensor, self.values))
        return self

    def wait(self) -> None:
        self.is_over = True


def test_another_ranks_vote_stops_this_one_too(monkeypatch: pytest.MonkeyPatch) -> None:
    for vote_of_other in (Stop.NO, Stop.SIGTERM):
        other = OtherRank(vote_of_other)
        monkeypatch.setattr("torch.distributed.all_reduce", other.all_reduce)
        vote = StopVote(object())  # type: ignore[arg-type]
        vote.begin()
        assert not other.is_over, "the vote must not wait before the step is computed"
        assert vote.end() is vote_of_other
        assert other.is_over


def make_plan(*, total: int = 0, parts: int = 0, size: int = 0, ranks: int = 1) -> BatchPlan:
    return BatchPlan.make(TrainingRecipe(global_batch=total, accumulation=parts), size, ranks)


@pytest.mark.parametrize(
    ("sizes", "expected"),
    [
        ({}, (256, 256, 1)),
        ({"ranks": 8}, (2048, 256, 1)),
        ({"size": 64, "ranks": 2, "parts": 4}, (512, 64, 4)),
        ({"total": 1024, "ranks": 8}, (1024, 128, 1)),
        ({"total": 1024, "parts": 4}, (1024, 256, 4)),
        ({"total": 1024, "size": 128, "ranks": 2}, (1024, 128, 4)),
    ],
)
def test_two_of_the_numbers_give_the_third(
    sizes: dict[str, int], expected: tuple[int, int, int]
) -> None:
    plan = make_plan(**sizes)
    assert (plan.global_batch, plan.batch_size, plan.accumulation) == expected


SIZES = st.integers(0, 512)


@given(total=SIZES, parts=st.integers(0, 9), size=SIZES, ranks=st.integers(1, 9))
def test_the_parts_are_the_whole_or_one_line_says_why_not(
    total: int, parts: int, size: int, ranks: int
) -> None:
    try:
        plan = make_plan(total=total, parts=parts, size=size, ranks=ranks)
    except ConfigError as error:
        assert f"global batch of {total} is not {ranks} rank" in str(error)  # noqa: PT017
        assert "\n" not in str(error)  # noqa: PT017
        return
    assert plan.ranks * plan.accumulation * plan.batch_size == plan.global_batch > 0
    assert plan.global_batch == (total or plan.global_batch)
    assert plan.accumulation == (parts or plan.accumulation)
    assert plan.batch_size == (size or plan.batch_size)


# --- Batch norm -----------------------------------------------------------------------------------

GROUPS = [RANKS, 2]


def make_layer() -> nn.BatchNorm2d:
    torch.manual_seed(1)
    layer = nn.BatchNorm2d(3, eps=1e-3).double()
    for parameter in layer.parameters():
        nn.init.normal_(parameter)
    return layer


def run_layer(layer: nn.Module, first: int, end: int) -> Results:
    """Two passes over the rows of the ranks ``first`` .. ``end`` - 1, and one in evaluation.

    The batches' mean is large beside its deviation.
    """
    results: Results = {}
    rows = slice(sum(SHARES[:first]), sum(SHARES[:end]))
    for number in range(2):
        torch.manual_seed(10 + number)
        whole = 100 + torch.randn(sum(SHARES), 3, 2, 5, dtype=torch.float64)
        weights = torch.randn_like(whole)[rows]
        features = whole[rows].requires_grad_()
        output = layer(features)
        (output * weights).sum().backward()
        results |= {f"output {number}": output.detach(), f"gradient {number}": features.grad}
    layer.eval()
    results["evaluation"] = layer(features).detach()
    results |= {f"total {name}": each.grad for name, each in layer.named_parameters()}
    return results | {f"buffer {name}": each for name, each in layer.named_buffers()}


def normalise_in_rank() -> Results:
    rank, results = dist.get_rank(), {}
    for group in GROUPS:
        layer = distribute_batch_norm(make_layer(), group, CPU)
        found = run_layer(layer, rank, rank + 1)
        results |= {f"{group}/{key}": value for key, value in found.items()}
    # The model for CUDA, where this process has no device to run it on.
    model, plain = (distribute_batch_norm(resnet_small(5), k, torch.device("cuda")) for k in (2, 1))
    norms = [each for each in model.modules() if isinstance(each, nn.SyncBatchNorm)]
    first = 2 * (rank // 2)
    for norm in norms:
        assert dist.get_process_group_ranks(norm.process_group) == [first, first + 1]
    assert len(norms) == sum(type(each) is nn.BatchNorm2d for each in plain.modules())
    assert model.state_dict().keys() == plain.state_dict().keys()
    return results


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


def test_groups_that_do_not_divide_the_ranks_are_refused() -> None:
    check_batch_norm_ranks(2, 4)
    for ranks, world_size, end in ((3, 4, "4 ranks: use 1 or 2 or 4"), (2, 1, "1 rank: use 1")):
        with pytest.raises(ConfigError) as caught:
            check_batch_norm_ranks(ranks, world_size)
        assert str(caught.value) == f"batch_norm_ranks {ranks} does not divide the {end}"


def recompute_in_rank() -> Results:
    """Steps in DDP with distributed batch norm, without and with recomputation."""
    results: Results = {}
    for kind, patterns in (("kept", []), ("again", ["layer?.*"])):
        model = distribute_batch_norm(make_block_model(), 2, CPU)
        assert any(isinstance(each, GroupBatchNorm2d) for each in model.modules())
        recompute_at(model, patterns)
        steps = take_steps(DistributedDataParallel(model, bucket_cap_mb=0.1), steps=3)
        results |= {f"{kind}/{name}": value for name, value in steps.items()}
    return results


def test_recomputed_steps_with_distributed_batch_norm_are_equal_bit_for_bit(
    ranks: list[Results],
) -> None:
    for rank in ranks:
        kept = {name: value for name, value in rank.items() if name.startswith("kept/")}
        assert kept["kept/module.layer1.0.bn1.num_batches_tracked"] == 3
        for name, value in kept.items():
            assert torch.equal(rank[name.replace("kept/", "again/")], value), name


# --- Gradients ------------------------------------------------------------------------------------

LENGTHS = (1, 2, 7, 64)  # of vectors, with and without padding
MICRO_BATCHES = 2

USUAL = {"bucket_mb": 25.0, "reduction": "flat", "compression": "none"}
TWO_LEVEL = {**USUAL, "reduction": "two-level"}
WAYS = {
    "flat": USUAL,
    "flat float16": {**USUAL, "compression": "float16"},
    "two-level": TWO_LEVEL,
    "two-level, small buckets": {**TWO_LEVEL, "bucket_mb": 0.25},
    "two-level float16": {**TWO_LEVEL, "compression": "float16"},
    "two-level, one host": TWO_LEVEL,
    "two-level, single ranks": TWO_LEVEL,
}
HOSTS = {"two-level, one host": str(RANKS), "two-level, single ranks": "1"}


def make_model() -> nn.Module:
    torch.manual_seed(1)
    model = resnet_small(5).double()
    for name, parameter in model.named_parameters():
        if name.endswith("bn2.weight"):  # else the blocks' other gradients are zero
            nn.init.ones_(parameter)
    return model


def backward(model: nn.Module, rank: int) -> Results:
    """Return the gradients of a step of micro-batches; only the last one is reduced."""
    torch.manual_seed(100 + rank)
    for number in range(MICRO_BATCHES):
        images = torch.randn(2, 4, 32, 32, dtype=torch.float64)
        last = number == MICRO_BATCHES - 1 or not hasattr(model, "no_sync")
        with nullcontext() if last else model.no_sync():
            nn.functional.cross_entropy(model(images), torch.tensor([0, 1])).backward()
    return {name: each.grad.clone() for name, each in model.named_parameters()}


def count_reductions(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return a list that gets the length of each vector that two levels reduce."""
    lengths: list[int] = []
    average = TwoLevel.average

    def note(groups: TwoLevel, bucket: torch.Tensor) -> None:
        lengths.append(bucket.numel())
        average(groups, bucket)

    monkeypatch.setattr(TwoLevel, "average", note)
    return lengths


def reduce_in_rank() -> Results:
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
    return results


def check_refusals() -> None:
    """All ranks must raise the error: one that does not would wait for the others."""
    with pytest.raises(ConfigError, match=r"is for nn.BatchNorm2d, and 1 is BatchNorm1d: use .* 1"):
        distribute_batch_norm(nn.Sequential(nn.ReLU(), nn.BatchNorm1d(3)), RANKS, CPU)
    with pytest.raises(ConfigError, match=r"bfloat16 is for CUDA devices, .* cpu: use float16 or"):
        wrap(make_model(), device=CPU, **{**USUAL, "compression": "bfloat16"})
    other = "1" if dist.get_rank() == 0 else "3"
    for ranks_per_host, have in (("3", "3 to 3"), (other, "1 to 3"), ("", "0")):
        os.environ["LOCAL_WORLD_SIZE"] = ranks_per_host
        with pytest.raises(ConfigError, match=f"as many ranks on each host, and .* is {have}"):
            wrap(make_model(), device=CPU, **TWO_LEVEL)


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
    first, again, total = ranks[0][f"reductions/{way}"].tolist()
    if way.startswith("flat") or way in HOSTS:
        assert (first, again, total) == (0, 0, 0)
        return
    values = sum(each.numel() for each in make_model().parameters())
    assert total == values, "each gradient once, without those of the other micro-batches"
    assert first == 1, "DDP divides into buckets after the first step"
    assert again >= (4 if way == "two-level, small buckets" else 1)


def test_vectors_of_any_length_are_averaged(ranks: list[Results]) -> None:
    for length in LENGTHS:
        expected = (RANKS + 1) / 2 + torch.arange(float(length))
        for rank in ranks:
            torch.testing.assert_close(rank[f"vector {length}"], expected)

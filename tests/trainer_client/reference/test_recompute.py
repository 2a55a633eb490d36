"""Recomputation at named points: the same steps bit for bit, in less memory."""

import argparse
import itertools
from collections.abc import Iterator

import pytest
import torch
from torch import nn
from torch.nn.parallel import DistributedDataParallel

from bench.micro.training_step import measure_memory
from feeder.errors import ConfigError
from tests.trainer_client.reference.parallel.ranks import Results, run_ranks
from trainer_client.reference.parallel.batch_norm import GroupBatchNorm2d, distribute_batch_norm
from trainer_client.reference.recompute import recompute_at
from trainer_client.reference.resnet import resnet_small

torch.set_num_threads(1)

CPU = torch.device("cpu")
CLASSES = 5
BLOCKS = ["layer1.0", "layer2.0", "layer3.0", "layer4.0"]


def make_model() -> nn.Module:
    """A network with dropout in a block."""
    torch.manual_seed(1)
    model = resnet_small(CLASSES)
    model.get_submodule("layer2.0.downsample").append(nn.Dropout(0.5))
    for name, parameter in model.named_parameters():
        if name.endswith("bn2.weight"):  # else the blocks' other gradients are zero
            nn.init.ones_(parameter)
    return model


def make_loss(model: nn.Module) -> torch.Tensor:
    images, labels = torch.randn(4, 4, 32, 32), torch.randint(CLASSES, (4,))
    loss: torch.Tensor = nn.functional.cross_entropy(model(images), labels)
    return loss


def take_steps(model: nn.Module, steps: int = 2) -> Results:
    """Return losses, last gradients, the next random number, and the state after some steps."""
    torch.manual_seed(2)
    optimiser = torch.optim.SGD(model.parameters(), lr=0.05)
    losses = []
    for _ in range(steps):
        optimiser.zero_grad()
        loss = make_loss(model)
        loss.backward()
        optimiser.step()
        losses.append(loss.detach())
    results = {f"gradient {name}": each.grad for name, each in model.named_parameters()}
    results |= {"losses": torch.stack(losses), "random": torch.rand(3)}
    return results | model.state_dict()


def check_equal(actual: Results, expected: Results) -> None:
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


@pytest.mark.parametrize(
    ("patterns", "names"),
    [
        (["layer?.*"], BLOCKS),
        (["layer4.0", "bn1", "layer1.*", "layer1.0"], ["bn1", "layer1.0", "layer4.0"]),
        (["*.*.downsample"], [f"layer{number}.0.downsample" for number in (2, 3, 4)]),
    ],
)
def test_steps_are_equal_bit_for_bit_and_a_pattern_matches_names_with_as_many_parts(
    patterns: list[str], names: list[str]
) -> None:
    model = make_model()
    assert recompute_at(model, patterns) == names
    actual, expected = take_steps(model), take_steps(make_model())
    assert expected["bn1.num_batches_tracked"] == 2
    assert all(expected[f"gradient {name}.conv1.weight"].any() for name in BLOCKS)
    check_equal(actual, expected)


def test_modules_run_again_only_in_training_with_gradients() -> None:
    for is_training, has_gradients in itertools.product((True, False), repeat=2):
        model = make_model().train(is_training)
        recompute_at(model, ["layer?.*"])
        runs = []
        model.get_submodule("layer2.0.conv1").register_forward_hook(
            lambda *_, runs=runs: runs.append(1)
        )
        with torch.set_grad_enabled(has_gradients):
            loss = make_loss(model)
        if has_gradients:
            loss.backward()
        assert len(runs) == 1 + (is_training and has_gradients)


@pytest.mark.parametrize(
    ("patterns", "message"),
    [
        (["layer?.*", "layer9.*"], r"no module of the model matches 'layer9.\*', .* are layer"),
        (["layer1", "layer?.*"], r"layer1.0 would be recomputed within layer1, so twice: let"),
    ],
)
def test_patterns_without_a_meaning_are_refused(patterns: list[str], message: str) -> None:
    model = make_model()
    with pytest.raises(ConfigError, match=message) as caught:
        recompute_at(model, patterns)
    assert "\n" not in str(caught.value)
    assert not any("forward" in vars(module) for module in model.modules())


def work_in_rank() -> Results:
    """Steps in DDP with distributed batch norm, without and with recomputation."""
    results: Results = {}
    for kind, patterns in (("kept", []), ("again", ["layer?.*"])):
        model = distribute_batch_norm(make_model(), 2, CPU)
        assert any(isinstance(each, GroupBatchNorm2d) for each in model.modules())
        recompute_at(model, patterns)
        steps = take_steps(DistributedDataParallel(model, bucket_cap_mb=0.1), steps=3)
        results |= {f"{kind}/{name}": value for name, value in steps.items()}
    return results


@pytest.fixture(scope="module")
def ranks(tmp_path_factory: pytest.TempPathFactory) -> Iterator[list[Results]]:
    return run_ranks(work_in_rank, 2, tmp_path_factory.mktemp("ranks"))


def test_ranks_with_distributed_batch_norm_are_equal_bit_for_bit(ranks: list[Results]) -> None:
    for rank in ranks:
        kept = {name: value for name, value in rank.items() if name.startswith("kept/")}
        assert rank["kept/module.layer1.0.bn1.num_batches_tracked"] == 3
        for name, value in kept.items():
            assert torch.equal(rank[name.replace("kept/", "again/")], value), name


@pytest.mark.extensive(
    "a step of ResNet-50 takes seconds; make test checks that recomputing changes no weight"
)
def test_a_step_of_resnet_50_needs_at_least_a_third_less_memory() -> None:
    options = argparse.Namespace(model="resnet50", batch=8, image_size=224, core=None)
    plain, again = (measure_memory(name, options) for name in ("plain", "recompute"))
    activations_mib = 300  # of the plain step, at the least
    assert plain.needed_mib > activations_mib
    assert again.needed_mib < 2 / 3 * plain.needed_mib

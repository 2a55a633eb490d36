"""A step: micro-batches, precision, clipping, recomputation, and each shipped recipe."""

import argparse
import itertools
from collections.abc import Iterator
from functools import partial
from typing import Any

import pytest
import torch
from torch import nn

from bench.micro.training_step import measure_memory
from feeder.errors import ConfigError
from tests.trainer_client.reference.jobs import Results
from trainer_client import Batch
from trainer_client._batch import Origin
from trainer_client.reference.optimisation import lr_factor, peak_lr
from trainer_client.reference.options import BatchPlan
from trainer_client.reference.place import Place
from trainer_client.reference.recipes.recipe import TrainingRecipe, compose_recipe, shipped_recipes
from trainer_client.reference.recompute import recompute_at
from trainer_client.reference.resnet import resnet_small
from trainer_client.reference.trainer import Trainer

torch.set_num_threads(1)  # more threads only slow down models this small


CLASSES = 3
SMALL = TrainingRecipe(model="small", lr=0.1, warmup_epochs=0.0, epochs=2)


class Plain(nn.Module):
    """Two layers without batch norm, so that micro-batches must equal the large batch."""

    def __init__(self) -> None:
        super().__init__()
        self.conv = nn.Conv2d(4, 8, 3, padding=1)
        self.fc = nn.Linear(8, CLASSES)

    def forward(self, images: torch.Tensor) -> torch.Tensor:
        features = torch.relu(self.conv(images)).mean((2, 3))
        logits: torch.Tensor = self.fc(features)
        return logits


@pytest.fixture
def plain(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(
        "trainer_client.reference.trainer.make_model", lambda *args, **options: Plain()
    )


def make_trainer(parts: int = 1, recipe: TrainingRecipe = SMALL, **keys: Any) -> Trainer:
    recipe = recipe.changed(keys)
    plan = BatchPlan.make(recipe.changed({"global_batch": 16, "accumulation": parts}), 0, 1)
    place = Place(device=torch.device("cpu"))
    return Trainer(recipe, plan, place, classes=CLASSES, steps_per_epoch=10)


def make_batches(steps: int, size: int = 16, side: int = 32) -> list[tuple[torch.Tensor, ...]]:
    draws = torch.Generator().manual_seed(3)
    return [
        (
            torch.randn(size, 4, side, side, generator=draws),
            torch.randint(0, CLASSES, (size,), generator=draws),
        )
        for _ in range(steps)
    ]


def split(batch: tuple[torch.Tensor, ...], parts: int, index: int) -> Iterator[Batch]:
    images, labels = batch
    size = len(labels) // parts
    for part in range(parts):
        rows = slice(part * size, (part + 1) * size)
        origin = Origin(torch.arange(size), size, 0, index * parts + part)
        yield Batch.of(images[rows], labels[rows], origin)


def train(trainer: Trainer, steps: int = 6) -> list[float]:
    batches = make_batches(steps)
    parts = trainer.plan.accumulation
    return [trainer.step(split(each, parts, index)).item() for index, each in enumerate(batches)]


def weights_of(trainer: Trainer) -> torch.Tensor:
    parameters = trainer.plain_model.parameters()
    return torch.cat([each.detach().float().flatten() for each in parameters])


@pytest.mark.parametrize("optimiser", ["sgd", "lars", "rmsprop-tf"])
def test_accumulation_equals_the_large_batch_without_batch_norm(
    plain: None, optimiser: str
) -> None:
    whole, parts = make_trainer(optimiser=optimiser), make_trainer(4, optimiser=optimiser)
    assert train(whole) == pytest.approx(train(parts), rel=1e-5)
    assert torch.allclose(weights_of(whole), weights_of(parts), atol=1e-5)


def test_accumulation_with_batch_norm_has_the_statistics_of_each_micro_batch() -> None:
    """Equal to ghost batches of the micro-batch's size, with the recipe's label smoothing."""
    trainer, single = (make_trainer(parts, label_smoothing=0.3) for parts in (4, 1))
    batch = make_batches(1)[0]
    loss = trainer.step(split(batch, 4, 0)).item()
    model, smoothed = single.plain_model, partial(nn.functional.cross_entropy, label_smoothing=0.3)
    model.zero_grad()
    expected = torch.stack([smoothed(model(x), y) for x, y in split(batch, 4, 0)]).mean()
    expected.backward()
    single.optimiser.step()
    assert loss == pytest.approx(expected.item(), rel=1e-5)
    assert torch.allclose(weights_of(trainer), weights_of(single), atol=1e-6)
    assert loss != pytest.approx(make_trainer().step(split(batch, 1, 0)).item(), rel=1e-4)


def test_the_gradient_is_clipped_as_a_whole(plain: None) -> None:
    before = weights_of(make_trainer())
    free, clipped = (
        make_trainer(momentum=0.0, weight_decay=0.0),
        make_trainer(momentum=0.0, weight_decay=0.0, clip_norm=0.01),
    )
    for trainer in (free, clipped):
        train(trainer, steps=1)
    moves = [(weights_of(trainer) - before) / -0.1 for trainer in (free, clipped)]
    assert moves[0].norm() > 0.05
    assert moves[1].norm() == pytest.approx(0.01, rel=1e-3)
    assert torch.allclose(moves[1] / moves[1].norm(), moves[0] / moves[0].norm(), atol=1e-3)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_trains_with_float32_weights(precision: str) -> None:
    trainer = make_trainer(precision=precision, lr=0.01)  # a higher one amplifies roundings
    losses = train(trainer, steps=4)
    expected = train(make_trainer(lr=0.01), steps=4)
    assert losses == pytest.approx(expected, rel=0.02)
    assert losses != expected
    assert {each.dtype for each in trainer.plain_model.parameters()} == {torch.float32}
    assert trainer.scaler.is_enabled() is (precision == "float16")


def test_an_overflow_in_float16_skips_the_update_and_lowers_the_scale() -> None:
    trainer = make_trainer(precision="float16")
    before, scale = weights_of(trainer), trainer.scaler.get_scale()
    images, labels = make_batches(1)[0]
    trainer.step(split((images * 1e6, labels), 1, 0))
    assert torch.equal(weights_of(trainer), before)
    assert trainer.scaler.get_scale() < scale


@pytest.mark.parametrize("weights", ["bfloat16", "float16"])
def test_half_precision_weights_resume_with_the_same_roundings(weights: str) -> None:
    keys = {"weights": weights, "ema_decay": 0.9, "clip_norm": 5.0}
    whole, first, second = (make_trainer(2, **keys) for _ in range(3))
    kernels = [each for each in whole.plain_model.parameters() if each.ndim > 1]
    assert {str(each.dtype) for each in kernels} == {f"torch.{weights}"}
    batches = [*enumerate(make_batches(4))]
    for trainer, own in ((whole, batches), (first, batches[:2])):
        for index, batch in own:
            trainer.step(split(batch, 2, index))
    second.load_state_dict(first.state_dict())
    for index, batch in batches[2:]:
        second.step(split(batch, 2, index))
    assert torch.equal(weights_of(whole), weights_of(second))
    assert whole.average is not None
    assert second.average is not None
    for one, two in zip(
        whole.average.model.parameters(), second.average.model.parameters(), strict=True
    ):
        assert torch.equal(one, two)


def test_a_key_that_may_change_does() -> None:
    state = make_trainer().state_dict()
    trainer = make_trainer(epochs=9, bucket_mb=1.0, val_data={"interpolation": "bicubic"})
    trainer.check_recipe(state)
    trainer.load_state_dict(state)
    assert trainer.steps_done == 0


@pytest.mark.parametrize("name", shipped_recipes())
def test_each_shipped_recipe_trains_by_its_schedule(name: str) -> None:
    recipe = compose_recipe(name, {})[0]
    lr = peak_lr(recipe, recipe.global_batch)
    peak = int(recipe.warmup_epochs * 10) + 1
    assert lr_factor(recipe, lr, 10, peak) == pytest.approx(1, abs=0.06)
    assert lr_factor(recipe, lr, 10, recipe.epochs * 10 - 1) < 0.05
    trainer = make_trainer(recipe.accumulation, recipe, model="small", global_batch=16)
    losses = train(trainer, steps=2)
    assert all(torch.isfinite(torch.tensor(losses)))
    lr = peak_lr(trainer.recipe, 16)
    assert trainer.current_lr() == lr * lr_factor(trainer.recipe, lr, 10, 1)


def test_the_average_of_a_recomputed_model_has_its_own_weights() -> None:
    trainer = make_trainer(recompute=("layer?.*",), ema_decay=0.9)
    train(trainer)
    assert trainer.average is not None
    images, state = make_batches(1)[0][0], trainer.average.model.state_dict()
    found = trainer.average.model(images)
    assert not torch.allclose(found, trainer.plain_model.eval()(images))
    trainer.plain_model.load_state_dict(state)
    assert torch.equal(found, trainer.plain_model(images))


# --- Recomputation: the same steps bit for bit, in less memory ------------------------------------

BLOCKS = ["layer1.0", "layer2.0", "layer3.0", "layer4.0"]


def make_block_model() -> nn.Module:
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
    model = make_block_model()
    assert recompute_at(model, patterns) == names
    actual, expected = take_steps(model), take_steps(make_block_model())
    assert expected["bn1.num_batches_tracked"] == 2
    assert all(expected[f"gradient {name}.conv1.weight"].any() for name in BLOCKS)
    assert actual.keys() == expected.keys()
    for name, value in expected.items():
        assert torch.equal(actual[name], value), name


def test_modules_run_again_only_in_training_with_gradients() -> None:
    for is_training, has_gradients in itertools.product((True, False), repeat=2):
        model = make_block_model().train(is_training)
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
    model = make_block_model()
    with pytest.raises(ConfigError, match=message) as caught:
        recompute_at(model, patterns)
    assert "\n" not in str(caught.value)
    assert not any("forward" in vars(module) for module in model.modules())


@pytest.mark.extensive(
    "a step of ResNet-50 takes seconds; make test checks that recomputing changes no weight"
)
def test_a_step_of_resnet_50_needs_at_least_a_third_less_memory() -> None:
    options = argparse.Namespace(model="resnet50", batch=8, image_size=224, core=None)
    plain, again = (measure_memory(name, options) for name in ("plain", "recompute"))
    activations_mib = 300  # of the plain step, at the least
    assert plain.needed_mib > activations_mib
    assert again.needed_mib < 2 / 3 * plain.needed_mib

"""Models by name, and weights from files: what fits, and one line for what does not."""

import sys
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import torch
from torch import nn

from feeder.errors import ConfigError
from trainer_client.reference.models import MODELS, check_model, load_weights, make_model
from trainer_client.reference.recipes.recipe import TrainingRecipe

torch.set_num_threads(1)  # more threads only slow down models this small


class FakeTimm(ModuleType):
    """A module of timm's two functions, with one model."""

    def list_models(self) -> list[str]:
        return ["resnet18", "resnet18d", "vit_tiny_patch16_224"]

    def create_model(self, name: str, *, num_classes: int, in_chans: int) -> nn.Module:
        if name != "resnet18":
            raise TypeError("unexpected keyword argument 'in_chans'\nand more")
        pooled = nn.Sequential(nn.AdaptiveAvgPool2d(1), nn.Flatten())
        return nn.Sequential(nn.Conv2d(in_chans, 8, 3), pooled, nn.Linear(8, num_classes))


def make(name: str, classes: int) -> nn.Module:
    return make_model(TrainingRecipe(model=name), classes)


@pytest.fixture
def small() -> nn.Module:
    return make("small", 3)


def save(path: Path, content: object, **options: Any) -> Path:
    torch.save(content, path, **options)
    return path


def error_of(model: nn.Module, path: Path) -> str:
    """Return the line with which ``load_weights`` fails."""
    with pytest.raises(ConfigError) as raised:
        load_weights(model, path)
    line = str(raised.value)
    assert line.startswith(f"{path} ")
    assert "\n" not in line
    return line.removeprefix(f"{path} ")


def check(name: str, **options: object) -> None:
    check_model(TrainingRecipe().changed({"model": name, **options}))


def test_every_model_has_a_logit_for_each_class_and_four_channels() -> None:
    assert [*MODELS] == [
        *("resnet18", "resnet34", "resnet50", "resnet101", "small"),
        *(f"efficientnet-b{number}" for number in range(6)),
    ]
    for name in ("resnet50", "small", "efficientnet-b0"):
        with torch.device("meta"):
            model = make_model(TrainingRecipe(model=name), 7)
            assert model(torch.empty(2, 4, 64, 64)).shape == (2, 7)


def test_options_of_a_model_reach_it() -> None:
    with torch.device("meta"):
        recipe = TrainingRecipe(model="efficientnet-b0", group_width=16, expansion=4)
        model = make_model(recipe, 3)
    expected = (768, 16, 5, 5)
    assert model.get_parameter("features.6.3.block.1.0.weight").shape == expected
    model = make_model(TrainingRecipe(model="small", zero_init_last=False), 3)
    assert model.get_parameter("layer1.0.bn2.weight").eq(1).all()


@pytest.mark.parametrize(
    ("name", "options", "line"),
    [
        (
            "resnet-50",
            {},
            f"model must be one of {', '.join(MODELS)}, or timm:NAME, got 'resnet-50'",
        ),
        ("resnet50", {"group_width": 16}, "group_width is an option of the EfficientNets, model"),
        ("timm:resnet18", {"zero_init_last": False}, "zero_init_last is an option of our ResNets"),
        ("timm:resnet19d", {}, "timm has no model 'resnet19d'; nearest is timm:resnet18d"),
    ],
)
def test_what_does_not_fit_is_one_line(
    name: str, options: dict[str, object], line: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setitem(sys.modules, "timm", FakeTimm("timm"))
    with pytest.raises(ConfigError) as caught:
        check(name, **options)
    assert str(caught.value).startswith(line)
    check("efficientnet-b0", zero_init_last=False)  # as it is anyhow


def test_a_timm_model_needs_timm(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "timm", None)  # as if it were not installed
    match = r"^model 'timm:resnet18' needs timm, which cannot be imported \(.*\): pip install timm"
    with pytest.raises(ConfigError, match=match):
        check("timm:resnet18")


def test_a_timm_model_reads_four_channels_of_which_the_last_begins_at_zero(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setitem(sys.modules, "timm", FakeTimm("timm"))
    model = make("timm:resnet18", 7)
    assert model(torch.zeros(2, 4, 8, 8)).shape == (2, 7)
    stem = model.get_parameter("0.weight")
    assert stem[:, :3].all()
    assert not stem[:, 3].any()
    state = model.state_dict()
    state["0.weight"] = torch.ones(8, 3, 3, 3)
    model.load_state_dict(state)
    assert stem.sum() == 8 * 3 * 9


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
@pytest.mark.parametrize("kind", ["model", "module.", "colours", "old"])
def test_weights_load_from_a_file(
    tmp_path: Path, small: nn.Module, kind: str, zipped: bool
) -> None:
    """As scripts save them: under a key, by DDP, for three channels, without counts of batches."""
    state = small.state_dict()
    content: dict[str, Any] = dict(state)
    if kind == "model":
        content = {"epoch": 3, kind: state}
    elif kind == "module.":
        content = {"state_dict": {f"module.{name}": each for name, each in state.items()}}
    elif kind == "colours":
        content["conv1.weight"] = state["conv1.weight"][:, :3]
    elif kind == "old":
        content = {name: each for name, each in state.items() if "num_batches" not in name}
    path = save(tmp_path / "w.pt", content, _use_new_zipfile_serialization=zipped)
    model = make("small", 3)
    load_weights(model, path)
    here, there = model.state_dict(), small.state_dict()
    assert [*here] == [*there]
    assert all(torch.equal(here[name], there[name]) for name in here)


@pytest.mark.parametrize(
    ("name", "weight", "reason"),
    [
        (
            "fc.weight",
            torch.ones(7, 128),
            "size mismatch for fc.weight: copying ",
        ),
        ("fc.bias", None, 'Missing key(s) in state_dict: "fc.bias"'),
        ("extra", torch.ones(2), 'Unexpected key(s) in state_dict: "extra"'),
    ],
)
def test_weights_of_another_model_are_refused_by_the_first_that_differs(
    tmp_path: Path, small: nn.Module, name: str, weight: torch.Tensor | None, reason: str
) -> None:
    state = small.state_dict()
    state.pop(name, None)
    state |= {} if weight is None else {name: weight}
    line = error_of(small, save(tmp_path / "w.pt", state))
    assert line.startswith(f"does not fit the model ({reason}")


@pytest.mark.parametrize("content", [[1, 2], {"weight": 3}, {1: torch.ones(1)}])
def test_a_file_of_something_else_is_refused(
    tmp_path: Path, small: nn.Module, content: object
) -> None:
    line = error_of(small, save(tmp_path / "w.pt", content))
    assert line.startswith(("has no state dict, of tensors by name", "does not fit the model ("))


@pytest.mark.parametrize("zipped", [True, False], ids=["zip", "before torch 1.6"])
def test_a_damaged_file_is_refused(tmp_path: Path, small: nn.Module, zipped: bool) -> None:
    path = tmp_path / "w.pt"
    save(path, small.state_dict(), _use_new_zipfile_serialization=zipped)
    whole = path.read_bytes()
    # A module's class would be imported by pickle, and then runs code.
    torch.save(small, path)
    assert error_of(small, path).startswith("is no file of weights, or damaged (Weights only")
    contents = [whole[:size] for size in (0, 1, 5, 100, 1009, len(whole) // 2, len(whole) - 1)]
    generator = torch.Generator().manual_seed(1)
    for beginning in (b"", b"\x80\x02", b"PK\x03\x04"):
        noise = torch.randint(256, (10, 97), dtype=torch.uint8, generator=generator)
        contents += [beginning + bytes(row) for row in noise.tolist()]
    if zipped:  # torch's own files of before have no checksums
        flipped = bytearray(whole)
        flipped[len(flipped) // 2] ^= 1  # within a tensor, where torch would load it
        contents.append(bytes(flipped))
    for content in contents:
        path.write_bytes(content)
        assert error_of(small, path).startswith("is no file of weights, or damaged (")

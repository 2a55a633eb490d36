"""Training recipes: types, ranges, files, what is in effect, and the messages for what is wrong."""

import re
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from trainer_client.reference.recipes.recipe import (
    KEYS,
    TrainingRecipe,
    compose_recipe,
    parse_duration,
    parse_value,
    read_recipe,
    shipped_recipes,
    show_recipe,
)

NAMES = ["efficientnet-b0", "imagenet-90", "mlperf-lars", "modern-300", "progressive-90", "smoke"]


def test_every_key_is_explained() -> None:
    for key, described in KEYS.items():
        assert 5 < len(described.metadata["about"]) < 95, key


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wieght_decay": 1}, "the recipe has an unknown key 'wieght_decay'; nearest is 'weight_d"),
        ({"lr": -1}, "lr must be a finite number, 0 or more, got -1"),
        ({"epochs": float("inf")}, "epochs must be a whole number, 0 or more, got inf"),
        ({"epochs": True}, "epochs must be a whole number, 0 or more, got True"),
        ({"epochs": 2**63}, "epochs must be a whole number, 0 or more, got 9223372036854775808"),
        ({"target_accuracy": 75.9}, "target_accuracy must be a finite number, 0 .. 1, got 75.9"),
        ({"optimiser": "adam"}, "optimiser must be one of sgd, rmsprop-tf, lars, got 'adam'"),
        ({"recompute": "layer1"}, "recompute must be a list of texts, got 'layer1'"),
        ({"schedule": "steps"}, "the steps schedule needs one of step_epochs, as [30, 60, 80], "),
        ({"step_epochs": [60, 30]}, "step_epochs must rise from above 0, got [60.0, 30.0]"),
        ({"nesterov": True, "momentum": 0}, "nesterov needs a momentum above 0, got 0"),
        ({"time_budget": "soon"}, "time_budget must be a time such as"),
        ({"weights": "float16", "precision": "bfloat16"}, "weights float16 need precision float16"),
        ({"data": 5}, "data must be a table of NAME = VALUE, got 5"),
        ({"data": {"hue": 7}}, "recipe: hue must be a number 0 .. 0.5"),
        ({"data": {"mixup": 0.2}}, "data must not have mixup: it is a key of the training recipe"),
        ({"image_size": {"30": 160}}, "recipe: image_size by epoch begins at epoch 30"),
        ({"image_size": {"0": 128, "9": 160}}, "val_image_size must be given where image_size c"),
        ({"image_size": {"0": 4}, "val_image_size": 9}, "recipe: image_size must be a whole numb"),
        ({"data": {"crops": [[2, 64]]}}, "data must not have crops: this job trains on one crop"),
        ({"data": {"image_size": 99}}, "data must not have image_size: it follows from image_size"),
    ],
)
def test_what_is_wrong_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        compose_recipe(None, changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_whole_numbers_may_be_written_with_a_point() -> None:
    assert TrainingRecipe().changed({"epochs": 9.0, "lr": 1}) == TrainingRecipe(epochs=9, lr=1.0)


def test_durations_have_units() -> None:
    texts = {"90s": 90.0, "5m": 300.0, "1.5h": 5400.0, "1d": 86400, "7": 7.0}
    assert {text: parse_duration(text) for text in texts} == texts
    for text in ("", "m", "-5m", "0s", "nan", "infs", "5 minutes"):
        with pytest.raises(ConfigError, match="time_budget must be a time such as"):
            parse_duration(text)


@pytest.mark.parametrize("name", NAMES)
def test_each_shipped_recipe_is_valid_and_explains_every_key(name: str) -> None:
    assert shipped_recipes() == NAMES
    assert compose_recipe(name, {})[0] != TrainingRecipe()
    text = files("trainer_client.reference.recipes").joinpath(f"{name}.toml").read_text("utf-8")
    lines = [line for line in text.splitlines() if re.match(r"\w+ = ", line)]
    assert len(lines) > 8
    for line in lines:
        assert re.search(r"  # \w", line), line


def test_the_recipe_in_effect_is_itself_a_recipe_and_has_the_origin_of_each_value(
    tmp_path: Path,
) -> None:
    """The command line comes before the file, and the file before the defaults."""
    changes = {"lr": 0.25, "data": {"brightness": 0.4, "auto_augment": "trivial-augment-wide"}}
    recipe, origins = compose_recipe("modern-300", changes)
    text = show_recipe(recipe, "modern-300", origins)
    assert (recipe.lr, recipe.epochs) == (0.25, 300)
    assert recipe.data == {
        **{"auto_augment": "trivial-augment-wide", "rand_augment_ops": 2, "brightness": 0.4},
        **{"rand_augment_magnitude": 9, "erasing_probability": 0.1},
    }
    for key, origin in (("lr", "command line"), ("epochs", "modern-300"), ("nesterov", "default")):
        assert re.search(rf"\({origin}\)\n{key} = ", text), key
    assert "brightness = 0.4  # command line" in text
    assert "rand_augment_ops = 2  # modern-300" in text
    path = tmp_path / "recipe.toml"
    path.write_text(text, encoding="utf-8")
    assert compose_recipe(str(path), {})[0] == recipe


@pytest.mark.parametrize("name", ["imagenet90", "/nowhere/x.toml", "", ".", "x" * 300, "a\0b"])
def test_a_recipe_that_does_not_exist_lists_those_that_do(name: str) -> None:
    with pytest.raises(ConfigError, match="use one of efficientnet-b0, imagenet-90, ") as caught:
        read_recipe(name)
    assert "\n" not in str(caught.value)
    assert ("nearest is 'imagenet-90'" in str(caught.value)) == (name == "imagenet90")


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("nesterov", "true", True),
        ("model", "timm:resnet18", "timm:resnet18"),
        ("recompute", '["layer1.*", "layer2.*"]', ["layer1.*", "layer2.*"]),
        ("recompute", "layer1.*, layer2.*", ["layer1.*", "layer2.*"]),
        ("step_epochs", "30", [30]),
    ],
)
def test_values_of_the_command_line_are_as_in_toml(key: str, text: str, value: object) -> None:
    assert parse_value(key, text) == value


@given(st.sampled_from([key for key in KEYS if key not in ("data", "val_data")]), st.text())
def test_any_text_is_a_value_or_one_line(key: str, text: str) -> None:
    message = ""
    try:
        recipe = TrainingRecipe().changed({key: parse_value(key, text)})
    except ConfigError as error:
        message = str(error)
    else:
        assert TrainingRecipe().changed(tomllib.loads(show_recipe(recipe, "x", {}))) == recipe
    assert "\n" not in message

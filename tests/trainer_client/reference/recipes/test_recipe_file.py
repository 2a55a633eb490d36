"""Recipe files: those that Feeder ships, the user's own, and what is in effect."""

import re
import tomllib
from importlib.resources import files
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from trainer_client.reference.recipes.recipe import KEYS, TrainingRecipe
from trainer_client.reference.recipes.recipe_file import (
    EffectiveRecipe,
    parse_value,
    read_recipe,
    shipped_recipes,
)

NAMES = ["efficientnet-b0", "imagenet-90", "mlperf-lars", "modern-300", "smoke"]


@pytest.mark.parametrize("name", NAMES)
def test_each_shipped_recipe_is_valid_and_explains_every_key(name: str) -> None:
    assert shipped_recipes() == NAMES
    recipe = EffectiveRecipe.make(name, {}).recipe
    assert recipe != TrainingRecipe()
    text = files("trainer_client.reference.recipes").joinpath(f"{name}.toml").read_text("utf-8")
    lines = [line for line in text.splitlines() if re.match(r"\w+ = ", line)]
    assert len(lines) > 8
    for line in lines:
        assert re.search(r"  # \w", line), line


@pytest.mark.parametrize("name", [None, *NAMES])
def test_the_recipe_in_effect_is_itself_a_recipe(name: str | None, tmp_path: Path) -> None:
    changes = {"lr": 0.25, "data": {"brightness": 0.4}, "warmup_epochs": 1.5}
    effective = EffectiveRecipe.make(name, changes)
    path = tmp_path / "recipe.toml"
    path.write_text(effective.to_toml(), encoding="utf-8")
    assert EffectiveRecipe.make(str(path), {}).recipe == effective.recipe


def test_the_command_line_comes_before_the_file_and_the_file_before_the_defaults() -> None:
    changes = {"lr": 0.25, "data": {"brightness": 0.4, "auto_augment": "trivial-augment-wide"}}
    effective = EffectiveRecipe.make("modern-300", changes)
    text = effective.to_toml()
    assert (effective.recipe.lr, effective.recipe.epochs) == (0.25, 300)
    assert effective.recipe.data == {
        **{"auto_augment": "trivial-augment-wide", "rand_augment_ops": 2, "brightness": 0.4},
        **{"rand_augment_magnitude": 9, "erasing_probability": 0.1},
    }
    for key, origin in (("lr", "command line"), ("epochs", "modern-300"), ("momentum", "modern")):
        assert re.search(rf"\({origin}[^\n]*\)\n{key} = ", text), key
    assert re.search(r"\(default\)\nnesterov = false", text)
    assert "brightness = 0.4  # command line" in text
    assert "rand_augment_ops = 2  # modern-300" in text


@pytest.mark.parametrize("name", ["imagenet90", "/nowhere/x.toml", "", ".", "x" * 300, "a\0b"])
def test_a_recipe_that_does_not_exist_lists_those_that_do(name: str) -> None:
    with pytest.raises(ConfigError, match="use one of efficientnet-b0, imagenet-90, ") as caught:
        read_recipe(name)
    assert "\n" not in str(caught.value)
    if name == "imagenet90":
        assert "nearest is 'imagenet-90'" in str(caught.value)


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("nesterov", "true", True),
        ("model", "timm:resnet18", "timm:resnet18"),
        ("recompute", '["layer1.*", "layer2.*"]', ["layer1.*", "layer2.*"]),
        ("recompute", "layer1.*, layer2.*", ["layer1.*", "layer2.*"]),
        ("step_epochs", "30", [30]),
        ("step_epochs", "[30, 60]", [30, 60]),
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
        shown = EffectiveRecipe(recipe=recipe, name="x", origins={}).to_toml()
        assert TrainingRecipe().changed(tomllib.loads(shown)) == recipe
    assert "\n" not in message

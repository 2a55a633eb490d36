"""Training recipes: types, ranges, and the messages for what is wrong."""

import pytest

from feeder.errors import ConfigError
from trainer_client.reference.recipes.recipe import KEYS, TrainingRecipe, about_key, parse_duration


def test_the_defaults_are_a_recipe_and_every_key_is_explained() -> None:
    recipe = TrainingRecipe()
    assert list(recipe.to_dict()) == list(KEYS)
    for key in KEYS:
        assert 5 < len(about_key(key)) < 95, key


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wieght_decay": 1}, "the recipe has an unknown key 'wieght_decay'; nearest is 'weight_d"),
        ({"lr": -1}, "lr must be a finite number, 0 or more, got -1"),
        ({"epochs": float("inf")}, "epochs must be a whole number, 0 or more, got inf"),
        ({"target_accuracy": 75.9}, "target_accuracy must be a finite number, 0 .. 1, got 75.9"),
        ({"optimiser": "adam"}, "optimiser must be one of sgd, rmsprop-tf, lars, got 'adam'"),
        ({"recompute": "layer1"}, "recompute must be a list of texts, got 'layer1'"),
        (
            {"schedule": "steps"},
            "the steps schedule needs one of step_epochs, as [30, 60, 80], and",
        ),
        ({"step_epochs": [60, 30]}, "step_epochs must rise from above 0, got [60.0, 30.0]"),
        ({"nesterov": True, "momentum": 0}, "nesterov needs a momentum above 0, got 0"),
        ({"time_budget": "soon"}, "time_budget must be a time such as"),
        ({"weights": "float16", "precision": "bfloat16"}, "weights float16 need precision float16"),
        ({"data": {"hue": 7}}, "recipe: hue must be a number 0 .. 0.5"),
        (
            {"data": {"mixup": 0.2}},
            "data must not have mixup: it is a key of the training recipe (--mixup), which the job",
        ),
        ({"data": {"image_size": 99}}, "data must not have image_size: it follows from image_size"),
    ],
)
def test_what_is_wrong_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingRecipe().changed(changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_whole_numbers_may_be_written_with_a_point() -> None:
    assert TrainingRecipe().changed({"epochs": 9.0, "lr": 1}) == TrainingRecipe(epochs=9, lr=1.0)
    for value in (True, 9.5, "9", 2**63):
        with pytest.raises(ConfigError, match="epochs must be a whole number, 0 or more, got "):
            TrainingRecipe().changed({"epochs": value})


def test_durations_have_units() -> None:
    texts = {"90s": 90.0, "5m": 300.0, "1.5h": 5400.0, "1d": 86400, "7": 7.0}
    assert {text: parse_duration(text) for text in texts} == texts
    for text in ("", "m", "-5m", "0s", "nan", "infs", "5 minutes"):
        with pytest.raises(ConfigError, match="time_budget must be a time such as"):
            parse_duration(text)

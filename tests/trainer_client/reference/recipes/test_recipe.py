"""Training recipes: types, ranges, and the messages for what is wrong."""

import pytest

from feeder.errors import ConfigError
from trainer_client.reference.recipes.recipe import KEYS, TrainingRecipe, about_key, parse_duration


def test_the_defaults_are_a_recipe_and_every_key_is_explained() -> None:
    recipe = TrainingRecipe()
    assert list(recipe.to_dict()) == list(KEYS)
    for key in KEYS:
        assert 5 < len(about_key(key)) < 95, key


def test_changes_keep_the_other_keys_and_take_lists_for_tuples() -> None:
    recipe = TrainingRecipe(momentum=0.8).changed({"step_epochs": [30, 60.5], "schedule": "steps"})
    assert recipe.step_epochs == (30.0, 60.5)
    assert recipe.momentum == 0.8
    assert recipe.to_dict()["step_epochs"] == [30.0, 60.5]


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"wieght_decay": 1}, "the recipe has an unknown key 'wieght_decay'; nearest is 'weight_d"),
        ({"lr": -1}, "lr must be a finite number, 0 or more, got -1"),
        ({"lr": "high"}, "lr must be a finite number, 0 or more, got 'high'"),
        ({"lr": True}, "lr must be a finite number, 0 or more, got True"),
        ({"epochs": 1.5}, "epochs must be a whole number, 0 or more, got 1.5"),
        ({"epochs": float("inf")}, "epochs must be a whole number, 0 or more, got inf"),
        ({"accumulation": -1}, "accumulation must be a whole number, 0 or more, got -1"),
        ({"target_accuracy": 75.9}, "target_accuracy must be a finite number, 0 .. 1, got 75.9"),
        ({"optimiser": "adam"}, "optimiser must be one of sgd, rmsprop-tf, lars, got 'adam'"),
        ({"nesterov": 1}, "nesterov must be true or false, got 1"),
        ({"model": 50}, "model must be a text, got 50"),
        ({"recompute": "layer1"}, "recompute must be a list of texts, got 'layer1'"),
        ({"step_epochs": ["a"]}, "step_epochs must be a list of numbers, got ['a']"),
        (
            {"schedule": "steps"},
            "the steps schedule needs one of step_epochs, as [30, 60, 80], and",
        ),
        ({"step_epochs": [60, 30]}, "step_epochs must rise from above 0, got [60.0, 30.0]"),
        ({"step_epochs": [0, 30]}, "step_epochs must rise from above 0, got [0.0, 30.0]"),
        ({"step_epochs": [True]}, "step_epochs must be a list of numbers, got [True]"),
        ({"step_epochs": [float("nan")]}, "step_epochs must be a list of numbers, got [nan]"),
        ({"nesterov": True, "momentum": 0}, "nesterov needs a momentum above 0, got 0"),
        ({"bucket_mb": 0}, "bucket_mb must be above 0, got 0"),
        ({"seed": 10**400}, "seed must be a whole number, 0 or more, got 1000"),
        ({"time_budget": "soon"}, "time_budget must be a time such as"),
        ({"weights": "float16", "precision": "bfloat16"}, "weights float16 need precision float16"),
        ({"data": {"hue": 7}}, "recipe: hue must be a number 0 .. 0.5"),
        ({"data": {"huge": 0.1}}, "recipe: there is no field 'huge'; nearest is 'hue'"),
        ({"data": {"zoom": 2}}, "recipe: there is no field 'zoom'; the fields are split, batch"),
        (
            {"data": {"mixup": 0.2}},
            "data must not have mixup: it is a key of the training recipe (--mixup), which the job",
        ),
        ({"hue": 0.1}, "the recipe has an unknown key 'hue': as a field of the data's recipe it"),
        ({"banana": 1}, "the recipe has an unknown key 'banana' (--show lists the keys)"),
        ({"data": {"image_size": 99}}, "data must not have image_size: it follows from image_size"),
        ({"val_data": {"split": "val"}}, "val_data must not have split: it follows from data and"),
        ({"data": 3}, "data must be a table of NAME = VALUE, got 3"),
    ],
)
def test_what_is_wrong_is_one_line(changes: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError) as caught:
        TrainingRecipe().changed(changes)
    assert str(caught.value).startswith(message)
    assert "\n" not in str(caught.value)


def test_durations_have_units() -> None:
    texts = {"90s": 90.0, "5m": 300.0, "1.5h": 5400.0, "1d": 86400, "7": 7.0}
    assert {text: parse_duration(text) for text in texts} == texts
    for text in ("", "m", "-5m", "0s", "nan", "infs", "5 minutes"):
        with pytest.raises(ConfigError, match="time_budget must be a time such as"):
            parse_duration(text)

"""Which served dataset is the validation set of which."""

import pytest

from feeder.pack_cache.validation import pair_splits, split_of


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("train", ("*", "train")),
        ("Validation", ("*", "val")),
        ("imagenet-train", ("imagenet-*", "train")),
        ("imagenet_val", ("imagenet_*", "val")),
        ("test.v2", ("*.v2", "val")),
        ("trains", None),
        ("retrain", None),
        ("evaluate", None),
        ("train-val", None),
        ("imagenet", None),
    ],
)
def test_a_split_is_a_word_of_a_name(name: str, split: tuple[str, str] | None) -> None:
    assert split_of(name) == split


def test_sets_whose_names_differ_in_the_split_only_are_pairs() -> None:
    assert pair_splits(["train", "val", "test", "cars", "cars-val"]) == {
        "val": "train",
        "test": "train",
    }
    names = ["a-train", "a-dev", "b-training", "b-valid", "b-eval", "a_val", "val"]
    assert pair_splits(names) == {
        "a-dev": "a-train",
        "b-valid": "b-training",
        "b-eval": "b-training",
    }


def test_two_training_sets_of_one_name_are_no_pair() -> None:
    assert pair_splits(["train", "training", "val"]) == {}

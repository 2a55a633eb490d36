"""What looks like a split of a dataset by its name: the one list of such words.

    train1, val_2017, Training Set, seg_test, images_train, trainA, imagenet-eval-00003.tar

A name mentions a split if one of the words stands in it on its own; digits, separators and capital
letters end a word. One such name among many is no split: CIFAR-100 has a class ``train``.
"""

import re
from collections.abc import Collection, Iterable
from typing import Final, NamedTuple

_WORDS: Final = {
    "train": "train",
    "training": "train",
    "trainval": "trainval",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "dev": "dev",
    "eval": "eval",
    "evaluation": "eval",
    "test": "test",
    "testing": "test",
    "extra": "extra",  # SVHN's
}
_SEPARATORS: Final = r"[\W\d_]"
_MENTION: Final = re.compile(
    rf"(?:^|(?<={_SEPARATORS}))"
    rf"(train[-_ ]?val|{'|'.join(sorted(_WORDS, key=len, reverse=True))})"
    rf"(?:set|data)?(?:{_SEPARATORS}+(?:set|data|split|images?|imgs?))?"
    rf"(?={_SEPARATORS}|$)"
)
_CAPITAL: Final = re.compile(r"(?<=[a-z])(?=[A-Z])")


class _Mention(NamedTuple):
    split: str
    rest: str
    """Of the name, without digits and separators: "seg" of ``seg_test``."""
    others: str
    """All of the name, in lower case, but what mentions the split: "seg_*" of ``seg_test``."""


def _find_mention(name: str) -> _Mention | None:
    text = _CAPITAL.sub("_", name).lower()
    match = _MENTION.search(text)
    if match is None:
        return None
    before, after = text[: match.start()], text[match.end() :]
    rest = re.sub(f"{_SEPARATORS}+", "", before + after)
    return _Mention(_WORDS[re.sub(f"{_SEPARATORS}", "", match[1])], rest, f"{before}*{after}")


def split_of(name: str) -> str | None:
    """Return the split that a name mentions: train, trainval, val, dev, eval, test or extra."""
    mention = _find_mention(name)
    return None if mention is None else mention.split


def pair_splits(names: Iterable[str]) -> dict[str, str]:
    """Return the training set of each validation or test set among ``names`` that has one.

    Their names differ in the split only: imagenet-train and imagenet-val, not a1-train and a2-val.
    """
    training: dict[str, list[str]] = {}
    others: dict[str, str] = {}
    for name in names:
        mention = _find_mention(name)
        if mention is not None and mention.split == "train":
            training.setdefault(mention.others, []).append(name)
        elif mention is not None and mention.split in ("val", "dev", "eval", "test"):
            others[name] = mention.others
    found = {name: training.get(key, []) for name, key in others.items()}
    return {name: trains[0] for name, trains in found.items() if len(trains) == 1}


def is_split(name: str) -> bool:
    """Return whether a name is that of a split, but for digits, and nothing else."""
    mention = _find_mention(name)
    return mention is not None and not mention.rest


def find_splits(names: Iterable[str]) -> list[str]:
    """Return those of the ``names`` beside each other that look like splits of one dataset.

    They mention different splits of the same thing (train and val, seg_train and seg_test, among
    whatever else), or there is nothing but them. So bus, car and train are none, nor are
    bullet_train and steam_train.
    """
    mentions = {name: _find_mention(name) for name in names}
    splits_of: dict[str, set[str]] = {}
    for mention in mentions.values():
        if mention is not None:
            splits_of.setdefault(mention.rest, set()).add(mention.split)
    is_all = None not in mentions.values() and (
        len(splits_of) == 1 or len(set[str]().union(*splits_of.values())) > 1
    )
    return [
        name
        for name, mention in mentions.items()
        if mention is not None and (is_all or len(splits_of[mention.rest]) > 1)
    ]


def match_split(wanted: str, names: Collection[str]) -> str | None:
    """Return the name that ``wanted`` stands for: the same, or the only one of the same split."""
    if wanted in names:
        return wanted
    split = split_of(wanted)
    same = [name for name in names if split is not None and split_of(name) == split]
    return same[0] if len(same) == 1 else None

"""What a loader knows of its dataset, and classes that must agree."""

from dataclasses import replace
from types import SimpleNamespace
from typing import Any

import pytest

from feeder.errors import ConfigError
from tests.support.fake_node import FakeNode
from tests.trainer_client.test_loader import BATCH, make_loader
from trainer_client import DatasetInfo

INFO = DatasetInfo(name="val", classes=("ant", "bee", "cat"), fingerprint="f" * 32, samples=97)


def test_a_loader_has_what_scripts_and_frameworks_look_for(node: FakeNode) -> None:
    with make_loader(node) as train, make_loader(node, split="val") as val:
        assert (len(train.dataset), str(train.dataset)) == (97, "birds")
        assert train.dataset.class_to_idx == {"cat": 0, "dog": 1, "emu": 2}
        assert train.dataset.fingerprint == node.content
        assert (train.batch_size, train.drop_last, val.drop_last) == (BATCH, True, False)
        assert (len(train.sampler), len(val.sampler)) == (96, 97)
        assert (train.num_workers, train.pin_memory, train.batch_sampler) == (0, False, None)


FLOATS = replace(INFO, name="ages", classes=(), label_kind="float", label_width=2)
SEVERAL = replace(INFO, name="tags", label_kind="multi", label_width=3)


def test_equal_classes_of_labels_of_one_kind_agree() -> None:
    for classes in (INFO.classes, [*INFO.classes], INFO, SimpleNamespace(classes=INFO.classes)):
        INFO.check_classes(classes)
    SEVERAL.check_classes(replace(SEVERAL, name="other"))
    SEVERAL.check_classes(SimpleNamespace(classes=SEVERAL.classes, dataset=SEVERAL))
    FLOATS.check_classes(FLOATS)
    FLOATS.check_classes([])


@pytest.mark.parametrize(
    ("here", "there", "message"),
    [
        (INFO, ["ant", "cat", "bee"], "3 classes, classes_of has 3, and class 1, .* is 'bee' here"),
        (INFO, ["ant", "bee"], "has 2, and class 2, the first that differs, is 'cat' here and"),
        (INFO, SEVERAL, "has samples of 3 classes, .* samples of any number of 3 classes: pack"),
        (
            SEVERAL,
            replace(SEVERAL, classes=("ant", "bee", "cow")),
            "2, .* 'cat' here and 'cow' the",
        ),
        (FLOATS, INFO, "'ages' has samples with 2 floats each, dataset 'val' .* of 3 classes: "),
        (
            replace(FLOATS, label_kind="none"),
            SimpleNamespace(classes=(), dataset=FLOATS),
            "has samples without labels, .* has samples with 2 floats each: pack both",
        ),
        (FLOATS, ["ant"], "0 classes, classes_of has 1, and class 0, .* is missing here and 'ant'"),
    ],
)
def test_other_classes_or_labels_are_an_error_with_the_first_difference(
    here: DatasetInfo, there: Any, message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        here.check_classes(there)
    assert "\n" not in str(caught.value)


def test_a_loader_of_other_classes_is_refused_with_the_remedy(node: FakeNode) -> None:
    with (
        FakeNode(classes=("cat", "dodo", "emu")) as elsewhere,
        make_loader(elsewhere) as train,
        make_loader(elsewhere, split="val", classes_of=train) as val,
    ):
        assert val.classes == train.classes
        with pytest.raises(ConfigError, match=r"class 1, .*'dog' here and 'dodo' there: pack"):
            make_loader(node, split="val", classes_of=train)
    node.wait_until(lambda: not node.sessions, "the refused loader's session has ended")

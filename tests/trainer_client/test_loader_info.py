"""What a loader tells: its dataset and classes, its statistics, its types to a type checker."""

import logging
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any
from unittest.mock import MagicMock

import pytest

from feeder.errors import ConfigError
from tests.support.fake_node import FakeNode
from tests.trainer_client.test_loader import BATCH, SIDE, make_loader, run_script
from trainer_client import DatasetInfo, EpochTimes
from trainer_client._statistics import StepClock

# --- Dataset and classes --------------------------------------------------------------------------

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


# --- Statistics: who waited for whom --------------------------------------------------------------

BATCH_BYTES = BATCH * (SIDE * SIDE * 3 + 16)


class Clock:
    """A clock that the test sets, for the statistics only: others wait by the real one."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.now_s = 50.0
        clock = SimpleNamespace(monotonic=lambda: self.now_s)
        monkeypatch.setattr("trainer_client._statistics.time", clock)

    def step(self, steps: StepClock, *, wait_s: float, compute_s: float, images: int = 10) -> None:
        self.now_s += wait_s
        steps.add(wait_s, images)
        self.now_s += compute_s


def test_waits_are_summed_up_for_each_epoch(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steps = Clock(monkeypatch), StepClock()
    steps.begin(1000)
    assert steps.read() == EpochTimes()
    assert steps.read().late is None
    clock.step(steps, wait_s=30.0, compute_s=1.0)  # the feeder starts
    assert steps.read() == EpochTimes()
    for number in range(100):
        clock.step(steps, wait_s=4.0 if number == 7 else 0.0, compute_s=1.0)
    times = steps.read()
    assert (times.steps, times.wait_s, times.wait_p50_s, times.wait_p99_s) == (100, 4.0, 0.0, 4.0)
    assert times.seconds == pytest.approx(104.0)
    assert times.wait_share == pytest.approx(4 / 104)
    assert times.images_per_s == pytest.approx(1000 / 104)
    assert times.bytes_per_s == pytest.approx(100_000 / 104)
    assert times.late == "feeder"
    steps.begin(1000)
    for _ in range(3):
        clock.step(steps, wait_s=0.001, compute_s=1.0)
    assert steps.read().steps == 3, "only the loader's first step is left out"
    assert steps.read().late == "trainer"


def test_the_line_answers_who_waits(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steps = Clock(monkeypatch), StepClock()
    steps.begin(2_000_000)
    for _ in range(5):
        clock.step(steps, wait_s=0.5, compute_s=0.5, images=256)
    assert str(steps.read()) == (
        "4 steps in 4.0 s, 256 images/s, 2 MB/s; waited for batches 50.0% of the time (a step: "
        "median 500.0 ms, 99th percentile 500.0 ms); the feeder sets the pace"
    )


def test_a_summary_is_one_line_at_each_epochs_end(node: FakeNode) -> None:
    lines: list[str] = []
    with make_loader(node, summary=lines.append) as loader:
        for step, _ in enumerate(loader):
            assert bool(lines) is (step == 11)
        list(loader)
        next(iter(loader))
    assert [line.partition(": ")[0] for line in lines] == ["epoch 0", "epoch 1"]
    assert all("sets the pace" in line and "\n" not in line for line in lines)


def test_progress_shows_a_line_over_the_epoch(
    node: FakeNode, monkeypatch: pytest.MonkeyPatch
) -> None:
    tqdm = MagicMock()
    bar = tqdm.return_value.__enter__.return_value
    bar.update.return_value = True  # it was redrawn
    monkeypatch.setitem(sys.modules, "tqdm", MagicMock())
    monkeypatch.setitem(sys.modules, "tqdm.auto", SimpleNamespace(tqdm=tqdm))
    with make_loader(node) as loader:
        loader.load_state_dict(loader.state_dict() | {"step": 3})
        assert [batch.index for batch in loader.progress()] == [*range(3, 12)]
        assert [batch.epoch for batch in loader.progress()] == [1] * 12
    first, second = (each.kwargs for each in tqdm.call_args_list)
    assert (first, second["initial"]) == ({"total": 12, "initial": 3, "unit": "step"}, 0)
    assert bar.update.call_count == 9 + 12
    texts = [each.args[0] for each in bar.set_postfix_str.call_args_list]
    assert len(texts) == 9 + 1 + 12 + 1, "also at the end"
    assert all("images/s, waits " in text for text in texts)
    assert tqdm.return_value.__exit__.call_count == 2


def test_one_line_at_the_start_says_the_plan(
    node: FakeNode, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "trainer_client")
    with make_loader(node, channels=3) as loader:
        for _ in range(2):
            list(loader)
        (line,) = [record.getMessage() for record in caplog.records if "rank " in record.message]
    assert line.startswith(
        "rank 0 of 1: 12 steps an epoch, 8 x (3, 8, 8) float32 on cpu; 97 samples of 3 classes in "
        "dataset birds; 1 lane, working set 97 samples; recipe "
        f"{loader.recipe.fingerprint()}; 1 feeder, batches are copied"
    )


# --- Types, and no torch -----------------------------------------------------------------------


def test_a_users_script_passes_strict_type_checking_and_wrong_arguments_are_found(
    tmp_path: Path,
) -> None:
    script = Path(__file__).with_name("typed_script.py")
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from trainer_client import FeederLoader\n"
        "loader = FeederLoader('tcp://h:1', dataset='d', batch_size='64', channels=2)\n"
        "for images, labels, more in loader: ...\n"
        "loader.image_size = 160\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", script, wrong],
        cwd=script.parents[2],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    first, second, third, last = done.stdout.splitlines()
    assert 'wrong.py:2: error: Argument "batch_size" to "FeederLoader" has incompatible' in first
    assert 'Argument "channels" to "FeederLoader" has incompatible type "Literal[2]"' in second
    assert "wrong.py:3: error:" in third
    assert 'wrong.py:4: error: "FeederLoader" has no attribute "image_size"' in last


WITHOUT_TORCH = """
    import sys
    sys.modules["torch"] = None  # as where it is not installed
    import trainer_client
    from trainer_client import *
    assert NumpyLoader is trainer_client.NumpyLoader
    sizes = {"dataset": "birds", "batch_size": 8, "image_size": 8}
    with NumpyLoader(sys.argv[1], dtype="float32", **sizes) as loader:
        print(sum(len(labels) for _, labels in loader))
    for name in ("FeederLoader", "Accuracy", "normalise"):
        try:
            getattr(trainer_client, name)
        except ImportError as error:
            print(error)
"""


def test_no_torch_is_imported(node: FakeNode) -> None:
    images, *errors = run_script(WITHOUT_TORCH, node.endpoint).stdout.splitlines()
    assert images == "96"
    for name, line in zip(("FeederLoader", "Accuracy", "normalise"), errors, strict=True):
        assert line.startswith(f"trainer_client.{name} needs torch, which is not installed here: ")
        assert "NumpyLoader" in line

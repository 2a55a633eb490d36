"""The trackers of a run, chosen by options that are checked before anything starts."""

import sys
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import ConfigError
from feeder.installation import install_command
from tests.trainer_client.reference.tracking.reports import (
    make_outcome,
    make_result,
    make_run,
    make_step,
)
from trainer_client.reference.tracking.tracker import check_trackers, make_trackers

OPTIONS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"tensorboard": True}, "--tensorboard", "tensorboardX", "tensorboardX"),
    ({"wandb": "project"}, "--wandb", "wandb", "wandb"),
    ({"mllog": True}, "--mllog", "mlperf_logging", "mlperf-logging"),
]


def ignore(line: str) -> None:
    raise AssertionError(line)


def test_every_run_with_a_folder_has_files_and_curves(tmp_path: Path) -> None:
    trackers = make_trackers(tmp_path, report=ignore)
    assert [*tmp_path.iterdir()] == []
    for tracker in trackers:
        tracker.begin(make_run())
        tracker.begin_epoch(0)
        tracker.log_step(make_step())
        tracker.begin_evaluation(0)
        tracker.end_epoch(make_result())
    for tracker in trackers:
        tracker.end(make_outcome())
    for tracker in trackers:
        tracker.close()
    names = {"run.json", "steps.csv", "epochs.csv", "summary.json", "curves.png"}
    assert {path.name for path in tmp_path.iterdir()} == names


def test_a_run_without_a_folder_has_no_trackers() -> None:
    assert make_trackers(None, report=ignore) == []
    check_trackers(None)


@pytest.mark.parametrize(("options", "option", "module", "package"), OPTIONS)
def test_a_missing_package_is_one_line_before_anything_starts(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    options: dict[str, Any],
    option: str,
    module: str,
    package: str,
) -> None:
    monkeypatch.setitem(sys.modules, module, None)
    line = f"{option} needs {package}: {install_command('train')}"
    with pytest.raises(ConfigError) as error:
        check_trackers(tmp_path, **options)
    assert str(error.value) == line
    with pytest.raises(ConfigError) as error:
        make_trackers(tmp_path, report=ignore, **options)
    assert str(error.value) == line
    assert [*tmp_path.iterdir()] == []


@pytest.mark.parametrize(
    ("folder", "options", "message"),
    [
        *(
            (None, options, f"^{option} needs --output DIR, the folder")
            for options, option, *_ in OPTIONS
        ),
        (Path(), {"wandb": " "}, "--wandb names a project"),
    ],
)
def test_an_option_that_cannot_be_met_is_one_line(
    folder: Path | None, options: dict[str, Any], message: str
) -> None:
    with pytest.raises(ConfigError, match=message):
        check_trackers(folder, **options)


def test_a_folder_of_earlier_wandb_runs_is_not_taken_for_the_package(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "wandb").mkdir()
    monkeypatch.delitem(sys.modules, "wandb", raising=False)
    monkeypatch.setattr(sys, "path", [str(tmp_path)])
    with pytest.raises(ConfigError, match=r"^--wandb needs wandb: pip install"):
        check_trackers(tmp_path, wandb="project")

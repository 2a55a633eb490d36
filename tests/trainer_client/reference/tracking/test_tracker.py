"""The trackers of a run, chosen by options that are checked before anything starts."""

import sys
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import ConfigError
from feeder.installation import install_command
from trainer_client.reference.tracking.tracker import check_trackers, make_trackers

OPTIONS: list[tuple[dict[str, Any], str, str, str]] = [
    ({"tensorboard": True}, "--tensorboard", "tensorboardX", "tensorboardX"),
    ({"wandb": "project"}, "--wandb", "wandb", "wandb"),
    ({"mllog": True}, "--mllog", "mlperf_logging", "mlperf-logging"),
]


def ignore(line: str) -> None:
    raise AssertionError(line)


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

"""The trackers of a run, chosen by options that are checked before anything starts."""

import sys
from pathlib import Path
from typing import Any

import pytest

from feeder.errors import ConfigError
from feeder.installation import install_command
from trainer_client.reference.tracking.tracker import make_trackers


@pytest.mark.parametrize(
    ("options", "package"),
    [
        ({"tensorboard": True}, "tensorboardX"),
        ({"wandb": "project"}, "wandb"),
        ({"mllog": True}, "mlperf-logging"),
    ],
)
def test_an_option_that_cannot_be_met_is_one_line_before_anything_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, options: dict[str, Any], package: str
) -> None:
    monkeypatch.setitem(sys.modules, package.replace("-", "_"), None)
    (option,) = options
    for folder, line in (
        (tmp_path, f"--{option} needs {package}: {install_command('train')}"),
        (None, f"--{option} needs --output DIR, the folder for its files"),
    ):
        with pytest.raises(ConfigError) as error:
            make_trackers(folder, report=print, **options)
        assert str(error.value) == line
    with pytest.raises(ConfigError, match="--wandb names a project"):
        make_trackers(tmp_path, report=print, wandb=" ")
    assert [*tmp_path.iterdir()] == []

"""The help of ``feeder pack``."""

import pytest

from feeder.cli.main import build_parser
from feeder.source.kinds import MODULES


def test_help_lists_every_kind_of_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("COLUMNS", "400")  # no line is broken
    with pytest.raises(SystemExit):
        build_parser().parse_args(["pack", "--help"])
    kinds = ", ".join(MODULES)
    assert f"kind of SRC (default: recognised by its content): {kinds}\n" in capsys.readouterr().out

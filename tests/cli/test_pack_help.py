"""The help of ``feeder pack``."""

import pytest

from feeder.cli.main import build_parser
from feeder.source.recognise import CHOOSABLE


def test_help_lists_every_kind_of_source(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It is written out in feeder.cli.pack, because importing the list takes 0.1 s."""
    monkeypatch.setenv("COLUMNS", "400")  # no line is broken
    with pytest.raises(SystemExit):
        build_parser().parse_args(["pack", "--help"])
    kinds = f"{', '.join(CHOOSABLE[:-1])} or {CHOOSABLE[-1]}"
    assert f"kind of SRC (default: recognised by its content): {kinds}\n" in capsys.readouterr().out

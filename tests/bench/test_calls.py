"""``feeder-bench stream --calls``: what counts as a call, and the rows."""

import json
import threading
from pathlib import Path

import pytest

from bench.cli import main
from bench.stream.call_counter import CallCounter
from tests.support.synthetic_sets import pack_synthetic


def _inner() -> None:
    len("a C call, which does not count")


def _outer() -> None:
    _inner()
    _inner()


def test_calls_of_this_thread_and_of_those_that_it_starts_are_counted() -> None:
    counter = CallCounter()
    _outer()
    with counter:
        _outer()
        thread = threading.Thread(target=_inner)
        thread.start()
        thread.join()
    _outer()
    calls = counter.take()
    assert (calls[__file__, "_outer"], calls[__file__, "_inner"]) == (1, 3)
    assert counter.take().total() == 0


def test_rows_of_batches_and_hellos(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("bench.stream.calls.BATCHES", 32)
    monkeypatch.setattr("bench.stream.calls.HELLOS", 3)
    monkeypatch.setattr("bench.stream.calls.WARM_UP", 8)
    dataset, out = pack_synthetic(tmp_path, images=41), tmp_path / "calls.json"
    assert main(["stream", str(dataset), "--calls", "--json", str(out)]) == 0
    document = json.loads(out.read_text())
    rows = {row["name"]: row for row in document["results"]}
    ways = ("client", "node", "hello-client", "hello-node")
    assert list(rows) == [f"{kind}/{way}" for way in ways for kind in ("calls", "files")]
    for way in ways:
        calls = rows[f"calls/{way}"]["value"]
        assert 5 < rows[f"files/{way}"]["value"] < calls < 2000
        assert 0.5 < sum(document["functions"][f"calls/{way}"].values()) / calls < 2
    text = capsys.readouterr().out
    assert "feeder/session/table.py SessionTable.handle" in text
    assert "trainer_client/_numpy_loader.py" in text


def test_calls_have_no_plot(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", "--calls", "--plot", str(tmp_path / "calls.png")]) == 2
    assert "leave --calls out" in capsys.readouterr().err

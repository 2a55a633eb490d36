"""``feeder-bench soak``: what counts as growth, and a short real run."""

import json
import os
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import psutil
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.cli import main
from bench.footprint import ProcessFootprint
from bench.plots import draw
from bench.soak import run as soak
from bench.soak.clients import SoakClients
from bench.soak.growth import Tolerance, find_trend
from bench.soak.run import SoakReport, judge
from bench.soak.throughput import Verdict
from bench.soak.windows import SAMPLES_MIN, WARM_UP_SHARE
from feeder.errors import ConfigError
from feeder.wire.slot_layout import SlotLayout
from feeder.worker.slot_memory import SlotMemory
from tests.support.daemon import runs
from tests.support.synthetic_sets import pack_synthetic

MOMENTS = [float(second) for second in range(1, 31)]
TOLERANCE = Tolerance(absolute=4.0, relative=0.05)


def test_a_slow_leak_is_growth() -> None:
    trend = find_trend([100 + 0.2 * minute for minute in range(100)])
    assert trend.growth == pytest.approx(0.2 * 54, abs=0.2)
    assert trend.exceeds(TOLERANCE)


def test_growth_during_the_warm_up_does_not_count() -> None:
    assert find_trend([*range(20), *[20.0] * 80]).growth == 0


def test_the_relative_tolerance_applies_to_large_values() -> None:
    values = [1000.0] * 50 + [1040.0] * 50
    assert not find_trend(values).exceeds(TOLERANCE)
    assert find_trend(values).exceeds(Tolerance(absolute=4.0, relative=0.0))


levels = st.floats(0, 1e4)
moments = st.lists(st.floats(0, 1e4), min_size=40, max_size=60)


@given(levels, st.lists(st.booleans(), min_size=40, max_size=60))
def test_occasional_peaks_are_not_growth(level: float, peaks: list[bool]) -> None:
    """Any tenth of the samples may have any value: medians ignore them."""
    values = [level] * len(peaks)
    allowed = len(peaks) // 10
    for place, is_peak in enumerate(peaks):
        if is_peak and allowed:
            values[place] += 1e6
            allowed -= 1
    assert find_trend(values).growth == 0


@given(moments, levels)
def test_an_added_constant_does_not_change_the_growth(values: list[float], more: float) -> None:
    there, back = find_trend(values), find_trend([value + more for value in values])
    assert back.growth == pytest.approx(there.growth, abs=1e-6)


@given(moments)
def test_reversed_growth_is_shrinking(values: list[float]) -> None:
    kept = values[int(len(values) * WARM_UP_SHARE) :]
    warm_up = [0.0] * (len(values) - len(kept))
    assert find_trend(warm_up + kept).growth == -find_trend(warm_up + kept[::-1]).growth


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="too few to tell growth from noise"):
        find_trend([1.0] * (SAMPLES_MIN - 1))


def test_each_kind_has_its_tolerance_and_throughput_may_rise() -> None:
    steady = [50.0] * 30
    rows, failures, verdict = judge(
        {"memory/node-1": steady, "fds/node-1": steady, "throughput": steady}, MOMENTS
    )
    assert failures == []
    assert verdict.kind == "held"
    values = {row.name: row.value for row in rows}
    assert values["memory/node-1/growth"] == values["throughput/change"] == 0
    leaking = [float(value) for value in range(50, 80)]
    _, failures, verdict = judge(
        {"memory/worker-1": leaking, "fds/node-1": leaking, "throughput": leaking}, MOMENTS
    )
    assert verdict.kind == "held"
    assert [failure.split(" grew by ")[0] for failure in failures] == [
        "memory/worker-1",
        "fds/node-1",
    ]
    assert "MiB, from 59.5 to 75.5" in failures[0]


def test_shared_memory_is_counted_by_the_pages_that_exist() -> None:
    before = ProcessFootprint.of_process(os.getpid())
    memory = SlotMemory.create(SlotLayout(slots=2, batch_size=4, image_size=64))
    try:
        memory.chunk(0, 0, 4).pixels[:] = 7
        during = ProcessFootprint.of_process(os.getpid())
        (file,) = set(during.shared_files) - set(before.shared_files)
        assert 4 * 64 * 64 * 3 <= during.shared_files[file] < 2 * 4 * 64 * 64 * 3
        assert file.purpose == "slots"
        assert during.fds > before.fds
        assert 0 < during.own_bytes <= during.pss_bytes <= during.rss_bytes
    finally:
        memory.close()
    assert ProcessFootprint.of_process(os.getpid()).shared_files == before.shared_files


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_synthetic(tmp_path_factory.mktemp("soak"), images=13)


SHORT = [*("--minutes", "0.05", "--every", "0.1", "--restart", "0.7", "--lease", "10")]
SMALL = ["--clients", "2", "--batch-size", "8"]


@pytest.mark.extensive("a whole run of the bench")
def test_a_short_soak_samples_everything_and_gives_all_back(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, drawn = tmp_path / "soak.json", []
    monkeypatch.setattr("bench.plots.draw.check_installed", lambda: None)
    monkeypatch.setattr(
        "bench.plots.draw.write_plot", lambda report, path: drawn.append((report, path))
    )
    # Three seconds are too short to judge: only what does not depend on time is asserted.
    held = Verdict(kind="held", headline="held", sentence="it held", change=0, machine_change=0)
    monkeypatch.setattr(soak, "judge", lambda series, at_s: (judge(series, at_s)[0], [], held))
    plot = ["--plot", str(tmp_path / "soak.png")]
    assert main(["soak", str(dataset), *SHORT, *SMALL, "--json", str(out), *plot]) == 0
    document = json.loads(out.read_text())
    assert document["failures"] == []
    rows = {row["name"]: row["value"] for row in document["results"]}
    assert rows["shared-memory/slots/left"] == 0
    assert rows["restarts/clean"] >= 1
    assert rows["restarts/killed"] >= 1
    assert max(document["series"]["throughput"]) > 0
    for part in ("daemon-core", "client-core"):
        assert min(document["series"][f"reference/{part}"]) > 0
    assert document["conclusions"][0] == "it held"
    assert document["measured"]["clients"] == 2
    for role in ("supervisor", "node-1", "worker-1"):
        assert rows[f"memory/{role}"] > 1
        assert rows[f"fds/{role}"] > 3
        assert f"memory/{role}/growth" in rows
    assert len(document["at_s"]) >= SAMPLES_MIN
    assert {len(values) for values in document["series"].values()} == {len(document["at_s"])}
    ((report, path),) = drawn
    assert isinstance(report, SoakReport)
    assert path == tmp_path / "soak.png"


def _report(*failures: str, conclusions: Sequence[str] = ()) -> SoakReport:
    moments = [float(at_s) for at_s in range(20)]
    return SoakReport(
        bench="soak",
        machine={"cpu": "Test CPU", "cores": 2},
        headline="throughput held; nothing has grown",
        conclusions=conclusions,
        results=[],
        at_s=moments,
        series={
            "throughput": [3.0] * 20,
            "reference/daemon-core": [700.0] * 20,
            "reference/client-core": [600.0] * 20,
            "memory/node-1": [1.0] * 20,
            "shared-memory/slots": [2.0] * 20,
        },
        restarts=[(3.0, "clean"), (6.0, "killed")],
        failures=failures,
    )


def test_growth_is_status_1_and_the_reason(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(soak, "soak", lambda path, options: _report("fds/node-1 grew by 40"))
    assert main(["soak", str(dataset)]) == 1
    assert capsys.readouterr().err == "feeder-bench: failed: fds/node-1 grew by 40\n"


@pytest.mark.extensive("a whole run of the bench")
def test_throughput_that_falls_is_status_1_and_the_first_line(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fell = Verdict(
        kind="fell",
        headline="throughput fell",
        sentence="throughput fell by 65 %",
        change=-0.65,
        machine_change=0,
    )
    monkeypatch.setattr(soak, "judge", lambda series, at_s: ([], [], fell))
    assert main(["soak", str(dataset), *SHORT, *SMALL]) == 1
    printed = capsys.readouterr()
    assert printed.out.splitlines()[:2] == [
        "feeder-bench soak failed: throughput fell; nothing has grown",
        fell.sentence,
    ]
    assert printed.err.splitlines()[-1] == "feeder-bench: failed: throughput fell by 65 %"


def test_a_soak_too_short_to_judge_is_refused_at_once(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["soak", str(dataset), "--minutes", "0.1", "--every", "5"]) == 2
    assert "soak for 1.1 minutes or more, or lower --every" in capsys.readouterr().err


def test_the_text_and_the_picture_begin_with_the_conclusion() -> None:
    report = _report(conclusions=["throughput held", "nothing has grown"])
    assert report.to_text().splitlines()[:4] == [
        "feeder-bench soak passed: throughput held; nothing has grown",
        "throughput held",
        "nothing has grown",
        "",
    ]
    pytest.importorskip("altair", reason="the plots extra is not installed")
    from bench.plots.soak import conclude_soak

    title, lines = conclude_soak(report)
    assert title == "Soak passed: throughput held; nothing has grown"
    assert lines[:2] == ["throughput held", "nothing has grown"]
    assert conclude_soak(_report("it grew"))[0].startswith("Soak failed: ")


@pytest.mark.parametrize("samples", [20, 5])
def test_a_soaked_report_is_drawn(tmp_path: Path, samples: int) -> None:
    """With fewer samples than are judged, without medians."""
    pytest.importorskip("altair", reason="the plots extra is not installed")
    report = _report(conclusions=["throughput held"])
    series = {name: values[:samples] for name, values in report.series.items()}
    report = replace(report, at_s=report.at_s[:samples], series=series)
    draw.write_plot(report, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_the_extra_reports_how_to_install_it(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert main(["soak", str(dataset), "--plot", "x.png"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install -e '.[plots]'" in line


def test_a_daemon_that_dies_is_reported_with_its_last_log_line(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    start = SoakClients.start

    def start_and_kill_the_daemon(clients: SoakClients) -> None:
        start(clients)
        for process in psutil.Process().children():
            if runs(process, "serve"):
                process.kill()
                process.wait()

    monkeypatch.setattr(SoakClients, "start", start_and_kill_the_daemon)
    assert main(["soak", str(dataset), *SHORT, *SMALL]) == 5
    error = capsys.readouterr().err.splitlines()[-1]
    assert "a process of the daemon ended during the soak" in error
    assert "the last log line: feeder: " in error

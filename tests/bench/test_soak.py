"""``feeder-bench stream --soak``: what counts as growth, what it samples, and a short real run."""

import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest

from bench.cli import main
from bench.plots import draw
from bench.stream import soak
from bench.stream.soak import CoreReference, Soak, SoakReport
from bench.stream.soak_judgement import SAMPLES_MIN, Verdict, judge
from tests.bench.rows import run_bench
from tests.support.daemon import runs
from tests.support.synthetic_sets import pack_synthetic

STEADY = [50.0]


def growth_of(values: Sequence[float], name: str = "memory/node-1") -> tuple[float, list[str]]:
    """Return how far a series has grown, and the failures."""
    moments = [float(second) for second in range(1, len(values) + 1)]
    series = {name: values, **dict.fromkeys(("throughput", "reference/x"), STEADY * len(values))}
    rows, failures, _ = judge(series, moments)
    return {row.name: row.value for row in rows}[f"{name}/growth"], failures


def test_a_slow_leak_is_growth() -> None:
    growth, failures = growth_of([100 + 0.2 * minute for minute in range(100)])
    assert growth == pytest.approx(0.2 * 54, abs=0.2)
    assert failures[0].startswith("memory/node-1 grew by 10.8 MiB, from 106.5 to 117.3 (medians of")
    assert "at most 5.3 is allowed" in failures[0]


@pytest.mark.parametrize(
    ("name", "first", "last", "is_failure"),
    [
        ("memory/worker-1", 10, 14, False),
        ("memory/worker-1", 10, 14.1, True),
        ("memory/worker-1", 1000, 1040, False),  # allowed relative to a large value
        ("fds/node-1", 100, 103, True),
        ("shared-memory/slots", 2, 3.1, True),
    ],
)
def test_each_kind_has_its_tolerance(
    name: str, first: float, last: float, is_failure: bool
) -> None:
    _, failures = growth_of([first] * 50 + [last] * 50, name)
    assert bool(failures) == is_failure


def test_growth_during_the_warm_up_does_not_count() -> None:
    assert growth_of([*range(20), *[20.0] * 80])[0] == 0


@pytest.fixture(scope="module")
def dataset(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return pack_synthetic(tmp_path_factory.mktemp("soak"), images=13)


SHORT = ["--soak", "0.05", "--every", "0.1", "--restart", "0.7", "--lease", "10"]
SHORT += ["--clients", "2", "--batch-size", "8"]


@pytest.mark.extensive("seconds of streaming; the next test has a real daemon and clients, too")
def test_a_short_soak_samples_everything_and_gives_all_back(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(draw, "check_installed", lambda: None)
    monkeypatch.setattr(draw, "write_plot", lambda report, path: drawn.append((report, path)))
    # Three seconds are too short to judge: only what does not depend on time is asserted.
    held = Verdict(kind="held", headline="held", sentence="it held", change=0, machine_change=0)
    monkeypatch.setattr(soak, "judge", lambda series, at_s: (judge(series, at_s)[0], [], held))
    plot = ["--plot", tmp_path / "soak.png"]
    document = run_bench(tmp_path, "stream", dataset, *SHORT, *plot)
    assert (document["bench"], document["failures"]) == ("soak", [])
    rows = {row["name"]: row["value"] for row in document["results"]}
    assert rows["shared-memory/slots/left"] == 0
    assert rows["restarts/clean"] >= 1
    assert rows["restarts/killed"] >= 1
    series = document["series"]
    assert max(series["throughput"]) > 0
    assert min(series["reference/daemon-core"] + series["reference/client-core"]) > 0
    assert document["conclusions"][0] == "it held"
    assert document["measured"]["clients"] == 2
    for role in ("supervisor", "node-1", "worker-1"):
        assert rows[f"memory/{role}"] > 1
        assert rows[f"fds/{role}"] > 3
        assert f"memory/{role}/growth" in rows
    assert len(document["at_s"]) >= SAMPLES_MIN
    assert {len(values) for values in series.values()} == {len(document["at_s"])}
    ((report, path),) = drawn
    assert isinstance(report, SoakReport)
    assert path == tmp_path / "soak.png"


@pytest.mark.extensive("ten seconds: slots that a killed client's lease still holds")
def test_what_is_wrong_is_status_1_and_the_first_lines(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    fell = Verdict(
        kind="fell", headline="it fell", sentence="it fell by 65 %", change=-1, machine_change=0
    )
    monkeypatch.setattr(soak, "judge", lambda series, at_s: ([], ["fds/node-1 grew by 40"], fell))
    monkeypatch.setattr(soak, "_await_slots", lambda *_: 1.5)
    assert main(["stream", str(dataset), *SHORT]) == 1
    printed = capsys.readouterr()
    left = "slots: 1.5 MiB were not given back within 20 s of the last client's end"
    assert printed.out.splitlines()[:4] == [
        "feeder-bench soak failed: it fell; fds/node-1 grew by 40 and 1 more",
        "it fell by 65 %",
        "fds/node-1 grew by 40",
        left,
    ]
    lines = printed.err.splitlines()[-3:]
    assert lines == [
        f"feeder-bench: failed: {line}"
        for line in ("it fell by 65 %", "fds/node-1 grew by 40", left)
    ]


def test_a_soak_too_short_to_judge_is_refused_at_once(
    dataset: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["stream", str(dataset), "--soak", "0.1", "--every", "5"]) == 2
    assert "soak for 1.1 minutes or more, or lower --every" in capsys.readouterr().err


def test_the_old_command_names_the_new_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["soak", "--minutes", "60"]) == 2
    (line,) = capsys.readouterr().err.splitlines()
    assert line.endswith("soak is a mode of stream: type `feeder-bench stream --soak MINUTES`")


def test_its_options_are_refused_without_it(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["stream", "--batch-size", "64"]) == 2
    assert "--batch-size is for --soak MINUTES: give both" in capsys.readouterr().err


def _report(*failures: str, samples: int = 20) -> SoakReport:
    levels = {"throughput": 3.0, "reference/daemon-core": 700.0, "reference/client-core": 600.0}
    levels |= {"memory/node-1": 1.0, "shared-memory/slots": 2.0}
    return SoakReport(
        bench="soak",
        machine={"cpu": "Test CPU", "cores": 2},
        headline="throughput held; nothing has grown",
        conclusions=["throughput held", "nothing has grown"],
        results=[],
        at_s=[float(at_s) for at_s in range(samples)],
        series={name: [level] * samples for name, level in levels.items()},
        restarts=[(3.0, "clean"), (6.0, "killed")],
        failures=failures,
    )


@pytest.mark.parametrize("samples", [20, 5])
def test_the_text_and_the_picture_begin_with_the_conclusion(tmp_path: Path, samples: int) -> None:
    """With fewer samples than are judged, the picture has no medians."""
    report = _report(samples=samples)
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
    assert conclude_soak(replace(report, failures=["it grew"]))[0].startswith("Soak failed: ")
    draw.write_plot(report, tmp_path / "soak.png")
    assert (tmp_path / "soak.png").read_bytes().startswith(b"\x89PNG")


def test_plot_without_the_extra_reports_how_to_install_it(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setitem(sys.modules, "vl_convert", None)
    assert main(["stream", str(dataset), "--plot", "x.png"]) == 4
    (line,) = capsys.readouterr().err.splitlines()
    assert "pip install -e '.[plots]'" in line


def test_a_daemon_that_dies_is_reported_with_its_last_log_line(
    dataset: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    stream = Soak.stream

    def kill_the_daemon_and_stream(soak: Soak) -> None:
        for process in psutil.Process().children():
            if runs(process, "serve"):
                process.kill()
                process.wait()
        stream(soak)

    monkeypatch.setattr(Soak, "stream", kill_the_daemon_and_stream)
    assert main(["stream", str(dataset), *SHORT]) == 5
    error = capsys.readouterr().err.splitlines()[-1]
    assert "a process of the daemon ended during the soak" in error
    assert "the last log line: feeder: " in error


class Core:
    """The kernel's files for cpu1 and cpu3; cpu0 and cpu2 are offline."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The speed of a core's load is 1000 MB/s."""
        (root / "proc").mkdir()
        self._stat = root / "proc/stat"
        self._now_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: self._now_s)
        monkeypatch.setattr("bench.stream.soak.time", clock)
        monkeypatch.setattr(CoreReference, "_run_burst", lambda self, core: 1000.0)

    def pass_time(self, now_s: float, busy_s: Mapping[int, float], stolen_s: float = 0) -> None:
        """Set the clock, and the totals of the cores."""
        self._now_s, hertz = now_s, os.sysconf("SC_CLK_TCK")
        lines = [
            f"cpu{core} {round((busy - stolen_s) * hertz)} 0 0 777 5 0 0 {round(stolen_s * hertz)} "
            "0 0"
            for core, busy in busy_s.items()
        ]
        self._stat.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 5", ""]))


@pytest.fixture
def core(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Core:
    return Core(tmp_path, monkeypatch)


def test_the_reference_counts_what_others_take_from_each_core(core: Core, tmp_path: Path) -> None:
    """Of the second between the samples, cpu1 is 0.2 s with others, cpu3 with the soak only."""
    reference = CoreReference(
        {"daemon-core": 1, "client-core": 3}, 1.0, stat=tmp_path / "proc/stat"
    )
    core.pass_time(100.0, {1: 10.0, 3: 20.0})
    first = reference.sample({1: 3.0, 3: 4.0})
    assert first == {"daemon-core": 1000.0, "client-core": 1000.0}
    core.pass_time(101.0, {1: 10.9, 3: 20.6})
    second = reference.sample({1: 3.7, 3: 4.6})
    assert second == {"daemon-core": pytest.approx(800.0), "client-core": pytest.approx(1000.0)}

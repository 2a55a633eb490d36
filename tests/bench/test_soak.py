"""``feeder-bench stream --soak``: what counts as growth, what it samples, and a short real run."""

import os
import random
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.cli import main
from bench.plots import draw as plots
from bench.stream import soak
from bench.stream.soak import CoreReference, Soak, SoakReport
from bench.stream.soak_judgement import SAMPLES_MIN, Verdict, judge, judge_throughput
from tests.bench.rows import draw, run_bench
from tests.support.daemon import runs


def growth_of(values: Sequence[float], name: str = "memory/node-1") -> tuple[float, list[str]]:
    """Return how far a series has grown, and the failures."""
    moments = [float(second) for second in range(1, len(values) + 1)]
    series = {name: values, **dict.fromkeys(("throughput", "reference/x"), [50.0] * len(values))}
    rows, failures, _ = judge(series, moments)
    return {row.name: row.value for row in rows}[f"{name}/growth"], failures


def test_a_slow_leak_is_growth_and_the_warm_up_is_none() -> None:
    growth, failures = growth_of([100 + 0.2 * minute for minute in range(100)])
    assert growth == pytest.approx(0.2 * 54, abs=0.2)
    assert failures[0].startswith("memory/node-1 grew by 10.8 MiB, from 106.5 to 117.3 (medians of")
    assert "at most 5.3 is allowed" in failures[0]
    assert growth_of([*range(20), *[20.0] * 80]) == (0, [])


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
    assert bool(growth_of([first] * 50 + [last] * 50, name)[1]) == is_failure


SHORT = ["--soak", "0.05", "--every", "0.1", "--restart", "0.7", "--lease", "10"]
SHORT += ["--clients", "2", "--batch-size", "8"]


@pytest.mark.extensive("seconds of streaming; the next test has a real daemon and clients, too")
def test_a_short_soak_samples_everything_and_gives_all_back(
    dataset: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    drawn = []
    monkeypatch.setattr(plots, "check_installed", lambda: None)
    monkeypatch.setattr(plots, "write_plot", lambda report, path: drawn.append((report, path)))
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
        assert 1 < rows[f"memory/{role}"] <= rows[f"pss/{role}"] <= rows[f"rss/{role}"]
        assert rows[f"fds/{role}"] > 3
        assert f"memory/{role}/growth" in rows
    assert rows["memory/worker-1"] < rows["pss/worker-1"], "slots are shared"
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
    failed = replace(report, failures=["it grew"])
    assert failed.conclude()[0].startswith("feeder-bench soak failed: ")
    assert "Own memory of each process" in draw(report, tmp_path)


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


def test_the_reference_counts_what_others_take_from_each_core(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Of the second between the samples, cpu1 is 0.2 s with others, cpu3 with the soak only."""
    stat, now_s, hertz = tmp_path / "stat", 0.0, os.sysconf("SC_CLK_TCK")
    clock = SimpleNamespace(monotonic=lambda: now_s)
    monkeypatch.setattr("bench.stream.soak.time", clock)
    monkeypatch.setattr(CoreReference, "_run_burst", lambda self, core: 1000.0)
    reference = CoreReference({"daemon-core": 1, "client-core": 3}, 1.0, stat=stat)
    speeds = []
    for now_s, busy_s, own_s in (  # noqa: B007  # the clock reads it
        (100.0, {1: 10.0, 3: 20.0}, {1: 3.0, 3: 4.0}),
        (101.0, {1: 10.9, 3: 20.6}, {1: 3.7, 3: 4.6}),
    ):
        lines = [f"cpu{n} {round(s * hertz)} 0 0 777 5 0 0 0 0 0" for n, s in busy_s.items()]
        stat.write_text("\n".join(["cpu  1 2 3 4 5 6 7 8 9 10", *lines, "intr 5", ""]))
        speeds.append(reference.sample(own_s))
    assert speeds[0] == {"daemon-core": 1000.0, "client-core": 1000.0}
    assert speeds[1] == {"daemon-core": pytest.approx(800), "client-core": pytest.approx(1000)}


# --- Throughput -------------------------------------------------------------------------------


SAMPLES = 50


def _noisy(level: float, spread: float, samples: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [level * draw.uniform(1 - spread, 1 + spread) for _ in range(samples)]


def _falling(first: float, last: float, seed: int = 0) -> list[float]:
    noise = _noisy(1, 0.05, SAMPLES, seed)
    return [
        (first + (last - first) * place / (SAMPLES - 1)) * factor
        for place, factor in enumerate(noise)
    ]


def _step(at: int, samples: int, *, fall: float, spread: float, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    levels = [1430.0 if place < at else 1430.0 * (1 - fall) for place in range(samples)]
    return [max(0.0, level * draw.gauss(1, spread)) for level in levels]


def _judge(throughput: Sequence[float], *references: Sequence[float]) -> Verdict:
    at_s = [5.0 * place for place in range(1, len(throughput) + 1)]
    return judge_throughput(throughput, references, at_s)


STEADY = _noisy(700, 0.03, SAMPLES, 9)

NEIGHBOURS = [350.0 if place % 4 == 0 else 700.0 for place in range(SAMPLES)]
"""Others come and go, as often at the beginning as at the end."""

_FALL = _falling(1430, 500)
_SLOWER = _falling(700, 240, seed=5)
_WILD = [[100.0, 2000.0, 1900.0][place % 3] for place in range(37)]
_WILD += [[100.0, 2000.0, 110.0][place % 3] for place in range(13)]
_IN_PROPORTION = [
    rate * speed / 700 for rate, speed in zip(_falling(1600, 300), NEIGHBOURS, strict=True)
]


@pytest.mark.parametrize(
    ("throughput", "references", "kind", "words"),
    [
        (
            _FALL,
            [STEADY, STEADY],
            "fell",
            "throughput fell by 61 %: 1,368 images/s in minutes 0.1–0.4, the best before the end, "
            "and 532 at the end, in minutes 3.8–4.2 (medians; -61 %, a fall of 25 % is allowed); ",
        ),
        (_IN_PROPORTION, [NEIGHBOURS], "fell", "the feeder became slower"),
        (_FALL, [STEADY, _SLOWER], "machine-slower", "the machine became slower"),
        (_WILD, [STEADY], "too-noisy", "it varied too much: "),
        ([0.0] * SAMPLES, [STEADY], "too-noisy", "sample less often (--every)"),
    ],
)
def test_verdicts_and_their_words(
    throughput: Sequence[float], references: Sequence[Sequence[float]], kind: str, words: str
) -> None:
    verdict = _judge(throughput, *references)
    assert (verdict.kind, words in verdict.sentence) == (kind, True), verdict.sentence
    assert (verdict.machine_change < -0.05) == (kind == "machine-slower")


@given(st.integers(0, 999))
def test_throughput_that_stays_holds(seed: int) -> None:
    assert _judge(_noisy(1400, 0.15, SAMPLES, seed), STEADY).kind == "held"
    assert _judge(_falling(1000, 1600, seed=seed), STEADY).kind == "held"
    assert _judge(_falling(1000, 850, seed=seed), STEADY).kind == "held", "a small fall"
    draw = random.Random(seed)
    wild = [draw.choice([100.0, 500.0, 1500.0, 2500.0]) for _ in range(SAMPLES)]
    assert _judge(wild, STEADY).kind in {"held", "too-noisy"}


@given(
    samples=st.sampled_from([30, 45, 60, 61, 360]),
    tenth=st.integers(1, 9),
    fall=st.floats(0.36, 1),
    spread=st.floats(0, 0.02),
    seed=st.integers(0, 999),
)
@example(samples=30, tenth=1, fall=0.36, spread=0.02, seed=0)
@example(samples=360, tenth=9, fall=0.36, spread=0.02, seed=0)
def test_a_clean_step_down_is_a_fall_wherever_it_is(
    samples: int, tenth: int, fall: float, spread: float, seed: int
) -> None:
    values = _step(samples * tenth // 10, samples, fall=fall, spread=spread, seed=seed)
    machine = _noisy(700, spread, samples, seed + 1)
    assert _judge(values, machine, machine).kind == "fell"


def test_noise_alone_is_no_fall() -> None:
    """The best of many windows is above the mean by chance, and the last may be below it."""
    for seed in range(300):
        values = _step(60, 60, fall=0, spread=0.08, seed=seed)
        assert _judge(values, _noisy(700, 0.05, 60, seed)).kind == "held", seed


def test_a_slow_start_is_no_trend_and_a_fall_after_it_is_one() -> None:
    """A decoded cache that fills makes throughput rise; then it falls to where it began."""
    filling = [700 + 30.0 * place for place in range(24)]
    full = filling + [1400.0] * 36
    assert _judge(full, _noisy(700, 0.03, 60, 1)).kind == "held"
    assert _judge(full[:52] + [700.0] * 8, _noisy(700, 0.03, 60, 1)).kind == "fell"
    # Batches that waited when the clock began are counted in the first sample, which is left out.
    assert _judge([5000.0] * 1 + [1400.0] * 59, [700.0] * 60).change == 0

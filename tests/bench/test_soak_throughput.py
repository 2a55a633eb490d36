"""Judging the throughput of a soak: falling, flat, noisy, and on a machine that became slower."""

import itertools
import os
import random
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.machine import choose_core
from bench.soak.cpu_use import CpuUse, counts_waits
from bench.soak.reference import CoreReference, share_left
from bench.soak.throughput import FALL_MAX, Verdict, judge_throughput
from bench.soak.windows import SAMPLES_MIN, Window, find_windows
from feeder.errors import ConfigError

SAMPLES = 50


def _noisy(level: float, spread: float, samples: int, seed: int) -> list[float]:
    draw = random.Random(seed)
    return [level * draw.uniform(1 - spread, 1 + spread) for _ in range(samples)]


def _falling(first: float, last: float, spread: float = 0.05, seed: int = 0) -> list[float]:
    noise = _noisy(1, spread, SAMPLES, seed)
    return [
        (first + (last - first) * place / (SAMPLES - 1)) * factor
        for place, factor in enumerate(noise)
    ]


def _judge(throughput: Sequence[float], *references: Sequence[float]) -> Verdict:
    return judge_throughput(
        throughput,
        {f"reference/{number}": each for number, each in enumerate(references)},
        [5.0 * place for place in range(1, len(throughput) + 1)],
    )


STEADY = _noisy(700, 0.03, SAMPLES, 9)


def test_a_fall_on_a_steady_machine_is_the_feeders() -> None:
    verdict = _judge(_falling(1430, 500), STEADY, STEADY)
    assert verdict.kind == "fell"
    assert verdict.sentence.startswith("throughput fell by ")
    assert ", the best before the end, and " in verdict.sentence
    assert "at the end, in minutes 3.8–4.2 (medians; 25 % is allowed)" in verdict.sentence
    assert "the feeder became slower" in verdict.sentence
    assert verdict.change < -0.3
    assert verdict.machine_change == pytest.approx(0, abs=0.05)


@pytest.mark.parametrize("seed", range(8))
def test_throughput_that_stays_holds(seed: int) -> None:
    assert _judge(_noisy(1400, 0.15, SAMPLES, seed), STEADY).kind == "held"
    assert _judge(_falling(1000, 1600, seed=seed), STEADY).kind == "held"


def test_a_small_fall_is_tolerated() -> None:
    assert _judge(_falling(1000, 850), STEADY).kind == "held"


@pytest.mark.parametrize("seed", range(8))
def test_noise_without_a_trend_is_never_a_fall(seed: int) -> None:
    draw = random.Random(seed)
    wild = [draw.choice([100.0, 500.0, 1500.0, 2500.0]) for _ in range(SAMPLES)]
    assert _judge(wild, STEADY).kind in {"held", "too-noisy"}


def test_a_fall_that_noise_could_explain_is_not_judged() -> None:
    wild = list(itertools.islice(itertools.cycle([100.0, 2000.0, 1900.0]), SAMPLES))
    kept = SAMPLES - SAMPLES // 5
    wild[-(kept // 3) :] = itertools.islice(itertools.cycle([100.0, 2000.0, 110.0]), kept // 3)
    verdict = _judge(wild, STEADY)
    assert verdict.kind == "too-noisy"
    assert "varied too much to tell a fall from noise" in verdict.sentence


def test_a_fall_with_the_machine_is_not_the_feeders() -> None:
    verdict = _judge(_falling(1430, 500), STEADY, _falling(700, 240, seed=5))
    assert verdict.kind == "machine-slower"
    assert "but the machine became slower" in verdict.sentence
    assert "was not judged: soak again on a machine that is not in use" in verdict.sentence
    assert verdict.machine_change < -0.3


def test_a_fall_beyond_the_machines_is_the_feeders() -> None:
    slightly = _falling(700, 600, seed=5)
    verdict = _judge(_falling(1430, 400), slightly, STEADY)
    assert verdict.kind == "fell"
    assert f"changed by {round(100 * verdict.machine_change)} %:" in verdict.sentence
    assert -FALL_MAX < verdict.machine_change < -0.05


def test_neighbours_that_come_and_go_do_not_hide_a_fall() -> None:
    """Both thirds have as many slow moments; in proportion to the machine it halves."""
    machine = [350.0 if place % 4 == 0 else 700.0 for place in range(SAMPLES)]
    falling = [rate * speed / 700 for rate, speed in zip(_falling(1600, 300), machine, strict=True)]
    assert _judge(falling, machine).kind == "fell"


def test_throughput_that_ends_fell_and_none_at_all_is_not_judged() -> None:
    ended = [1400.0] * 25 + [0.0] * 25
    assert _judge(ended, STEADY).kind == "fell"
    silent = _judge([0.0] * SAMPLES, STEADY)
    assert silent.kind == "too-noisy"
    assert "had no image; sample less often (--every)" in silent.sentence


def _step(at: int, samples: int, *, fall: float, spread: float, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    levels = [1430.0 if place < at else 1430.0 * (1 - fall) for place in range(samples)]
    return [max(0.0, level * draw.gauss(1, spread)) for level in levels]


@pytest.mark.parametrize("tenth", range(1, 10))
@pytest.mark.parametrize("samples", [30, 45, 60, 61, 360])
@given(fall=st.floats(0.36, 1), spread=st.floats(0, 0.02), seed=st.integers(0, 999))
def test_a_clean_step_down_is_a_fall_wherever_it_is(
    samples: int, tenth: int, fall: float, spread: float, seed: int
) -> None:
    values = _step(samples * tenth // 10, samples, fall=fall, spread=spread, seed=seed)
    machine = _noisy(700, spread, samples, seed + 1)
    assert _judge(values, machine, machine).kind == "fell"


@pytest.mark.parametrize("at", [11, 12, 16, 20, 22, 24, 28, 45, 52, 56])
def test_the_steps_of_the_review_are_falls(at: int) -> None:
    for spread in (0.0, 0.03, 0.08):
        values = _step(at, 60, fall=1 - 500 / 1430, spread=spread, seed=at)
        assert _judge(values, _noisy(700, 0.03, 60, at)).kind == "fell", spread


def test_noise_alone_is_no_fall() -> None:
    """The best of many windows is above the mean by chance, and the last may be below it."""
    for seed in range(300):
        values = _step(60, 60, fall=0, spread=0.08, seed=seed)
        assert _judge(values, _noisy(700, 0.05, 60, seed)).kind == "held", seed
    kinds = [
        _judge(_step(60, 60, fall=0, spread=spread, seed=seed), _noisy(700, 0.05, 60, seed)).kind
        for spread in (0.12, 0.2, 0.4)
        for seed in range(200)
    ]
    assert "machine-slower" not in kinds
    assert kinds.count("fell") <= len(kinds) // 100


def _neighbour(samples: int, seed: int) -> list[float]:
    """Return the share of the machine that a neighbour leaves, whose bursts last some samples."""
    draw, is_there, left = random.Random(seed), False, []
    for _ in range(samples):
        is_there = draw.random() < (0.75 if is_there else 0.15)
        left.append(draw.uniform(0.45, 0.65) if is_there else 1.0)
    return left


def test_a_bursty_neighbour_that_the_reference_shows_is_no_fall() -> None:
    kinds = []
    for seed in range(300):
        left, noise = _neighbour(60, seed), _step(60, 60, fall=0, spread=0.05, seed=seed)
        values = [rate * share for rate, share in zip(noise, left, strict=True)]
        machine = [700 * share for share in left]
        kinds.append(_judge(values, _noisy(1, 0, 60, 0), machine).kind)
    assert "fell" not in kinds
    assert {"held", "machine-slower"} <= set(kinds)


@pytest.mark.parametrize("tenth", range(1, 10))
def test_a_machine_that_becomes_slower_is_named_wherever_it_does(tenth: int) -> None:
    for seed in range(20):
        values = _step(6 * tenth, 60, fall=0.5, spread=0.05, seed=seed)
        machine = [speed / 2 for speed in _step(6 * tenth, 60, fall=0.45, spread=0.03, seed=-seed)]
        assert _judge(values, machine, _noisy(700, 0.03, 60, seed)).kind == "machine-slower", seed


def test_a_slow_start_is_no_trend_and_a_fall_after_it_is_one() -> None:
    """A decoded cache that fills makes throughput rise; then it falls to where it began."""
    filling = [700 + 30.0 * place for place in range(24)]
    full = filling + [1400.0] * 36
    assert _judge(full, _noisy(700, 0.03, 60, 1)).kind == "held"
    assert _judge(full[:52] + [700.0] * 8, _noisy(700, 0.03, 60, 1)).kind == "fell"


def test_the_first_sample_is_left_out() -> None:
    """Batches that waited when the clock began are counted in it."""
    assert _judge([5000.0] * 1 + [1400.0] * 59, [700.0] * 60).change == 0


def test_windows_are_a_twelfth_of_the_samples_and_never_overlap() -> None:
    best, last = find_windows([*[1.0] * 30, *[3.0] * 5, *[2.0] * 25])
    assert (best, last) == (Window(30, 35), Window(55, 60))
    assert find_windows([9.0, *[float(place) for place in range(11)]]) == (
        Window(6, 9),
        Window(9, 12),
    )
    assert last.span_s([10.0 * place for place in range(1, 61)]) == (550, 600)
    assert Window(0, 2).span_s([10.0, 20.0]) == (0, 20)


rates = st.lists(st.just(0.0) | st.floats(1, 1e6), min_size=20, max_size=40)


@given(rates, st.floats(0.1, 100))
def test_the_unit_does_not_matter(values: list[float], factor: float) -> None:
    machine = [5.0] * len(values)
    scaled = [value * factor for value in values]
    verdict = _judge(values, machine)
    assert _judge(scaled, [factor * 5.0] * len(values)).change == pytest.approx(verdict.change)


@given(rates)
def test_every_verdict_agrees_with_its_change(values: list[float]) -> None:
    verdict = _judge(values, [5.0] * len(values))
    assert verdict.kind != "machine-slower"
    if verdict.kind == "held":
        assert verdict.change >= -FALL_MAX
    if verdict.kind == "fell":
        assert verdict.change < -FALL_MAX


def test_too_few_samples_are_refused() -> None:
    with pytest.raises(ConfigError, match="too few"):
        _judge([1.0] * (SAMPLES_MIN - 1))


def test_the_share_left_is_what_others_did_not_take() -> None:
    assert share_left(0.0, 2.0) == 1
    assert share_left(0.5, 2.0) == 0.75
    assert share_left(-0.3, 2.0) == 1, "clocks of processes lag behind those of cores"
    assert share_left(5.0, 2.0) == pytest.approx(0.01), "a core is never wholly lost"
    assert share_left(1.0, 0.0) == 1


class Core:
    """The kernel's files for cpu1 and cpu3; cpu0 and cpu2 are offline."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """The speed of a core's load is 1000 MB/s."""
        (root / "proc").mkdir()
        self._stat = root / "proc/stat"
        self._now_s = 0.0
        clock = SimpleNamespace(monotonic=lambda: self._now_s)
        monkeypatch.setattr("bench.soak.reference.time", clock)
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


def _use(cpu_s: float, waited_s: float | None = None) -> CpuUse:
    return CpuUse(cpu_s=cpu_s, waited_s=waited_s)


def test_the_reference_counts_what_others_take_from_each_core(core: Core, tmp_path: Path) -> None:
    """Of the second between the samples, cpu1 is 0.2 s with others, cpu3 with the soak only."""
    reference = CoreReference({"daemon-core": 1, "client-core": 3}, every_s=1.0, root=tmp_path)
    core.pass_time(100.0, {1: 10.0, 3: 20.0})
    first = reference.sample({1: _use(3.0), 3: _use(4.0)})
    assert first == {"daemon-core": 1000.0, "client-core": 1000.0}
    core.pass_time(101.0, {1: 10.9, 3: 20.6})
    found = reference.sample({1: _use(3.7), 3: _use(4.6)})
    assert found == {"daemon-core": pytest.approx(800.0), "client-core": pytest.approx(1000.0)}


@pytest.mark.parametrize(
    ("waited_s", "stolen_s", "left"),
    [
        (0.0, 0.0, 1.0),  # others use what the soak leaves idle
        (0.1, 0.0, 0.9),
        (5.0, 0.0, 0.4),  # several processes wait at a time, for each other too
        (0.1, 0.2, 0.7),  # nothing waits for what the hypervisor takes
        (None, 0.0, 0.4),  # a kernel that does not count waits
    ],
)
def test_time_that_the_soak_left_idle_is_not_taken_from_it(
    core: Core, tmp_path: Path, waited_s: float | None, stolen_s: float, left: float
) -> None:
    """Of a second, cpu1 is 0.6 s with others: a daemon that becomes slower leaves them more."""
    reference = CoreReference({"daemon-core": 1}, every_s=1.0, root=tmp_path)
    core.pass_time(100.0, {1: 10.0})
    reference.sample({1: _use(3.0, None if waited_s is None else 7.0)})
    core.pass_time(101.0, {1: 10.9}, stolen_s)
    found = reference.sample({1: _use(3.3, None if waited_s is None else 7.0 + waited_s)})
    assert found == {"daemon-core": pytest.approx(1000 * left)}


def test_a_core_that_the_kernel_does_not_list_counts_as_left_alone(
    core: Core, tmp_path: Path
) -> None:
    """As in a container whose lxcfs shows other numbers."""
    reference = CoreReference({"daemon-core": 7}, every_s=1.0, root=tmp_path)
    for second in (1.0, 2.0):
        core.pass_time(second, {1: 10 * second})
        assert reference.sample({7: _use(second)}) == {"daemon-core": 1000.0}


def test_cpu_use_adds_up_and_leaves_out_what_has_ended() -> None:
    own = CpuUse.of_processes([os.getpid()])
    assert own.cpu_s > 0
    ended = subprocess.Popen(["true"])
    ended.wait()
    assert CpuUse.of_processes([ended.pid]).cpu_s == 0
    assert (CpuUse.of_processes([ended.pid]).waited_s is None) == (own.waited_s is None)
    assert _use(1, 2) + _use(3, 4) == _use(4, 6)
    assert _use(1, 2) + _use(3) == _use(4)


def test_waits_of_all_threads_count(tmp_path: Path) -> None:
    pid = os.getpid()
    threads = {"self/task/1": "1 0 0", f"{pid}/task/1": "9 2500000000 1"}
    threads[f"{pid}/task/2"] = "7 500000000 1"
    for thread, text in threads.items():
        (tmp_path / thread).mkdir(parents=True)
        (tmp_path / thread / "schedstat").write_text(f"{text}\n")
    assert CpuUse.of_processes([pid], root=tmp_path).waited_s == 3.0


@pytest.mark.parametrize("text", ["0 0 0\n", None])
def test_waits_that_the_kernel_does_not_count_are_unknown(tmp_path: Path, text: str | None) -> None:
    (tmp_path / "self/task/1").mkdir(parents=True)
    if text is not None:
        (tmp_path / "self/task/1/schedstat").write_text(text)
    assert not counts_waits(tmp_path)
    assert CpuUse.of_processes([os.getpid()], root=tmp_path).waited_s is None


def test_the_reference_load_runs_on_one_core_for_both_parts() -> None:
    number = choose_core(None)
    reference = CoreReference({"daemon-core": number, "client-core": number}, every_s=0.01)
    found = reference.sample({number: CpuUse.of_processes([])})
    assert found["daemon-core"] == found["client-core"] > 0

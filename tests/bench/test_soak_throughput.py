"""Judging the throughput of a soak: falling, flat, noisy, and on a machine that became slower."""

import random
from collections.abc import Sequence

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from bench.stream.soak_judgement import (
    Verdict,
    judge_throughput,
)

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
    return judge_throughput(
        throughput,
        {f"reference/{number}": each for number, each in enumerate(references)},
        [5.0 * place for place in range(1, len(throughput) + 1)],
    )


STEADY = _noisy(700, 0.03, SAMPLES, 9)


NEIGHBOURS = [350.0 if place % 4 == 0 else 700.0 for place in range(SAMPLES)]
"""Others come and go, as often at the beginning as at the end."""

_FALL = _falling(1430, 500)
_SLOWER = _falling(700, 240, seed=5)
_SLIGHTLY_SLOWER = _falling(700, 600, seed=5)
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
            "and 532 at the end, in minutes 3.8–4.2 (medians; 25 % is allowed), while the ",
        ),
        (_IN_PROPORTION, [NEIGHBOURS], "fell", "the feeder became slower"),
        (_FALL, [STEADY, _SLOWER], "machine-slower", "but the machine became slower"),
        (_WILD, [STEADY], "too-noisy", "varied too much to tell a fall from noise"),
        ([0.0] * SAMPLES, [STEADY], "too-noisy", "had no image; sample less often (--every)"),
    ],
)
def test_verdicts_and_their_words(
    throughput: Sequence[float], references: Sequence[Sequence[float]], kind: str, words: str
) -> None:
    verdict = _judge(throughput, *references)
    assert (verdict.kind, words in verdict.sentence) == (kind, True), verdict.sentence
    is_machine = kind == "machine-slower" or references[0] is _SLIGHTLY_SLOWER
    assert (verdict.machine_change < -0.05) == is_machine


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
    kinds = [
        _judge(_step(60, 60, fall=0, spread=spread, seed=seed), _noisy(700, 0.05, 60, seed)).kind
        for spread in (0.12, 0.2, 0.4)
        for seed in range(200)
    ]
    assert "machine-slower" not in kinds
    assert kinds.count("fell") <= len(kinds) // 100


def test_a_slow_start_is_no_trend_and_a_fall_after_it_is_one() -> None:
    """A decoded cache that fills makes throughput rise; then it falls to where it began."""
    filling = [700 + 30.0 * place for place in range(24)]
    full = filling + [1400.0] * 36
    assert _judge(full, _noisy(700, 0.03, 60, 1)).kind == "held"
    assert _judge(full[:52] + [700.0] * 8, _noisy(700, 0.03, 60, 1)).kind == "fell"
    # Batches that waited when the clock began are counted in the first sample, which is left out.
    assert _judge([5000.0] * 1 + [1400.0] * 59, [700.0] * 60).change == 0

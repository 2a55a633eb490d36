"""Learning rates by step: golden values, bounds, and no jump at the end of the warm-up."""

import itertools
import math
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.errors import ConfigError
from trainer_client.reference.optimisers.schedules import Schedule, scaled_lr

shares = st.floats(0, 1)
smooth = st.builds(
    Schedule,
    kind=st.sampled_from(["cosine", "polynomial"]),
    total_steps=st.integers(0, 500),
    warmup_steps=st.floats(0, 400),
    warmup_factor=shares,
    power=st.floats(0.5, 4),
    end_factor=shares,
)
stepwise = st.builds(
    Schedule,
    kind=st.just("steps"),
    total_steps=st.integers(0, 500),
    warmup_steps=st.floats(0, 400),
    warmup_factor=shares,
    step_every=st.floats(0.5, 100),
    step_factor=shares,
)


def factors(schedule: Schedule, steps: int) -> list[float]:
    return [schedule.factor(step) for step in range(steps)]


def test_a_cosine_with_warm_up_has_golden_values() -> None:
    schedule = Schedule(kind="cosine", warmup_steps=4, total_steps=20)
    found = factors(schedule, 20)
    assert found[:5] == pytest.approx([0.2, 0.4, 0.6, 0.8, 1.0])
    assert found[8] == pytest.approx((2 + math.sqrt(2)) / 4)
    assert found[12] == pytest.approx(0.5)
    assert 0 < found[-1] < 0.02
    assert schedule.factor(20) == schedule.factor(25) == 0.0


@given(step=st.integers(0, 600), warmup=st.floats(0, 400), total=st.integers(0, 500))
def test_a_cosine_is_bit_by_bit_that_of_earlier_versions(
    step: int, warmup: float, total: int
) -> None:
    if step < warmup:
        expected = (step + 1) / (warmup + 1)
    else:
        progress = (step - warmup) / max(1.0, total - warmup)
        expected = 0.5 * (1 + math.cos(math.pi * min(1.0, progress)))
    schedule = Schedule(kind="cosine", warmup_steps=warmup, total_steps=total)
    assert schedule.factor(step) == expected


def test_a_polynomial_has_golden_values() -> None:
    schedule = Schedule(kind="polynomial", warmup_steps=2, total_steps=12, end_factor=0.2)
    found = factors(schedule, 14)
    assert found[:3] == pytest.approx([1 / 3, 2 / 3, 1.0])
    assert found[3] == pytest.approx(0.81 * 0.8 + 0.2)
    assert found[7] == pytest.approx(0.25 * 0.8 + 0.2)
    assert found[12:] == [0.2, 0.2]
    linear = replace(schedule, power=1.0, end_factor=0.0)
    assert linear.factor(7) == pytest.approx(0.5)


def test_steps_at_given_points_count_from_the_first_step() -> None:
    schedule = Schedule(kind="steps", warmup_steps=2, total_steps=90, step_at=(30, 60, 80.5))
    assert schedule.factor(0) == pytest.approx(1 / 3)
    assert schedule.factor(29) == 1.0
    assert schedule.factor(30) == pytest.approx(0.1)
    assert schedule.factor(80) == pytest.approx(0.01)
    assert schedule.factor(81) == pytest.approx(0.001)
    assert schedule.factor(1000) == pytest.approx(0.001)


def test_steps_every_so_often_are_those_of_efficientnet() -> None:
    # 0.97 every 2.4 epochs of 10 steps, 5 epochs of warm-up: two boundaries are then behind it.
    schedule = Schedule(
        kind="steps", warmup_steps=50, total_steps=3500, step_every=24, step_factor=0.97
    )
    assert schedule.factor(49) == pytest.approx(50 / 51)
    assert schedule.factor(50) == pytest.approx(0.97**2)
    assert schedule.factor(71) == pytest.approx(0.97**2)
    assert schedule.factor(72) == pytest.approx(0.97**3)


def test_the_warm_up_rises_from_its_factor() -> None:
    schedule = Schedule(kind="cosine", warmup_steps=4, total_steps=20, warmup_factor=0.5)
    assert factors(schedule, 5) == pytest.approx([0.6, 0.7, 0.8, 0.9, 1.0])


def test_without_a_warm_up_the_first_step_has_the_peak() -> None:
    assert Schedule(kind="cosine", total_steps=10).factor(0) == 1.0


def test_a_warm_up_longer_than_the_job_only_rises() -> None:
    found = factors(Schedule(kind="polynomial", warmup_steps=30, total_steps=10), 10)
    assert found == pytest.approx([(step + 1) / 31 for step in range(10)])


@given(schedule=smooth | stepwise)
def test_every_schedule_rises_to_its_warm_ups_end_and_never_after(schedule: Schedule) -> None:
    found = factors(schedule, 520)
    assert all(0 <= each <= 1 for each in found)
    peak = math.ceil(schedule.warmup_steps)
    assert all(now <= later for now, later in itertools.pairwise(found[:peak]))
    assert all(now >= later for now, later in itertools.pairwise(found[peak:]))


@given(schedule=smooth)
def test_the_warm_up_meets_the_decay_without_a_jump(schedule: Schedule) -> None:
    peak = math.ceil(schedule.warmup_steps)
    length = max(1.0, schedule.total_steps - schedule.warmup_steps)
    # The first step after the warm-up is at most one step into the decay.
    assert (
        schedule.factor(peak) >= 1 - (1 - schedule.end_factor) * fall(schedule, 1 / length) - 1e-9
    )
    if peak:
        rise = (1 - schedule.warmup_factor) / (schedule.warmup_steps + 1)
        assert schedule.factor(peak - 1) >= 1 - rise - 1e-9


def fall(schedule: Schedule, progress: float) -> float:
    if schedule.kind == "cosine":
        return 0.5 * (1 - math.cos(math.pi * progress))
    return 1 - (1 - progress) ** schedule.power


@given(schedule=smooth, past=st.integers(0, 50))
def test_the_decay_ends_at_its_factor(schedule: Schedule, past: int) -> None:
    last = max(schedule.total_steps, math.ceil(schedule.warmup_steps) + 1)
    assert schedule.factor(last + past) == pytest.approx(schedule.end_factor, abs=1e-12)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"kind": "linear"}, "schedule must be one of cosine, polynomial, steps, got 'linear'"),
        ({"total_steps": -1}, "total_steps must be a finite number, 0 or more, got -1"),
        ({"warmup_steps": math.inf}, "warmup_steps must be a finite number, 0 or more, got inf"),
        ({"warmup_factor": 1.5}, r"warmup_factor must be a number 0 \.\. 1, got 1.5"),
        ({"end_factor": -0.1}, r"end_factor must be a number 0 \.\. 1, got -0.1"),
        ({"power": math.nan}, "power must be a finite number, 0 or more, got nan"),
        ({"step_factor": 2.0}, r"step_factor must be a number 0 \.\. 1, got 2.0"),
        ({"step_at": (-1.0,)}, "step_at must be a finite number, 0 or more, got -1.0"),
        ({"step_at": (3.0, 3.0)}, r"step_at must ascend, got \[3.0, 3.0\]"),
        ({"kind": "steps"}, "needs either step_at or step_every, got neither"),
        (
            {"kind": "steps", "step_at": (1.0,), "step_every": 2.0},
            "needs either step_at or step_every, got both",
        ),
    ],
)
def test_an_invalid_schedule_is_refused_in_one_line(
    changes: dict[str, object], message: str
) -> None:
    with pytest.raises(ConfigError, match=message) as caught:
        Schedule(**{"kind": "cosine", "total_steps": 10, **changes})
    assert "\n" not in str(caught.value)


def test_the_learning_rate_is_proportional_to_the_global_batch() -> None:
    assert scaled_lr(0.1, 256, 256) == 0.1
    assert scaled_lr(0.1, 256, 8192) == pytest.approx(3.2)
    assert scaled_lr(0.1, 256, 32) == pytest.approx(0.0125)
    with pytest.raises(ConfigError, match="global_batch must be a finite number, 1 or more, got 0"):
        scaled_lr(0.1, 256, 0)

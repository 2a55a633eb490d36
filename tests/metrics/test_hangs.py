"""What several looks at a process prove, and what they do not; and suspensions of the watcher."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from feeder.metrics.hangs import (
    Condition,
    KernelState,
    Policy,
    ProcessLook,
    Watch,
)

STEP_S = 0.5
POLICY = Policy(look_s=1.0, silent_s=2.0, stopped_s=3.0, most_s=30.0)
Look = tuple[KernelState, float]
"""A state, and the CPU time used since the look before."""


def watch_of(*seen: Look) -> Watch:
    """A process that was looked at, STEP_S from one look to the next."""
    watch, cpu_s = Watch(POLICY), 10.0
    for number, (state, used_s) in enumerate(seen):
        cpu_s += used_s if number else 0.0
        watch.looks.append((100.0 + number * STEP_S, ProcessLook(state, cpu_s)))
    return watch


@pytest.mark.parametrize(
    ("seen", "condition"),
    [
        pytest.param([("stopped", 0.0)] * 5, "stopped", id="stopped"),
        pytest.param([("stopped", 0.0), ("traced", 0.0)] * 3, "stopped", id="traced"),
        pytest.param([("sleeps", 0.0)] * 5, "asleep", id="asleep"),
        pytest.param([("sleeps", 0.01)] * 5, "asleep", id="wakes-up-in-vain"),
        pytest.param([("sleeps", 0.2)] * 5, "unclear", id="works-between-the-looks"),
        pytest.param([("runs", 0.5)] * 5, "looping", id="looping"),
        pytest.param([("runs", 0.5), ("sleeps", 0.5)] * 3, "looping", id="looping-with-sleeps"),
        pytest.param([("runs", 0.05)] * 5, "starved", id="starved"),
        pytest.param([("runs", 0.3)] * 5, "unclear", id="half-a-cpu"),
        pytest.param([("runs", 0.5)] * 4 + [("storage", 0.0)], "storage", id="storage"),
        pytest.param([("runs", 0.1)] * 4 + [("stopped", 0.0)], "unclear", id="just-stopped"),
        pytest.param([("runs", 0.1), ("stopped", 0.0)] * 3, "unclear", id="stopped-now-and-then"),
        pytest.param([("stopped", 0.3)] * 5, "unclear", id="stopped-only-when-looked-at"),
        pytest.param([("stopped", 0.0)] * 2, "unclear", id="too-short"),
    ],
)
def test_condition(seen: list[Look], condition: Condition) -> None:
    assert watch_of(*seen).condition(4 * STEP_S) == condition


@pytest.mark.parametrize(
    ("seen", "text"),
    [
        ([("stopped", 0.0)], "stopped by a signal"),
        ([("traced", 0.0)], "stopped by a debugger"),
        ([("storage", 0.0)], "blocked in the kernel, as by a disk or network file system"),
        ([("sleeps", 0.0)], "sleeping"),
        ([("ended", 0.0)], "ended, not yet reaped"),
        ([("runs", 0.0)], "running or waiting for a CPU"),
        (
            [("runs", 0.0)] * 4 + [("runs", 1.5)],
            "running or waiting for a CPU, 1.5 s of CPU time in 2.0 s",
        ),
        ([], "unknown"),
    ],
)
def test_description(seen: list[Look], text: str) -> None:
    assert watch_of(*seen).describe() == text


@pytest.mark.parametrize(
    ("seen", "is_busy"),
    [
        ([("runs", 0.0)], False),
        ([("runs", 0.5)] * 5, True),
        ([("runs", 0.4)] * 5, True),
        ([("runs", 0.2)] * 5, False),
        ([("storage", 0.4)] * 5, True),
        ([("storage", 0.0)] * 5, False),
    ],
)
def test_more_than_half_a_cpu_is_busy_in_any_state(seen: list[Look], is_busy: bool) -> None:
    assert watch_of(*seen).is_busy == is_busy


_STATES: list[KernelState] = ["runs", "sleeps", "storage", "stopped", "traced", "ended"]


@given(
    st.lists(st.tuples(st.sampled_from(_STATES), st.floats(0.0, STEP_S)), min_size=1, max_size=20),
    st.floats(1.0, 5.0),
)
def test_whatever_is_seen_stopped_and_asleep_have_lasted(
    seen: list[Look], lasting_s: float
) -> None:
    condition = watch_of(*seen).condition(lasting_s)
    needed = int(lasting_s / STEP_S)
    if condition == "stopped":
        assert {state for state, _ in seen[-needed - 1 :]} <= {"stopped", "traced"}
        assert len(seen) > needed
    if condition == "asleep":
        assert {state for state, _ in seen[-needed - 1 :]} == {"sleeps"}
    if condition == "looping":
        assert sum(used_s for _, used_s in seen[1:]) >= lasting_s - 1e-9

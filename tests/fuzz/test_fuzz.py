"""A few hundred inputs of each fuzz target, and proof that the harness finds what it looks for."""

import re

import pytest

from tests.fuzz.planted import PLANTED, first_fault
from tests.fuzz.runner import FINDINGS_MAX, HANG_S, Span, Tally, run_spans
from tests.fuzz.sanitized import plain
from tests.fuzz.table import format_failures, format_table
from tests.fuzz.targets import TARGETS, find_target

_INPUTS = 3000  # in all
_LEAST = 40  # of a target
_EVERY = sum(target.inputs for target in TARGETS) / _INPUTS


@pytest.fixture(scope="module")
def tallies() -> dict[str, Tally]:
    """What came of the inputs of all targets; seeds that `make fuzz` has, too."""
    spans = [Span(t.name, 0, max(_LEAST, round(t.inputs / _EVERY))) for t in TARGETS]
    return run_spans(spans, plain())


@pytest.mark.parametrize("target", [target.name for target in TARGETS])
def test_whatever_comes_in_is_taken_or_refused_as_documented(
    tallies: dict[str, Tally], target: str
) -> None:
    tally = tallies[target]
    assert not tally.failures, format_failures({target: tally})
    assert tally.inputs >= _LEAST
    assert tally.accepted, "damage so great that nothing gets past the first check"
    assert tally.rejected, "no damage at all"


@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("crash", "dies of SIGSEGV"),
        ("abort", "dies of SIGABRT"),
        ("hang", "hangs"),
        ("slow", r"it took 0\.[23]\d s of 0\.2"),
        ("touch", r"\d+ MiB were taken of 16|MemoryError"),
        ("ask", r"Cannot allocate memory"),
        ("error", "KeyError: 'an error that is not documented'"),
    ],
)
def test_a_planted_fault_is_found_at_its_very_input(name: str, what: str) -> None:
    target = find_target(f"planted-{name}")
    fault = first_fault(target)
    hang_s = 3.0 if name == "hang" else HANG_S
    (tally,) = run_spans([Span(target.name, 0, fault + 1)], plain(), hang_s=hang_s).values()
    (failure,) = tally.failures
    assert failure.seed == fault
    assert re.search(what, failure.what), failure
    assert failure.reproducer.endswith(f"-m tests.fuzz planted-{name} --seed {fault}")
    assert tally.inputs == fault + 1
    assert f"seed {fault}" in format_failures({target.name: tally})


def test_memory_that_is_kept_is_found() -> None:
    (tally,) = run_spans([Span("planted-keep", 0, 4000)], plain()).values()
    (failure,) = tally.failures
    assert "MiB were kept after 3000 inputs" in failure.what


def test_a_finding_does_not_hide_the_next_nor_other_targets() -> None:
    spans = [Span("planted-error", 0, 1000), Span("planted-keep", 0, 100)]
    found = run_spans(spans, plain())
    seeds = [failure.seed for failure in found["planted-error"].failures]
    target = find_target("planted-error")
    faults = [seed for seed in range(1000) if target.input_of(seed)]
    assert seeds == faults[:FINDINGS_MAX]
    assert found["planted-error"].rejected == seeds[-1] + 1 - FINDINGS_MAX
    assert (found["planted-keep"].inputs, found["planted-keep"].failures) == (100, [])
    assert format_table(found, 1.0).splitlines()[1].split()[-1] == str(FINDINGS_MAX)


def test_no_two_targets_share_a_name() -> None:
    names = [target.name for target in (*TARGETS, *PLANTED)]
    assert len(set(names)) == len(names)
    with pytest.raises(KeyError, match="no target 'absent': there are client-frame"):
        find_target("absent")

"""Some inputs of each fuzz target, and planted faults that the harness must find."""

import re

import pytest

from tests.fuzz.planted import PLANTED, first_fault
from tests.fuzz.runner import (
    FINDINGS_MAX,
    HANG_S,
    Span,
    Tally,
    format_failures,
    format_table,
    run_spans,
)
from tests.fuzz.sanitized import plain
from tests.fuzz.targets import TARGETS, find_target

_INPUTS = 2000  # in total
_LEAST = 40  # for each target
_EVERY = sum(target.inputs for target in TARGETS) / _INPUTS


@pytest.fixture(scope="module")
def tallies() -> dict[str, Tally]:
    """The results of all targets; `make fuzz` runs the same seeds and more."""
    pytest.importorskip("zstandard", reason="make test installs zstandard")
    spans = [Span(t.name, 0, max(_LEAST, round(t.inputs / _EVERY))) for t in TARGETS]
    return run_spans(spans, plain())


@pytest.mark.parametrize("target", [target.name for target in TARGETS])
def test_every_input_is_accepted_or_refused_as_documented(
    tallies: dict[str, Tally], target: str
) -> None:
    tally = tallies[target]
    assert not tally.failures, format_failures({target: tally})
    assert tally.inputs >= _LEAST
    assert tally.accepted, "every input is damaged beyond use"
    assert tally.rejected, "no input is damaged"


@pytest.mark.extensive("a test tool: make fuzz")
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("crash", "dies of SIGSEGV"),
        ("abort", "dies of SIGABRT"),
        ("hang", "hangs"),
        ("slow", r"took 0\.[23]\d s, limit 0\.2"),
        ("touch", r"peak \d+ MiB, limit 16|MemoryError"),
        ("ask", r"Cannot allocate memory"),
        ("error", "KeyError: 'an error that is not documented'"),
    ],
)
def test_planted_fault_is_found_at_its_input(name: str, what: str) -> None:
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


@pytest.mark.extensive("a test tool: make fuzz")
def test_memory_leak_is_found() -> None:
    (tally,) = run_spans([Span("planted-keep", 0, 4000)], plain()).values()
    (failure,) = tally.failures
    assert "MiB kept after 3000 inputs" in failure.what


@pytest.mark.extensive("a test tool: make fuzz")
def test_finding_hides_neither_the_next_one_nor_other_targets() -> None:
    spans = [Span("planted-error", 0, 1000), Span("planted-keep", 0, 100)]
    found = run_spans(spans, plain())
    seeds = [failure.seed for failure in found["planted-error"].failures]
    target = find_target("planted-error")
    faults = [seed for seed in range(1000) if target.input_of(seed)]
    assert seeds == faults[:FINDINGS_MAX]
    assert found["planted-error"].rejected == seeds[-1] + 1 - FINDINGS_MAX
    assert (found["planted-keep"].inputs, found["planted-keep"].failures) == (100, [])
    assert format_table(found).splitlines()[1].split()[-1] == str(FINDINGS_MAX)


def test_target_names_are_unique() -> None:
    names = [target.name for target in (*TARGETS, *PLANTED)]
    assert len(set(names)) == len(names)
    with pytest.raises(KeyError, match="no target 'absent'; known targets: config-file"):
        find_target("absent")

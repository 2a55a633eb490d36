"""Some inputs of each fuzz target, and planted faults that the harness must find."""

import re
from collections.abc import Iterator

import pytest

from tests.fuzz.batch import run_inputs
from tests.fuzz.planted import first_fault
from tests.fuzz.runner import (
    FINDINGS_MAX,
    HANG_S,
    Span,
    format_failures,
    format_table,
    run_span,
)
from tests.fuzz.sanitized import plain
from tests.fuzz.target import Target
from tests.fuzz.targets import TARGETS, find_target

_INPUTS = 2000  # in total
_LEAST = 40  # for each target
_EVERY = sum(target.inputs for target in TARGETS) / _INPUTS
_HARNESS = pytest.mark.extensive("a test tool: make fuzz")


@pytest.fixture(scope="module", autouse=True)
def _folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("FEEDER_FUZZ_FOLDER", str(tmp_path_factory.mktemp("fuzz")))
        yield


@pytest.mark.parametrize("target", TARGETS, ids=lambda target: target.name)
def test_every_input_is_accepted_or_refused_as_documented(target: Target) -> None:
    """`make fuzz` runs the same seeds and more, in processes of their own."""
    pytest.importorskip("zstandard", reason="make test installs zstandard")
    inputs = max(_LEAST, round(target.inputs / _EVERY))
    accepted = run_inputs(target, range(inputs))
    assert accepted, "every input is damaged beyond use"
    assert accepted < inputs, "no input is damaged"


@_HARNESS
@pytest.mark.parametrize(
    ("name", "what"),
    [
        ("crash", "dies of SIGSEGV"),
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
    tally = run_span(Span(target.name, 0, fault + 1), plain(), hang_s=hang_s)
    (failure,) = tally.failures
    assert failure.seed == fault
    assert re.search(what, failure.what), failure
    assert failure.reproducer.endswith(f"-m tests.fuzz planted-{name} --seed {fault}")
    assert tally.inputs == fault + 1
    assert f"seed {fault}" in format_failures({target.name: tally})


@_HARNESS
def test_memory_leak_is_found() -> None:
    (failure,) = run_span(Span("planted-keep", 0, 4000), plain()).failures
    assert "MiB kept after 3000 inputs" in failure.what


@_HARNESS
def test_finding_does_not_hide_the_next_one() -> None:
    target = find_target("planted-error")
    tally = run_span(Span(target.name, 0, 1000), plain())
    seeds = [failure.seed for failure in tally.failures]
    assert seeds == [seed for seed in range(1000) if target.input_of(seed)][:FINDINGS_MAX]
    assert tally.rejected == seeds[-1] + 1 - FINDINGS_MAX
    assert format_table({target.name: tally}).splitlines()[1].split()[-1] == str(FINDINGS_MAX)

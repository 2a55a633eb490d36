"""The command behind `make fuzz`.

    python -m tests.fuzz                             all targets, their default number of inputs
    python -m tests.fuzz --minutes 60                as many inputs as fit into 60 minutes
    python -m tests.fuzz TARGET… --inputs 1000       selected targets
    python -m tests.fuzz TARGET --seed N             one input, printed

The exit status is 1 if there are findings.
"""

import argparse
import itertools
import math
import os
import sys
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

from tests.fuzz.runner import Span, Tally, format_failures, format_table, run_span
from tests.fuzz.sanitized import Build, build, plain
from tests.fuzz.target import Target, show
from tests.fuzz.targets import TARGETS, find_target

_BATCH_INPUTS = 20_000


def main() -> int:
    """Run the command line."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.formatter_class = argparse.RawDescriptionHelpFormatter
    parser.add_argument("targets", nargs="*", metavar="TARGET", help="default: all")
    parser.add_argument("--inputs", type=int, help="total, divided among the targets")
    parser.add_argument("--minutes", type=float, help="continue with new inputs for this long")
    parser.add_argument("--first", type=int, default=0, help="the first seed (0)")
    parser.add_argument("--seed", type=int, help="run and print this one input")
    parser.add_argument("--plain", action="store_true", help="without the sanitizers")
    cpus = len(os.sched_getaffinity(0))
    parser.add_argument("--jobs", type=int, default=cpus, help=f"processes ({cpus})")
    options = parser.parse_args()
    targets = [find_target(name) for name in options.targets] or list(TARGETS)
    builds = {False: plain(), True: plain() if options.plain else build()}
    began_s, tallies = time.monotonic(), {target.name: Tally() for target in targets}
    if options.seed is not None:
        if len(targets) != 1:
            parser.error("--seed takes one target: python -m tests.fuzz TARGET --seed N")
        (target,) = targets
        _log(show(target.input_of(options.seed)))
        tallies[target.name] = run_span(Span(target.name, options.seed, 1), builds[target.native])
    else:
        _log(f"feeder: fuzz: {builds[True].reason}")
        if builds[True].extension:
            _check_harness(builds[True])
        spans = _spans(targets, options.inputs, options.first, is_endless=bool(options.minutes))
        end_s = began_s + 60 * options.minutes if options.minutes else math.inf
        _run_all(spans, builds, options.jobs, end_s, tallies)
    took_s, inputs = time.monotonic() - began_s, sum(tally.inputs for tally in tallies.values())
    _log(format_table(tallies))
    _log(f"{inputs:,} inputs in {took_s / 60:.1f} minutes, {inputs / took_s:,.0f} a second")
    _log(format_failures(tallies))
    return int(any(tally.failures for tally in tallies.values()))


def _spans(
    targets: list[Target], inputs: int | None, first: int, *, is_endless: bool
) -> Iterator[Span]:
    """The spans of all targets in turn, for early findings; new seeds in each turn."""
    total = sum(target.inputs for target in targets) or 1
    share = 1.0 if inputs is None else inputs / total
    counts = {target.name: max(1, round(target.inputs * share)) for target in targets}
    for turn in itertools.count() if is_endless else range(1):
        for at in range(0, max(counts.values()), _BATCH_INPUTS):
            for name, count in counts.items():
                if at < count:
                    start = first + turn * count + at
                    yield Span(name, start, min(_BATCH_INPUTS, count - at))


def _run_all(
    spans: Iterator[Span],
    builds: dict[bool, Build],
    jobs: int,
    end_s: float,
    tallies: dict[str, Tally],
) -> None:
    """Run the spans, ``jobs`` processes at a time; add up the results, and log each finding."""
    lock = threading.Lock()

    def run_some() -> None:
        while time.monotonic() < end_s and not all(tally.is_over for tally in tallies.values()):
            with lock:
                span = next(spans, None)
            if span is None:
                return
            if tallies[span.target].is_over:
                continue
            tally = run_span(span, builds[find_target(span.target).native])
            with lock:
                for failure in tally.failures:
                    _log(f"feeder: fuzz: {failure.what}: {failure.reproducer}")
                tallies[span.target].add(tally)

    with ThreadPoolExecutor(jobs) as pool:
        for running in [pool.submit(run_some) for _ in range(jobs)]:
            running.result()


def _check_harness(sanitized: Build) -> None:
    """Raise unless the sanitizers detect a planted overread of one byte."""
    tally = run_span(Span("planted-overread", 0, 500), sanitized)
    if not any("heap-buffer-overflow" in failure.what for failure in tally.failures):
        raise RuntimeError(f"the sanitizers do not work here: {tally}")


def _log(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

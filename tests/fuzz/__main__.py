"""The command behind `make fuzz`.

    python -m tests.fuzz                             all targets, their default number of inputs
    python -m tests.fuzz --minutes 60                as many inputs as fit into 60 minutes
    python -m tests.fuzz TARGET… --inputs 1000       selected targets
    python -m tests.fuzz TARGET --seed N             one input, printed

The exit status is 1 if there are findings.
"""

import argparse
import itertools
import os
import sys
import time
from collections.abc import Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, Future, ThreadPoolExecutor, wait

from tests.fuzz.runner import FINDINGS_MAX, HANG_S, Span, Tally, run_spans
from tests.fuzz.sanitized import Build, build, plain
from tests.fuzz.table import format_failures, format_table
from tests.fuzz.target import show
from tests.fuzz.targets import TARGETS, find_target

_BATCH_INPUTS = 20_000


def main() -> int:
    """Run the command line."""
    options = _parser().parse_args()
    names = options.targets or [target.name for target in TARGETS]
    targets = [find_target(name) for name in names]
    builds = {False: plain(), True: plain() if options.plain else build()}
    if options.seed is not None:
        return _run_one(names, options.seed, builds)
    _log(f"feeder: fuzz: {builds[True].reason}")
    began_s = time.monotonic()
    if builds[True].extension:
        _check_harness(builds[True])
    share = (
        1.0 if options.inputs is None else options.inputs / (sum(t.inputs for t in targets) or 1)
    )
    once = [
        Span(target.name, options.first + at, min(_BATCH_INPUTS, count - at))
        for target in targets
        for count in [max(1, round(target.inputs * share))]
        for at in range(0, count, _BATCH_INPUTS)
    ]
    once.sort(key=lambda span: span.first)  # all targets from the start, for early findings
    spans: Iterable[Span] = once
    deadline_s = None
    if options.minutes is not None:
        deadline_s = began_s + 60 * options.minutes
        ends = {name: max(s.first + s.count for s in once if s.target == name) for name in names}
        spans = (
            Span(span.target, span.first + turn * (ends[span.target] - options.first), span.count)
            for turn in itertools.count()
            for span in once
        )
    tallies = {name: Tally() for name in names}
    for name, tally in _run_all(spans, builds, options.jobs, deadline_s, tallies):
        for failure in tally.failures:
            _log(f"feeder: fuzz: {failure.what}: {failure.reproducer}")
        tallies[name].add(tally)
    _log(format_table(tallies, time.monotonic() - began_s))
    _log(format_failures(tallies))
    return int(any(tally.failures for tally in tallies.values()))


def _run_all(
    spans: Iterable[Span],
    builds: dict[bool, Build],
    jobs: int,
    deadline_s: float | None,
    tallies: dict[str, Tally],
) -> Iterator[tuple[str, Tally]]:
    """Run the spans, ``jobs`` processes at a time; yield target names with their results."""
    waiting: set[Future[dict[str, Tally]]] = set()
    remaining = iter(spans)
    with ThreadPoolExecutor(jobs) as pool:
        while True:
            while len(waiting) < jobs and (deadline_s is None or time.monotonic() < deadline_s):
                span = next(remaining, None)
                if span is None:
                    break
                if len(tallies[span.target].failures) >= FINDINGS_MAX:
                    if all(len(tally.failures) >= FINDINGS_MAX for tally in tallies.values()):
                        break
                    continue
                setup = builds[find_target(span.target).native]
                waiting.add(pool.submit(run_spans, [span], setup))
            if not waiting:
                return
            done, waiting = wait(waiting, return_when=FIRST_COMPLETED)
            for future in done:
                yield from future.result().items()


def _run_one(names: list[str], seed: int, builds: dict[bool, Build]) -> int:
    if len(names) != 1:
        _log("feeder: error: --seed takes one target: python -m tests.fuzz TARGET --seed N")
        return 2
    target = find_target(names[0])
    _log(show(target.input_of(seed)))
    tallies = run_spans([Span(target.name, seed, 1)], builds[target.native], hang_s=HANG_S)
    _log(format_table(tallies, None))
    _log(format_failures(tallies))
    return int(bool(tallies[target.name].failures))


def _check_harness(sanitized: Build) -> None:
    """Raise unless the sanitizers detect a planted overread of one byte."""
    tallies = run_spans([Span("planted-overread", 0, 500)], sanitized)
    if not any("heap-buffer-overflow" in f.what for f in tallies["planted-overread"].failures):
        raise RuntimeError(f"the sanitizers do not work here: {tallies}")


def _parser() -> argparse.ArgumentParser:
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
    return parser


def _log(text: str) -> None:
    sys.stdout.write(f"{text}\n")
    sys.stdout.flush()


if __name__ == "__main__":
    sys.exit(main())

"""``feeder-bench gpu``: does Feeder keep what it promises on this device?

    exactness   normalising against float64: every packing, type and level
    bandwidth   normalising against a copy on the device: 85 % or more
    slots       copying from a feeder's slots against copying from pinned memory: 90 % or more
    step        a training step fed by a feeder against one without: stalled for less than 1 %

It ends with status 1 when a check fails. On a CPU the checks run in a small form that shows that
they work; only exactness is judged there.
"""

import argparse
import os
import sys
from collections.abc import Sequence

from feeder.process.program import run_guarded
from feeder.process.stop_signals import StopSignals

from .options import GpuOptions, add_arguments
from .report import GpuReport

__all__ = ["add_arguments", "main", "run", "run_command"]


def run(arguments: argparse.Namespace) -> GpuReport:
    """Do what the command line asks; raises ConfigError for a device that cannot be used."""
    options = GpuOptions.of(arguments)
    # Read when torch is loaded: by default its threads spin while they wait for each other, on the
    # cores that the daemon needs.
    os.environ.setdefault("OMP_WAIT_POLICY", "passive")
    from .checks import run_checks

    return run_checks(options)


def main(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status."""
    return run_guarded("feeder-bench gpu", lambda: run_command(argv))


def run_command(argv: Sequence[str]) -> int:
    """Run the command line and return the exit status; raises what goes wrong."""
    parser = argparse.ArgumentParser(
        prog="python -m bench.gpu",
        description="Check normalising, copies and a fed training step on this machine's device.",
    )
    add_arguments(parser)
    arguments = parser.parse_args(argv)
    with StopSignals() as signals:
        try:
            report = run(arguments)
            try:
                print(report.to_text(), end="", flush=True)
            finally:
                if arguments.json is not None:
                    report.write_json(arguments.json)
        except KeyboardInterrupt:
            sys.stderr.write("feeder-bench gpu: interrupted\n")
            return signals.exit_status
    for reason in report.failures:
        sys.stderr.write(f"feeder-bench gpu: failed: {reason}\n")
    return 1 if report.failures else 0

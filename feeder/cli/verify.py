"""``feeder verify DST``: checks every byte of a dataset and decodes every sample."""

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "verify",
        help="check every checksum and every sample of a dataset",
        description="Check every byte of the dataset DST and decode every sample. Print one line "
        "for each problem; the exit status is 0 if there is none, else 3.",
    )
    parser.add_argument("dataset", type=Path, metavar="DST")
    parser.add_argument("--jobs", type=int, help="worker processes (default: usable cores)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Verify, and print the problems and the verdict."""
    from feeder.errors import DatasetError
    from feeder.pack.progress import ProgressLine
    from feeder.pack.task_pool import choose_jobs
    from feeder.pack.verify import Verification
    from feeder.process.stop_signals import StopSignals
    from feeder.survey.numbers import plural

    progress = ProgressLine(sys.stderr)
    found = 0
    with StopSignals() as signals:
        try:
            verification = Verification.open(
                arguments.dataset, jobs=choose_jobs(arguments.jobs), progress=progress
            )
            for problem in verification.problems():
                found += 1
                progress.clear()
                print(f"damaged: {problem}", flush=True)
        except KeyboardInterrupt:
            sys.stderr.write(f"feeder: stopped; {plural(found, 'problem')} found so far\n")
            return signals.exit_status
    manifest = verification.manifest
    shards = f"{plural(manifest.samples, 'sample')} in {plural(len(manifest.shards), 'shard')}"
    if found:
        print(f"{arguments.dataset} is damaged: {plural(found, 'problem')} in {shards}")
        return DatasetError.exit_status
    print(f"{arguments.dataset} is whole: {shards}, content fingerprint {manifest.content}")
    return 0

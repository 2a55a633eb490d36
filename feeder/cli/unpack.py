"""``feeder unpack DST OUT``: turns a dataset back into a folder of classes with ordinary JPEGs."""

import argparse
import sys
from pathlib import Path
from typing import Any


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "unpack",
        help="turn a dataset back into ordinary JPEGs",
        description="Write the samples of the dataset DST to OUT/class/name as ordinary JPEGs "
        "with the originals' pixels. Samples without one class are written to OUT/name, and "
        "OUT/labels.jsonl lists their labels. Names too long for the file system of OUT are "
        "shortened, and listed in OUT/.shortened-names.jsonl.",
    )
    parser.add_argument("dataset", type=Path, metavar="DST")
    parser.add_argument("out", type=Path, metavar="OUT")
    parser.add_argument("--jobs", type=int, help="worker processes (default: usable cores)")
    parser.add_argument(
        "--force", action="store_true", help="allow a non-empty OUT, and replace files in it"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Unpack, and print the number of images."""
    from feeder.pack.progress import ProgressLine
    from feeder.pack.task_pool import choose_jobs
    from feeder.pack.unpack import SHORTENED_NAME, unpack_dataset
    from feeder.process.stop_signals import StopSignals
    from feeder.survey.numbers import plural

    with StopSignals() as signals:
        try:
            manifest, shortened = unpack_dataset(
                arguments.dataset,
                arguments.out,
                jobs=choose_jobs(arguments.jobs),
                force=arguments.force,
                progress=ProgressLine(sys.stderr),
            )
        except KeyboardInterrupt:
            sys.stderr.write(
                f"feeder: stopped: {arguments.out} is incomplete, run the same command again with "
                "--force\n"
            )
            return signals.exit_status
    print(f"unpacked {plural(manifest.samples, 'image')} into {arguments.out}")
    if shortened:
        print(
            f"{plural(shortened, 'name')} shortened to fit the file system, listed in "
            f"{arguments.out / SHORTENED_NAME}"
        )
    return 0

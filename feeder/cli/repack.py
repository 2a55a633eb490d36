"""``feeder repack OLD NEW``: converts a dataset of shard format 2 to the current format."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeder.repack.run import RepackSummary


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "repack",
        help="convert a dataset of the previous format to the current one",
        description="Convert OLD, a dataset of the previous format (shard format 2), to the "
        "dataset NEW of the current one without loss: the same images, labels, names and order. "
        "Jobs that were trained with OLD resume with NEW. OLD stays as it is. After an "
        "interruption the same command resumes.",
    )
    parser.add_argument("old", type=Path, metavar="OLD", help="dataset to convert")
    parser.add_argument("new", type=Path, metavar="NEW", help="folder of the dataset, new or empty")
    parser.add_argument("--jobs", type=int, help="worker processes (default: usable cores)")
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Repack, and print the summary."""
    from feeder.pack.progress import ProgressLine
    from feeder.pack.task_pool import choose_jobs
    from feeder.process.stop_signals import StopSignals
    from feeder.repack.run import repack_dataset

    with StopSignals() as signals:
        try:
            summary = repack_dataset(
                arguments.old,
                arguments.new,
                jobs=choose_jobs(arguments.jobs),
                progress=ProgressLine(sys.stderr),
            )
        except KeyboardInterrupt:
            sys.stderr.write(
                f"feeder: stopped by {signals.name}: finished shards are kept, run the same "
                "command again to resume\n"
            )
            return signals.exit_status
    print("\n".join(format_summary(arguments.new, summary)))
    return 0


def format_summary(new: Path, summary: "RepackSummary") -> list[str]:
    """Return the lines about the dataset ``new``."""
    from feeder.pack.progress import format_duration
    from feeder.survey.numbers import plural

    manifest = summary.manifest
    packed = sum(shard.bytes for shard in manifest.shards)
    rate = summary.repacked / max(summary.seconds, 1e-9)
    return [
        f"repacked {plural(manifest.samples, 'image')} into {new}: "
        f"{plural(len(manifest.shards), 'shard')}",
        f"  content fingerprint {manifest.content}",
        f"  {packed / 1e6:,.1f} MB from {summary.former_bytes / 1e6:,.1f} MB "
        f"({packed / summary.former_bytes:.3f})",
        f"  this run: {plural(summary.repacked, 'image')} in "
        f"{format_duration(summary.seconds)}, {rate:,.0f} images/s",
    ]

"""``feeder pack SRC DST``: packs a folder of classes into a dataset."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from feeder.pack.run import PackSummary


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "pack",
        help="pack a folder of classes into a dataset",
        description="Pack SRC (a folder of class folders with images) into the dataset DST. JPEGs "
        "are re-coded without loss. After an interruption the same command resumes.",
    )
    parser.add_argument("source", type=Path, metavar="SRC")
    parser.add_argument("destination", type=Path, metavar="DST")
    parser.add_argument("--shards", type=int, help="number of shard files (default: by size)")
    parser.add_argument("--lanes", type=int, help="lanes of shards (default: up to 8)")
    parser.add_argument(
        "--tile-width",
        type=int,
        choices=(16, 32, 64, 128),
        default=32,
        help="pixels across a tile (default: 32)",
    )
    parser.add_argument("--seed", type=int, default=0, help="of the shuffle (default: 0)")
    parser.add_argument("--jobs", type=int, help="worker processes (default: usable cores)")
    parser.add_argument("--strict", action="store_true", help="stop at the first bad file")
    parser.add_argument(
        "--apply-exif",
        action="store_true",
        help="turn images upright (default: no, as torchvision)",
    )
    parser.add_argument(
        "--quality", type=int, default=95, help="JPEG quality of re-encoded images (default: 95)"
    )
    parser.add_argument(
        "--classes-of",
        type=Path,
        metavar="DATASET",
        help="take classes and labels of this packed dataset: of the training set, for validation",
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Pack, and print the summary."""
    from feeder.pack.progress import ProgressLine
    from feeder.pack.run import PackOptions, pack_dataset
    from feeder.pack.task_pool import choose_jobs
    from feeder.process.stop_signals import StopSignals

    options = PackOptions(
        shards=arguments.shards,
        lanes=arguments.lanes,
        tile_width_px=arguments.tile_width,
        seed=arguments.seed,
        jobs=choose_jobs(arguments.jobs),
        strict=arguments.strict,
        apply_exif=arguments.apply_exif,
        quality=arguments.quality,
        classes_of=arguments.classes_of,
    )
    with StopSignals() as signals:
        try:
            summary = pack_dataset(
                arguments.source, arguments.destination, options, ProgressLine(sys.stderr)
            )
        except KeyboardInterrupt:
            name = signals.received.name if signals.received else "Ctrl-C"
            sys.stderr.write(
                f"feeder: stopped by {name}: finished shards are kept, run the same command again "
                "to resume\n"
            )
            return signals.exit_status
    print("\n".join(format_summary(arguments.destination, summary)))
    return 0


def format_summary(destination: Path, summary: "PackSummary") -> list[str]:
    """Return the lines that list what was packed, what was odd, and what was left out."""
    from collections import Counter

    from feeder.pack.progress import format_duration
    from feeder.process.path_text import printable

    manifest = summary.manifest
    packed = sum(shard.bytes for shard in manifest.shards)
    rate = summary.packed_files / max(summary.seconds, 1e-9)
    lines = [
        f"packed {manifest.samples:,} images of {len(manifest.classes):,} classes into "
        f"{destination}: {len(manifest.shards)} shards, {manifest.lanes} lanes",
        f"  fingerprint {manifest.fingerprint}",
        f"  {packed / 1e6:,.1f} MB from {manifest.source_bytes / 1e6:,.1f} MB "
        f"({packed / max(manifest.source_bytes, 1):.3f})",
        f"  this run: {summary.packed_files:,} files in {format_duration(summary.seconds)}, "
        f"{rate:,.0f} images/s",
        f"  subsampling: {_counts(manifest.subsampling)}",
    ]
    if manifest.odd:
        lines.append(f"  odd: {_counts(manifest.odd)}")
    if summary.hidden:
        lines.append(f"  left out: {summary.hidden:,} hidden (names that begin with a dot)")
    if summary.empty_classes == 1:
        lines.append("  1 class has no images, and keeps its label")
    elif summary.empty_classes:
        lines.append(f"  {summary.empty_classes:,} classes have no images, and keep their labels")
    for name in summary.lost_classes:
        lines.append(f"  warning: every image of class {printable(name)} was quarantined")
    if summary.quarantine:
        kinds = Counter(entry.kind for entry in summary.quarantine)
        lines.append(
            f"  quarantined: {_counts(kinds)}; listed in {destination / 'quarantine.jsonl'}"
        )
        lines += [
            f"    {printable(entry.path)}: {entry.kind} ({entry.reason})"
            for entry in summary.quarantine[:10]
        ]
        if len(summary.quarantine) > 10:
            lines.append(f"    and {len(summary.quarantine) - 10:,} more")
    return lines


def _counts(counts: "dict[str, int]") -> str:
    ordered = sorted(counts.items(), key=lambda item: (-item[1], item[0]))
    return ", ".join(f"{count:,} {kind}" for kind, count in ordered)

"""``feeder pack SRC DST``: packs a source of images into a dataset."""

import argparse
import dataclasses
from collections import Counter
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feeder.cli.options import add_jobs_option, describe_resumable, option, perform
from feeder.dataset.files import parse_location
from feeder.errors import ConfigError
from feeder.process.path_text import printable
from feeder.source.kinds import MODULES
from feeder.survey.numbers import largest_first, plural
from feeder.survey.words import ODD_KINDS, SUBSAMPLINGS

if TYPE_CHECKING:
    from feeder.dataset.manifest import Manifest
    from feeder.pack.run import PackSummary
    from feeder.pack.split import SplitOptions
    from feeder.pack.task_pool import RunTasks

_KIND_HELP: Final = f"kind of SRC (default: recognised by its content): {', '.join(MODULES)}"


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    parser = subparsers.add_parser(
        "pack",
        help="pack images into a dataset",
        description="Pack SRC into the dataset DST. SRC is a folder of class folders, a folder "
        "with a label file, tar shards (WebDataset), TFRecords, Parquet or LMDB files, or "
        "ImageNet's archives, here or at s3://, gs:// or az://; quote patterns such as "
        "'train-{000..146}.tar'. JPEGs are re-coded without loss unless an option asks for it. "
        "After an interruption the same command resumes.",
    )
    parser.add_argument("source", metavar="SRC", help="folder, file, quoted pattern or URL to pack")
    parser.add_argument(
        "destination", type=Path, metavar="DST", help="folder of the dataset, new or empty"
    )
    _add_source_options(parser.add_argument_group("the source"))
    _add_selection_options(parser.add_argument_group("classes, splits, bad images"))
    _add_loss_options(parser.add_argument_group("smaller datasets, with loss"))
    _add_shard_options(parser.add_argument_group("shards and processing"))
    parser.set_defaults(run=run)


def _add_source_options(group: "argparse._ArgumentGroup") -> None:
    holds = "column, feature, field or extension that holds the"
    option(group, "--source KIND", _KIND_HELP, dest="kind")
    option(group, "--image FIELD", f"{holds} image", default="")
    option(group, "--label FIELD", f"{holds} label", default="")
    option(
        group,
        "--label-kind",
        "a class by number or name, several, rows of 0 and 1, numbers as they are, no label "
        "(default: what all labels show)",
        choices=("index", "name", "one-hot", "multi", "multi-hot", "float", "none"),
    )
    option(
        group,
        "--uncertain",
        "what -1 and a missing value are in rows of 0 and 1",
        choices=("no", "yes", "leave-out"),
        default="",
    )
    base = "number of the first class in SRC (default: 0; 1 for image/class/label of TFRecords)"
    option(group, "--label-base N", base, type=int)
    option(
        group,
        "--labels FILE",
        "labels apart from the images: CSV, JSON or JSONL; for imagenet-val its development kit",
        dest="labels_file",
        default="",
    )
    names = "names of the classes, one a line"
    option(group, "--class-names FILE", names, dest="class_names_file", default="")


def _add_selection_options(group: "argparse._ArgumentGroup") -> None:
    option(
        group,
        "--classes-of DATASET",
        "use the classes and labels of this packed dataset, such as the training set",
        type=parse_location,
    )
    option(
        group,
        "--split NAME",
        "split of SRC to pack: a folder, or the files or rows of it; with --val-fraction or "
        "--val-list the side, train or val",
    )
    option(
        group,
        "--all-splits",
        "pack what looks like several splits as one source, folders as classes",
    )
    option(group, "--val-fraction SHARE", "share of the images for validation, e.g. 5%%")
    option(group, "--val-list FILE", "names of the validation images, one a line", type=Path)
    option(
        group,
        "--max-bad SHARE",
        "share or number of bad images to leave out (default: 5%%); with more, nothing is "
        "published",
        default="5%",
    )
    option(group, "--strict", "stop at the first bad image")


def _add_loss_options(group: "argparse._ArgumentGroup") -> None:
    option(group, "--max-side PX", "shrink images with a longer side", type=int)
    quality = "encode all images at this JPEG quality (default: only those that must be, at 95)"
    option(group, "--quality Q", quality, type=int)
    subsampling = "re-encode colour images whose chroma subsampling differs"
    option(group, "--subsampling", subsampling, choices=("444", "422", "420"))


def _add_shard_options(group: "argparse._ArgumentGroup") -> None:
    option(group, "--shards", "number of shard files (default: by size)", type=int)
    group.add_argument("--lanes", help=argparse.SUPPRESS)  # of earlier versions
    option(
        group,
        "--tile-width",
        "pixels across a tile (default: 32)",
        dest="tile_width_px",
        type=int,
        choices=(16, 32, 64, 128),
        default=32,
    )
    option(group, "--seed", "of the shuffle (default: 0)", type=int, default=0)
    add_jobs_option(group)
    option(
        group,
        "--ray HOST:PORT",
        "pack on the hosts of a Ray cluster, which share SRC and DST; --jobs are tasks at a "
        "time then (default: its CPUs; head: $RAY_ADDRESS, else that of this machine)",
        nargs="?",
        const="",
    )
    option(group, "--apply-exif", "turn images upright (default: no, as torchvision)")
    option(
        group,
        "--png16-max LEVEL",
        "level that becomes white in images with 16 bits a sample, e.g. 4095 for 12-bit data "
        "(default: 65535)",
        type=int,
        default=65_535,
    )


def run(arguments: argparse.Namespace) -> int:
    from feeder.pack.options import PackOptions
    from feeder.pack.run import pack_dataset
    from feeder.pack.task_pool import choose_jobs
    from feeder.source.source import SourceSpec

    if arguments.lanes is not None:
        raise ConfigError(
            "--lanes is no option of packing any more: leave it out, and give the recipe lanes "
            "only where the number chosen by size does not fit"
        )
    split, own_split = _choose_split(arguments)
    jobs = choose_jobs(arguments.jobs)
    # An option that has the name of a field of these sets that field.
    values = vars(arguments)
    reading = {name: values[name] for name in SourceSpec.__struct_fields__ if name in values}
    own = {field.name for field in dataclasses.fields(PackOptions)} & {*values}
    packing = {name: values[name] for name in own} | {"split": split, "jobs": jobs}
    options = PackOptions(reading=reading | {"split": own_split}, **packing)
    destination, run = arguments.destination, _choose_runner(arguments)
    summary = perform(
        lambda progress: pack_dataset(arguments.source, destination, options, progress, run=run),
        describe_resumable,
    )
    print("\n".join(format_summary(destination, summary)))
    return 0


def _choose_runner(arguments: argparse.Namespace) -> "RunTasks | None":
    if arguments.ray is None:
        return None
    import functools

    from feeder.cli.cluster import choose_address
    from feeder.cluster.pack_pool import run_on_ray

    address = choose_address(arguments.ray)
    return functools.partial(run_on_ray, address=address, at_once=arguments.jobs or 0)


def _choose_split(arguments: argparse.Namespace) -> "tuple[SplitOptions | None, str]":
    """The side of a split that packing makes, or the split of the source to take.

    None and "" where --split and its companions name none.
    """
    from feeder.pack.split import SplitOptions, parse_share

    split, fraction, names = arguments.split, arguments.val_fraction, arguments.val_list
    if fraction is None and names is None:
        if split == "":
            raise ConfigError("--split names nothing: give train, or the name of another split")
        if split and arguments.all_splits:
            raise ConfigError(
                "--split chooses one split, --all-splits all of them: give one of these"
            )
        return None, split or ""
    if split is None:
        option = "--val-fraction" if fraction is not None else "--val-list"
        raise ConfigError(f"{option} needs --split train or --split val")
    share = None if fraction is None else parse_share(fraction)
    return SplitOptions(side=split, val_fraction=share, val_list=names), ""


def format_summary(destination: Path, summary: "PackSummary") -> list[str]:
    """The lines that list what was packed, what was odd, and what was left out."""
    from feeder.pack.progress import format_duration
    from feeder.survey.duplicates import DUPLICATES_NAME
    from feeder.survey.page import SURVEY_NAME

    manifest = summary.manifest
    packed = sum(shard.bytes for shard in manifest.shards)
    rate = summary.packed_files / max(summary.seconds, 1e-9)
    lines = [
        f"packed {plural(manifest.samples, 'image')}{_describe_labels(manifest)} into "
        f"{destination}: {plural(len(manifest.shards), 'shard')}",
        f"  labels: {summary.labels_read}",
        f"  content fingerprint {manifest.content}",
        f"  {packed / 1e6:,.1f} MB from {manifest.source_bytes / 1e6:,.1f} MB "
        f"({packed / max(manifest.source_bytes, 1):.3f})",
        f"  this run: {plural(summary.packed_files, 'file')} in "
        f"{format_duration(summary.seconds)}, {rate:,.0f} images/s",
        f"  subsampling: {_list_counts(manifest.subsampling, SUBSAMPLINGS)}",
    ]
    if summary.retries:
        again = plural(sum(summary.retries.values()), "request")
        lines.append(f"  store: {again} made again: {_list_counts(summary.retries, {})}")
    if manifest.odd:
        titles = {kind: words.title for kind, words in ODD_KINDS.items()}
        lines.append(f"  odd: {_list_counts(manifest.odd, titles)}")
    turned = manifest.odd.get("exif-ignored", 0)
    if turned:
        lines.append(
            f"  orientation: {plural(turned, 'image has', 'images have')} an EXIF orientation that "
            "was not applied, as in torchvision (Hugging Face's datasets applies it): --apply-exif"
        )
    if manifest.duplicates:
        path = destination / DUPLICATES_NAME
        lines.append(f"  duplicates: {manifest.duplicates:,} with the bytes of another; see {path}")
    if summary.hidden:
        lines.append(f"  left out: {summary.hidden:,} hidden (names that begin with a dot)")
    if summary.empty_classes:
        have = plural(
            summary.empty_classes,
            "class has no images, and keeps its label",
            "classes have no images, and keep their labels",
        )
        lines.append(f"  {have}")
    for name in summary.lost_classes:
        lines.append(f"  warning: every image of class {printable(name)} was quarantined")
    if summary.quarantine:
        kinds = largest_first(Counter(entry.kind for entry in summary.quarantine))
        counted = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
        lines.append(f"  quarantined: {counted}; listed in {destination / 'quarantine.jsonl'}")
        lines += [
            f"    {printable(entry.path)}: {entry.kind} ({entry.reason})"
            for entry in summary.quarantine[:10]
        ]
        if len(summary.quarantine) > 10:
            lines.append(f"    and {len(summary.quarantine) - 10:,} more")
    lines.append(f"  survey: {destination / SURVEY_NAME}")
    return lines


def _describe_labels(manifest: "Manifest") -> str:
    labels = manifest.labels
    if labels.kind == "float":
        return f" with {labels.width} numbers each" if labels.width > 1 else " with a number each"
    if labels.kind == "none":
        return " without labels"
    what = "several of " if labels.kind == "multi" else ""
    return f" of {what}{plural(len(manifest.classes), 'class', 'classes')}"


def _list_counts(counts: Mapping[str, int], titles: Mapping[str, str]) -> str:
    """E.g. ``PNG (12), Wrong suffix (1)``."""
    return ", ".join(f"{titles.get(kind, kind)} ({n:,})" for kind, n in largest_first(counts))

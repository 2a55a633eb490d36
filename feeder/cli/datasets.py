"""The commands for a packed dataset: verify, unpack, repack, names and survey."""

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from feeder.cli.options import (
    add_jobs_option,
    add_key_options,
    add_timeout_option,
    check_timeout,
    describe_resumable,
    option,
    perform,
    read_keys,
)
from feeder.dataset.files import Location, local_folder, parse_location
from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import encode_name, printable
from feeder.survey.numbers import plural

if TYPE_CHECKING:
    from feeder.dataset.manifest import Manifest
    from feeder.pack.progress import ProgressLine


def add_parsers(subparsers: "argparse._SubParsersAction[Any]") -> None:
    verify = subparsers.add_parser(
        "verify",
        help="check every checksum and every sample of a dataset",
        description="Check every byte of the dataset DST and decode every sample. Of a selection, "
        "check its file, then all of each of its datasets. Print one line for each problem; the "
        "exit status is 0 if there is none, else 3.",
    )
    verify.add_argument("dataset", type=parse_location, metavar="DST")
    add_jobs_option(verify)
    verify.set_defaults(run=run_verify)

    unpack = subparsers.add_parser(
        "unpack",
        help="turn a dataset back into ordinary JPEGs",
        description="Write the samples of the dataset DST to OUT/class/name as ordinary JPEGs "
        "with the originals' pixels. Samples without one class are written to OUT/name, and "
        "OUT/labels.jsonl lists their labels. Names too long for the file system of OUT are "
        "shortened, and listed in OUT/.shortened-names.jsonl.",
    )
    unpack.add_argument("dataset", type=parse_location, metavar="DST")
    unpack.add_argument("out", type=Path, metavar="OUT")
    add_jobs_option(unpack)
    option(unpack, "--force", "allow a non-empty OUT, and replace files in it")
    unpack.set_defaults(run=run_unpack)

    repack = subparsers.add_parser(
        "repack",
        help="convert a dataset of the previous format to the current one",
        description="Convert OLD, a dataset of the previous format (shard format 2), to the "
        "dataset NEW of the current one without loss: the same images, labels, names and order. "
        "OLD stays as it is. After an interruption the same command resumes.",
    )
    repack.add_argument("old", type=Path, metavar="OLD", help="dataset to convert")
    repack.add_argument("new", type=Path, metavar="NEW", help="folder of the dataset, new or empty")
    add_jobs_option(repack)
    repack.set_defaults(run=run_repack)

    names = subparsers.add_parser(
        "names",
        help="show from which files samples were packed",
        description="Print the names that samples had in the source of the dataset DST, a line for "
        "each ID in the given order: a path below the source's folder, a key in a tar. Ids are "
        "those of batch.sample_ids, also where DST is a selection. With an ENDPOINT "
        "(tcp://HOST:PORT or ipc:///PATH) in place of DST, the feeder there is asked.",
    )
    names.add_argument("dataset", metavar="DST|ENDPOINT")
    names.add_argument("ids", metavar="ID", type=int, nargs="+")
    option(names, "--dataset NAME", "with ENDPOINT: the dataset's name there", dest="name")
    add_timeout_option(names, "with ENDPOINT: seconds to wait for a reply")
    add_key_options(names)
    names.set_defaults(run=run_names)

    survey = subparsers.add_parser(
        "survey",
        help="write the page that shows what a dataset holds",
        description="Write survey.html into the dataset DST: classes, sizes, odd kinds, files that "
        "were left out, duplicates. The page loads nothing from elsewhere. feeder pack writes it, "
        "too.",
    )
    survey.add_argument("dataset", type=parse_location, metavar="DST")
    option(survey, "--out PAGE", "write this file (default: DST/survey.html)", type=Path)
    survey.set_defaults(run=run_survey)


def run_verify(arguments: argparse.Namespace) -> int:
    from feeder.dataset.selection import is_selection

    folder = local_folder(arguments.dataset)
    if folder is not None and is_selection(folder):
        return _verify_selection(folder, arguments)
    return _verify(arguments.dataset, arguments)


def _verify_selection(path: Path, arguments: argparse.Namespace) -> int:
    """Verify a selection's file, then all of each of its datasets."""
    from feeder.choose.members import check_member, find_member
    from feeder.dataset.manifest import load_manifest
    from feeder.dataset.selection import Selection

    selection = Selection.open(path)
    if selection.compute_content() != selection.content:
        raise DatasetError(f"{path} is damaged (its content fingerprint does not match)")
    samples, members = plural(selection.samples, "sample"), len(selection.members)
    print(
        f"{path} is whole: {samples} of {plural(members, 'dataset')}, content fingerprint "
        f"{selection.content}"
    )
    statuses = []
    for member in selection.members:
        place = find_member(selection, member)
        check_member(selection, member, load_manifest(place).content, str(place))
        statuses.append(_verify(place, arguments))
    return max(statuses)


def _verify(location: Location, arguments: argparse.Namespace) -> int:
    from feeder.pack.task_pool import choose_jobs
    from feeder.pack.verify import verify_dataset

    problems = 0

    def work(progress: "ProgressLine") -> "Manifest":
        nonlocal problems
        jobs = choose_jobs(arguments.jobs)
        manifest, found = verify_dataset(location, jobs=jobs, progress=progress)
        for problem in found:
            problems += 1
            progress.clear()
            print(f"damaged: {problem}", flush=True)
        return manifest

    manifest = perform(work, lambda _: f"; {plural(problems, 'problem')} found so far")
    shards = f"{plural(manifest.samples, 'sample')} in {plural(len(manifest.shards), 'shard')}"
    if problems:
        print(f"{location} is damaged: {plural(problems, 'problem')} in {shards}")
        return DatasetError.exit_status
    print(f"{location} is whole: {shards}, content fingerprint {manifest.content}")
    return 0


def run_unpack(arguments: argparse.Namespace) -> int:
    from feeder.pack.task_pool import choose_jobs
    from feeder.pack.unpack import SHORTENED_NAME, unpack_dataset

    out: Path = arguments.out
    manifest, shortened = perform(
        lambda progress: unpack_dataset(
            arguments.dataset,
            out,
            jobs=choose_jobs(arguments.jobs),
            force=arguments.force,
            progress=progress,
        ),
        lambda _: f": {out} is incomplete, run the same command again with --force",
    )
    print(f"unpacked {plural(manifest.samples, 'image')} into {out}")
    if shortened:
        names = plural(shortened, "name")
        print(f"{names} shortened to fit the file system, listed in {out / SHORTENED_NAME}")
    return 0


def run_repack(arguments: argparse.Namespace) -> int:
    from feeder.pack.progress import format_duration
    from feeder.pack.task_pool import choose_jobs
    from feeder.repack.run import repack_dataset

    old, new, jobs = arguments.old, arguments.new, choose_jobs(arguments.jobs)
    summary = perform(
        lambda progress: repack_dataset(old, new, jobs=jobs, progress=progress), describe_resumable
    )
    manifest = summary.manifest
    packed, former = sum(shard.bytes for shard in manifest.shards), summary.former_bytes
    rate = summary.repacked / max(summary.seconds, 1e-9)
    print(
        f"repacked {plural(manifest.samples, 'image')} into {new}: "
        f"{plural(len(manifest.shards), 'shard')}\n"
        f"  content fingerprint {manifest.content}\n"
        f"  {packed / 1e6:,.1f} MB from {former / 1e6:,.1f} MB ({packed / former:.3f})\n"
        f"  this run: {plural(summary.repacked, 'image')} in {format_duration(summary.seconds)}, "
        f"{rate:,.0f} images/s"
    )
    return 0


def run_names(arguments: argparse.Namespace) -> int:
    is_endpoint = "://" in arguments.dataset and isinstance(parse_location(arguments.dataset), Path)
    for name in (_request_names if is_endpoint else _read_names)(arguments):
        print_name(name)
    return 0


def print_name(name: str, *, before: str = "") -> None:
    """Print the name of a sample on a line: in a file or a pipe with its own bytes, as --list reads
    it, on a terminal without what would upset that."""
    if sys.stdout.isatty() or "\n" in name:
        print(f"{before}{printable(name)}")
    else:
        sys.stdout.flush()
        sys.stdout.buffer.write(encode_name(f"{before}{name}\n"))


def _read_names(arguments: argparse.Namespace) -> list[str]:
    from feeder.choose.members import open_samples

    if arguments.name is not None:
        raise ConfigError("--dataset goes with an ENDPOINT; a folder is the dataset itself")
    with open_samples(parse_location(arguments.dataset)) as dataset:
        samples = dataset.layout.ids
        for number in arguments.ids:
            if not 0 <= number < samples:
                raise ConfigError(
                    f"{arguments.dataset} has no sample {number}, it has 0 .. {samples - 1}"
                )
        return [dataset.read_name(number) for number in arguments.ids]


def _request_names(arguments: argparse.Namespace) -> list[str]:
    from feeder.client.stats import request_names

    endpoint, name, ids = arguments.dataset, arguments.name, arguments.ids
    if name is None:
        raise ConfigError("an ENDPOINT needs the dataset's name: give --dataset NAME")
    names = request_names(endpoint, name, ids, check_timeout(arguments), read_keys(arguments))
    return [names[number] for number in ids]


def run_survey(arguments: argparse.Namespace) -> int:
    """Write the page, and the list of duplicates beside it; print the page's path."""
    from feeder.dataset.first_read import check_readable
    from feeder.dataset.opened import Dataset
    from feeder.pack.publish import read_quarantine
    from feeder.process.output_file import explain_disk_errors
    from feeder.survey.duplicates import find_duplicates, write_duplicates
    from feeder.survey.page import SURVEY_NAME, write_survey

    location = arguments.dataset
    page, folder = arguments.out, local_folder(location)
    if page is None:
        if folder is None:
            raise ConfigError(
                f"{location} is in a store, where nothing is written: give --out PAGE"
            )
        page = folder / SURVEY_NAME
    check_readable({f"dataset {location}": location})
    with (
        Dataset.open(location, open_shards=8) as dataset,
        explain_disk_errors("writing into", page.parent, "run the same command again"),
    ):
        duplicates = find_duplicates(dataset)
        write_survey(dataset, read_quarantine(location), duplicates, page)
        if arguments.out is None and folder is not None:
            write_duplicates(folder, duplicates)
    print(page)
    return 0

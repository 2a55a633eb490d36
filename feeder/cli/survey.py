"""``feeder survey DST``: writes the survey of a dataset, one HTML page, again."""

import argparse
from pathlib import Path
from typing import Any


def add_parser(subparsers: "argparse._SubParsersAction[Any]") -> None:
    """Add the command to the command line."""
    parser = subparsers.add_parser(
        "survey",
        help="write the page that shows what a dataset holds",
        description="Write survey.html into the dataset DST: classes, sizes, odd kinds, files that "
        "were left out, duplicates. The page loads nothing from elsewhere. feeder pack writes it, "
        "too.",
    )
    parser.add_argument("dataset", type=Path, metavar="DST")
    parser.add_argument(
        "--out", type=Path, metavar="PAGE", help="write this file (default: DST/survey.html)"
    )
    parser.set_defaults(run=run)


def run(arguments: argparse.Namespace) -> int:
    """Write the page, and the list of duplicates beside it; print the page's path."""
    from feeder.dataset.first_read import check_readable
    from feeder.dataset.manifest import load_manifest
    from feeder.pack.publish import read_quarantine
    from feeder.process.output_file import explain_disk_errors
    from feeder.survey.duplicates import find_duplicates, write_duplicates
    from feeder.survey.page import SURVEY_NAME, write_survey

    dataset: Path = arguments.dataset
    page: Path = arguments.out or dataset / SURVEY_NAME
    check_readable({f"dataset {dataset}": dataset})
    manifest = load_manifest(dataset)
    shards = [dataset / entry.name for entry in manifest.shards]
    duplicates = find_duplicates(shards, manifest.labels)
    with explain_disk_errors("writing into", page.parent, "run the same command again"):
        write_survey(dataset, manifest, read_quarantine(dataset), duplicates, page=page)
        if arguments.out is None:
            write_duplicates(dataset, duplicates)
    print(page)
    return 0

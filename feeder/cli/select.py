"""``feeder select`` and ``feeder diff``: which samples, and what differs between datasets."""

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from feeder.cli.datasets import print_name
from feeder.cli.options import option, perform
from feeder.dataset.files import parse_location
from feeder.errors import ConfigError
from feeder.process.path_text import printable
from feeder.survey.numbers import plural

if TYPE_CHECKING:
    from feeder.choose.criteria import Criteria

_NAMES_SHOWN: Final = 3
_SIGNS: Final = {"added": "+", "removed": "-", "changed": "~", "relabelled": "="}


def add_parsers(subparsers: "argparse._SubParsersAction[Any]") -> None:
    select = subparsers.add_parser(
        "select",
        help="choose samples of datasets, to be served like a dataset",
        description="Write FILE, the selection NAME: those samples of the datasets DST for which "
        "all options hold. DST may be a folder, a URL or another selection. Nothing is copied: "
        "serve it with feeder serve --data NAME=FILE. Classes are merged by name and keep their "
        "numbers; a sample that several DSTs have is chosen once, with the label of the last one.",
    )
    select.add_argument("name", metavar="NAME", help="what messages call it")
    select.add_argument("datasets", metavar="DST", nargs="+")
    option(select, "--out FILE", "file of the selection", type=Path, required=True)
    classes = "only these classes, by name; @FILE has one a line"
    option(select, "--classes A,B|@FILE", classes)
    option(select, "--exclude-classes A,B|@FILE", "none of these classes")
    listed = (
        "only the samples that FILE lists: names as feeder names prints them, one a line; ids in "
        "a .npy file, (n,) or, of several DSTs, (n, 2): position of the DST, from 0, and id; or "
        "a selection"
    )
    option(select, "--list FILE", listed, dest="listed")
    option(select, "--exclude-list FILE", "none of the samples that FILE lists", dest="excluded")
    fraction = (
        "the share F of the names, by their hash: it stays the same when samples are added, and a "
        "larger share has all of a smaller one"
    )
    option(select, "--fraction F", fraction)
    option(select, "--fraction-seed N", "another share (default 0)", type=int)
    option(
        select,
        "--relabel CSV",
        "classes of samples, before the choice by class: lines name,class; others keep theirs",
    )
    option(
        select,
        "--where EXPR",
        'a condition on width, height, bytes and flags, e.g. "width >= 64 and not cmyk"',
    )
    weights = (
        "how often an epoch draws each sample: CSV lines name,weight or class,weight, under that "
        "header, or a .npy file with one weight for each sample of the DSTs, or for each class; "
        "EPOCH=FILE holds from that epoch on, and may be given several times"
    )
    option(select, "--weights [EPOCH=]FILE", weights, action="append", default=[])
    balance = "draw all classes equally often, or as often as the root of their sizes"
    option(select, "--balance", balance, choices=("classes", "sqrt"))
    mix = "share of a DST in every batch, for each of them, as in --mix a=0.7 --mix b=0.3"
    option(select, "--mix DST=SHARE", mix, action="append", default=[])
    epoch_samples = "draws of an epoch (default: as many as samples)"
    option(select, "--epoch-samples N", epoch_samples, type=int)
    select.set_defaults(run=run_select)

    diff = subparsers.add_parser(
        "diff",
        help="show what differs between two datasets or selections",
        description="Compare the samples of A and B, datasets or selections, by name and content: "
        "in B only (+ added), in A only (- removed), with another image (~ changed), with other "
        "classes or labels (= relabelled). Print counts and the first names of each; the exit "
        "status is 0 if nothing differs, 1 if something does, more after an error.",
    )
    diff.add_argument("old", type=parse_location, metavar="A")
    diff.add_argument("new", type=parse_location, metavar="B")
    option(diff, "--list", "print all names, a line each, and no counts")
    diff.set_defaults(run=run_diff)


def run_select(arguments: argparse.Namespace) -> int:
    from feeder.choose.make import make_selection
    from feeder.choose.weights import read_weighting

    name, out = arguments.name, arguments.out
    criteria = _read_criteria(arguments)
    given = arguments
    weighting = read_weighting(given.weights, given.balance, given.mix, given.epoch_samples)
    options = {
        key: str(value)
        for key, value in vars(arguments).items()
        if value not in (None, []) and key not in ("command", "run", "name", "datasets", "out")
    }
    chosen = perform(
        lambda _: make_selection(name, arguments.datasets, criteria, out, options, weighting),
        lambda signal: f" by {signal}: nothing was written",
    )
    total = sum(member.samples for member in chosen.members)
    print(f"chose {chosen.samples:,} of {plural(total, 'sample')} into {out}")
    for member in chosen.members:
        print(f"  {printable(member.name)}: {member.chosen:,} of {member.samples:,}")
    if weighting is not None:
        print(f"  {chosen.epoch_samples:,} draws an epoch")
    print(f"  {chosen.labels.describe(chosen.classes)}, content fingerprint {chosen.content}")
    return 0


def _read_criteria(arguments: argparse.Namespace) -> "Criteria":
    from feeder.choose.criteria import (
        Criteria,
        read_class_names,
        read_fraction,
        read_list,
        read_relabelling,
    )
    from feeder.choose.where import parse_where

    given, count = arguments, len({*arguments.datasets})
    relabel, classes, excluded = given.relabel, given.classes, given.exclude_classes
    if count < len(given.datasets):
        twice = next(text for text in given.datasets if given.datasets.count(text) > 1)
        raise ConfigError(f"DST {twice} comes twice: give each once")
    if given.fraction_seed is not None and given.fraction is None:
        raise ConfigError("--fraction-seed goes with --fraction")
    return Criteria(
        classes=None if classes is None else read_class_names("--classes", classes),
        exclude_classes=() if excluded is None else read_class_names("--exclude-classes", excluded),
        listed=None if given.listed is None else read_list("--list", given.listed, count),
        excluded=None
        if given.excluded is None
        else read_list("--exclude-list", given.excluded, count),
        fraction=None
        if given.fraction is None
        else read_fraction(given.fraction, given.fraction_seed or 0),
        where=parse_where(given.where) if given.where is not None else None,
        relabel={} if relabel is None else read_relabelling(relabel),
        relabel_where="" if relabel is None else f"--relabel {relabel}",
    )


def run_diff(arguments: argparse.Namespace) -> int:
    from feeder.choose.diff import find_changes
    from feeder.choose.members import open_samples

    with open_samples(arguments.old) as old, open_samples(arguments.new) as new:
        changes = find_changes(old, new)
        is_same = True
        for name, sign in _SIGNS.items():
            ids = getattr(changes, name)
            is_same &= not len(ids)
            samples = old if name == "removed" else new
            shown = ids if arguments.list else ids[:_NAMES_SHOWN]
            if not arguments.list and len(ids):
                print(f"{name}: {plural(len(ids), 'sample')}")
            for sample_id in shown.tolist():
                print_name(samples.read_name(sample_id), before=f"{sign} ")
            if len(shown) < len(ids):
                print(f"{sign} … and {len(ids) - len(shown):,} more: --list prints all")
        if not arguments.list:
            print(f"same: {plural(changes.same, 'sample')}")
    return 0 if is_same else 1

"""Finds and opens the datasets of a selection.

A selection names them by content fingerprint. They are looked for among the datasets that the
caller knows, then where they were when it was made, and beside its file; last at their URL.
"""

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path

from feeder.dataset.files import Location, local_folder
from feeder.dataset.manifest import load_manifest
from feeder.dataset.opened import Dataset
from feeder.dataset.selected import SelectedDataset
from feeder.dataset.selection import Member, Selection, is_selection
from feeder.errors import DatasetError
from feeder.process.path_text import path_from_text, printable
from feeder.store.address import is_remote


def find_member(
    selection: Selection, member: Member, known: Mapping[str, Location] | None = None
) -> Location:
    """Return where a member is: ``known`` has datasets by content fingerprint.

    The URL of a member in a store is not tried: ``check_member`` compares what is there. Raises
    DatasetError, with the places that were looked at.
    """
    if known and member.content in known:
        return known[member.content]
    places = list_places(selection, member)
    problems = []
    for place in places:
        try:
            content = load_manifest(place).content
        except DatasetError:
            problems.append(f"{place} has no dataset")
            continue
        if content == member.content:
            return place
        problems.append(f"{place} is another one ({content[:12]})")
    if is_remote(member.hint):
        return member.hint
    among = "among --data, " if known is not None else ""
    raise DatasetError(
        f"selection {selection.where} needs dataset {printable(member.name)} with content "
        f"fingerprint {member.content}, which is not {among}at its old place or beside the file "
        f"({'; '.join(problems)}): "
        + ("give its folder with --data NAME=FOLDER" if known is not None else "put it there")
        + ", or select again if it was packed anew"
    )


def check_member(selection: Selection, member: Member, content: str, where: str) -> None:
    """DatasetError unless a dataset ``where`` it was found has the member's ``content``."""
    if content != member.content:
        raise DatasetError(
            f"selection {selection.where} needs dataset {printable(member.name)} with content "
            f"fingerprint {member.content}, and {where} has {content} now: restore the old one, or "
            "select again"
        )


def list_places(selection: Selection, member: Member) -> list[Path]:
    """Return the folders that may have a member: its old one, then that beside the file.

    Where the file is a symbolic link, they are beside what it leads to, or beside the link.
    """
    file = Path(selection.where)
    homes = [*dict.fromkeys([file.resolve().parent, file.parent.resolve()])]
    hint, name = member.hint, path_from_text(member.name)
    old = [] if is_remote(hint) else [home / path_from_text(hint) for home in homes]
    return [*dict.fromkeys([*old, *(home / name for home in homes)])]


@contextlib.contextmanager
def open_samples(
    location: Location, *, open_shards: int = 64
) -> "Iterator[Dataset | SelectedDataset]":
    """Open what a user named: a dataset, or a selection with its members; closes all in the end.

    Members are opened at their first use. Raises DatasetError and what ``Dataset.open`` raises.
    """
    folder = local_folder(location)
    if folder is None or not is_selection(folder):
        with Dataset.open(location, open_shards=open_shards) as dataset:
            yield dataset
        return
    selection = Selection.open(folder)
    with contextlib.ExitStack() as stack:

        @functools.cache
        def open_member(number: int) -> Dataset:
            member = selection.members[number]
            place = find_member(selection, member)
            dataset = Dataset.open(place, open_shards=open_shards)
            check_member(selection, member, dataset.content, dataset.where)
            return stack.enter_context(dataset)

        members: list[Callable[[], Dataset]] = [
            functools.partial(open_member, number) for number in range(len(selection.members))
        ]
        yield SelectedDataset(selection, members)

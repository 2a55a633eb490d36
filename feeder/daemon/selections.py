"""The selections that ``feeder serve`` serves: their files, and where their datasets are.

Datasets that are served anyway serve selections as well. Others are opened for selections alone,
under names that clients cannot ask for.
"""

import dataclasses
import os
from collections.abc import Callable, Mapping
from pathlib import Path

from feeder.choose.members import check_member, find_member, list_places
from feeder.daemon.config import Config
from feeder.dataset.files import Location, local_folder
from feeder.dataset.first_read import check_readable
from feeder.dataset.manifest import load_manifest
from feeder.dataset.selection import Selection, is_selection
from feeder.worker.messages import MEMBER_PREFIX, SelectionSource


def take_selections(config: Config) -> tuple[Config, dict[str, Selection]]:
    """Return the configuration without those of its data that are selections, and these, opened.

    DatasetError for one that is damaged.
    """
    local = {name: text for name, text in config.data.items() if "://" not in text}
    files = {name: text for name, text in local.items() if is_selection(text)}
    data = {name: text for name, text in config.data.items() if name not in files}
    selections = {name: Selection.open(path) for name, path in sorted(files.items())}
    return dataclasses.replace(config, data=data), selections


def add_selections(
    config: Config,
    selections: Mapping[str, Selection],
    prepare: Callable[[Config, str], Config],
) -> Config:
    """Return the configuration with the selections, and with those of their datasets that are not
    served anyway; all other data are datasets' folders by now.

    ``prepare`` makes a folder of the URL that the configuration has under a name. Raises
    DatasetError for a dataset that is nowhere, or is another one now.
    """
    names: dict[str, str] = {}  # by content fingerprint
    for name, folder in sorted(config.data.items()):
        names.setdefault(load_manifest(Path(folder)).content, name)
    places = [
        place
        for selection in selections.values()
        for member in selection.members
        if member.content not in names
        for place in list_places(selection, member)
    ]
    check_readable({f"what may be a dataset at {place}": place for place in places})
    sources: dict[str, SelectionSource] = {}
    for served, selection in selections.items():
        known: dict[str, Location] = {c: Path(config.data[name]) for c, name in names.items()}
        for member in selection.members:
            if member.content in names:
                continue
            name, place = f"{MEMBER_PREFIX}{member.content}", find_member(selection, member, known)
            config = dataclasses.replace(config, data={**config.data, name: str(place)})
            if local_folder(place) is None:
                config = prepare(config, name)
            check_member(
                selection, member, load_manifest(Path(config.data[name])).content, str(place)
            )
            names[member.content] = name
        sources[served] = SelectionSource(
            path=os.fsencode(selection.where),
            content=selection.content,
            members=tuple(names[member.content] for member in selection.members),
        )
    return dataclasses.replace(config, selections=sources)

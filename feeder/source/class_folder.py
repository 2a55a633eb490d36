"""A folder of classes: each folder in it is a class, and holds the images of that class.

    SRC/class/…/file     all files below a class folder belong to its class

Files count whatever their suffix; names that begin with a dot are left out and counted. An item's
label is the name of its class folder. Folders in class folders may be the classes themselves, or
splits: where it seems so, it is an error unless the spec takes all splits.
"""

import os
from collections.abc import Collection, Iterator
from typing import Final

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import decode_name, encode_name, printable
from feeder.source.contents import describe_file
from feeder.source.kinds import Kind
from feeder.source.label_files.columns import has_image_suffix
from feeder.source.listing import ItemListing
from feeder.source.location.splits import find_splits, pair_splits
from feeder.source.location.storage import is_folder, is_url, scan_folder, show_path
from feeder.source.source import FOLDERS_AHEAD, LooseFiles


class ClassFolder(LooseFiles):
    """The images below class folders; its one container is the folder."""

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add every file below the class folders; the class folders come sorted, files do not.

        Raises DatasetError for a missing or empty source, a file beside the class folders or,
        unless the spec allows it, a class without images; ConfigError for folders in class folders
        that seem to be the classes, or splits.
        """
        listing.about.by_name = True
        classes = sorted(self._find_classes(listing))
        if not classes:
            raise DatasetError(
                f"{show_path(self._root)} holds no class folders: put images into a folder per "
                "class"
            )
        deep = 0
        common: set[str] | None = None
        for number, name in enumerate(classes):
            self.walk_ahead(classes[number : number + FOLDERS_AHEAD])
            folders = self._list_class(name, listing)
            deep += bool(folders)
            common = folders if common in (None, folders) else set()
        if not listing.about.items:
            raise DatasetError(
                f"{show_path(self._root)} holds no images: put some into the class folders"
            )
        if common and len(common) > 1 and not self._spec.all_splits:
            first, inner = printable(classes[0]), _name_two(common)
            raise ConfigError(
                f"the images of {show_path(self._root)} lie two levels down, and {inner} are in "
                f"every folder: give {show_path(self._root)}/{first} if these are the classes, or "
                f"feeder pack --all-splits if the classes are the folders above, such as {first}"
            )
        if not self._spec.may_lack_images:  # its classes are its own
            self._warn_of_training_set(classes, listing)
        if deep:
            which = "1 class folder" if deep == 1 else f"{deep:,} class folders"
            listing.note(f"images of {which} lie in folders below, and are one class each")

    def _warn_of_training_set(self, classes: list[str], listing: ItemListing) -> None:
        """Note a training set beside this one that has other classes: labels would be shifted."""
        above, name = os.path.split(self._root.rstrip(b"/"))
        if self.is_remote and not is_url(above):
            return  # it is a whole bucket
        try:
            training = pair_splits(_list_folders(above)).get(decode_name(name))
            if training is None:
                return
            others = {*_list_folders(os.path.join(above, encode_name(training)))}
        except DatasetError:  # what cannot be listed is not packed either
            return
        differing = {each for each in others ^ {*classes} if not each.startswith(".")}
        if others and differing:
            first = min(differing)
            has, lacks = (
                (training, decode_name(name)) if first in others else (decode_name(name), training)
            )
            listing.note(
                f"feeder: warning: {printable(has)} has a class {printable(first)} and "
                f"{printable(lacks)} has none, so that their labels are not the same numbers: pack "
                f"{printable(training)} first, and this one with --classes-of"
            )

    def _find_classes(self, listing: ItemListing) -> Iterator[str]:
        stray: bytes | None = None
        for entry in scan_folder(self._root, "source folder"):
            if entry.name.startswith(b"."):
                listing.about.hidden += 1
            elif is_folder(entry):
                yield decode_name(entry.name)
            else:
                stray = entry.name if stray is None else min(stray, entry.name)
        if stray is not None:
            raise DatasetError(
                f"{show_path(os.path.join(self._root, stray))} is a file where a class folder "
                "should be: move it into a class folder or out of the source"
            )

    def _list_class(self, name: str, listing: ItemListing) -> set[str]:
        """Add the files of a class; return the folders in it if all of its images lie in these."""
        listing.declare_class(name)
        first = ""
        files = 0
        has_image = has_own_image = False
        folders: set[str] = set()
        for file, state in self.walk(name, listing):
            files += 1
            if not first or (has_image_suffix(file) and not has_image_suffix(first)):
                first = file
            folder, is_below, _ = file[len(name) + 1 :].partition("/")
            if is_below:
                folders.add(folder)
            is_known = has_image if is_below else has_own_image
            if not is_known and self.begins_like_image(file, state):
                has_image = True
                has_own_image = has_own_image or not is_below
            self.add(file, name, listing, state)
        if not has_image and (files or not self._spec.may_lack_images):
            raise DatasetError(self._describe_empty(name, first, files))
        splits = find_splits(sorted(folders))
        if len(splits) > 1 and not self._spec.all_splits:
            raise ConfigError(
                f"class folder {show_path(self._root)}/{printable(name)} holds the splits "
                f"{_name_two(splits)}: put the class folders of each split into a folder of its "
                "own, or take them all with feeder pack --all-splits"
            )
        return set() if has_own_image else folders

    def _describe_empty(self, name: str, first: str, files: int) -> str:
        shown = show_path(self.path(name))
        if not files:
            return f"class folder {shown} holds no images: add some or remove the folder"
        what = describe_file(decode_name(self.path(first)))
        others = f"{files:,} other files" if files > 1 else "1 other file"
        return (
            f"class folder {shown} holds no images, only {others}; "
            f"{printable(first.rpartition('/')[2])} {what}; add some or remove the folder"
        )


def _list_folders(folder: bytes) -> list[str]:
    entries = scan_folder(folder, "folder")
    return [decode_name(entry.name) for entry in entries if is_folder(entry)]


def _name_two(names: Collection[str]) -> str:
    first, second, *others = sorted(names)
    more = f" and {len(others):,} more" if others else ""
    joint = "," if others else " and"
    return f"{printable(first)}{joint} {printable(second)}{more}"


KINDS: Final = {
    "class-folder": Kind(
        open=lambda spec, _: ClassFolder(spec),
        labels="the names of its folders (--source labelled-folder has them in a file)",
        takes="",
    )
}

"""ImageNet's own archives, read as they were downloaded.

    ILSVRC2012_img_train.tar    n01440764.tar, n01443537.tar, …   a tar of images for each class
    n01440764.tar               n01440764_18.JPEG, …              or these tars themselves
    ILSVRC2012_img_val.tar      ILSVRC2012_val_00000001.JPEG, …   without classes

Classes are synsets (n01440764) in both, so that their numbers agree. Tars in the tar are read in
place: an image is at an offset of the outer one.
"""

import re
from typing import Final

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import path_from_text, printable
from feeder.source.decompress import OpenContainer
from feeder.source.extents import ContainerFiles
from feeder.source.imagenet_labels import GroundTruth, read_ground_truth
from feeder.source.listing import ItemListing
from feeder.source.names import container_prefix
from feeder.source.source import Item, SourceSpec
from feeder.source.tar_members import MemberImages, TarWalk

_CLASS_TAR: Final = re.compile(r"(?:.*/)?(n\d{8})\.tar", re.ASCII | re.DOTALL)
_IMAGE_NUMBER: Final = re.compile(r"_(\d{1,9})\.[^./]+$", re.ASCII)


class _Archives:
    """Common to both archives."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        for option, value in (("--image", spec.image), ("--label", spec.label)):
            if value:
                raise ConfigError(f"{option} has no meaning for ImageNet's archives: leave it out")
        self._spec = spec
        self._files = ContainerFiles(spec, work_folder)

    def read_item(self, item: Item) -> bytes:
        """Return the bytes of an image; SourceError if they cannot be read."""
        return self._files.read_item(item)

    def close(self) -> None:
        """Close what is open; idempotent."""
        self._files.close()


class ImageNetTraining(_Archives):
    """The training archive, or the tars of classes that are in it."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        """Raise ConfigError for options without meaning here."""
        super().__init__(spec, work_folder)
        if spec.labels_file:
            raise ConfigError(
                "--labels has no meaning for ImageNet's training archive, which has a tar for each "
                "class: leave it out"
            )

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the images of all classes, or of one; DatasetError if the tar is damaged."""
        listing.by_name = True
        path = self._spec.containers[container]
        prefix = container_prefix(self._spec, container)
        own_class = _CLASS_TAR.fullmatch(path)
        with OpenContainer(path_from_text(path), listing.stamp) as opened:
            images = MemberImages(opened, listing)
            walk = TarWalk(opened.content, opened.where)
            if own_class:
                _list_class(walk, own_class[1], prefix or f"{own_class[1]}/", images, listing)
                return
            for member in walk:
                if member.kind == "folder" or images.name(member, prefix) is None:
                    continue
                found = _CLASS_TAR.fullmatch(member.name)
                if found is None or member.kind != "file":
                    raise DatasetError(
                        f"{opened.where} is not ILSVRC2012_img_train.tar: it has "
                        f"{printable(member.name)}, which is no tar of a class such as "
                        "n01440764.tar; give another --source"
                    )
                inner = walk.inner(member)
                _list_class(inner, found[1], f"{prefix}{found[1]}/", images, listing)
            walk.note_end(listing)


class ImageNetValidation(_Archives):
    """The validation archive; ``--labels`` names its ground truth."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        """Raise ConfigError for options without meaning here."""
        super().__init__(spec, work_folder)
        self._takes_labels = spec.label_kind != "none"
        if self._takes_labels and not spec.labels_file:
            raise ConfigError(
                "ImageNet's validation archive has no labels: give --labels "
                "ILSVRC2012_devkit_t12.tar.gz, or a text file with a synset a line"
            )

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the images; DatasetError if the tar or the ground truth is damaged."""
        listing.by_name = True
        prefix = container_prefix(self._spec, container)
        truth = read_ground_truth(self._spec) if self._takes_labels else GroundTruth((), ())
        for synset in truth.classes:
            listing.declare_class(synset)
        path = path_from_text(self._spec.containers[container])
        with OpenContainer(path, listing.stamp) as opened:
            images = MemberImages(opened, listing)
            walk = TarWalk(opened.content, opened.where)
            for member in walk:
                name = images.name(member, prefix)
                if name is None:
                    continue
                match = _IMAGE_NUMBER.search(name)
                number = int(match[1]) if match else 0
                if self._takes_labels and not 1 <= number <= len(truth.labels):
                    reason = f"its name has no number of an image, 1 .. {len(truth.labels)}"
                    listing.reject(prefix + name, "no-label", reason)
                    continue
                label = truth.labels[number - 1] if self._takes_labels else None
                images.add(walk, member, prefix + name, label)
            walk.note_end(listing)


def _list_class(
    walk: TarWalk, synset: str, prefix: str, images: MemberImages, listing: ItemListing
) -> None:
    listing.declare_class(synset)
    for member in walk:
        name = images.name(member, prefix)
        if name is not None:
            images.add(walk, member, prefix + name, synset)
    walk.note_end(listing)

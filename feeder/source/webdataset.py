"""WebDataset: tars in which adjacent members with the same key are a sample.

    n01440764/a1.jpg, n01440764/a1.cls, n01440764/a1.json       key n01440764/a1

As in the package webdataset, a member's key is its path up to the first dot of the file name, and
what follows, in lower case, is its extension. An item is called like its image's member.
"""

import re
from collections.abc import Iterator
from typing import Final, NamedTuple

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import path_from_text, printable
from feeder.source.decompress import OpenContainer
from feeder.source.extents import ContainerFiles
from feeder.source.item_bytes import SourceError
from feeder.source.listing import ItemListing
from feeder.source.member_labels import LABEL_BYTES_MAX, LabelField, show_text
from feeder.source.names import container_prefix
from feeder.source.source import Item, SourceSpec
from feeder.source.tar_members import (
    MemberImages,
    TarMember,
    TarWalk,
    check_image,
    check_kind,
    is_readable,
)

IMAGE_EXTENSIONS: Final = frozenset(
    {
        *("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff"),
        *("ppm", "pgm", "pbm", "pnm", "jp2", "avif", "heic", "img", "image"),  # seen, never lost
    }
)

_MEMBERS_MAX: Final = 256  # of one sample
_BASE_AND_EXTENSION: Final = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)", re.DOTALL)
_SKIPPED: Final = re.compile(r"__[^/]*__($|/)")  # webdataset's own members


class _Member(NamedTuple):
    name: str
    extension: str
    member: TarMember
    offset: int
    """Of an image, where it is read at packing."""
    data: bytes
    """Of a label."""


class WebDataset:
    """Tars of a WebDataset; ``--image`` and ``--label`` name extensions."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        """Raise ConfigError for options without meaning here."""
        if spec.labels_file:
            raise ConfigError(
                "--labels has no meaning for a WebDataset, which has its labels in its tars: name "
                "their member with --label (cls, txt, json.KEY)"
            )
        self._spec = spec
        self._files = ContainerFiles(spec, work_folder)
        self._images = _parse_extensions(spec.image)
        self._label = LabelField(spec)
        self._takes_labels = spec.label_kind != "none"
        self._labelled_by: set[str] = set()  # the extensions that gave labels

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the samples of a tar; DatasetError if it is damaged, ResourceError if disks are."""
        prefix = container_prefix(self._spec, container)
        listing.base = self._spec.label_base or 0
        self._labelled_by.clear()
        path = path_from_text(self._spec.containers[container])
        with OpenContainer(path, listing.stamp) as opened:
            images = MemberImages(opened, listing)
            walk = TarWalk(opened.content, opened.where)
            unlabelled = 0
            for key, members in self._group(walk, images, prefix):
                self._add(key, members, prefix, listing)
                unlabelled += "/" in key and all(self._is_image(each.extension) for each in members)
            is_other = self._takes_labels and unlabelled == listing.rejected and not listing.items
            if unlabelled and is_other:
                raise DatasetError(
                    f"{opened.where} holds images in folders ({show_text(members[0].name)}) and no "
                    "labels: it is no WebDataset but a folder in a tar: unpack it (tar -xf), "
                    "and pack that folder"
                )
            walk.note_end(listing)
        listing.field = " and ".join(f".{show_text(each)}" for each in sorted(self._labelled_by))

    def read_item(self, item: Item) -> bytes:
        """Return the bytes of a sample's image; SourceError if they cannot be read."""
        return self._files.read_item(item)

    def close(self) -> None:
        """Close what is open; idempotent."""
        self._files.close()

    def _group(
        self, walk: TarWalk, images: MemberImages, prefix: str
    ) -> Iterator[tuple[str, list[_Member]]]:
        """Yield the key and the members of each sample, with the data of its labels."""
        key = ""
        members: list[_Member] = []
        for member in walk:
            name = None if _SKIPPED.match(member.name) else images.name(member, prefix)
            if name is None:
                continue
            match = _BASE_AND_EXTENSION.fullmatch(name)
            if match is None:
                continue
            if match[1] != key and members:
                yield key, members
                members = []
            key, extension = match[1], match[2].lower()
            if len(members) < _MEMBERS_MAX:
                offset, data = member.offset, b""
                if all(each.extension != extension for each in members) and is_readable(member):
                    if self._is_image(extension):
                        offset = images.place(walk, member)
                    elif self._is_label(extension) and member.size_bytes <= LABEL_BYTES_MAX:
                        data = walk.read(member)
                members.append(_Member(name, extension, member, offset, data))
        if members:
            yield key, members

    def _is_image(self, extension: str) -> bool:
        if self._images:
            return extension in self._images
        return extension.rpartition(".")[2] in IMAGE_EXTENSIONS

    def _is_label(self, extension: str) -> bool:
        return self._takes_labels and extension in self._label.extensions

    def _add(self, key: str, members: list[_Member], prefix: str, listing: ItemListing) -> None:
        name = key
        try:
            image = self._choose_image(members)
            name = image.name
            check_image(image.member)
            label = self._read_label(members) if self._takes_labels else None
        except SourceError as fault:
            listing.reject(prefix + name, fault.kind, fault.reason)
            return
        size_bytes = image.member.size_bytes
        listing.add(prefix + name, label, offset=image.offset, size_bytes=size_bytes)

    def _choose_image(self, members: list[_Member]) -> _Member:
        if len(members) == _MEMBERS_MAX:
            raise SourceError("corrupt", f"it has {_MEMBERS_MAX} members or more")
        images = [member for member in members if self._is_image(member.extension)]
        if not images:
            found = ", ".join(sorted(show_text(member.extension) for member in members)[:8])
            wanted = f" ({';'.join(self._images)})" if self._images else ""
            raise SourceError("no-image", f"it has no image{wanted}, only {found}")
        found = " and ".join(show_text(image.extension) for image in images[:4])
        if len({image.extension for image in images}) < len(images):
            raise SourceError("two-images", f"it has the same member twice ({found})")
        if len(images) > 1 and not self._images:
            raise SourceError("two-images", f"it has {found}: choose with --image")
        image = images[0]
        if self._images:  # the one that is named first
            image = min(images, key=lambda each: self._images.index(each.extension))
        return image

    def _read_label(self, members: list[_Member]) -> object:
        for extension in self._label.extensions:
            found = [member for member in members if member.extension == extension]
            if len(found) > 1:
                raise SourceError("bad-label", f"it has the member {show_text(extension)} twice")
            if found:
                check_kind(found[0].member, "label")
                size_bytes = found[0].member.size_bytes
                self._labelled_by.add(extension)
                return self._label.parse(extension, found[0].data, size_bytes)
        *others, last = self._label.extensions
        wanted = f"{', '.join(others)} or {last}" if others else last
        raise SourceError(
            "no-label",
            f"it has no {wanted} beside its image (--label-kind none packs it without)",
        )


def _parse_extensions(image: str) -> tuple[str, ...]:
    """Return the extensions that --image names, the preferred first; none: not given."""
    extensions = tuple(each.strip().lstrip(".").lower() for each in image.split(";"))
    if image and not all(extensions):
        raise ConfigError(
            f"--image {printable(image)} names no extension: give one, as jpg or left.png, or "
            "several as jpg;png"
        )
    return extensions if image else ()

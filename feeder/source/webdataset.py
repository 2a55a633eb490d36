"""WebDataset: tars in which adjacent members with the same key are a sample.

    n01440764/a1.jpg, n01440764/a1.cls, n01440764/a1.json       key n01440764/a1

As in the package webdataset, a member's key is its path up to the first dot of the file name, and
what follows, in lower case, is its extension. An item is called like its image's member. Its label
is in another member:

    --label        the member                       its label
    (none)         .cls, else .txt, else .json      as below; of JSON, the first of _JSON_KEYS
    cls, txt       .cls, .txt                       its text without white space around it
    json.a.b       .json                            the value of the key "a.b", or of "b" in "a"
"""

import itertools
import json
import re
from collections.abc import Iterator
from typing import Final, NamedTuple, cast

from feeder.errors import DatasetError
from feeder.process.path_text import printable
from feeder.source.item_bytes import SourceError
from feeder.source.kinds import Kind
from feeder.source.listing import ItemListing
from feeder.source.raw_labels import RawLabel
from feeder.source.source import SourceSpec
from feeder.source.tar_members import (
    SUFFIXES,
    TarMember,
    TarSource,
    TarWalk,
    check_image,
    check_kind,
    is_tar,
)

_IMAGE_EXTENSIONS: Final = frozenset(
    {
        *("jpg", "jpeg", "jpe", "jfif", "png", "webp", "gif", "bmp", "tif", "tiff"),
        *("ppm", "pgm", "pbm", "pnm", "jp2", "avif", "heic", "img", "image"),  # seen, never lost
    }
)
_LABEL_EXTENSIONS: Final = ("cls", "txt", "json")
_JSON_KEYS: Final = ("label", "cls", "class", "class_id", "labels")
_LABEL_BYTES_MAX: Final = 1 << 20
_MEMBERS_MAX: Final = 256  # of one sample
_SHOWN_CHARACTERS: Final = 80
_BASE_AND_EXTENSION: Final = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]*)", re.DOTALL)
_SKIPPED: Final = re.compile(r"__[^/]*__($|/)")  # webdataset's own members


class _Member(NamedTuple):
    key: str
    name: str
    extension: str
    member: TarMember
    offset: int
    """Of an image, where it is read at packing."""
    data: bytes
    """Of a label."""


class WebDataset(TarSource):
    """Tars of a WebDataset; ``--image`` and ``--label`` name extensions."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        super().__init__(spec, work_folder)
        # The extensions that --image names, the preferred first.
        images = (each.strip().lstrip(".").lower() for each in spec.image.split(";"))
        self._images = tuple(filter(None, images))
        self._labels, self._json_path = _parse_label(spec.label)
        self._takes_labels = spec.label_kind != "none"
        self._labelled_by: set[str] = set()  # the extensions that gave labels

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the samples of a tar; DatasetError if it is damaged, ResourceError if disks are."""
        prefix = self.prefix(container)
        listing.about.base = self._spec.label_base or 0
        self._labelled_by.clear()
        with self.open_tar(container, listing) as walk:
            is_folder = self._takes_labels  # of images without labels
            members: list[_Member] = []
            samples = itertools.groupby(
                self._read_members(walk, prefix, listing), key=lambda each: each.key
            )
            for key, group in samples:
                members = list(itertools.islice(group, _MEMBERS_MAX))
                self._add(members, prefix, listing)
                is_folder &= "/" in key and all(self._is_image(each.extension) for each in members)
            if is_folder and members and not listing.about.items:
                raise DatasetError(
                    f"{walk.where} holds images in folders ({_show(members[0].name)}) and no "
                    "labels: it is no WebDataset but a folder in a tar: unpack it (tar -xf), "
                    "and pack that folder"
                )
        listing.about.field = " and ".join(f".{_show(each)}" for each in sorted(self._labelled_by))

    def _read_members(self, walk: TarWalk, prefix: str, listing: ItemListing) -> Iterator[_Member]:
        """Yield the members of samples; those with the same key are adjacent."""
        for member in walk:
            name = None if _SKIPPED.match(member.name) else self.name(member, prefix, listing)
            match = _BASE_AND_EXTENSION.fullmatch(name or "")
            if name is None or match is None:
                continue
            key, extension = match[1], match[2].lower()
            offset, data = member.offset, b""
            if self._is_image(extension):
                offset = self.place(walk, member, listing)
            elif self._is_label(extension) and member.size_bytes <= _LABEL_BYTES_MAX:
                data = b"".join(walk.read(member)) if member.kind == "file" else b""
            yield _Member(key, name, extension, member, offset, data)

    def _is_image(self, extension: str) -> bool:
        if self._images:
            return extension in self._images
        return extension.rpartition(".")[2] in _IMAGE_EXTENSIONS

    def _is_label(self, extension: str) -> bool:
        return self._takes_labels and extension in self._labels

    def _add(self, members: list[_Member], prefix: str, listing: ItemListing) -> None:
        name = members[0].key
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
            found = ", ".join(sorted(_show(member.extension) for member in members)[:8])
            wanted = f" ({';'.join(self._images)})" if self._images else ""
            raise SourceError("no-image", f"it has no image{wanted}, only {found}")
        found = " and ".join(_show(image.extension) for image in images[:4])
        if len({image.extension for image in images}) < len(images):
            raise SourceError("two-images", f"it has the same member twice ({found})")
        if self._images:  # the one that is named first
            return min(images, key=lambda each: self._images.index(each.extension))
        if len(images) > 1:
            raise SourceError("two-images", f"it has {found}: choose with --image")
        return images[0]

    def _read_label(self, members: list[_Member]) -> object:
        for extension in self._labels:
            found = [member for member in members if member.extension == extension]
            if len(found) > 1:
                raise SourceError("bad-label", f"it has the member {_show(extension)} twice")
            if found:
                check_kind(found[0].member, "label")
                size_bytes = found[0].member.size_bytes
                self._labelled_by.add(extension)
                if size_bytes > _LABEL_BYTES_MAX:
                    raise SourceError("bad-label", f"its {_show(extension)} has {size_bytes} bytes")
                return self._parse(extension, found[0].data)
        *others, last = self._labels
        wanted = f"{', '.join(others)} or {last}" if others else last
        raise SourceError(
            "no-label",
            f"it has no {wanted} beside its image (--label-kind none packs it without)",
        )

    def _parse(self, extension: str, data: bytes) -> RawLabel:
        """Return the label in a member's data; SourceError (bad-label, no-label)."""
        shown = _show(extension)
        try:
            text = data.decode("utf-8-sig")
            if extension.rpartition(".")[2] != "json":
                return text
            label = self._find_value(json.loads(text))
        except UnicodeDecodeError:
            raise SourceError("bad-label", f"its {shown} is not UTF-8") from None
        except (ValueError, RecursionError) as error:
            raise SourceError("bad-label", f"its {shown} is no JSON ({error})") from None
        if isinstance(label, dict):
            raise SourceError("bad-label", "its label is a JSON object")
        return cast(RawLabel, label)  # what it is, the listing checks

    def _find_value(self, content: object) -> object:
        path = self._json_path
        if not path:
            if not isinstance(content, dict):
                return content
            path = next((key for key in _JSON_KEYS if key in content), "")
            if not path:
                wanted = ", ".join(_JSON_KEYS)
                raise SourceError(
                    "no-label", f"its JSON has none of the keys {wanted}: see --label"
                )
        value = content
        is_key = isinstance(content, dict) and path in content  # a key may have a dot
        for step in (path,) if is_key else path.split("."):
            if not isinstance(value, dict) or step not in value:
                raise SourceError("no-label", f"its JSON has no {_show(path)}")
            value = value[step]
        return value


def _parse_label(label: str) -> tuple[tuple[str, ...], str]:
    """Return the extensions of the members that may hold a label, the preferred first.

    With the key in them, if --label names one, or "".
    """
    if not label:
        return _LABEL_EXTENSIONS, ""
    before, is_json, path = f".{label.lstrip('.')}".partition(".json")
    if not is_json or (path and not path.startswith(".")):  # such as jsonl
        before, is_json, path = label, "", ""
    return (f"{before}{is_json}".lstrip(".").lower(),), path[1:]


def _show(text: str) -> str:
    """Return a short text of the source's for a reason."""
    return printable(text)[:_SHOWN_CHARACTERS] or "''"


KINDS: Final = {
    "webdataset": Kind(
        open=WebDataset,
        labels="in its tars (--label cls, txt or json.KEY)",
        takes="image label label-base float",
        what="a tar",
        plural="tar files",
        suffixes=SUFFIXES,
        matches=lambda start, name: is_tar(start),
        is_streamable=True,
    )
}

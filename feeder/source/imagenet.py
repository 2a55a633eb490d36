"""ImageNet's own archives, read as they were downloaded.

    ILSVRC2012_img_train.tar    n01440764.tar, n01443537.tar, …   a tar of images for each class
    n01440764.tar               n01440764_18.JPEG, …              or these tars themselves
    ILSVRC2012_img_val.tar      ILSVRC2012_val_00000001.JPEG, …   without classes

Classes are synsets (n01440764) in both, so that their numbers agree. Tars in the tar are read in
place: an image is at an offset of the outer one. The ground truth of the validation images is in

    ILSVRC2012_devkit_t12.tar.gz, or its folder     both files below
    ILSVRC2012_validation_ground_truth.txt          an ILSVRC2012 id, 1 .. 1000, a line
    meta.mat                                        the synset of each id
    another text file                               a synset, or any class's name, a line

where line k is the class of image k. The ids are not in the order of the synsets, so numbers alone
are no classes.
"""

import io
import os
import re
import zlib
from typing import Any, Final

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import encode_name, printable
from feeder.source.decompress import open_container
from feeder.source.kinds import Kind, missing_extra
from feeder.source.label_files.tables import read_class_names
from feeder.source.listing import ItemListing
from feeder.source.location.storage import is_folder_path, read_whole, stamp_path
from feeder.source.source import SourceSpec
from feeder.source.tar_members import SUFFIXES, TarSource, TarWalk, find_first, is_tar

META: Final = "meta.mat"
GROUND_TRUTH: Final = "ILSVRC2012_validation_ground_truth.txt"
_FILE_BYTES_MAX: Final = 64 << 20
_ORDER_CHECKED_FROM: Final = 10  # as many synsets are not in order by chance
_SYNSET: Final = re.compile(r"n\d{8}", re.ASCII)
_CLASS_TAR: Final = re.compile(r"(?:.*/)?(n\d{8})\.tar", re.ASCII | re.DOTALL)
_CLASS_IMAGE: Final = re.compile(r"n\d{8}_\d+\.\w+", re.ASCII)
_VALIDATION_IMAGE: Final = re.compile(r"ILSVRC2012_val_\d{8}\.\w+", re.ASCII)
_IMAGE_NUMBER: Final = re.compile(r"_(\d{1,9})\.[^./]+$", re.ASCII)
_GIVE_CLASSES: Final = (
    f"give the folder or archive of the development kit, which has {META}, or give --class-names a "
    "file whose line k is the synset of id k"
)


class ImageNetTraining(TarSource):
    """The training archive, or the tars of classes that are in it."""

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the images of all classes, or of one; DatasetError if the tar is damaged."""
        listing.about.by_name = True
        prefix = self.prefix(container)
        own_class = _CLASS_TAR.fullmatch(self._spec.containers[container])
        with self.open_tar(container, listing) as walk:
            if own_class:
                self._list_class(walk, own_class[1], prefix or f"{own_class[1]}/", listing)
                return
            for member in walk:
                if self.name(member, prefix, listing) is None:
                    continue
                match = _CLASS_TAR.fullmatch(member.name)
                if match is None or member.kind != "file":
                    raise DatasetError(
                        f"{walk.where} is not ILSVRC2012_img_train.tar: it has "
                        f"{printable(member.name)}, which is no tar of a class such as "
                        "n01440764.tar; give another --source"
                    )
                inner = walk.inner(member)
                self._list_class(inner, match[1], f"{prefix}{match[1]}/", listing)
                inner.note_end(listing)

    def _list_class(self, walk: TarWalk, synset: str, prefix: str, listing: ItemListing) -> None:
        listing.declare_class(synset)
        for member in walk:
            name = self.name(member, prefix, listing)
            if name is not None:
                self.add(walk, member, prefix + name, synset, listing)


class ImageNetValidation(TarSource):
    """The validation archive; ``--labels`` names its ground truth."""

    def __init__(self, spec: SourceSpec, work_folder: str) -> None:
        """Raise ConfigError without labels."""
        super().__init__(spec, work_folder)
        if spec.label_kind != "none" and not spec.labels_file:
            raise ConfigError(
                "ImageNet's validation archive has no labels: give --labels "
                "ILSVRC2012_devkit_t12.tar.gz, or a text file with a synset a line"
            )

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the images; DatasetError if the tar or the ground truth is damaged."""
        listing.about.by_name = True
        prefix = self.prefix(container)
        labels: tuple[str, ...] | None = None
        if self._spec.label_kind != "none":
            labels, classes = _read_ground_truth(self._spec)
            for synset in classes:
                listing.declare_class(synset)
        with self.open_tar(container, listing) as walk:
            for member in walk:
                name = self.name(member, prefix, listing)
                if name is None:
                    continue
                match = _IMAGE_NUMBER.search(name)
                number = int(match[1]) if match else 0
                if labels is not None and not 1 <= number <= len(labels):
                    reason = f"its name has no number of an image, 1 .. {len(labels)}"
                    listing.reject(prefix + name, "no-label", reason)
                    continue
                label = None if labels is None else labels[number - 1]
                self.add(walk, member, prefix + name, label, listing)


def _read_ground_truth(spec: SourceSpec) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the class of image 1, 2, … in ``spec.labels_file``, and all classes.

    The latter also without images; none if only the labels are known. Raises DatasetError for
    damaged files, ConfigError for ids without synsets, ResourceError without the library that reads
    meta.mat.
    """
    where = printable(spec.labels_file)
    text, meta = _find_files(spec.labels_file, where)
    try:
        lines = tuple(line.strip() for line in text.decode("utf-8-sig").rstrip().split("\n"))
    except UnicodeDecodeError as error:
        raise DatasetError(f"{where} is not UTF-8 at byte {error.start}") from None
    for number, line in enumerate(lines, 1):
        if not line.isprintable() or not line or line.startswith("ILSVRC2012_val_"):
            raise DatasetError(
                f"{where}: line {number} is {printable(line[:60]) or 'empty'}; line k has to be "
                "the class of image k, and nothing else"
            )
    if not all(line.isascii() and line.isdecimal() for line in lines):
        return lines, ()
    if spec.class_names_file:
        classes = read_class_names(spec.class_names_file)
        if len(classes) >= _ORDER_CHECKED_FROM and [*classes] == sorted(classes):
            raise ConfigError(
                f"{printable(spec.class_names_file)} is in alphabetic order, which ILSVRC2012's "
                f"ids are not in: {_GIVE_CLASSES}"
            )
    elif meta is not None:
        classes = _read_meta(meta, where)
    else:
        raise ConfigError(f"{where} has ILSVRC2012 ids but not their synsets: {_GIVE_CLASSES}")
    for number, line in enumerate(lines, 1):
        if len(line) > 9 or not 1 <= int(line) <= len(classes):
            raise DatasetError(
                f"{where}: line {number} has the id {line[:20]}; ids are 1 .. {len(classes)}"
            )
    return tuple(classes[int(line) - 1] for line in lines), classes


def _find_files(path: str, where: str) -> tuple[bytes, bytes | None]:
    """Return the content of the text file and, if there is one, of meta.mat."""
    if is_folder_path(path):
        inside = os.path.join(path, "data")
        folder = inside if os.path.exists(encode_name(f"{inside}/{GROUND_TRUTH}")) else path
        text = read_whole(os.path.join(folder, GROUND_TRUTH), _FILE_BYTES_MAX)
        return text, read_whole(os.path.join(folder, META), _FILE_BYTES_MAX)
    with open_container(path) as content:
        if is_tar(content.read(512)):
            return _find_members(path, where)
    beside = os.path.join(os.path.dirname(path), META)
    text = read_whole(path, _FILE_BYTES_MAX)
    return text, read_whole(beside, _FILE_BYTES_MAX) if stamp_path(beside) else None


def _find_members(path: str, where: str) -> tuple[bytes, bytes]:
    members: dict[str, bytes] = {}
    with open_container(path) as content:
        walk = TarWalk(content)
        for member in walk:
            name = member.name.rpartition("/")[2]
            is_small = member.size_bytes <= _FILE_BYTES_MAX
            if name in (GROUND_TRUTH, META) and member.kind == "file" and is_small:
                members.setdefault(name, b"".join(walk.read(member)))
    if len(members) < 2:
        raise DatasetError(
            f"{where} has no {GROUND_TRUTH} or no {META}: it is not ILSVRC2012's development kit"
        )
    return members[GROUND_TRUTH], members[META]


def _read_meta(data: bytes, where: str) -> tuple[str, ...]:
    """Return the synsets that have no children, by their ids, which count from 1."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError:
        raise missing_extra(META, "scipy", "imagenet") from None
    try:
        content = loadmat(io.BytesIO(data), squeeze_me=True, variable_names=["synsets"])
        leaves: Any = [row for row in content["synsets"] if int(row["num_children"]) == 0]
        by_id = {int(row["ILSVRC2012_ID"]): str(row["WNID"]) for row in leaves}
    except (
        *(MatReadError, ValueError, TypeError, KeyError, IndexError, NotImplementedError),
        *(OSError, EOFError, OverflowError, zlib.error),
    ):
        raise DatasetError(f"{META} of {where} is damaged or of another version") from None
    synsets = tuple(by_id.get(number, "") for number in range(1, len(leaves) + 1))
    if not synsets or not all(_SYNSET.fullmatch(each) for each in synsets):
        raise DatasetError(f"{META} of {where} is not ILSVRC2012's: its ids are not 1, 2, 3, …")
    return synsets


def _is_training(start: bytes, name: str) -> bool:
    first = find_first(start)
    is_class = _CLASS_TAR.fullmatch(name) and _CLASS_IMAGE.fullmatch(first)
    return bool(is_class or _CLASS_TAR.fullmatch(first))


KINDS: Final = {
    "imagenet-train": Kind(
        open=ImageNetTraining,
        labels="the tars of its classes",
        takes="label-base float",
        what="of ImageNet's training archive",
        plural="tar files",
        suffixes=SUFFIXES,
        matches=_is_training,
    ),
    "imagenet-val": Kind(
        open=ImageNetValidation,
        labels="in the file or folder that --labels names",
        takes="labels label-base float",
        what="ImageNet's validation archive",
        plural="tar files",
        suffixes=SUFFIXES,
        matches=lambda start, name: bool(_VALIDATION_IMAGE.fullmatch(find_first(start))),
    ),
}

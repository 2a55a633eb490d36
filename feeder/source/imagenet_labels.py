"""The ground truth of ImageNet's validation images, from the files that it comes in.

    ILSVRC2012_devkit_t12.tar.gz, or its folder     both files below
    ILSVRC2012_validation_ground_truth.txt          an ILSVRC2012 id, 1 .. 1000, a line
    meta.mat                                        the synset of each id
    another text file                               a synset, or any class's name, a line

Line k is the class of image k. The ids are not in the order of the synsets, so numbers alone are no
classes.
"""

import io
import re
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.process.path_text import path_from_text, path_to_text, printable
from feeder.process.regular_file import read_regular
from feeder.source.decompress import OpenContainer
from feeder.source.source import SourceSpec
from feeder.source.tar_members import TarWalk

GROUND_TRUTH: Final = "ILSVRC2012_validation_ground_truth.txt"
META: Final = "meta.mat"
_FILE_BYTES_MAX: Final = 64 << 20
_SYNSET: Final = re.compile(r"n\d{8}", re.ASCII)
_TAR_MAGIC_AT: Final = 257
_ORDER_CHECKED_FROM: Final = 10  # as many synsets are not in order by chance
_GIVE_CLASSES: Final = (
    f"give the folder or archive of the development kit, which has {META}, or give --class-names a "
    "file whose line k is the synset of id k"
)


@dataclass(frozen=True, slots=True)
class GroundTruth:
    """The class of each image, and all classes."""

    labels: tuple[str, ...]
    """Of image 1, 2, …"""
    classes: tuple[str, ...]
    """Also those without images; empty if only ``labels`` are known."""


def read_ground_truth(spec: SourceSpec) -> GroundTruth:
    """Return the ground truth in ``spec.labels_file``.

    Raises DatasetError for damaged files, ConfigError for ids without synsets, ResourceError
    without the library that reads meta.mat.
    """
    path = path_from_text(spec.labels_file)
    where = printable(spec.labels_file)
    text, meta = _find_files(path, where)
    lines = _split_lines(text, where)
    if not all(line.isascii() and line.isdecimal() for line in lines):
        return GroundTruth(lines, ())
    if spec.class_names_file:
        classes = _read_class_names(path_from_text(spec.class_names_file))
    elif meta is not None:
        classes = _read_meta(meta, where)
    else:
        raise ConfigError(f"{where} has ILSVRC2012 ids but not their synsets: {_GIVE_CLASSES}")
    return GroundTruth(tuple(_name(lines, classes, where)), classes)


def _find_files(path: Path, where: str) -> tuple[bytes, bytes | None]:
    """Return the content of the text file and, if there is one, of meta.mat."""
    if path.is_dir():
        folder = path / "data" if (path / "data" / GROUND_TRUTH).exists() else path
        return _read(folder / GROUND_TRUTH), _read(folder / META)
    with OpenContainer(path) as opened:
        start = opened.content.read(512)
    if start[_TAR_MAGIC_AT:].startswith(b"ustar"):
        return _find_members(path, where)
    beside = path.with_name(META)
    return _read(path), _read(beside) if beside.exists() else None


def _find_members(path: Path, where: str) -> tuple[bytes, bytes]:
    found: dict[str, bytes] = {}
    with OpenContainer(path) as opened:
        walk = TarWalk(opened.content, opened.where)
        for member in walk:
            name = member.name.rpartition("/")[2]
            if name in (GROUND_TRUTH, META) and member.kind == "file":
                if member.size_bytes > _FILE_BYTES_MAX:
                    raise DatasetError(f"{name} in {where} has {member.size_bytes} bytes")
                found.setdefault(name, walk.read(member))
    for name in (GROUND_TRUTH, META):
        if name not in found:
            raise DatasetError(f"{where} has no {name}: it is not ILSVRC2012's development kit")
    return found[GROUND_TRUTH], found[META]


def _read(path: Path) -> bytes:
    try:
        return read_regular(path, _FILE_BYTES_MAX)
    except OSError as error:
        shown = printable(path_to_text(path))
        raise DatasetError(f"{shown} cannot be read: {error.strerror}") from None


def _split_lines(data: bytes, where: str) -> tuple[str, ...]:
    try:
        lines = [line.strip() for line in data.decode("utf-8-sig").rstrip().split("\n")]
    except UnicodeDecodeError as error:
        raise DatasetError(f"{where} is not UTF-8 at byte {error.start}") from None
    for number, line in enumerate(lines, 1):
        if not line or not line.isprintable():
            fault = "is not text" if line else "is empty"
            raise DatasetError(f"{where}: line {number} {fault}; line k is the class of image k")
        if line.startswith("ILSVRC2012_val_"):
            raise DatasetError(
                f"{where}: line {number} has an image's name; give only the classes, a line each, "
                "in the order of the images' numbers"
            )
    return tuple({line: line for line in lines}[line] for line in lines)


def _name(lines: tuple[str, ...], classes: tuple[str, ...], where: str) -> list[str]:
    names: list[str] = []
    for number, line in enumerate(lines, 1):
        if len(line) > 9 or not 1 <= int(line) <= len(classes):
            raise DatasetError(
                f"{where}: line {number} has the id {line[:20]}; ids are 1 .. {len(classes)}"
            )
        names.append(classes[int(line) - 1])
    return names


def _read_class_names(path: Path) -> tuple[str, ...]:
    where = printable(path_to_text(path))
    names = _split_lines(_read(path), where)
    if len(set(names)) < len(names):
        raise ConfigError(f"{where} names a class twice: line k is the synset of ILSVRC2012 id k")
    if len(names) >= _ORDER_CHECKED_FROM and list(names) == sorted(names):
        raise ConfigError(
            f"{where} is in alphabetic order, which ILSVRC2012's ids are not in: {_GIVE_CLASSES}"
        )
    return names


def _read_meta(data: bytes, where: str) -> tuple[str, ...]:
    """Return the synsets that have no children, by their ids, which count from 1."""
    try:
        from scipy.io import loadmat
        from scipy.io.matlab import MatReadError
    except ImportError:
        raise ResourceError(
            f"{META} needs the package scipy: pip install scipy (the extra imagenet), or give "
            "--class-names a file whose line k is the synset of id k"
        ) from None
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

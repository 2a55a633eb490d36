"""From a location as the user typed it to the files or the folder that it stands for.

A path that exists is taken literally, whatever characters it has; else braces, then *, ? and [] are
expanded. Locations that are not of this machine are refused with what to do instead.
"""

import errno
import glob
import itertools
import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import open_regular
from feeder.source.location.braces import EXPANDED_MAX, expand_braces

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*):(/+)(.*)", re.DOTALL)
_PATTERN: Final = re.compile(r"[{*?\[]")
_AZURE: Final = "`azcopy copy {} DIR --recursive`"
_COPY_COMMANDS: Final = {
    "s3": "`aws s3 sync {} DIR`",
    "s3a": "`aws s3 sync {} DIR`",
    "gs": "`gcloud storage cp --recursive {} DIR`",
    "gcs": "`gcloud storage cp --recursive {} DIR`",
    "az": _AZURE,
    "abfs": _AZURE,
    "abfss": _AZURE,
    "wasb": _AZURE,
    "wasbs": _AZURE,
    "http": "`wget`",
    "https": "`wget`",
    "ftp": "`wget`",
    "ftps": "`wget`",
    "sftp": "`scp -r`",
    "ssh": "`scp -r`",
    "hf": "`hf download ORG/NAME --repo-type dataset --local-dir DIR`",
    "hdfs": "`hdfs dfs -get {} DIR`",
}

_STANDARD_INPUT: Final = "/dev/stdin"


def find_files(location: str) -> tuple[str, ...]:
    """Return the one folder, or the files in order, that ``location`` stands for.

    Paths are absolute, as ``path_to_text`` writes them. Raises ConfigError for what is not on this
    machine or cannot be expanded, and for several folders; DatasetError for what does not exist or
    is neither a regular file nor a pipe.
    """
    try:
        return _find_files(location)
    except ValueError:  # a zero byte, or characters that the locale lacks
        raise ConfigError(f"source {printable(location)} is no path") from None


def find_file(location: str, option: str, *, may_be_folder: bool = False) -> str:
    """Return the absolute path, as text, of the one regular file that ``option`` names."""
    try:
        path = Path(location).absolute()
        if not os.path.lexists(path):
            _check_is_local(location, option)
        if not (may_be_folder and path.is_dir()):
            os.close(open_regular(path))
        return path_to_text(path)
    except OSError as error:
        raise ConfigError(
            f"{option} {printable(location)} cannot be read: {error.strerror}"
        ) from None
    except ValueError:
        raise ConfigError(f"{option} {printable(location)} is no path") from None


def _find_files(location: str) -> tuple[str, ...]:
    if location == "-":
        return _find_standard_input()
    if not location:
        raise ConfigError("the source is empty: give a folder, a file or a pattern")
    path = Path(location).absolute()
    if _exists(path):
        return _check_file(path)
    if os.path.islink(path):
        raise DatasetError(f"source {printable(location)} is a dangling link")
    _check_is_local(location, "source")
    literal, pattern = _split_literal(path)
    alternatives = expand_braces(pattern)
    if alternatives == [pattern] and not glob.has_magic(pattern):
        folder = "" if path.suffix else "folder "
        raise DatasetError(f"source {folder}{printable(location)} does not exist")
    found: set[str] = set()
    missing: list[str] = []
    for each in alternatives:
        paths = list(itertools.islice(_match(literal, each), EXPANDED_MAX + 1))
        found.update(paths)
        if not paths:
            missing.append(os.path.join(literal, each))
        if len(found) > EXPANDED_MAX:
            raise ConfigError(f"{printable(location)} matches over {EXPANDED_MAX:,} files")
    if missing:
        raise DatasetError(_describe_missing(location, missing, len(alternatives)))
    return _check_files(location, sorted(found, key=path_to_text))


def _find_standard_input() -> tuple[str]:
    """Return a path of standard input, of the file itself if it is one: workers have another."""
    path = Path(_STANDARD_INPUT)
    if path.is_fifo():
        return (_STANDARD_INPUT,)
    if path.is_file():
        return _check_file(path.resolve())
    raise ConfigError("standard input is neither a pipe nor a file: give a file, or pipe one")


def _exists(path: Path) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):  # a long pattern
            return False
        raise DatasetError(
            f"source {printable(path_to_text(path))} cannot be read: {error.strerror}"
        ) from None
    return True


def _check_is_local(location: str, what: str) -> None:
    if location.startswith("pipe:"):
        raise ConfigError(
            f"{what} {printable(location)}: commands are not run: save their output as a file and "
            "give that"
        )
    url = _URL.fullmatch(location)
    if url is None or (len(url[2]) < 2 and url[1].lower() not in _COPY_COMMANDS):
        return
    scheme = url[1].lower()
    if scheme == "file":
        path = printable(url[3])
        raise ConfigError(f"{what} {printable(location)}: give the path alone, /{path}")
    rest = url[3]
    command = _COPY_COMMANDS.get(scheme, "")
    pattern = _PATTERN.search(rest)
    if pattern:
        rest = rest[: rest.rfind("/", 0, pattern.start()) + 1]
    elif scheme in ("s3", "s3a") and os.path.splitext(rest)[1]:
        command = "`aws s3 cp {} DIR`"  # sync is for folders
    copy = f" with {command.format(printable(f'{url[1]}://{rest}'))}," if command else ""
    raise ConfigError(
        f"{what} {printable(f'{url[1]}://{url[3]}')}: {scheme}:// is not supported yet: copy the "
        f"files here{copy} or mount them, and give their folder"
    )


def _split_literal(path: Path) -> tuple[str, str]:
    """Return the longest beginning of ``path`` that exists, and the rest, which is a pattern."""
    literal = Path(path.anchor)
    parts = path.parts[1:]
    for number, part in enumerate(parts):
        if not _exists(literal / part):
            return str(literal), "/".join(parts[number:])
        literal /= part
    return str(literal), ""


def _match(literal: str, pattern: str) -> Iterator[str]:
    path = os.path.join(literal, pattern)
    if os.path.lexists(path):
        yield path
    elif glob.has_magic(pattern):
        yield from glob.iglob(os.path.join(glob.escape(literal), pattern), recursive=True)


def _describe_missing(location: str, missing: list[str], alternatives: int) -> str:
    if alternatives == 1:
        return f"no file matches {printable(location)}"
    first = printable(missing[0])
    if len(missing) == 1:
        return (
            f"1 of the {alternatives:,} files of {printable(location)} is missing, {first}: copy "
            "it, or give another range"
        )
    return (
        f"{len(missing):,} of the {alternatives:,} files of {printable(location)} are missing, "
        f"{first} first: copy them, or give another range"
    )


def _check_files(location: str, paths: list[str]) -> tuple[str, ...]:
    if len(paths) > 1:
        folder = next((each for each in paths if os.path.isdir(each)), None)
        if folder is not None:
            raise ConfigError(
                f"{printable(location)} matches the folder {printable(path_to_text(folder))} and "
                f"{len(paths) - 1:,} more: a source is one folder, or files"
            )
    return tuple(itertools.chain.from_iterable(_check_file(Path(each)) for each in paths))


def _check_file(path: Path) -> tuple[str]:
    try:
        if not (path.is_dir() or path.is_fifo()):
            os.close(open_regular(path))
    except OSError as error:
        raise DatasetError(
            f"source {printable(path_to_text(path))} cannot be read: {error.strerror}"
        ) from None
    return (path_to_text(path),)

"""From a location as the user typed it to the files or the folder that it stands for.

A path that exists is taken literally, whatever characters it has; else braces, then *, ? and [] are
expanded. What is in a store is found by ``find_objects``; other locations that are not of this
machine are refused with what to do instead.
"""

import errno
import glob
import itertools
import os
import re
from pathlib import Path
from typing import Final

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import path_to_text, printable
from feeder.process.regular_file import open_regular
from feeder.source.location.find_objects import find_objects
from feeder.source.location.objects import look_at
from feeder.source.location.patterns import EXPANDED_MAX, expand_braces
from feeder.store.address import StoreAddress, is_remote

_URL: Final = re.compile(r"([A-Za-z][A-Za-z0-9+.-]*)://(.*)", re.DOTALL)
_BEFORE_PATTERN: Final = re.compile(r"[^{*?\[]*/", re.DOTALL)
_COPY_COMMANDS: Final = (
    ("abfs abfss wasb wasbs", "`azcopy copy {} DIR --recursive`"),
    ("ftp ftps", "`wget`"),
    ("sftp ssh", "`scp -r`"),
    ("hf", "`hf download ORG/NAME --repo-type dataset --local-dir DIR`"),
    ("hdfs", "`hdfs dfs -get {} DIR`"),
)
"""What copies files here from where a scheme stands for."""
_STORES: Final = {"s3a": "s3", "s3n": "s3", "gcs": "gs"}
"""Other names of stores' schemes."""
_STANDARD_INPUT: Final = "/dev/stdin"


def find_files(location: str) -> tuple[str, ...]:
    """Return the one folder, or the files in order, that ``location`` stands for.

    Paths are absolute, as ``path_to_text`` writes them, or URLs. Raises ConfigError for what is on
    another machine or cannot be expanded, and for several folders; DatasetError for what does not
    exist or is neither a regular file nor a pipe; StoreError.
    """
    if is_remote(location):
        return find_objects(location)
    shown = printable(location)
    try:
        if location == "-":
            paths = [_find_standard_input()]
        elif not location:
            raise ConfigError("the source is empty: give a folder, a file or a pattern")
        else:
            path = Path(location).absolute()
            paths = [path] if _exists(path) else _match(location, path)
    except ValueError:  # a zero byte, or characters that the locale lacks
        raise ConfigError(f"source {shown} is no path") from None
    folder = next(filter(Path.is_dir, paths), None) if len(paths) > 1 else None
    if folder is not None:
        raise ConfigError(
            f"{shown} matches the folder {printable(path_to_text(folder))} and "
            f"{len(paths) - 1:,} more: a source is one folder, or files"
        )
    for path in paths:
        try:
            if not (path.is_dir() or path.is_fifo()):
                os.close(open_regular(path))
        except OSError as error:
            raise _unreadable(path, error) from None
    return tuple(map(path_to_text, paths))


def find_file(location: str, option: str, *, may_be_folder: bool = False) -> str:
    """Return the absolute path, as text, or the URL of the one file that ``option`` names."""
    try:
        if is_remote(location):
            url = StoreAddress.parse(location).url
            look_at(url)
            return url
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


def _find_standard_input() -> Path:
    """Return a path of standard input, of the file itself if it is one: workers have another."""
    path = Path(_STANDARD_INPUT)
    if path.is_fifo():
        return path
    if path.is_file():
        return path.resolve()
    raise ConfigError("standard input is neither a pipe nor a file: give a file, or pipe one")


def _match(location: str, path: Path) -> list[Path]:
    """Return the files that a location stands for which does not exist itself."""
    shown = printable(location)
    if os.path.islink(path):
        raise DatasetError(f"source {shown} is a dangling link")
    _check_is_local(location, "source")
    literal = Path(path.anchor)  # what exists is no pattern, whatever characters it has
    parts = [*path.parts[1:]]
    while parts and _exists(literal / parts[0]):
        literal /= parts.pop(0)
    pattern = "/".join(parts)
    alternatives = expand_braces(pattern)
    if alternatives == [pattern] and not glob.has_magic(pattern):
        folder = "" if path.suffix else "folder "
        raise DatasetError(f"source {folder}{shown} does not exist")
    files: set[str] = set()
    missing: list[str] = []
    for each in alternatives:
        one = os.path.join(literal, each)
        matches = [one] if os.path.lexists(one) else []
        if not matches and glob.has_magic(each):
            escaped = os.path.join(glob.escape(str(literal)), each)
            matches = list(itertools.islice(glob.iglob(escaped, recursive=True), EXPANDED_MAX + 1))
        files.update(matches)
        if not matches:
            missing.append(one)
        if len(files) > EXPANDED_MAX:
            raise ConfigError(f"{shown} matches over {EXPANDED_MAX:,} files")
    if missing and len(alternatives) == 1:
        raise DatasetError(f"no file matches {shown}")
    if missing:
        raise DatasetError(
            f"{len(missing):,} of the {len(alternatives):,} files of {shown} cannot be found, "
            f"{printable(missing[0])} first: copy them, or give another range"
        )
    return [Path(file) for file in sorted(files, key=path_to_text)]


def _exists(path: Path) -> bool:
    try:
        os.stat(path)
    except OSError as error:
        if error.errno in (errno.ENOENT, errno.ENOTDIR, errno.ENAMETOOLONG):  # a long pattern
            return False
        raise _unreadable(path, error) from None
    return True


def _unreadable(path: Path, error: OSError) -> DatasetError:
    shown = printable(path_to_text(path))
    return DatasetError(f"source {shown} cannot be read: {error.strerror}")


def _check_is_local(location: str, what: str) -> None:
    if location.startswith("pipe:"):
        raise ConfigError(
            f"{what} {printable(location)}: commands are not run: save their output as a file and "
            "give that"
        )
    url = _URL.fullmatch(location)
    if url is None:
        return
    scheme, rest = url[1].lower(), url[2]
    if scheme in _STORES:
        shown = printable(f"{_STORES[scheme]}://{rest}")
        raise ConfigError(f"{what} {printable(location)}: write {shown}")
    if scheme == "file":
        raise ConfigError(f"{what} {printable(location)}: give the path alone, {printable(rest)}")
    command = next((how for schemes, how in _COPY_COMMANDS if scheme in schemes.split()), "")
    if glob.has_magic(rest) or "{" in rest:
        folder = _BEFORE_PATTERN.match(rest)
        rest = folder[0] if folder else ""
    copy = f" with {command.format(printable(f'{url[1]}://{rest}'))}," if command else ""
    raise ConfigError(
        f"{what} {printable(location)}: {scheme}:// is not supported yet: copy the files "
        f"here{copy} or mount them, and give their folder"
    )

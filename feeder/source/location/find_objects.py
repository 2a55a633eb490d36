"""From a location in a store to the objects, or the folder, that it stands for.

    s3://bucket/raw/                          a folder; so is one without the "/" and no such object
    s3://bucket/raw/shard-{000..146}.tar      objects; *, ? and [] are matched with a listing
    https://host/raw/shard-{000..146}.tar     objects; web servers have no listing

As of local files, what exists is taken literally, whatever characters it has.
"""

import fnmatch
import glob
import re
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

from feeder.errors import ConfigError, DatasetError
from feeder.process.path_text import decode_name, printable
from feeder.source.location.objects import AT_ONCE, has_objects, look_at, walk_objects
from feeder.source.location.patterns import EXPANDED_MAX, expand_braces
from feeder.store.address import StoreAddress


def find_objects(location: str) -> tuple[str, ...]:
    """Return the URLs of the objects, sorted, or of the one folder, which ends with "/".

    Raises ConfigError for what names no store or cannot be expanded or listed, DatasetError for
    what is not there, StoreError.
    """
    address = StoreAddress.parse(location)
    url, shown = address.url, printable(location)
    can_list = address.scheme not in ("http", "https")
    is_folder = location.endswith("/") or not address.path
    if not is_folder and _exists(url):
        return (url,)
    if can_list and has_objects(url):
        return (f"{url}/",)
    alternatives = expand_braces(url)
    is_pattern = alternatives != [url] or glob.has_magic(url)
    if not can_list and (is_folder or any(map(glob.has_magic, alternatives))):
        raise ConfigError(
            f"{shown}: web servers cannot be listed: name tars or other containers, as in "
            f"{address.scheme}://{address.bucket}/DIR/shard-{{000..146}}.tar, or give s3://, gs:// "
            "or az:// where the server has that, too"
        )
    if not is_pattern:
        what = "is empty or does not exist" if can_list else "does not exist"
        raise DatasetError(f"source {shown} {what}: check the address; case counts in it")
    with ThreadPoolExecutor(AT_ONCE) as pool:
        matches = list(pool.map(lambda each: list(_match(each)), alternatives))
    found = {each for urls in matches for each in urls}
    missing = [each for each, urls in zip(alternatives, matches, strict=True) if not urls]
    if len(found) > EXPANDED_MAX:
        raise ConfigError(f"{shown} matches over {EXPANDED_MAX:,} objects")
    if missing and len(alternatives) == 1:
        raise DatasetError(f"no object matches {shown}")
    if missing:
        raise DatasetError(
            f"{len(missing):,} of the {len(alternatives):,} objects of {shown} cannot be found, "
            f"{printable(missing[0])} first: give those that are there, or another range"
        )
    return tuple(sorted(found))


def _match(pattern: str) -> Iterator[str]:
    """Yield the objects that a URL, in which parts may have *, ? and [], stands for."""
    if _exists(pattern):
        yield pattern
    elif glob.has_magic(pattern):
        folder = re.split(r"[*?[]", pattern, maxsplit=1)[0].rpartition("/")[0]
        parts = pattern[len(folder) + 1 :].split("/")
        for entry in walk_objects(folder):
            name = decode_name(entry.name)
            if _matches(name.split("/"), parts):
                yield f"{folder}/{name}"


def _matches(names: Sequence[str], parts: Sequence[str]) -> bool:
    """Return whether the names of a path match the parts of a pattern, as ``glob`` has it."""
    if not parts:
        return not names
    is_hidden = bool(names) and names[0].startswith(".") and not parts[0].startswith(".")
    if parts[0] == "**":
        is_deeper = bool(names) and not is_hidden and _matches(names[1:], parts)
        return is_deeper or _matches(names, parts[1:])
    return (
        bool(names)
        and not is_hidden
        and fnmatch.fnmatchcase(names[0], parts[0])
        and _matches(names[1:], parts[1:])
    )


def _exists(url: str) -> bool:
    try:
        look_at(url)
    except FileNotFoundError:
        return False
    return True

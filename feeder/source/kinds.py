"""What each kind of source is, as its module declares it in KINDS, by its name.

To recognise a source all modules are imported, to read it only its own. So a module imports
libraries that are extras on demand.
"""

import importlib
import re
import sys
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Final, NamedTuple, cast

from feeder.errors import ResourceError

if TYPE_CHECKING:
    from feeder.source.source import Source, SourceSpec


MODULES: Final = {
    "class-folder": "class_folder",
    "labelled-folder": "labelled_folder",
    "webdataset": "webdataset",
    "tfrecord": "tfrecord",
    "parquet": "parquet",
    "lmdb": "lmdb",
    "imagenet-train": "imagenet",
    "imagenet-val": "imagenet",
}
"""The module of each kind. Where a file can be of two kinds, the later one counts: ImageNet's
archives are tars, too."""


class Kind(NamedTuple):
    """What a kind of source is, besides how it is read."""

    open: Callable[["SourceSpec", str], "Source"]
    """Returns the source of a spec; takes the work folder, too. Raises ConfigError for options
    that have no meaning for the kind."""
    labels: str
    """Where its labels are, for messages."""
    takes: str
    """The options that have a meaning for it: of image, label, labels, label-base and float."""
    what: str = ""
    """A container, for messages: "a tar". Empty for loose files, which are in a folder."""
    plural: str = ""
    """Several of them: "tar files"."""
    suffixes: tuple[str, ...] = ()
    """Of containers, without those of a compression. A folder of containers is recognised by them,
    and a container that zstd compressed; names of items leave them out."""
    names: str = ""
    """A pattern of other names that containers have."""
    matches: Callable[[bytes, str], bool] | None = None
    """Returns whether a file is a container; takes its first bytes, decompressed, and its name."""
    is_streamable: bool = False
    """Whether a container can be a pipe."""
    count_splits: Callable[["SourceSpec"], tuple[str, Mapping[str, int]]] | None = None
    """Returns the column that holds the split of each row, "" without one, and the rows of each."""

    def has_name(self, name: str) -> bool:
        """Return whether a file is called as containers of this kind are."""
        usual = rf"\.({'|'.join(self.suffixes)})(\.(gz|zst))?$"
        patterns = [usual] * bool(self.suffixes) + [self.names] * bool(self.names)
        return any(re.search(pattern, name, re.IGNORECASE) for pattern in patterns)


def find_kind(name: str) -> Kind:
    """Return what the module of a kind declares."""
    module = importlib.import_module(f"feeder.source.{MODULES[name]}")
    return cast(Kind, module.KINDS[name])


def missing_extra(what: str, package: str, extra: str) -> ResourceError:
    """Return the error for a package that is not installed, without which ``what`` is not read."""
    return ResourceError(
        f"reading {what} needs the package {package}, which is not installed: "
        f"`{sys.executable} -m pip install '{package}'` (the extra {extra})"
    )

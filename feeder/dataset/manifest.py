"""A dataset's manifest: the one small JSON file that makes a folder of shards a dataset.

It is written last and read first. Its JSON is canonical: loading serialises the parsed fields again
and compares all bytes, so every flipped byte is noticed. There is no time and no absolute path: the
same source and options give the same manifest.

It has two fingerprints. ``content`` is a hash of images, labels and their order, however they are
packed: jobs, clients and caches identify a dataset by it (``feeder.dataset.content``).
``fingerprint`` is a hash of all other fields, which hold a checksum of every shard's index, and the
index one of each sample: processes that read the files compare it.
"""

import hashlib
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final, NoReturn

import msgspec
from msgspec import Meta

from feeder.dataset.files import DatasetFiles, Location, files_at
from feeder.dataset.format import other_version, shard_name
from feeder.errors import ConfigError, DatasetError, StoreError
from feeder.plan.epoch import MAX_SHARDS, ShardLayout
from feeder.plan.labels import INDEX_LABELS, LabelSpec
from feeder.plan.permutation import MAX_SIZE
from feeder.process.path_text import printable

MANIFEST_NAME: Final = "manifest.json"
QUARANTINE_NAME: Final = "quarantine.jsonl"
QUARANTINE_BYTES_MAX: Final = 1 << 30  # room for millions of source files
WORK_FOLDER_NAME: Final = ".packing"
FORMAT: Final = "feeder-dataset"
VERSION: Final = 4
_QUOTED_CHARACTERS_MAX: Final = 200
_BYTES_MAX: Final = 256 << 20  # room for a million shards


class ShardEntry(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The manifest's entry of one shard."""

    name: str
    samples: int
    bytes: int
    index_xxh3: str
    """xxh3_64 of the shard's records, label rows and names, 16 hexadecimal digits."""


class Manifest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a dataset holds, how it was packed, and the fingerprints of both."""

    format: str = FORMAT
    version: int = VERSION
    samples: int
    classes: tuple[str, ...]
    """Names by label where the kind of ``labels`` is "index" or "multi", else none."""
    labels: LabelSpec = INDEX_LABELS
    tile_width_px: int
    seed: int
    options: dict[str, bool | int | str]
    odd: dict[str, int]
    """How many samples of each Oddity; the keys are those of Oddity.kinds()."""
    subsampling: dict[str, int]
    """How many samples of each chroma subsampling; the keys are lower-case Subsampling names."""
    quarantined: int
    quarantine_xxh3: str
    """xxh3_64 of quarantine.jsonl, 16 hexadecimal digits."""
    source_bytes: int
    """Size of the source files that became samples."""
    duplicates: int = 0
    """How many samples have the same source bytes as an earlier one."""
    shards: tuple[ShardEntry, ...]
    content: Annotated[str, Meta(pattern=r"^[0-9a-f]{32}\Z")]
    """The content fingerprint (``feeder.dataset.content``)."""
    former: Annotated[str, Meta(pattern=r"^([0-9a-f]{32})?\Z")] = ""
    """The fingerprint of the version 3 dataset that ``feeder repack`` read; empty where a source
    was packed."""
    fingerprint: str = ""

    @property
    def layout(self) -> ShardLayout:
        """How the samples are spread over the shards."""
        size_bytes = sum(shard.bytes for shard in self.shards)
        return ShardLayout(samples=self.samples, shards=len(self.shards), size_bytes=size_bytes)

    def sealed(self) -> "Manifest":
        """Return this manifest with its fingerprint filled in."""
        return msgspec.structs.replace(self, fingerprint=self._expected_fingerprint())

    def encode(self) -> bytes:
        """Return the bytes of manifest.json."""
        return canonical_json(msgspec.to_builtins(self))

    def _expected_fingerprint(self) -> str:
        fields = msgspec.to_builtins(self)
        del fields["fingerprint"]
        return fingerprint_of(fields)

    def inconsistency(self) -> str | None:
        """Return the first contradiction in the fields, or None."""
        shards = len(self.shards)
        if self.format != FORMAT:
            return f"its format is {self.format!r}"
        if not (1 <= self.samples <= MAX_SIZE and 1 <= shards <= MAX_SHARDS):
            return "it counts no samples or shards, or too many"
        contradiction = self.labels.find_contradiction(len(self.classes))
        if contradiction is not None:
            return contradiction
        for number, shard in enumerate(self.shards):
            if shard.name != shard_name(number):
                return f"shard {number} is called {shard.name!r}"
            if shard.samples != samples_in_shard(self.samples, shards, number):
                return f"{shard.name} holds {shard.samples} samples, which is not its share"
        if self.fingerprint != self._expected_fingerprint():
            return "its fingerprint does not match"
        return None


def fingerprint_of(fields: Mapping[str, object]) -> str:
    """Return the fingerprint of a manifest with these ``fields``, which are all others."""
    return hashlib.blake2b(canonical_json(fields), digest_size=16).hexdigest()


def samples_in_shard(samples: int, shards: int, number: int) -> int:
    """Return how many of ``samples`` belong in shard ``number`` of ``shards``."""
    return samples // shards + (number < samples % shards)


def canonical_json(value: object) -> bytes:
    """Return the canonical JSON of ``value``: sorted keys, ASCII, one newline at the end."""
    text = json.dumps(value, sort_keys=True, indent=1, ensure_ascii=True, allow_nan=False)
    return text.encode("ascii") + b"\n"


def load_manifest(location: Location | DatasetFiles) -> Manifest:
    """Return the checked manifest of the dataset there; DatasetError if it is invalid."""
    files = files_at(location)
    return decode_manifest(read_manifest(files), files.locate(MANIFEST_NAME))


def read_manifest(files: DatasetFiles) -> bytes:
    """Return the bytes of the manifest; DatasetError if there is none to read, StoreError."""
    where = files.locate(MANIFEST_NAME)
    try:
        data = files.read(MANIFEST_NAME, _BYTES_MAX + 1)
    except FileNotFoundError:
        _raise_missing(Path(files.where))
    except NotADirectoryError:
        raise DatasetError(
            f"{files.where} is a file: a dataset is a folder (feeder pack); a selection (feeder "
            "select) is for select, diff, serve, verify, names and preview"
        ) from None
    except OSError as error:
        raise DatasetError(f"{where} cannot be read: {error.strerror}") from error
    except StoreError as error:
        if error.kind != "gone":
            raise
        raise StoreError(
            "gone", f"{files.where} is not a dataset: it has no {MANIFEST_NAME} (feeder pack)"
        ) from None
    if len(data) > _BYTES_MAX:
        raise DatasetError(f"{where} is too large for a manifest; restore it or pack again")
    return data


def _raise_missing(folder: Path) -> NoReturn:
    if not folder.exists():
        raise DatasetError(f"no dataset at {folder}: there is no such folder (feeder pack)")
    if (folder / WORK_FOLDER_NAME).exists():
        raise DatasetError(
            f"{folder} is unfinished: run the same feeder pack or repack command again to finish it"
        )
    raise DatasetError(f"{folder} is not a dataset: it has no {MANIFEST_NAME} (feeder pack)")


def decode_manifest(data: bytes, where: str) -> Manifest:
    """Return the manifest in ``data``; ``where`` names the file in errors.

    Raises DatasetError unless ``data`` is byte for byte what ``encode`` returns.
    """
    try:
        fields = json.loads(data)
        if isinstance(fields, Mapping):
            _check_version(fields, where)
        manifest = msgspec.convert(fields, Manifest)
        encoded = manifest.encode()
    # msgspec's and json's errors are ValueErrors; ConfigError is of LabelSpec
    except (ValueError, RecursionError, ConfigError) as error:
        raise damaged_manifest(where, str(error) or type(error).__name__) from None
    if encoded != data:
        raise damaged_manifest(where, "not as it was written")
    problem = manifest.inconsistency()
    if problem is not None:
        raise damaged_manifest(where, problem)
    return manifest


def damaged_manifest(where: str, problem: str) -> DatasetError:
    """Return the error; text that it quotes from the file is cut and escaped."""
    shown = printable(problem.partition("\n")[0][:_QUOTED_CHARACTERS_MAX])
    return DatasetError(f"{where} is damaged ({shown}); restore it or pack again")


def _check_version(fields: Mapping[Any, Any], where: str) -> None:
    version = fields.get("version")
    if fields.get("format") != FORMAT or version == VERSION:
        return
    if not isinstance(version, int):
        raise ValueError(f"unknown version {version!r}")
    raise other_version(where, "dataset", version, VERSION)

"""Copies samples of a Python iterable into the work folder, before packing shuffles them.

Each sample is written as it comes, one is held at a time. Containers are bounded (see
feeder.source.samples) and complete ones are kept whatever ends the call: a later call skips their
samples, in whatever order they come, and continues. An exception of the iterable completes the open
container, too; a kill loses it.

Invariant: once packing has begun the samples never change. A call that gives others is refused.
"""

import contextlib
import math
from collections.abc import Iterable
from typing import Final, Self

import msgspec

from feeder.errors import ConfigError, DatasetError, ResourceError
from feeder.pack.containers import find_spec, forget_containers, read_lists, write_spec
from feeder.pack.progress import ProgressLine
from feeder.pack.work_folder import WorkFolder
from feeder.plan.labels import LabelChoice
from feeder.process.output_file import explain_disk_errors
from feeder.process.path_text import decode_name, encode_name, printable
from feeder.source.listing import (
    NAME_BYTES_MAX,
    ItemListing,
    ListedItems,
    forget_list,
    read_listed,
)
from feeder.source.raw_labels import BadLabel, Form, Value, check_float, parse_decimal, read_raw
from feeder.source.samples import LOCATION, SampleKeys, sample_digest, stem_hash
from feeder.source.source import SourceSpec

CONTAINER_BYTES: Final = 1 << 30
CONTAINER_SAMPLES: Final = 1 << 16
"""Where a container ends: a kill loses what was spooled since."""
_SHARE: Final = 32  # or a 32nd of all before: completing one sorts the hashes of all samples again

_REJECTS: Final = 0  # each call rewrites its list, so a label that was mended counts
_REALS: Final = (Form.REAL, Form.REALS)
_ROW_KINDS: Final = ("multi", "one-hot", "multi-hot")  # whose NaN --uncertain may give a meaning
_STAMP: Final = (0, 0)  # no container is a file of its own
_REMEDY: Final = "call pack_samples again to resume"


def spool_samples(
    samples: Iterable[object], work: WorkFolder, spec: SourceSpec, progress: ProgressLine
) -> SourceSpec:
    """Write all samples that the work folder does not hold yet; return ``spec`` with its lists.

    Raises ConfigError for a sample that is none, for keys that clash, and where the samples are not
    those of an earlier call; DatasetError if there are none; ResourceError if the disk is full.
    What ``samples`` raises propagates.
    """
    progress.begin("spooling", "samples", None)
    try:
        with Spool(work, spec, progress) as spool:
            for sample in samples:
                spool.add(sample)
                del sample  # else it would be held while the next one is made
            return spool.complete()
    finally:
        progress.clear()


def find_spool(work: WorkFolder) -> SourceSpec | None:
    """The source of a work folder that holds samples of ``pack_samples``, else None."""
    spec = find_spec(work.path)
    return spec if spec is not None and spec.kind == "samples" else None


def refuse_spool(work: WorkFolder, spec: SourceSpec) -> None:
    """Raise ConfigError if packing ``spec`` would remove samples that only an iterable has."""
    if spec.kind != "samples" and find_spool(work) is not None:
        folder = work.path.parent
        raise ConfigError(
            f"{folder} holds samples of an unfinished pack_samples: call that again to resume it, "
            f"or remove {folder}"
        )


class Spool:
    """The samples in a work folder; a context manager that keeps what is complete."""

    def __init__(self, work: WorkFolder, spec: SourceSpec, progress: ProgressLine) -> None:
        self._folder = work.path
        self._destination = work.path.parent
        self._spec = spec
        self._progress = progress
        self._is_begun = work.is_begun
        self._kind: LabelChoice | None = spec.label_kind
        self._form: Form | None = None  # of the first label
        self._width = 0  # of labels of kind "float"
        self._keys = SampleKeys()
        self._complete = 0  # containers, numbered from 1
        self._spooled_bytes = 0  # in these
        self._open: ItemListing | None = None
        self._recent: dict[int, tuple[int, str]] = {}  # digest and key by stem, of the open one
        self._is_writing = False  # still true after an error: the open container is incomplete
        self._count = 0
        with self._disk_errors():
            self._resume(find_spool(work) is not None)
            self._rejects = ItemListing(self._folder, _REJECTS)

    def add(self, sample: object) -> None:
        """Write a sample, unless it is here; one with a bad label is listed as left out."""
        self._count += 1
        key, stored, data, label = _read_sample(sample, self._count)
        self._progress.add(1, len(data))
        try:
            form, value = self._read_label(label)
        except BadLabel as error:
            if self._kind is None and self._form is None:
                raise ConfigError(
                    f"the first sample decides what labels are, and {printable(key)} cannot: "
                    f"{error}; give labels= one of 'index', 'multi', 'float' and 'none'"
                ) from None
            with self._disk_errors():
                self._rejects.reject(key, "bad-label", str(error))
            return
        stem, digest = stem_hash(stored), sample_digest(stored, (int(form), value), data)
        if self._is_here(key, stem, digest):
            return
        if self._is_begun:
            raise self._other_samples(f"{printable(key)} is new")
        self._is_writing = True
        with self._disk_errors():
            if self._open is None:
                number = self._complete + 1
                self._open = ItemListing(self._folder, number, label_kind=self._kind)
            offset = self._open.spill(data)
            self._open.add(key, label, offset=offset, size_bytes=len(data), stamp=digest)
        self._recent[stem] = digest, key
        self._is_writing = False
        about, bytes_max = self._open.about, max(CONTAINER_BYTES, self._spooled_bytes // _SHARE)
        if about.items >= CONTAINER_SAMPLES or about.spilled_bytes >= bytes_max:
            self._complete_container()

    def complete(self) -> SourceSpec:
        """Complete the spool, all samples having been given; return its source."""
        missing, stem = self._keys.not_given()
        if missing:
            more = f" and {missing - 1:,} more" if missing > 1 else ""
            raise self._other_samples(f"{printable(self._find_key(stem))}{more} did not come")
        if not self._count:
            raise DatasetError("the iterable gave no samples: there is nothing to pack")
        self._complete_container()
        with self._disk_errors():
            self._rejects.finish(LOCATION, _STAMP)
            containers = (LOCATION,) * (self._complete + 1)
            spec = msgspec.structs.replace(self._spec, containers=containers)
            write_spec(self._folder, spec)
        return spec

    def _resume(self, is_spool: bool) -> None:
        """Find the complete containers of earlier calls, and remove all else."""
        if not is_spool:
            if self._is_begun:
                raise ConfigError(
                    f"{self._destination} holds the beginning of another packing: give another "
                    f"folder, or {self._start_over()}"
                )
            forget_containers(self._folder)
        # from here on `feeder pack` into this folder is refused
        write_spec(self._folder, msgspec.structs.replace(self._spec, containers=()))
        while (listed := read_listed(self._folder, self._complete + 1)) is not None:
            self._complete += 1
            self._spooled_bytes += listed.spilled_bytes
            items = ListedItems(self._folder, self._complete, listed)
            self._keys.add_listed(items)
            if listed.items and self._kind != "none":
                self._form = Form(int(items.rows["form"][0]))
                self._width = next(iter(listed.facts.widths), 1)
        # incomplete ones, and those behind a gap that a crash of the machine left
        for path in self._folder.glob("list-*"):
            number = int(path.name.removeprefix("list-").partition(".")[0])
            if not 0 < number <= self._complete:
                forget_list(self._folder, number)

    def _complete_container(self) -> None:
        if self._open is None:
            return
        self._is_writing = True
        with self._disk_errors():
            self._open.finish(LOCATION, _STAMP)
        self._complete += 1
        self._spooled_bytes += self._open.about.spilled_bytes
        self._open = None
        self._keys.add({stem: digest for stem, (digest, _) in self._recent.items()}, given=True)
        self._recent.clear()
        self._is_writing = False

    def _is_here(self, key: str, stem: int, digest: int) -> bool:
        """Whether an earlier call spooled this sample; ConfigError if its key is taken."""
        recent = self._recent.get(stem)
        at = -1 if recent is not None else self._keys.find(stem)
        if recent is None and at < 0:
            return False
        if recent is None and self._keys.take(at, digest):
            return True
        other = recent[1] if recent is not None else self._find_key(stem)
        if encode_name(other) != encode_name(key):
            raise ConfigError(
                f"the keys {printable(other)} and {printable(key)} would unpack to the same name: "
                "give keys that differ before their last dot"
            )
        if recent is not None or self._keys.was_given(at):
            raise ConfigError(f"two samples have the key {printable(key)}: keys must differ")
        raise self._other_samples(f"the bytes or the label of {printable(key)} have changed")

    def _find_key(self, stem: int) -> str:
        """Return the key of a sample in a complete container."""
        for items in read_lists(self._folder, range(1, self._complete + 1)):
            for at, size in items.rows[["name_at", "name_bytes"]].tolist():
                stored = items.text[at : at + size]
                if stem_hash(stored) == stem:
                    return decode_name(stored)
        raise DatasetError(f"{self._folder} is damaged: {self._start_over()}")

    def _read_label(self, label: object) -> tuple[Form, Value]:
        """Return a label's form and value; BadLabel for one that none of its kind can be.

        What all labels are is decided later. What is rejected here may come again, corrected.
        """
        if self._kind == "none":
            return Form.NONE, None
        form, value = read_raw(label, is_name=self._kind == "name")
        if form == Form.NONE:
            raise BadLabel("it has no label")
        values = value if isinstance(value, list) else [value]
        first = form if self._form is None else self._form
        if self._kind == "index" and form >= Form.NUMBERS:
            raise BadLabel(f"its label has {len(values)} values, not one")
        if self._kind is None and (form >= Form.NUMBERS) != (first >= Form.NUMBERS):
            raise BadLabel("its label is of another form than the first (one is a list)")
        if isinstance(value, int) and value < 0 and self._kind in (None, "index") and first == form:
            raise BadLabel(f"its label is {value}, below the first class 0")
        if self._kind not in _ROW_KINDS and (self._kind == "float" or form in _REALS):
            for each in values:
                number = parse_decimal(each) if isinstance(each, str) else each
                check_float(math.nan if number is None else number)
        if self._kind == "float" and len(values) != (self._width or len(values)):
            raise BadLabel(f"its label has {len(values)} values, the first has {self._width}")
        self._form, self._width = first, self._width or len(values)
        return form, value

    def _other_samples(self, what: str) -> ConfigError:
        return ConfigError(
            f"{self._destination} holds samples of an earlier call, and {what}: give the same "
            f"samples and options to resume it, or {self._start_over()}"
        )

    def _start_over(self) -> str:
        return f"remove {self._destination} to start over"

    def _disk_errors(self) -> contextlib.AbstractContextManager[None]:
        return explain_disk_errors("spooling samples into", self._destination, _REMEDY)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        try:
            if not self._is_writing:
                self._complete_container()
        except ResourceError:
            if error is None:
                raise  # else the iterable's own error matters more
        finally:
            for listing in (self._open, self._rejects):
                if listing is not None:
                    listing.__exit__(kind, error, traceback)


def _read_sample(sample: object, number: int) -> tuple[str, bytes, bytes | memoryview, object]:
    """Return key, key as shards store it, bytes and label; ConfigError if this is no sample."""
    if not isinstance(sample, (tuple, list)) or len(sample) != 3:
        length = f" of {len(sample)}" if isinstance(sample, (tuple, list)) else ""
        raise ConfigError(
            f"sample {number} is a {type(sample).__name__}{length}: give a tuple (key, bytes, "
            "label)"
        )
    key, data, label = sample
    if not isinstance(key, str):
        raise ConfigError(
            f"the key of sample {number} is of the type {type(key).__name__}: give a str"
        )
    if isinstance(data, (bytearray, memoryview)):
        view = memoryview(data)
        data = view.cast("B") if view.c_contiguous else view.tobytes()
    if not isinstance(data, (bytes, memoryview)):
        raise ConfigError(
            f"the image of sample {number}, {printable(key)}, is of the type "
            f"{type(data).__name__}: give the bytes of an image file"
        )
    try:
        stored = encode_name(key)
    except UnicodeEncodeError:
        stored = b""
    parts = {*stored.split(b"/")}
    if b"\0" in stored or len(stored) > NAME_BYTES_MAX or parts & {b"", b".", b".."}:
        raise ConfigError(
            f"the key {printable(key[:100])!r} of sample {number} is no name: give text of 1 to "
            f"{NAME_BYTES_MAX} bytes in UTF-8 without empty parts, . and .. between its slashes"
        )
    return key, stored, data, label

"""``feeder.pack_samples``: packs what a Python iterable gives, for data that is in no kind of file.

samples ─► spool in DST/.packing (spool) ─► pack_dataset, as from any source (run)
"""

import contextlib
import io
import os
import re
import sys
import warnings
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final, get_args

from feeder.convert.decode_picture import WHITE_U16
from feeder.convert.lossy import SubsamplingName
from feeder.dataset.files import parse_location
from feeder.dataset.manifest import MANIFEST_NAME, Manifest, load_manifest
from feeder.errors import ConfigError, FeederError
from feeder.pack.options import CHECK_OPTIONS, PackOptions
from feeder.pack.progress import ProgressLine
from feeder.pack.run import load_known, pack_dataset
from feeder.pack.spool import find_spool, spool_samples
from feeder.pack.task_pool import choose_jobs
from feeder.pack.work_folder import SPEC_NAME, WorkFolder, check_destination
from feeder.plan.labels import LabelChoice, LabelKind, Uncertain
from feeder.process.output_file import explain_disk_errors, write_output
from feeder.process.path_text import path_to_text, printable
from feeder.source.raw_labels import RawLabel
from feeder.source.samples import LOCATION
from feeder.source.source import SourceSpec

ImageBytes = bytes | bytearray | memoryview
_CLASS_NAMES: Final = "class-names"
_REMEDY: Final = "call pack_samples again"
_OPTION: Final = re.compile(r"(?<![^\s(])--([a-z][a-z\d-]+)\b(?: (?=[a-z\d]))?")
_TAKES_A_WORD: Final = ("label-kind", "uncertain", "png16-max")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackedSamples:
    """The dataset that ``pack_samples`` made."""

    path: Path
    samples: int
    """In the dataset, so without those left out."""
    classes: tuple[str, ...]
    """By number; empty where labels are no classes."""
    labels: LabelKind
    labels_read: str
    """How labels were read, as "3 classes by number"; empty if an earlier call ended packing."""
    fingerprint: str
    """Of the content, as ``loader.fingerprint``: equal samples and options give equal ones."""
    quarantined: int
    """Samples left out; ``quarantine.jsonl`` in the dataset lists their keys and reasons."""
    duplicates: int
    """Samples with the bytes of another one; ``duplicates.jsonl`` lists them."""


def pack_samples(
    samples: Iterable[tuple[str, ImageBytes, RawLabel]],
    dst: str | os.PathLike[str],
    *,
    labels: LabelChoice | None = None,
    uncertain: Uncertain | None = None,
    class_names: Sequence[str] | None = None,
    classes_of: str | os.PathLike[str] | None = None,
    max_bad: str | int = "5%",
    max_side: int | None = None,
    quality: int | None = None,
    subsampling: SubsamplingName | None = None,
    apply_exif: bool = False,
    png16_max: int = WHITE_U16,
    shards: int | None = None,
    tile_width: int = 32,
    seed: int = 0,
    jobs: int | None = None,
    progress: bool | None = None,
) -> PackedSamples:
    """Pack (key, bytes of an image file, label) tuples into the dataset ``dst``.

    ``samples`` is consumed once, one sample at a time, and copied into ``dst``/.packing, which
    takes as much room as the samples until the dataset is complete. Called again with the same
    samples after an interruption, in any order, it resumes: samples that are there are compared
    with what comes (by a 64-bit hash of key, label and bytes) and not copied again.

    A key becomes the sample's name: unique text with '/' between folders. ``labels`` says what
    labels are; by default all of them show it, and what they could be in two ways is an error:

    - "index": a class, as a number from 0 or as text; texts are numbered in their sorted order,
      unless they are numbers ("3")
    - "name": a class, or a list of classes, as text, also where that is a number
    - "multi": a list of classes, numbers or texts
    - "one-hot", "multi-hot": a list of 0 and 1, one for each class; ``uncertain`` says what -1 and
      None are among these: "no", "yes", or "leave-out" for the sample
    - "float": a number, or a list of as many numbers for each sample
    - "none": labels are ignored, and may be None

    ``class_names`` gives the name of each class in the order of their numbers, ``classes_of`` the
    packed dataset whose classes these samples take. ``max_bad`` is the share ("5%") or number of
    samples that may be left out because their image or label is bad; with more, nothing is
    published. ``progress`` shows a line on stderr, by default if that is a terminal. The other
    options are those of ``feeder pack``. Worker processes are fresh interpreters, so a script needs
    no ``if __name__ == "__main__"``.

    What ``samples`` raises propagates unchanged, and what was copied is kept. Raises ConfigError
    for arguments and samples that cannot be packed or are not those of the call to resume,
    DatasetError where nothing or too little is left to pack, and ResourceError for a full disk.
    """
    shown = sys.stderr.isatty() if progress is None else progress
    unseen = _Unseen()
    line = ProgressLine(sys.stderr) if shown else unseen
    try:
        with _worded_for_python():
            options = PackOptions(
                shards=shards,
                tile_width_px=tile_width,
                seed=seed,
                jobs=choose_jobs(jobs),
                max_bad=str(max_bad),
                apply_exif=apply_exif,
                png16_max=png16_max,
                classes_of=None if classes_of is None else parse_location(os.fspath(classes_of)),
                max_side=max_side,
                quality=quality,
                subsampling=subsampling,
            )
        return _pack(samples, Path(dst), options, labels, uncertain, class_names, line)
    finally:
        for text in unseen.warnings:
            warnings.warn(_name_arguments(text), stacklevel=2)


def _pack(
    samples: Iterable[tuple[str, ImageBytes, RawLabel]],
    folder: Path,
    options: PackOptions,
    labels: LabelChoice | None,
    uncertain: Uncertain | None,
    class_names: Sequence[str] | None,
    line: ProgressLine,
) -> PackedSamples:
    with _worded_for_python():
        load_known(options.classes_of)
        names = b"" if class_names is None else _encode_names(class_names)
        if labels not in (None, *get_args(LabelChoice)):
            raise ConfigError(f"labels {labels!r} is not one of {get_args(LabelChoice)}")
        if uncertain not in (None, *get_args(Uncertain)):
            raise ConfigError(f"uncertain {uncertain!r} is not one of {get_args(Uncertain)}")
        with explain_disk_errors("packing into", folder, _REMEDY):
            check_destination(folder)
            folder.mkdir(parents=True, exist_ok=True)
    with WorkFolder(folder) as work:
        with explain_disk_errors("packing into", folder, _REMEDY):
            work.lock()
            if (folder / MANIFEST_NAME).exists():
                return _finish_removal(work)
            names_path = work.path.absolute() / _CLASS_NAMES
            if names:
                write_output(names_path, names)
        spec = SourceSpec(
            kind="samples",
            location=LOCATION,
            containers=(),
            label_kind=labels,
            uncertain=uncertain or "",
            class_names_file=path_to_text(names_path) if names else "",
        )
        spec = spool_samples(samples, work, spec, line)
    with _worded_for_python():
        summary = pack_dataset(LOCATION, folder, options, line, spec=spec)
    return _result(folder, summary.manifest, summary.labels_read)


def _encode_names(names: Sequence[str]) -> bytes:
    """Write the names as lines, as --class-names takes them; ConfigError if they cannot be."""
    if isinstance(names, str) or not all(isinstance(name, str) for name in names):
        raise ConfigError("class_names is no list of texts: give one for each class, in order")
    for number, name in enumerate(names):
        if name.splitlines() != [name] or name.strip() != name:
            raise ConfigError(
                f"class_names[{number}] is {printable(name)!r}: give a line of text that neither "
                "begins nor ends with space"
            )
    return "".join(f"{name}\n" for name in names).encode("utf-8", "surrogateescape")


def _finish_removal(work: WorkFolder) -> PackedSamples:
    """Finish a packing that was killed while it removed its work folder, its last step."""
    folder = work.path.parent
    if (work.path / SPEC_NAME).exists() and find_spool(work) is None:
        raise ConfigError(f"{folder} is a complete dataset already: give another folder")
    manifest = load_manifest(folder)
    work.remove()
    return _result(folder, manifest, "")


def _result(folder: Path, manifest: Manifest, labels_read: str) -> PackedSamples:
    return PackedSamples(
        path=folder,
        samples=manifest.samples,
        classes=manifest.classes,
        labels=manifest.labels.kind,
        labels_read=labels_read,
        fingerprint=manifest.content,
        quarantined=manifest.quarantined,
        duplicates=manifest.duplicates,
    )


class _Unseen(ProgressLine):
    """Progress that is not shown, except what warns: texts for Python warnings."""

    def __init__(self) -> None:
        super().__init__(io.StringIO())
        self.warnings: list[str] = []

    def note(self, text: str) -> None:
        """Keep the text if it is a warning."""
        _, warning, what = text.partition("warning: ")
        if warning:
            self.warnings.append(f"feeder: {what}")


@contextlib.contextmanager
def _worded_for_python() -> Iterator[None]:
    """Put arguments in the place of command-line options in the errors of the body."""
    try:
        yield
    except FeederError as error:
        text = str(error).replace(CHECK_OPTIONS, "check the samples' bytes and labels")
        text = text.replace("run the same command again", _REMEDY)
        error.args = (_name_arguments(text),)
        raise


def _name_arguments(text: str) -> str:
    def name(match: re.Match[str]) -> str:
        option = match[1]
        argument = "labels" if option == "label-kind" else option.replace("-", "_")
        if option == "labels" or argument not in (pack_samples.__kwdefaults__ or {}):
            return match[0]
        rest = match[0].removeprefix(f"--{option}")
        return f"{argument}=" if rest and option in _TAKES_A_WORD else argument + rest

    return _OPTION.sub(name, text)

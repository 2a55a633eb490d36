"""The writers of other formats: script, environment and what each does with an image.

The environments are those of ``feeder-bench peers``, which ``make peers`` makes.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from ..rivals.catalogue import SCRIPTS


@dataclass(frozen=True, slots=True, kw_only=True)
class Writer:
    """One writer."""

    name: str
    script: Path
    environment: str
    work: str
    """On each image, in a few words."""
    variant: str = ""


_COPIES: Final = "copies the bytes"

WRITERS: Final = (
    Writer(
        name="ffcv-imagenet",
        script=SCRIPTS / "ffcv_writer.py",
        environment="ffcv",
        work="decodes; to 500 px; half as JPEG of quality 90, half as pixels",
        variant="imagenet",
    ),
    Writer(
        name="ffcv-jpg",
        script=SCRIPTS / "ffcv_writer.py",
        environment="ffcv",
        work="decodes; re-encodes at quality 90",
        variant="jpg",
    ),
    Writer(
        name="webdataset",
        script=SCRIPTS / "copying_writer.py",
        environment="webdataset",
        work=_COPIES,
        variant="webdataset",
    ),
    Writer(
        name="mds",
        script=SCRIPTS / "copying_writer.py",
        environment="streaming",
        work=_COPIES,
        variant="mds",
    ),
)

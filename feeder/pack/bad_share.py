"""How many bad images a packing may leave out: ``--max-bad``."""

import re
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feeder.dataset.writer import write_atomically
from feeder.errors import ConfigError, DatasetError
from feeder.pack.work_folder import QuarantineEntry, encode_quarantine
from feeder.process.path_text import printable

_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)(%?)")
DEFAULT: Final = "5%"


class TooManyBadImages(DatasetError):  # noqa: N818 -- names what happened
    """Raised when more images are bad than may be left out; what was done is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLimit:
    """A share of all images, or a number of them where ``share`` is None."""

    option: str
    """As the user gave it, for messages."""
    share: float | None
    count: int

    @classmethod
    def parse(cls, text: str) -> "BadLimit":
        """Return the limit that ``text`` names: "5%", or a number of images such as "20"."""
        found = _TEXT.fullmatch(text.strip())
        if found is None or (not found[2] and "." in found[1]):
            raise ConfigError(
                f"--max-bad {text}: give a share such as 5%, or a number of images such as 20"
            )
        if not found[2]:
            return cls(option=f"--max-bad {text}", share=None, count=int(found[1]))
        share = float(found[1]) / 100
        if share > 1:
            raise ConfigError(f"--max-bad {text} is more than 100%")
        return cls(option=f"--max-bad {text}", share=share, count=0)

    def allowed(self, files: int) -> int:
        """Return how many of ``files`` images may be bad."""
        return self.count if self.share is None else int(self.share * files + 1e-9)

    def check(self, bad: Sequence[QuarantineEntry], files: int, work_folder: Path) -> None:
        """Raise TooManyBadImages if more than allowed of ``files`` images are ``bad``.

        Then the list of these is in ``work_folder``, and nothing is published.
        """
        if len(bad) <= self.allowed(files):
            return
        path = work_folder / "quarantine.jsonl"
        ordered = sorted(bad, key=lambda entry: entry.path)
        write_atomically(path, encode_quarantine(ordered))
        first = ordered[0]
        kinds = Counter(entry.kind for entry in bad).most_common()
        counts = ", ".join(f"{count:,} {kind}" for kind, count in kinds)
        share = 100 * len(bad) / files
        raise TooManyBadImages(
            f"{len(bad):,} of {files:,} images are bad ({counts}), more than "
            f"{self.option}: first {printable(first.path)}, {first.kind} ({first.reason}); all are "
            f"in {path}; repair or remove them, or leave them out with --max-bad "
            f"{min(100, int(share) + 1)}%"
        )

"""How many bad images a packing may leave out: ``--max-bad``."""

import re
from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feeder.dataset.manifest import QUARANTINE_NAME
from feeder.errors import ConfigError, DatasetError
from feeder.pack.work_folder import QuarantineEntry, encode_quarantine
from feeder.process.path_text import printable
from feeder.survey.numbers import plural

_TEXT: Final = re.compile(r"(\d+(?:\.\d+)?)(%?)")
DEFAULT: Final = "5%"
CHECK_OPTIONS: Final = "check --source, --image and --label"


class TooManyBadImages(DatasetError):  # noqa: N818 -- names what happened
    """Raised when more images are bad than may be left out; what was done is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BadLimit:
    """A share of all images, or a number of them where ``share`` is None."""

    option: str
    """As the user gave it, for messages."""
    share: float | None
    count: int
    is_strict: bool = False
    """Whether --strict set it."""

    @classmethod
    def strict(cls) -> "BadLimit":
        """Return the limit of --strict."""
        return cls(option="--strict allows", share=None, count=0, is_strict=True)

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

    def check(
        self,
        count: int,
        bad: Iterable[QuarantineEntry],
        files: int,
        work_folder: Path,
        *,
        untried: int,
    ) -> None:
        """Raise TooManyBadImages if ``count`` is more than may be bad of ``files`` images, or all.

        ``bad`` are these images, which are read only then, one by one: their list goes to
        ``work_folder``. ``untried`` of the other images may turn out to be bad, too.
        """
        if not count or (count <= self.allowed(files) and count < files):
            return
        path = work_folder / QUARANTINE_NAME
        kinds: Counter[str] = Counter()
        first: QuarantineEntry | None = None
        with path.open("wb", buffering=1 << 20) as file:
            for entry in bad:
                kinds[entry.kind] += 1
                first = entry if first is None else min(first, entry, key=lambda each: each.path)
                file.write(encode_quarantine([entry]))
        assert first is not None, "more than none are bad"
        counts = ", ".join(f"{number:,} {kind}" for kind, number in kinds.most_common())
        limit = "" if count <= self.allowed(files) else f", more than {self.option}"
        listed = f"the list is {path}" if count == 1 else f"all are in {path}"
        raise TooManyBadImages(
            f"{count:,} of {plural(files, 'image')} {'is' if count == 1 else 'are'} bad ({counts})"
            f"{limit}: first "
            f"{printable(first.path)}, {first.kind} ({first.reason}); {listed}; "
            f"{self._remedy(count, files, untried)}"
        )

    def _remedy(self, count: int, files: int, untried: int) -> str:
        if count >= files:
            return f"{CHECK_OPTIONS}: none of the images can be packed like this"
        if self.is_strict:
            way = "pack without --strict"
        elif self.share is None:
            way = f"leave them out with --max-bad {count}"
        else:
            way = f"leave them out with --max-bad {100 * count // files + 1}%"
        more = f" or more: {plural(untried, 'image is', 'images are')} not tried yet"
        return f"repair or remove them, or {way}{more if untried else ''}"

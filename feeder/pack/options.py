"""How to pack: options with their ranges, and what they leave to the size of the source."""

import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

from feeder.convert.decode_picture import WHITE_U16
from feeder.convert.lossy import SubsamplingName
from feeder.convert.prepare import SourceOptions
from feeder.dataset.files import Location
from feeder.dataset.manifest import QUARANTINE_NAME
from feeder.errors import ConfigError, DatasetError
from feeder.jpeg.recode import TILE_WIDTHS_PX
from feeder.pack.split import SplitOptions
from feeder.pack.work_folder import QuarantineEntry, encode_quarantine
from feeder.plan.epoch import MAX_SEED, MAX_SHARDS
from feeder.process.path_text import printable
from feeder.survey.numbers import plural

_SHARD_BYTES: Final = 256 << 20  # large enough to read in sequence, small enough to move around
_SHARDS_MIN: Final = 8  # of a small source: parts that worker processes pack side by side
_SHARD_SAMPLES_MIN: Final = 8  # fewer shards than _SHARDS_MIN where they would hold fewer samples
_SHARDS_STEP: Final = 256  # any power of two of hosts up to this one reads equal numbers of shards
_FORCED_QUALITY: Final = 95  # of images that cannot stay as they are; training notices no loss
_SIDE_PX_MIN: Final = 16
_SIDE_PX_MAX: Final = 65_500  # libjpeg's
_BAD_LIMIT: Final = re.compile(r"(\d+(?:\.\d+)?)(%?)")
CHECK_OPTIONS: Final = "check --source, --image and --label"


class TooManyBadImages(DatasetError):  # noqa: N818 -- names what happened
    """Raised when more images are bad than may be left out; what was done is kept."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How to pack; None chooses by the size of the source."""

    shards: int | None = None
    tile_width_px: int = 32  # 64 decodes 7 % more, 16 takes 2 % more storage
    seed: int = 0
    jobs: int = 1
    strict: bool = False
    max_bad: str = "5%"
    apply_exif: bool = False  # as torchvision
    classes_of: Location | None = None  # a packed dataset whose classes and labels this one takes
    split: SplitOptions | None = None
    max_side: int | None = None
    quality: int | None = None  # None: only what must be re-encoded is, at 95 and 4:4:4
    subsampling: SubsamplingName | None = None
    png16_max: int = WHITE_U16
    reading: Mapping[str, Any] = field(default_factory=dict)
    """The user's choices about the source: arguments of ``recognise``."""

    def __post_init__(self) -> None:
        ranges: tuple[tuple[str, int | None, int, int], ...] = (
            ("--shards", self.shards, 1, MAX_SHARDS),
            ("--seed", self.seed, 0, MAX_SEED),
            ("--quality", self.quality, 1, 100),
            ("--max-side", self.max_side, _SIDE_PX_MIN, _SIDE_PX_MAX),
            ("--png16-max", self.png16_max, 1, WHITE_U16),
        )
        for name, value, low, high in ranges:
            if value is not None and not low <= value <= high:
                raise ConfigError(f"{name} {value} is not within {low} .. {high}")
        if self.tile_width_px not in TILE_WIDTHS_PX:
            raise ConfigError(f"--tile-width {self.tile_width_px} is not one of {TILE_WIDTHS_PX}")
        self.allowed_bad(0)

    def allowed_bad(self, files: int) -> int:
        """Return how many of ``files`` images may be bad.

        ``max_bad`` is a share ("5%") or a number ("20"); ConfigError for any other text.
        """
        match = _BAD_LIMIT.fullmatch(self.max_bad.strip())
        if match is None or (not match[2] and "." in match[1]):
            raise ConfigError(
                f"--max-bad {self.max_bad}: give a share such as 5%, or a number of images such "
                "as 20"
            )
        number = float(match[1])
        if match[2] and number > 100:
            raise ConfigError(f"--max-bad {self.max_bad} is more than 100%")
        if self.strict:
            return 0
        return int(number / 100 * files + 1e-9) if match[2] else int(number)

    def check_bad(
        self, bad: Sequence[QuarantineEntry], files: int, work_folder: Path, *, untried: int
    ) -> None:
        """Raise TooManyBadImages if ``bad`` are more than may be bad of ``files``, or all of them.

        Their list goes to ``work_folder``. ``untried`` of the others may turn out to be bad, too.
        """
        count = len(bad)
        is_over = count > self.allowed_bad(files)
        if not count or (not is_over and count < files):
            return
        path = work_folder / QUARANTINE_NAME
        path.write_bytes(encode_quarantine(bad))
        kinds = Counter(entry.kind for entry in bad)
        first = min(bad, key=lambda entry: entry.path)
        limit = "--strict allows" if self.strict else f"--max-bad {self.max_bad}"
        raise TooManyBadImages(
            f"{count:,} of {plural(files, 'image')} {'is' if count == 1 else 'are'} bad "
            f"({', '.join(f'{number:,} {kind}' for kind, number in kinds.most_common())})"
            f"{f', more than {limit}' if is_over else ''}: first "
            f"{printable(first.path)}, {first.kind} ({first.reason}); "
            f"{'the list is' if count == 1 else 'all are in'} {path}; "
            f"{self._remedy(count, files, untried)}"
        )

    def _remedy(self, count: int, files: int, untried: int) -> str:
        if count >= files:
            return f"{CHECK_OPTIONS}: none of the images can be packed like this"
        if self.strict:
            way = "pack without --strict"
        elif self.max_bad.strip().endswith("%"):
            way = f"leave them out with --max-bad {100 * count // files + 1}%"
        else:
            way = f"leave them out with --max-bad {count}"
        more = f" or more: {plural(untried, 'image is', 'images are')} not tried yet"
        return f"repair or remove them, or {way}{more if untried else ''}"

    @property
    def split_text(self) -> str:
        """What a resumed packing must have in common with this; empty for all items."""
        return "" if self.split is None else self.split.describe()

    @property
    def conversion(self) -> SourceOptions:
        """The options that shape a sample's bytes."""
        return SourceOptions(
            tile_width_px=self.tile_width_px,
            apply_exif=self.apply_exif,
            quality=_FORCED_QUALITY if self.quality is None else self.quality,
            max_side=self.max_side,
            subsampling=self.subsampling,
            reencode=self.quality is not None,
            png16_max=self.png16_max,
        )

    def choose_shards(self, files: int, total_bytes: int) -> int:
        """Choose the number of shards for ``files`` of ``total_bytes``.

        By default one for each 256 MiB, at least 8 if each would then hold 8 files. The number is
        rounded up to a power of two, and above 256 to a multiple of 256, so that hosts or processes
        of many numbers read equal numbers of shards; it is never more than the files. Raises
        ConfigError if more shards than files are requested.
        """
        if self.shards is None:
            needed = max(
                -(-total_bytes // _SHARD_BYTES), min(_SHARDS_MIN, files // _SHARD_SAMPLES_MIN), 1
            )
            even = -(-needed // _SHARDS_STEP) * _SHARDS_STEP
            if needed <= _SHARDS_STEP:
                even = 1 << (needed - 1).bit_length()
            return min(even, files, MAX_SHARDS)
        if self.shards > files:
            raise ConfigError(
                f"--shards {self.shards} is more than the {plural(files, 'file')} to pack: use "
                "fewer"
            )
        return self.shards

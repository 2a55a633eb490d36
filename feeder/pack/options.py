"""How to pack: options with their ranges, and what they leave to the size of the source."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final, Literal

from feeder.convert.deep_levels import WHITE_U16
from feeder.convert.lossy import SubsamplingName
from feeder.convert.prepare import SourceOptions
from feeder.errors import ConfigError
from feeder.jpeg.recode import TILE_WIDTHS_PX
from feeder.pack.bad_share import DEFAULT, BadLimit
from feeder.pack.split import SplitOptions
from feeder.plan.epoch import MAX_SEED, MAX_SHARDS
from feeder.plan.labels import LabelChoice, Uncertain
from feeder.survey.numbers import plural

_SHARD_BYTES: Final = 256 << 20  # large enough to read in sequence, small enough to move around
_SHARDS_MIN: Final = 8  # of a small source: parts that worker processes pack side by side
_SHARD_SAMPLES_MIN: Final = 8  # fewer shards than _SHARDS_MIN where they would hold fewer samples
_SHARDS_STEP: Final = 256  # any power of two of hosts up to this one reads equal numbers of shards
_FORCED_QUALITY: Final = 95  # of images that cannot stay as they are; training notices no loss
_SIDE_PX_MIN: Final = 16
_SIDE_PX_MAX: Final = 65_500  # libjpeg's


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChoices:
    """The user's choices about the source; empty or None: found by looking."""

    kind: str | None = None
    image: str = ""
    label: str = ""
    label_kind: LabelChoice | None = None
    uncertain: Uncertain | Literal[""] = ""
    label_base: int | None = None
    labels_file: str = ""
    class_names_file: str = ""
    split: str = ""
    all_splits: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How to pack; None chooses by the size of the source."""

    shards: int | None = None
    tile_width_px: int = 32  # 64 decodes 7 % more, 16 takes 2 % more storage
    seed: int = 0
    jobs: int = 1
    strict: bool = False
    max_bad: str = DEFAULT
    apply_exif: bool = False  # as torchvision
    classes_of: Path | None = None  # a packed dataset whose classes and labels this one takes
    split: SplitOptions | None = None
    max_side: int | None = None
    quality: int | None = None  # None: only what must be re-encoded is, at 95 and 4:4:4
    subsampling: SubsamplingName | None = None
    png16_max: int = WHITE_U16
    reading: SourceChoices = SourceChoices()

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
        _ = self.bad_limit

    @property
    def bad_limit(self) -> BadLimit:
        """How many images may be left out; ConfigError if the text has no meaning."""
        if self.strict:
            return BadLimit.strict()
        return BadLimit.parse(self.max_bad)

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


def choose_shards(files: int, total_bytes: int, options: PackOptions) -> int:
    """Return the number of shards for ``files`` of ``total_bytes``.

    By default one for each 256 MiB, at least 8 if each would then hold 8 files. The number is
    rounded up to a power of two, and above 256 to a multiple of 256, so that hosts or processes of
    many numbers read equal numbers of shards; it is never more than the files. Raises ConfigError
    if more shards than files are requested.
    """
    if options.shards is None:
        needed = max(
            -(-total_bytes // _SHARD_BYTES), min(_SHARDS_MIN, files // _SHARD_SAMPLES_MIN), 1
        )
        if needed <= _SHARDS_STEP:
            even = 1 << (needed - 1).bit_length()
        else:
            even = -(-needed // _SHARDS_STEP) * _SHARDS_STEP
        return min(even, files, MAX_SHARDS)
    if options.shards > files:
        raise ConfigError(
            f"--shards {options.shards} is more than the {plural(files, 'file')} to pack: use fewer"
        )
    return options.shards

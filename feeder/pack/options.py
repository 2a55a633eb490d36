"""How to pack: options with their ranges, and what they leave to the size of the source."""

from dataclasses import dataclass
from pathlib import Path
from typing import Final

from feeder.convert.lossy import SubsamplingName
from feeder.convert.prepare import SourceOptions
from feeder.errors import ConfigError
from feeder.jpeg.recode import TILE_WIDTHS_PX
from feeder.pack.bad_share import DEFAULT, BadLimit
from feeder.pack.split import SplitOptions
from feeder.plan.epoch import MAX_SEED, MAX_SHARDS
from feeder.plan.labels import LabelKind

_SHARD_BYTES: Final = 256 << 20  # large enough to read in sequence, small enough to move around
_LANES: Final = 8  # node processes that may share a dataset evenly
_SHARD_SAMPLES_MIN: Final = 8  # with fewer, lanes would hold no whole batch
_FORCED_QUALITY: Final = 95  # of images that cannot stay as they are; training notices no loss
_SIDE_PX_MIN: Final = 16
_SIDE_PX_MAX: Final = 65_500  # libjpeg's


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceChoices:
    """The user's choices about the source; empty or None: found by looking."""

    kind: str | None = None
    image: str = ""
    label: str = ""
    label_kind: LabelKind | None = None
    label_base: int | None = None
    labels_file: str = ""
    class_names_file: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class PackOptions:
    """How to pack; None chooses by the size of the source."""

    shards: int | None = None
    lanes: int | None = None
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
    reading: SourceChoices = SourceChoices()

    def __post_init__(self) -> None:
        ranges: tuple[tuple[str, int | None, int, int], ...] = (
            ("--shards", self.shards, 1, MAX_SHARDS),
            ("--lanes", self.lanes, 1, MAX_SHARDS),
            ("--seed", self.seed, 0, MAX_SEED),
            ("--quality", self.quality, 1, 100),
            ("--max-side", self.max_side, _SIDE_PX_MIN, _SIDE_PX_MAX),
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
        )


def choose_layout(files: int, total_bytes: int, options: PackOptions) -> tuple[int, int]:
    """Return the numbers of shards and lanes; ConfigError if those requested do not fit."""
    if options.shards is None:
        shards = max(-(-total_bytes // _SHARD_BYTES), min(_LANES, files // _SHARD_SAMPLES_MIN), 1)
        if shards > _LANES:
            shards = -(-shards // _LANES) * _LANES  # the same number in each lane
        shards = min(shards, files, MAX_SHARDS)
    else:
        shards = options.shards
    if shards > files:
        raise ConfigError(f"--shards {shards} is more than the {files} files to pack: use fewer")
    if options.lanes is None:
        divisors = [n for n in range(_LANES // 2, _LANES + 1) if shards % n == 0]
        lanes = max(divisors, default=min(shards, _LANES))
    else:
        lanes = options.lanes
    if lanes > shards:
        raise ConfigError(f"--lanes {lanes} is more than the {shards} shards: use fewer")
    return shards, lanes

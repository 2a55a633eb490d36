"""Turns a source file into a tiled JPEG, or gives the reason for its quarantine.

The first bytes of a file decide its format, not its suffix. JPEGs are re-coded without loss; the
few that cannot be (CMYK and YCCK, rare codings) and images of other formats become RGB as Pillow's
``convert("RGB")`` makes it, which is what training code sees through torchvision: alpha is dropped,
an animation's first frame is taken, ICC profiles are ignored. They are encoded as JPEG at the given
quality without chroma subsampling, then tiled. 16 bits a sample become 8 (``decode_picture``).

Options that accept loss (``lossy``) re-encode the images that they change, and leave the others
without loss. No image is encoded more than once, and which files go to quarantine depends on no
option.
"""

import contextlib
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import PurePosixPath
from typing import Final, NamedTuple, cast

from PIL import Image

from feeder.convert.decode_picture import (
    UPRIGHT,
    WHITE_U16,
    check_cmyk,
    decode_picture,
    read_orientation,
)
from feeder.convert.jpeg_header import Frame, read_frame
from feeder.convert.lossy import (
    SubsamplingName,
    decode_undamaged,
    encode_jpeg,
    limit_size,
    shrink,
    turn_upright,
)
from feeder.dataset.format import Oddity
from feeder.jpeg.recode import RecodeError, Subsampling, TiledJpeg, tile_jpeg, transform_jpeg
from feeder.source.item_bytes import (
    JPEG,
    JPEG_SUFFIXES,
    SNIFF_BYTES,
    FaultKind,
    SourceError,
    describe_foreign,
    sniff_format,
)

_FORMAT_BY_SUFFIX = {
    **dict.fromkeys(JPEG_SUFFIXES, JPEG),
    ".png": "PNG",
    ".webp": "WEBP",
    ".gif": "GIF",
    **dict.fromkeys((".bmp", ".dib"), "BMP"),
    **dict.fromkeys((".tif", ".tiff"), "TIFF"),
    **dict.fromkeys((".ppm", ".pgm", ".pbm", ".pnm"), "PPM"),
}
_CONVERTED = {
    "cmyk": Oddity.CMYK,
    "unsupported": Oddity.RARE_JPEG,
    "incomplete": Oddity.RARE_JPEG | Oddity.WARNED,
}
"""JPEGs that cannot be tiled as they are, by the kind of error; others are faults."""


_NAMES: Final[dict[Subsampling, SubsamplingName]] = {
    Subsampling.S444: "444",
    Subsampling.S422: "422",
    Subsampling.S420: "420",
}
_SWAPPED: Final = {Subsampling.S422: Subsampling.S440, Subsampling.S440: Subsampling.S422}


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceOptions:
    """The packing options that shape a sample's bytes."""

    tile_width_px: int
    apply_exif: bool
    quality: int
    """JPEG quality of re-encoded images."""
    max_side: int | None = None
    """Longer side in pixels that larger images are resized to; None: any size."""
    subsampling: SubsamplingName | None = None
    """Of colour images; JPEGs with another are re-encoded. None: any, and 4:4:4 for images of other
    formats."""
    reencode: bool = False
    """Whether JPEGs are re-encoded even where nothing else requires it."""
    png16_max: int = WHITE_U16
    """The level that becomes white in images with 16 bits a sample."""

    @property
    def keep_all(self) -> bool:
        """Whether these options change no JPEG."""
        return not self.reencode and self.max_side is None and self.subsampling is None

    def change(self, frame: Frame, orientation: int) -> bool:
        """Whether these options re-encode a JPEG; ``orientation`` is what to apply to it."""
        size = (frame.width, frame.height)
        if self.reencode or limit_size(*size, self.max_side) != size:
            return True
        subsampling = _turned_subsampling(frame, orientation)
        is_grey = subsampling is Subsampling.GREY
        return not is_grey and self.subsampling not in (None, _NAMES.get(subsampling))

    def choose_subsampling(self, frame: Frame | None, orientation: int) -> SubsamplingName:
        """Choose that of a re-encoded image: as asked for, else that of its JPEG, else 4:4:4.

        4:4:0 and 4:1:1 become 4:4:4, too: they lose no chroma this way, and decode faster.
        """
        if self.subsampling is not None or frame is None:
            return self.subsampling or "444"
        return _NAMES.get(_turned_subsampling(frame, orientation), "444")


def _turned_subsampling(frame: Frame, orientation: int) -> Subsampling:
    turned = frame.subsampling
    return _SWAPPED.get(turned, turned) if orientation >= 5 else turned


class SourceSample(NamedTuple):
    """A source file as a tiled JPEG, and its oddities."""

    tiled: TiledJpeg
    flags: Oddity
    level_max: int = 0
    """The highest level of an image with 16 bits a sample; else 0."""


def prepare_sample(data: bytes, name: str, options: SourceOptions) -> SourceSample:
    """Turn the content of the file ``name`` into a tiled JPEG; SourceError if that fails."""
    format_name = sniff_format(data[:SNIFF_BYTES])
    if format_name is None:
        raise describe_foreign(data[:SNIFF_BYTES])
    flags = Oddity(0)
    if _FORMAT_BY_SUFFIX.get(PurePosixPath(name).suffix.lower(), format_name) != format_name:
        flags |= Oddity.WRONG_SUFFIX
    try:
        if format_name == JPEG:
            return _prepare_jpeg(data, flags, options)
        return _convert(data, format_name, flags | Oddity[format_name], options)
    except RecodeError as error:
        raise SourceError(cast(FaultKind, error.kind), error.reason) from None


def _prepare_jpeg(data: bytes, flags: Oddity, options: SourceOptions) -> SourceSample:
    orientation = read_orientation(data)
    if orientation != UPRIGHT and not options.apply_exif:
        flags |= Oddity.EXIF_IGNORED
        orientation = UPRIGHT
    # Ordinary JPEGs are decoded at once: re-coding only to find damage takes longer than decoding,
    # shrinking and encoding. Where the decoder complains, they go the way of all others.
    frame = None if options.keep_all else read_frame(data)
    if frame is not None and options.change(frame, orientation):
        with _too_large():
            picture = decode_undamaged(data, frame)
        if picture is not None:
            return _encode(picture, flags | Oddity.REENCODED, options, frame, orientation)
    try:
        tiled = tile_jpeg(data, options.tile_width_px)
        if tiled.was_progressive:
            flags |= Oddity.PROGRESSIVE
        if tiled.was_arithmetic:
            flags |= Oddity.ARITHMETIC
        if tiled.warnings:
            flags |= Oddity.WARNED
        frame = Frame(width=tiled.width, height=tiled.height, subsampling=tiled.subsampling)
        if options.change(frame, orientation):
            flags |= Oddity.REENCODED
        elif orientation == UPRIGHT:
            return SourceSample(tiled, flags)
        else:
            upright = transform_jpeg(data, orientation)
            if upright is not None:
                tiled = tile_jpeg(upright, options.tile_width_px)
                return SourceSample(tiled, flags | Oddity.EXIF_APPLIED)
            flags |= Oddity.EXIF_REENCODED
            frame = None
    except RecodeError as error:
        if error.kind not in _CONVERTED:
            raise
        if error.kind == "cmyk":
            check_cmyk(data)
        flags |= _CONVERTED[error.kind]
        frame = None
    return _convert(data, JPEG, flags, options, frame, orientation)


def _convert(
    data: bytes,
    format_name: str,
    flags: Oddity,
    options: SourceOptions,
    frame: Frame | None = None,
    orientation: int = UPRIGHT,
) -> SourceSample:
    """Decode with Pillow and encode as JPEG; ``frame`` and ``orientation`` are a JPEG's."""
    with _too_large():
        picture = decode_picture(data, format_name, options.png16_max)
    if picture.orientation != UPRIGHT:
        if options.apply_exif:
            orientation = picture.orientation
        else:
            flags |= Oddity.EXIF_IGNORED
    if picture.warned:
        flags |= Oddity.WARNED
    if picture.clips:
        flags |= Oddity.CLIPPED
    sample = _encode(picture.image, flags, options, frame, orientation)
    return sample._replace(level_max=picture.level_max)


def _encode(
    picture: Image.Image,
    flags: Oddity,
    options: SourceOptions,
    frame: Frame | None,
    orientation: int,
) -> SourceSample:
    """Turn upright, shrink, encode and tile."""
    chroma = options.choose_subsampling(frame, orientation)
    with _too_large():
        upright = turn_upright(picture, orientation)
        smaller = shrink(upright, options.max_side)
        tiled = tile_jpeg(encode_jpeg(smaller, options.quality, chroma), options.tile_width_px)
    if smaller is not upright:
        flags |= Oddity.RESIZED
    if upright is not picture and Oddity.EXIF_REENCODED not in flags:
        flags |= Oddity.EXIF_APPLIED
    return SourceSample(tiled, flags)


@contextlib.contextmanager
def _too_large() -> Iterator[None]:
    """Raise MemoryErrors of the body as SourceErrors."""
    try:
        yield
    except MemoryError:
        raise SourceError("too-large", "not enough memory to decode it") from None

"""Turns a source file into a tiled JPEG, or gives the reason for its quarantine.

The first bytes of a file decide its format, not its suffix. JPEGs are re-coded without loss; the
few that cannot be (CMYK and YCCK, rare codings) and images of other formats become RGB as Pillow's
``convert("RGB")`` makes it, which is what training code sees through torchvision: alpha is dropped,
an animation's first frame is taken, ICC profiles are ignored. They are encoded as JPEG at the given
quality without chroma subsampling, then tiled. 16 bits a sample become 8 (``deep_levels``).

Options that accept loss (``feeder.convert.lossy``) re-encode the images that they change, and leave
the others without loss. No image is encoded more than once, and which files go to quarantine
depends on no option.
"""

from dataclasses import dataclass, replace
from pathlib import PurePosixPath
from typing import cast

from PIL import Image

from feeder.convert.decode_picture import (
    NO_MEMORY,
    UPRIGHT,
    check_cmyk,
    decode_picture,
    read_orientation,
)
from feeder.convert.deep_levels import WHITE_U16
from feeder.convert.jpeg_header import Frame, read_frame
from feeder.convert.lossy import (
    SubsamplingName,
    decode_undamaged,
    encode_jpeg,
    has_subsampling,
    kept_subsampling,
    limit_size,
    shrink,
    turn_upright,
    turned_subsampling,
)
from feeder.dataset.format import Oddity
from feeder.jpeg.recode import RecodeError, TiledJpeg, tile_jpeg, transform_jpeg
from feeder.source.item_bytes import (
    JPEG,
    JPEG_SUFFIXES,
    SNIFF_BYTES,
    FaultKind,
    SourceError,
    describe_foreign,
    sniff_format,
)

_FLAGS = {
    "PNG": Oddity.PNG,
    "WEBP": Oddity.WEBP,
    "GIF": Oddity.GIF,
    "BMP": Oddity.BMP,
    "TIFF": Oddity.TIFF,
    "PPM": Oddity.PPM,
}
_FORMAT_BY_SUFFIX = {
    **dict.fromkeys(JPEG_SUFFIXES, JPEG),
    ".png": "PNG",
    ".webp": "WEBP",
    ".gif": "GIF",
    ".bmp": "BMP",
    ".dib": "BMP",
    ".tif": "TIFF",
    ".tiff": "TIFF",
    **dict.fromkeys((".ppm", ".pgm", ".pbm", ".pnm"), "PPM"),
}


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
        """Return whether these options re-encode a JPEG; ``orientation`` is what to apply to it."""
        subsampling = turned_subsampling(frame.subsampling, orientation)
        return (
            self.reencode
            or limit_size(frame.width, frame.height, self.max_side) != (frame.width, frame.height)
            or not has_subsampling(subsampling, self.subsampling)
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceSample:
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
    if format_name == JPEG:
        return _prepare_jpeg(data, flags, options)
    return _convert(data, format_name, flags | _FLAGS[format_name], options)


def _prepare_jpeg(data: bytes, flags: Oddity, options: SourceOptions) -> SourceSample:
    orientation = read_orientation(data)
    if orientation != UPRIGHT and not options.apply_exif:
        flags |= Oddity.EXIF_IGNORED
        orientation = UPRIGHT
    frame = None if options.keep_all else read_frame(data)
    if frame is not None and options.change(frame, orientation):
        picture = _decode_ordinary(data, frame)
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
            return _convert(data, JPEG, flags | Oddity.REENCODED, options, frame, orientation)
        if orientation != UPRIGHT:
            upright = transform_jpeg(data, orientation)
            if upright is None:
                flags |= Oddity.EXIF_REENCODED
                return _convert(data, JPEG, flags, options, orientation=orientation)
            tiled = tile_jpeg(upright, options.tile_width_px)
            flags |= Oddity.EXIF_APPLIED
    except RecodeError as error:
        if error.kind == "cmyk":
            check_cmyk(data)
            flags |= Oddity.CMYK
        elif error.kind == "unsupported":
            flags |= Oddity.RARE_JPEG
        elif error.kind == "incomplete":
            flags |= Oddity.RARE_JPEG | Oddity.WARNED
        else:
            raise _fault(error) from None
        return _convert(data, JPEG, flags, options, orientation=orientation)
    return SourceSample(tiled=tiled, flags=flags)


def _fault(error: RecodeError) -> SourceError:
    """Return the error as one of the source; those that are converted have other kinds."""
    return SourceError(cast(FaultKind, error.kind), error.reason)


def _decode_ordinary(data: bytes, frame: Frame) -> Image.Image | None:
    """Decode an ordinary JPEG; None where the decoder complains.

    That is faster than what other JPEGs go through: re-coding only to find damage takes longer than
    decoding, shrinking and encoding.
    """
    try:
        return decode_undamaged(data, frame)
    except MemoryError:
        raise SourceError("too-large", NO_MEMORY) from None


def _convert(
    data: bytes,
    format_name: str,
    flags: Oddity,
    options: SourceOptions,
    frame: Frame | None = None,
    orientation: int = UPRIGHT,
) -> SourceSample:
    """Decode with Pillow and encode as JPEG; ``frame`` and ``orientation`` are a JPEG's."""
    picture = decode_picture(data, format_name, options.png16_max)
    if picture.orientation != UPRIGHT:
        if options.apply_exif:
            orientation = picture.orientation
        else:
            flags |= Oddity.EXIF_IGNORED
    if picture.warned:
        flags |= Oddity.WARNED
    if picture.rgb.clips:
        flags |= Oddity.CLIPPED
    sample = _encode(picture.rgb.image, flags, options, frame, orientation)
    return replace(sample, level_max=picture.rgb.level_max)


def _encode(
    picture: Image.Image,
    flags: Oddity,
    options: SourceOptions,
    frame: Frame | None,
    orientation: int,
) -> SourceSample:
    """Turn upright, shrink, encode and tile.

    The subsampling is the one that the options ask for, else that of ``frame``, else 4:4:4.
    """
    chroma = options.subsampling or "444"
    if options.subsampling is None and frame is not None:
        chroma = kept_subsampling(turned_subsampling(frame.subsampling, orientation))
    try:
        upright = turn_upright(picture, orientation)
        smaller = shrink(upright, options.max_side)
        encoded = encode_jpeg(smaller, options.quality, chroma)
        tiled = tile_jpeg(encoded, options.tile_width_px)
    except MemoryError:
        raise SourceError("too-large", NO_MEMORY) from None
    except RecodeError as error:
        raise _fault(error) from None
    if smaller is not upright:
        flags |= Oddity.RESIZED
    if upright is not picture and Oddity.EXIF_REENCODED not in flags:
        flags |= Oddity.EXIF_APPLIED
    return SourceSample(tiled=tiled, flags=flags)

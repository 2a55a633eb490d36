"""What each odd kind and each reason for leaving an image out means, in a sentence or two."""

from typing import Final, NamedTuple


class OddKind(NamedTuple):
    """What the survey writes about an odd kind of source."""

    title: str
    effect: str
    """On the pixels, in a word or two; empty where that depends on other kinds."""
    meaning: str
    """What the source was, and what packing did."""


UNCHANGED: Final = "pixels unchanged"
CONVERTED: Final = "converted"


def _other_format(title: str, loss: str = "") -> OddKind:
    meaning = f"Packing decoded it, converted it to RGB, and encoded it as a JPEG.{loss}"
    return OddKind(title, CONVERTED, meaning)


_ANIMATION: Final = " Transparency is dropped; of an animation, the first frame is kept."

ODD_KINDS: Final[dict[str, OddKind]] = {
    "png": _other_format("PNG", " Transparency is dropped; 16 bits a sample become 8."),
    "webp": _other_format("WebP", _ANIMATION),
    "gif": _other_format("GIF", _ANIMATION),
    "bmp": _other_format("BMP"),
    "tiff": _other_format("TIFF", " Only the first page is kept."),
    "ppm": _other_format("PBM, PGM or PPM"),
    "progressive": OddKind(
        "Progressive JPEG",
        UNCHANGED,
        "The file holds the image as a series of scans. Packing re-coded it without loss.",
    ),
    "arithmetic": OddKind(
        "Arithmetic-coded JPEG",
        UNCHANGED,
        "Many programs cannot read this coding. Packing re-coded it without loss.",
    ),
    "cmyk": OddKind(
        "CMYK JPEG",
        CONVERTED,
        "The file has four channels, for print. Packing converted it to RGB as Pillow does, "
        "without a colour profile, and encoded it again. Check that the colours look right.",
    ),
    "rare-jpeg": OddKind(
        "Rare kind of JPEG",
        CONVERTED,
        "Its coding, chroma subsampling or quantisation tables cannot be cut into tiles, some of "
        "its scans are missing, or damage left it with values that decoders treat differently. "
        "Packing decoded it and encoded it again.",
    ),
    "wrong-suffix": OddKind(
        "Wrong suffix",
        "",
        "The name ends in the suffix of another format. Packing goes by the bytes; the name is "
        "kept.",
    ),
    "warned": OddKind(
        "Decoder warnings",
        "",
        "The decoder reported a defect that does not stop it, such as stray bytes. Check that the "
        "pictures are complete.",
    ),
    "exif-ignored": OddKind(
        "EXIF rotation ignored",
        UNCHANGED,
        "The file asks viewers to rotate or mirror the image. Packing left it as it is stored, as "
        "torchvision does. If the pictures lie on their side, pack with --apply-exif.",
    ),
    "exif-applied": OddKind(
        "EXIF rotation applied",
        "rotated",
        "The file asks viewers to rotate or mirror the image. Packing turned it upright; without "
        "loss, unless it is also listed as encoded again.",
    ),
    "exif-reencoded": OddKind(
        "EXIF rotation, encoded again",
        CONVERTED,
        "The image had to be rotated, and its size does not allow that without loss. Packing "
        "decoded it and encoded it again.",
    ),
    "resized": OddKind(
        "Resized",
        CONVERTED,
        "The image was larger than --max-side. Packing shrank it and encoded it again.",
    ),
    "reencoded": OddKind(
        "JPEG encoded again",
        CONVERTED,
        "The file was a JPEG that could have stayed as it was. Packing decoded it and encoded it "
        "again because of --max-side, --quality or --subsampling.",
    ),
    "clipped": OddKind(
        "Levels above white",
        "clipped",
        "The image has 16 bits a sample, and levels above --png16-max, which became white.",
    ),
}
"""By the manifest's name of an Oddity."""

LEFT_OUT: Final[dict[str, str]] = {
    "bad-label": "The label has no meaning, or does not fit those of the other samples.",
    "bad-name": "The name cannot be that of a file.",
    "bad-row": "The row in the file of labels is damaged, or names no file.",
    "corrupt": "The bytes contradict themselves, so that the image cannot be decoded.",
    "device": "The image or its label is a device or a named pipe in its tar, and no file.",
    "empty": "There are no bytes.",
    "link": "The image or its label is a link in its tar, without the bytes.",
    "no-image": "The sample has a label or other data, but no image.",
    "no-label": "The image has no label.",
    "not-image": "The first bytes are those of no image format that Feeder reads.",
    "too-large": "The image has more pixels or bytes than packing accepts.",
    "truncated": "The bytes end before the image does.",
    "two-images": "The sample has more than one image; --image chooses.",
    "two-labels": "The file of labels lists the image more than once, with different labels.",
    "unreadable": "The bytes could not be read from the source.",
    "unsupported": "The image is of a kind that no decoder here reads.",
}
"""By kind; a kind that is not here has its reasons only."""

SUBSAMPLINGS: Final[dict[str, str]] = {
    "s444": "4:4:4",
    "s422": "4:2:2",
    "s420": "4:2:0",
    "s440": "4:4:0",
    "s411": "4:1:1",
    "grey": "grey",
}


def describe_option(name: str, value: bool | int | str) -> tuple[str, str]:
    """An option of the manifest as a title and what it was set to."""
    match name:
        case "apply_exif":
            return "EXIF rotation", "applied" if value else "ignored"
        case "quality":
            return "JPEG quality", f"{value}, of images that are encoded again"
        case "reencode":
            return "JPEGs encoded again", "all" if value else "only where an option requires it"
        case "max_side":
            return "Longest side", f"{value} px" if value else "any"
        case "subsampling":
            return "Chroma subsampling", SUBSAMPLINGS.get(f"s{value}", "") or "as in the source"
        case "png16_max":
            return "White level of 16 bits", f"{value}"
    return name.replace("_", " "), str(value)

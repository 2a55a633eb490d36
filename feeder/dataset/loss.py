"""Describes what the images of a dataset lost by the choice of whoever packed it."""

from typing import Final

from feeder.dataset.format import Oddity
from feeder.dataset.manifest import Manifest

_CONVERTED: Final = (
    Oddity.CMYK
    | Oddity.PNG
    | Oddity.WEBP
    | Oddity.GIF
    | Oddity.BMP
    | Oddity.TIFF
    | Oddity.PPM
    | Oddity.RARE_JPEG
    | Oddity.EXIF_REENCODED
)
"""Encoded whatever the options, at their quality; a sample has at most one of these."""


def describe_loss(manifest: Manifest) -> str:
    """Return how many images were resized and encoded again, and with which options.

    Empty where packing was without options that accept loss, or these changed no image.
    """
    options, odd = manifest.options, manifest.odd
    max_side, subsampling = options.get("max_side", 0), options.get("subsampling", "")
    if not (max_side or subsampling or options.get("reencode", False)):
        return ""
    encoded = sum(odd.get(kind, 0) for kind in (Oddity.REENCODED | _CONVERTED).kinds())
    settings = f"quality {options.get('quality', '?')}"
    if subsampling:
        settings += f", {':'.join(str(subsampling))}"
    parts = [
        (odd.get("resized", 0), f"resized (max side {max_side})"),
        (encoded, f"re-encoded ({settings})"),
    ]
    lost = [(count, what) for count, what in parts if count]
    return ", ".join(
        f"{count:,} of {manifest.samples:,} {what}" if number == 0 else f"{count:,} {what}"
        for number, (count, what) in enumerate(lost)
    )

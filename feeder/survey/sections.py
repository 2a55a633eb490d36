"""The survey's sections on sizes, odd kinds and packing."""

from collections.abc import Sequence
from typing import Final

from feeder.dataset.format import Oddity
from feeder.dataset.manifest import Manifest
from feeder.survey.facts import Facts
from feeder.survey.histogram import (
    MEGAPIXELS,
    PIXELS,
    aspect_histogram,
    bytes_unit,
    logarithmic_histogram,
)
from feeder.survey.markup import (
    escape,
    escape_name,
    escape_path,
    join_lines,
    make_section,
    make_table,
)
from feeder.survey.numbers import (
    format_bytes,
    format_column_share,
    format_share,
    plural,
)
from feeder.survey.pictures import Picture, picture_html
from feeder.survey.svg import draw_histogram, draw_share
from feeder.survey.words import (
    ODD_KINDS,
    SUBSAMPLINGS,
    UNCHANGED,
    describe_option,
)

_CROP_PX: Final = 224


def size_section(manifest: Manifest, facts: Facts, extremes: Sequence[tuple[str, Picture]]) -> str:
    """Return the section with the histograms of sizes, and the samples at their ends."""
    unit = bytes_unit(facts.blob_bytes.quantile(0.5))
    shown = (
        logarithmic_histogram("Longer side", facts.longer_side, PIXELS),
        logarithmic_histogram("Shorter side", facts.shorter_side, PIXELS),
        logarithmic_histogram("Pixels", facts.pixels, MEGAPIXELS),
        aspect_histogram("Aspect ratio", facts.aspect),
        logarithmic_histogram("Bytes of an image, packed", facts.blob_bytes, unit),
    )
    charts = [draw_histogram(each, f"size-{number}") for number, each in enumerate(shown)]
    pictures = join_lines(
        _picture_figure(picture, what, f"{picture.width:,} × {picture.height:,} px")
        for what, picture in extremes
    )
    return make_section(
        "sizes",
        "Sizes",
        _note_small(manifest, facts),
        f'<div class="charts">{join_lines(charts)}{_subsampling_figure(manifest)}</div>',
        f'<div class="pictures">{pictures}</div>' if pictures else "",
    )


def _note_small(manifest: Manifest, facts: Facts) -> str:
    small = facts.shorter_side.count_below(_CROP_PX)
    if not small:
        return ""
    share = format_share(small, manifest.samples)
    return (
        f"<p>{plural(small, 'image')} ({share}) {'has' if small == 1 else 'have'} a shorter side "
        f"below {_CROP_PX} px, so that a crop of {_CROP_PX} px is always enlarged.</p>"
    )


def _subsampling_figure(manifest: Manifest) -> str:
    ordered = sorted(manifest.subsampling.items(), key=lambda item: (-item[1], item[0]))
    rows = (
        (
            escape(SUBSAMPLINGS.get(kind, kind)),
            f"{count:,}",
            format_column_share(count, manifest.samples),
            draw_share(count / manifest.samples),
        )
        for kind, count in ordered
    )
    table = make_table("Chroma subsampling", ("Kind", "Images#", "Share#", ""), rows)
    return f'<div class="chart">{table}</div>'


def _picture_figure(picture: Picture, *notes: str) -> str:
    shown = "".join(f'<span class="line">{escape(note)}</span>' for note in notes)
    return (
        f"<figure>{picture_html(picture)}"
        f'<figcaption>{shown}<span class="name">{escape_path(picture.name)}</span></figcaption>'
        "</figure>"
    )


def odd_section(manifest: Manifest, examples: dict[Oddity, list[Picture]]) -> str:
    """Return the section on odd kinds, the most frequent first."""
    kinds = {flag.kinds()[0]: flag for flag in Oddity}
    ordered = sorted(manifest.odd.items(), key=lambda item: (-item[1], item[0]))
    pieces = [
        _odd_kind(kinds[name], name, count, manifest.samples, examples.get(kinds[name], []))
        for name, count in ordered
        if count and name in kinds
    ]
    if not pieces:
        text = "Every source is a baseline JPEG without anything unusual."
        return make_section("odd", "Odd kinds", f"<p>{text}</p>")
    intro = "Sources that are not plain baseline JPEGs. A sample can be of several kinds."
    return make_section("odd", "Odd kinds", f"<p>{intro}</p>", *pieces)


def _odd_kind(
    flag: Oddity, name: str, count: int, samples: int, pictures: Sequence[Picture]
) -> str:
    kind = ODD_KINDS[flag]
    style = "calm" if kind.effect == UNCHANGED else "changed"
    tag = f'<span class="tag {style}">{escape(kind.effect)}</span> ' if kind.effect else ""
    figures = join_lines(_picture_figure(picture) for picture in pictures)
    return join_lines(
        (
            '<article class="kind"><div>',
            f"<h3>{escape(kind.title)}</h3>",
            f'<p class="count"><b>{count:,}</b> of {plural(samples, "sample")} '
            f"({format_share(count, samples)})</p>",
            f'<p class="tags">{tag}<code>{escape(name)}</code></p>',
            f"<p>{escape(kind.meaning)}</p>",
            f'</div><div class="pictures">{figures}</div></article>',
        )
    )


def packing_section(manifest: Manifest) -> str:
    """Return the section on how the dataset was packed."""
    packed = sum(shard.bytes for shard in manifest.shards)
    ratio = packed / max(manifest.source_bytes, 1)
    rows = [
        ("Fingerprint", f"<code>{escape(manifest.fingerprint)}</code>"),
        ("Format", f"version {manifest.version}"),
        ("Shards", f"{len(manifest.shards):,}"),
        (
            "Bytes",
            f"{format_bytes(packed)} from {format_bytes(manifest.source_bytes)} ({ratio:.3f})",
        ),
        ("Tile width", f"{manifest.tile_width_px} px"),
        ("Seed", f"{manifest.seed}"),
    ]
    for option in sorted(manifest.options.items()):
        name, value = describe_option(*option)
        rows.append((escape_name(name), escape_name(value)))
    items = join_lines(f"<dt>{name}</dt><dd>{value}</dd>" for name, value in rows)
    return make_section("packing", "How it was packed", f'<dl class="options">{items}</dl>')

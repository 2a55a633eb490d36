"""The survey's sections on sizes, odd kinds, what was left out, duplicates and packing."""

from collections.abc import Iterable
from html import escape
from typing import Final, Protocol

import numpy as np

from feeder.dataset.manifest import QUARANTINE_NAME, Manifest
from feeder.dataset.opened import Dataset
from feeder.process.path_text import printable
from feeder.survey.charts import (
    ASPECT,
    MEGAPIXELS,
    PIXELS,
    bytes_unit,
    draw_chart,
    draw_share,
    make_histogram,
)
from feeder.survey.duplicates import DUPLICATES_NAME, DuplicateGroup, Duplicates, SampleLabel
from feeder.survey.facts import Facts
from feeder.survey.markup import (
    escape_name,
    escape_path,
    escape_reason,
    join_lines,
    make_section,
    make_table,
)
from feeder.survey.numbers import (
    format_amount,
    format_bytes,
    format_column_share,
    format_share,
    largest_first,
    plural,
)
from feeder.survey.pictures import make_figure, make_picture
from feeder.survey.words import LEFT_OUT, ODD_KINDS, SUBSAMPLINGS, UNCHANGED, describe_option

_LEFT_OUT_KINDS_MAX: Final = 30
_LEFT_OUT_NAMED_MAX: Final = 20  # of each kind
_GROUPS_SHOWN_MAX: Final = 12
_MEMBERS_SHOWN_MAX: Final = 6
_CLASSES_SHOWN_MAX: Final = 8  # of a sample's label
_CROP_PX: Final = 224


class LeftOut(Protocol):
    """An entry of the quarantine list: the name in the source, and why in a word and in full."""

    @property
    def path(self) -> str: ...
    @property
    def kind(self) -> str: ...
    @property
    def reason(self) -> str: ...


def size_section(dataset: Dataset, facts: Facts) -> str:
    """The section with the histograms of sizes, and the samples at their ends."""
    manifest, width, height = dataset.manifest, facts.sizes["width"], facts.sizes["height"]
    shorter, blob_bytes = np.minimum(width, height), facts.sizes["blob_bytes"]
    pixels, aspect = width.astype(np.uint32) * height, np.divide(width, height, dtype=np.float32)
    charts = [
        make_histogram("Longer side", np.maximum(width, height), PIXELS),
        make_histogram("Shorter side", shorter, PIXELS),
        make_histogram("Pixels", pixels, MEGAPIXELS),
        make_histogram("Aspect ratio", aspect, ASPECT),
        make_histogram("Bytes of an image, packed", blob_bytes, bytes_unit(blob_bytes.mean())),
    ]
    drawn = join_lines(draw_chart(chart, f"size-{at}") for at, chart in enumerate(charts))
    rows = []
    for kind, count in largest_first(manifest.subsampling):
        share = format_column_share(count, manifest.samples)
        name = escape(SUBSAMPLINGS.get(kind, kind))
        rows.append((name, f"{count:,}", share, draw_share(count / manifest.samples)))
    table = make_table("Chroma subsampling", ("Kind", "Images#", "Share#", ""), rows)

    extremes = {
        "Fewest pixels": np.argmin(pixels),
        "Most pixels": np.argmax(pixels),
        "Widest": np.argmax(aspect),
        "Tallest": np.argmin(aspect),
    }
    pictures = ""
    if len({(width[sample], height[sample]) for sample in extremes.values()}) > 1:
        figures = (
            make_figure(dataset, int(at), what, f"{width[at]:,} × {height[at]:,} px")
            for what, at in extremes.items()
        )
        pictures = f'<div class="pictures">{join_lines(figures)}</div>'
    small = int(np.count_nonzero(shorter < _CROP_PX))
    note = (
        f"<p>{plural(small, 'image')} ({format_share(small, manifest.samples)}) "
        f"{'has' if small == 1 else 'have'} a shorter side below {_CROP_PX} px, so that a crop of "
        f"{_CROP_PX} px is always enlarged.</p>"
    )
    return make_section(
        "sizes",
        "Sizes",
        note if small else "",
        f'<div class="charts">{drawn}<div class="chart">{table}</div></div>',
        pictures,
    )


def odd_section(dataset: Dataset, facts: Facts) -> str:
    manifest, pieces = dataset.manifest, []
    for name, count in largest_first(manifest.odd):
        kind = ODD_KINDS[name]
        style = "calm" if kind.effect == UNCHANGED else "changed"
        tag = f'<span class="tag {style}">{escape(kind.effect)}</span> ' if kind.effect else ""
        figures = join_lines(make_figure(dataset, at) for at in facts.examples[name])
        pieces.append(
            _make_kind(
                escape(kind.title),
                f"<b>{count:,}</b> of {plural(manifest.samples, 'sample')} "
                f"({format_share(count, manifest.samples)})",
                f'<p class="tags">{tag}<code>{escape(name)}</code></p>\n'
                f"<p>{escape(kind.meaning)}</p>",
                f'<div class="pictures">{figures}</div>',
            )
        )
    text = "Sources that are not plain baseline JPEGs. A sample can be of several kinds."
    if not pieces:
        text = "Every source is a baseline JPEG without anything unusual."
    return make_section("odd", "Odd kinds", f"<p>{text}</p>", *pieces)


def _make_kind(title: str, count: str, text: str, content: str) -> str:
    return f"""\
<article class="kind"><div>
<h3>{title}</h3>
<p class="count">{count}</p>
{text}
</div>{content}</article>"""


def _more(count: int, what: str = "more") -> str:
    return f'<p class="more">and {count:,} {what}</p>' if count > 0 else ""


def left_out_section(manifest: Manifest, quarantine: Iterable[LeftOut]) -> str:
    kinds: dict[str, list[LeftOut]] = {}
    for entry in quarantine:
        kinds.setdefault(entry.kind, []).append(entry)
    if not kinds:
        return make_section("left-out", "Left out", "<p>No image of the source was left out.</p>")
    total = manifest.samples + manifest.quarantined
    pieces = [
        f"<p>{manifest.quarantined:,} of {plural(total, 'image')} "
        f"({format_share(manifest.quarantined, total)}) did not become samples. "
        f"<code>{QUARANTINE_NAME}</code>, beside this page, lists them all.</p>"
    ]
    counts = {name: len(entries) for name, entries in kinds.items()}
    for name, count in largest_first(counts)[:_LEFT_OUT_KINDS_MAX]:
        rows = [
            (escape_path(entry.path), escape_reason(entry.reason))
            for entry in kinds[name][:_LEFT_OUT_NAMED_MAX]
        ]
        caption = f"Left out: {printable(name)}"
        table = make_table(caption, ("Name", "Reason"), rows, kind="plain files")
        pieces.append(
            _make_kind(
                escape_name(name),
                f"<b>{count:,}</b> {'image' if count == 1 else 'images'}",
                f"<p>{escape(LEFT_OUT[name])}</p>" if name in LEFT_OUT else "",
                f"<div>{table}\n{_more(count - _LEFT_OUT_NAMED_MAX)}</div>",
            )
        )
    return make_section("left-out", "Left out", *pieces)


def duplicate_section(dataset: Dataset, duplicates: Duplicates) -> str:
    if not duplicates.samples:
        text = "<p>No two samples have the same source bytes.</p>"
        return make_section("duplicates", "Duplicates", text)
    found = duplicates.groups_found
    conflicting = plural(duplicates.conflicting, "image has", "images have")
    shown = [_draw_group(dataset, group) for group in duplicates.groups[:_GROUPS_SHOWN_MAX]]
    return make_section(
        "duplicates",
        "Duplicates",
        f"<p>{plural(found, 'image occurs', 'images occur')} more than once, "
        f"byte for byte: {plural(duplicates.samples, 'sample')} "
        f"({format_share(duplicates.samples, dataset.manifest.samples)}) "
        f"{'repeats' if duplicates.samples == 1 else 'repeat'} an earlier one. Packing kept them. "
        f"<code>{DUPLICATES_NAME}</code>, beside this page, lists "
        f"{'them' if found == len(duplicates.groups) else 'the first'}.</p>",
        f"<p>{conflicting} <strong>different labels</strong>; these come first.</p>"
        if duplicates.conflicting
        else "",
        f'<div class="groups">{join_lines(shown)}</div>',
        _more(found - len(shown), "more images"),
    )


def _draw_group(dataset: Dataset, group: DuplicateGroup) -> str:
    labels = group.labels
    ranked = sorted(range(len(labels)), key=lambda at: labels.index(labels[at]) < at)
    shown = ranked[:_MEMBERS_SHOWN_MAX]  # one of each label first
    items = join_lines(
        f'<li><span class="name">{escape_path(group.names[at])}</span>'
        f"{_label_note(group.names[at], labels[at], dataset.manifest)}</li>"
        for at in shown
    )
    tag = '<span class="tag changed">different labels</span>' if group.is_conflicting else ""
    return f"""\
<article class="group">{make_picture(dataset, group.sample_id)}<div>
<p class="count"><b>{group.samples:,}</b> times {tag}</p>
<ul>{items}</ul>
{_more(group.samples - len(shown))}
</div></article>"""


def _label_note(name: str, label: SampleLabel, manifest: Manifest) -> str:
    """A sample's label as HTML, unless its name begins with that."""
    if isinstance(label, int):
        if name.startswith(f"{manifest.classes[label]}/"):
            return ""
        texts = [escape_name(manifest.classes[label])]
    elif manifest.labels.kind == "none":
        return ""
    else:
        is_multi = manifest.labels.kind == "multi"
        texts = [
            escape_name(manifest.classes[int(value)]) if is_multi else format_amount(value)
            for value in label[:_CLASSES_SHOWN_MAX]
        ]
        texts += ["…"] if len(label) > len(texts) else []
    return f' <span class="note">{", ".join(texts) or "no class"}</span>'


def packing_section(manifest: Manifest) -> str:
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

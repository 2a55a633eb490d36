"""The survey's sections on sizes, odd kinds, what was left out, duplicates and packing."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Final, Protocol

from feeder.dataset.format import Oddity
from feeder.dataset.manifest import QUARANTINE_NAME, Manifest
from feeder.process.path_text import printable
from feeder.survey.charts import (
    ASPECT,
    MEGAPIXELS,
    PIXELS,
    bytes_unit,
    draw_histogram,
    draw_share,
    make_histogram,
)
from feeder.survey.duplicates import DUPLICATES_NAME, DuplicateGroup, Duplicates, SampleLabel
from feeder.survey.facts import Facts
from feeder.survey.markup import (
    escape,
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
    plural,
)
from feeder.survey.pictures import Picture, picture_html
from feeder.survey.words import LEFT_OUT, ODD_KINDS, SUBSAMPLINGS, UNCHANGED, describe_option

GROUPS_SHOWN_MAX: Final = 12
LEFT_OUT_NAMED_MAX: Final = 20  # of each kind
_LEFT_OUT_KINDS_MAX: Final = 30
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


def size_section(manifest: Manifest, facts: Facts, extremes: Mapping[str, Picture]) -> str:
    """The section with the histograms of sizes, and the samples at their ends."""
    histograms = (
        ("Longer side", facts.longer_side, PIXELS),
        ("Shorter side", facts.shorter_side, PIXELS),
        ("Pixels", facts.pixels, MEGAPIXELS),
        ("Aspect ratio", facts.aspect, ASPECT),
        (
            "Bytes of an image, packed",
            facts.blob_bytes,
            bytes_unit(facts.blob_bytes.quantile(0.5)),
        ),
    )
    charts = [
        draw_histogram(make_histogram(title, counts, unit), f"size-{number}")
        for number, (title, counts, unit) in enumerate(histograms)
    ]
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
    pictures = join_lines(
        _picture_figure(picture, what, f"{picture.width:,} × {picture.height:,} px")
        for what, picture in extremes.items()
    )
    small = facts.shorter_side.count_below(_CROP_PX)
    note = (
        f"<p>{plural(small, 'image')} ({format_share(small, manifest.samples)}) "
        f"{'has' if small == 1 else 'have'} a shorter side below {_CROP_PX} px, so that a crop of "
        f"{_CROP_PX} px is always enlarged.</p>"
    )
    return make_section(
        "sizes",
        "Sizes",
        note if small else "",
        f'<div class="charts">{join_lines(charts)}<div class="chart">{table}</div></div>',
        f'<div class="pictures">{pictures}</div>' if pictures else "",
    )


def _picture_figure(picture: Picture, *notes: str) -> str:
    shown = "".join(f'<span class="line">{escape(note)}</span>' for note in notes)
    return (
        f"<figure>{picture_html(picture)}"
        f'<figcaption>{shown}<span class="name">{escape_path(picture.name)}</span></figcaption>'
        "</figure>"
    )


def odd_section(manifest: Manifest, examples: Mapping[Oddity, Sequence[Picture]]) -> str:
    flags = {flag.kinds()[0]: flag for flag in Oddity}
    pieces = []
    for name, count in sorted(manifest.odd.items(), key=lambda item: (-item[1], item[0])):
        if not count or name not in flags:
            continue
        kind = ODD_KINDS[flags[name]]
        style = "calm" if kind.effect == UNCHANGED else "changed"
        tag = f'<span class="tag {style}">{escape(kind.effect)}</span> ' if kind.effect else ""
        figures = join_lines(_picture_figure(picture) for picture in examples[flags[name]])
        pieces.append(
            _make_kind(
                escape(kind.title),
                f"<b>{count:,}</b> of {plural(manifest.samples, 'sample')} "
                f"({format_share(count, manifest.samples)})",
                f'<p class="tags">{tag}<code>{escape(name)}</code></p>',
                f"<p>{escape(kind.meaning)}</p>",
                content=f'<div class="pictures">{figures}</div>',
            )
        )
    text = "Sources that are not plain baseline JPEGs. A sample can be of several kinds."
    if not pieces:
        text = "Every source is a baseline JPEG without anything unusual."
    return make_section("odd", "Odd kinds", f"<p>{text}</p>", *pieces)


def _make_kind(title: str, count: str, *texts: str, content: str) -> str:
    return join_lines(
        (
            f'<article class="kind"><div>\n<h3>{title}</h3>\n<p class="count">{count}</p>',
            *texts,
            f"</div>{content}</article>",
        )
    )


def _more(count: int, what: str = "more") -> str:
    return f'<p class="more">and {count:,} {what}</p>' if count else ""


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
    ordered = sorted(kinds.items(), key=lambda item: (-len(item[1]), item[0]))
    for name, entries in ordered[:_LEFT_OUT_KINDS_MAX]:
        rows = (
            (escape_path(entry.path), escape_reason(entry.reason))
            for entry in entries[:LEFT_OUT_NAMED_MAX]
        )
        table = make_table(
            f"Left out: {printable(name)}", ("Name", "Reason"), rows, kind="plain files"
        )
        more = _more(max(0, len(entries) - LEFT_OUT_NAMED_MAX))
        pieces.append(
            _make_kind(
                escape_name(name),
                f"<b>{len(entries):,}</b> {'image' if len(entries) == 1 else 'images'}",
                f"<p>{escape(LEFT_OUT[name])}</p>" if name in LEFT_OUT else "",
                content=join_lines(("<div>", table, more, "</div>")),
            )
        )
    return make_section("left-out", "Left out", *pieces)


def duplicate_section(
    duplicates: Duplicates, manifest: Manifest, pictures: Sequence[Picture]
) -> str:
    """The section on duplicates; ``pictures`` are of the first samples of the groups."""
    if not duplicates.samples:
        text = "<p>No two samples have the same source bytes.</p>"
        return make_section("duplicates", "Duplicates", text)
    conflicting = plural(duplicates.conflicting, "image has", "images have")
    pieces = [
        _group(group, picture, manifest)
        for group, picture in zip(duplicates.groups, pictures, strict=False)
    ]
    return make_section(
        "duplicates",
        "Duplicates",
        f"<p>{plural(duplicates.groups_found, 'image occurs', 'images occur')} more than once, "
        f"byte for byte: {plural(duplicates.samples, 'sample')} "
        f"({format_share(duplicates.samples, manifest.samples)}) "
        f"{'repeats' if duplicates.samples == 1 else 'repeat'} an earlier one. Packing kept them. "
        f"<code>{DUPLICATES_NAME}</code>, beside this page, lists "
        f"{'them' if duplicates.groups_found == len(duplicates.groups) else 'the first'}.</p>",
        f"<p>{conflicting} <strong>different labels</strong>; these come first.</p>"
        if duplicates.conflicting
        else "",
        f'<div class="groups">{join_lines(pieces)}</div>',
        _more(duplicates.groups_found - len(pieces), "more images"),
    )


def _group(group: DuplicateGroup, picture: Picture, manifest: Manifest) -> str:
    labels = group.labels
    ranked = sorted(range(len(labels)), key=lambda at: labels.index(labels[at]) < at)
    shown = ranked[:_MEMBERS_SHOWN_MAX]  # one of each label first
    items = join_lines(
        f'<li><span class="name">{escape_path(group.names[at])}</span>'
        f"{_label_note(group.names[at], labels[at], manifest)}</li>"
        for at in shown
    )
    tag = '<span class="tag changed">different labels</span>' if group.is_conflicting else ""
    return join_lines(
        (
            f'<article class="group">{picture_html(picture)}<div>',
            f'<p class="count"><b>{group.samples:,}</b> times {tag}</p>',
            f"<ul>{items}</ul>",
            _more(group.samples - len(shown)),
            "</div></article>",
        )
    )


def _label_note(name: str, label: SampleLabel, manifest: Manifest) -> str:
    """A sample's label as HTML unless its name begins with that."""
    if isinstance(label, int):
        if name.startswith(f"{manifest.classes[label]}/"):
            return ""
        text = escape_name(manifest.classes[label])
    elif manifest.labels.kind == "none":
        return ""
    else:
        is_multi = manifest.labels.kind == "multi"
        shown = [
            escape_name(manifest.classes[int(value)]) if is_multi else format_amount(value)
            for value in label[:_CLASSES_SHOWN_MAX]
        ]
        more = ["…"] if len(label) > len(shown) else []
        text = ", ".join(shown + more) or "no class"
    return f' <span class="note">{text}</span>'


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

"""The survey of a dataset: one HTML page that loads nothing, beside the manifest.

    facts (indexes, in numpy) ─► sections ─► page ─► survey.html
    pictures (a few samples)  ─┘

The page has no script, and its policy allows none: only its own style sheet, by hash, and pictures
in data: URIs. Its bytes follow from the dataset alone, given the same Pillow.
"""

import base64
import hashlib
from collections.abc import Iterable
from functools import cache, partial
from pathlib import Path
from typing import Final

from feeder.dataset.manifest import Manifest
from feeder.dataset.opened import Dataset
from feeder.process.output_file import write_output
from feeder.survey.duplicates import Duplicates
from feeder.survey.facts import Facts, gather_facts
from feeder.survey.labels import label_section
from feeder.survey.markup import escape, join_lines
from feeder.survey.numbers import format_amount, format_bytes, format_share, plural
from feeder.survey.pictures import Picture, draw_picture
from feeder.survey.sections import (
    GROUPS_SHOWN_MAX,
    LeftOut,
    duplicate_section,
    left_out_section,
    odd_section,
    packing_section,
    size_section,
)
from feeder.survey.style import STYLE

SURVEY_NAME: Final = "survey.html"
_OPEN_SHARDS: Final = 8
_TEXT: Final = ' class="text"'
_IMBALANCE: Final = 10  # times as many samples in the largest class as in the smallest


def write_survey(
    folder: Path,
    manifest: Manifest,
    quarantine: Iterable[LeftOut],
    duplicates: Duplicates,
    *,
    page: Path | None = None,
) -> None:
    """Write the survey of the dataset in ``folder``, atomically; durable on return.

    ``manifest`` is sealed, and its file need not exist yet. ``quarantine`` is in the order of the
    list. ``page`` is where to write, by default survey.html in ``folder``. Raises DatasetError
    where the shards are damaged or not those of ``manifest``, OSError where the page cannot be
    written.
    """
    html = render_survey(folder, manifest, quarantine, duplicates)
    write_output(page or folder / SURVEY_NAME, html.encode("utf-8"))


def render_survey(
    folder: Path, manifest: Manifest, quarantine: Iterable[LeftOut], duplicates: Duplicates
) -> str:
    """The page; see ``write_survey``."""
    facts = gather_facts(folder, manifest)
    with Dataset(folder, manifest, _OPEN_SHARDS) as dataset:
        draw = cache(partial(draw_picture, dataset))
        extremes: dict[str, Picture] = {}
        if len({extreme.size for extreme in facts.extremes.values()}) > 1:
            extremes = {what: draw(extreme.sample_id) for what, extreme in facts.extremes.items()}
        examples = {
            flag: [draw(sample) for sample in samples] for flag, samples in facts.examples.items()
        }
        groups = [draw(group.sample_id) for group in duplicates.groups[:GROUPS_SHOWN_MAX]]
    return _make_page(
        manifest,
        _header(manifest, duplicates),
        _worth_a_look(manifest, facts, duplicates),
        label_section(manifest, facts),
        size_section(manifest, facts, extremes),
        odd_section(manifest, examples),
        left_out_section(manifest, quarantine),
        duplicate_section(duplicates, manifest, groups),
        packing_section(manifest),
    )


def _make_page(manifest: Manifest, header: str, *sections: str) -> str:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    anchors = {
        "labels": "Classes" if manifest.classes else "Labels",
        "sizes": "Sizes",
        "odd": "Odd kinds",
        "left-out": "Left out",
        "duplicates": "Duplicates",
        "packing": "How it was packed",
    }
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in anchors.items())
    return join_lines(
        (
            '<!DOCTYPE html>\n<html lang="en">\n<head>\n<meta charset="utf-8">',
            f'<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">',
            '<meta name="viewport" content="width=device-width, initial-scale=1">',
            '<meta name="color-scheme" content="light dark">',
            '<meta name="referrer" content="no-referrer">',
            f"<title>Survey of dataset {escape(manifest.content[:8])}</title>",
            f"<style>{STYLE}</style>\n</head>\n<body>",
            header,
            f'<nav aria-label="Sections">{links}</nav>',
            "<main>",
            *sections,
            "</main>\n</body>\n</html>\n",
        )
    )


def _header(manifest: Manifest, duplicates: Duplicates) -> str:
    packed = sum(shard.bytes for shard in manifest.shards)
    kind = {
        "index": "one class a sample",
        "multi": "any number of classes a sample",
        "float": f"{plural(manifest.labels.width, 'number')} a sample",
        "none": "none",
    }[manifest.labels.kind]
    facts = {
        "Samples": f"{manifest.samples:,}",
        "Classes": f"{len(manifest.classes):,}" if manifest.classes else "",
        "Labels": kind,
        "Packed": format_bytes(packed),
        "Left out": f"{manifest.quarantined:,}",
        "Duplicates": f"{duplicates.samples:,}",
    }
    items = join_lines(
        f"<div{_TEXT if name == 'Labels' else ''}><dt>{name}</dt><dd>{escape(value)}</dd></div>"
        for name, value in facts.items()
        if value
    )
    return join_lines(
        (
            "<header>",
            "<h1>Dataset survey</h1>",
            '<p class="fingerprint">content fingerprint '
            f"<code>{escape(manifest.content)}</code></p>",
            f'<dl class="facts">{items}</dl>',
            "</header>",
        )
    )


def _worth_a_look(manifest: Manifest, facts: Facts, duplicates: Duplicates) -> str:
    """What a reader should look at first: a line for each unusual fact, with a link."""
    filled = facts.class_samples[facts.class_samples > 0]
    empty = len(facts.class_samples) - len(filled)
    times = float(filled.max() / filled.min()) if len(filled) else 1.0
    bare = facts.classes_of_sample.count_below(1)
    left_out, warned = manifest.quarantined, manifest.odd.get("warned", 0)
    share = format_share(left_out, manifest.samples + left_out)
    turned = manifest.odd.get("exif-ignored", 0)
    rotation = "an EXIF rotation that was ignored"
    conflicting, repeated = duplicates.conflicting, duplicates.samples
    rows = (
        (empty, "labels", plural(empty, "class has no images", "classes have no images")),
        (
            times >= _IMBALANCE,
            "labels",
            f"The largest class is {format_amount(round(times, 1))} times as large as the smallest",
        ),
        (bare, "labels", plural(bare, "sample has no class", "samples have no class")),
        *(
            (column.low == column.high, "labels", f"Value {number} is the same in all samples")
            for number, column in enumerate(facts.columns)
        ),
        (
            left_out,
            "left-out",
            plural(left_out, f"image ({share}) was left out", f"images ({share}) were left out"),
        ),
        (warned, "odd", f"The decoder complained about {plural(warned, 'image')}"),
        (turned, "odd", plural(turned, f"image has {rotation}", f"images have {rotation}")),
        (
            conflicting,
            "duplicates",
            plural(conflicting, "image occurs", "images occur") + " with different labels",
        ),
        (
            repeated,
            "duplicates",
            plural(repeated, "sample repeats", "samples repeat") + " an earlier one",
        ),
    )
    lines = join_lines(
        f'<li><a href="#{anchor}">{text}</a></li>' for holds, anchor, text in rows if holds
    )
    return join_lines(
        (
            '<section class="findings" aria-labelledby="findings-title">',
            '<h2 id="findings-title">Worth a look</h2>',
            f"<ul>\n{lines}\n</ul>" if lines else "<p>Nothing unusual was found.</p>",
            "</section>",
        )
    )

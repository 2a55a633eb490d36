"""The survey of a dataset: one HTML page that loads nothing, beside the manifest.

    facts (indexes, in numpy) ─► sections ─► page ─► survey.html
    pictures (a few samples)  ─┘

The page has no script, and its policy allows none: only its own style sheet, by hash, and pictures
in data: URIs. Its bytes follow from the dataset alone, given the same Pillow.
"""

import base64
import hashlib
from collections.abc import Iterable
from pathlib import Path
from typing import Final

from feeder.dataset.manifest import Manifest
from feeder.dataset.opened import Dataset
from feeder.process.output_file import write_output
from feeder.survey.duplicates import Duplicates
from feeder.survey.facts import gather_facts
from feeder.survey.findings import findings
from feeder.survey.label_section import label_section
from feeder.survey.list_sections import (
    GROUPS_SHOWN_MAX,
    LeftOut,
    duplicate_section,
    group_left_out,
    left_out_section,
)
from feeder.survey.markup import escape, join_lines
from feeder.survey.numbers import format_bytes, plural
from feeder.survey.pictures import Picture, draw_picture
from feeder.survey.sections import odd_section, packing_section, size_section
from feeder.survey.style import STYLE

SURVEY_NAME: Final = "survey.html"
_OPEN_SHARDS: Final = 8


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
    """Return the page; see ``write_survey``."""
    facts = gather_facts(folder, manifest)
    left_out = group_left_out(quarantine)
    with Dataset(folder, manifest, _OPEN_SHARDS) as dataset:
        drawn: dict[int, Picture] = {}

        def draw(sample_id: int) -> Picture:
            if sample_id not in drawn:
                drawn[sample_id] = draw_picture(dataset, sample_id)
            return drawn[sample_id]

        extremes = [(each.what, draw(each.sample_id)) for each in facts.extremes]
        examples = {
            flag: [draw(sample) for sample in samples] for flag, samples in facts.examples.items()
        }
        groups = [draw(group.sample_id) for group in duplicates.groups[:GROUPS_SHOWN_MAX]]
    return _make_page(
        manifest,
        _header(manifest, duplicates),
        findings(manifest, facts, duplicates),
        label_section(manifest, facts),
        size_section(manifest, facts, extremes),
        odd_section(manifest, examples),
        left_out_section(manifest, left_out),
        duplicate_section(duplicates, manifest, groups),
        packing_section(manifest),
    )


def _make_page(manifest: Manifest, header: str, *sections: str) -> str:
    digest = base64.b64encode(hashlib.sha256(STYLE.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    links = "".join(f'<a href="#{anchor}">{title}</a>' for anchor, title in _links(manifest))
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


def _links(manifest: Manifest) -> Iterable[tuple[str, str]]:
    return (
        ("labels", "Classes" if manifest.classes else "Labels"),
        ("sizes", "Sizes"),
        ("odd", "Odd kinds"),
        ("left-out", "Left out"),
        ("duplicates", "Duplicates"),
        ("packing", "How it was packed"),
    )


def _header(manifest: Manifest, duplicates: Duplicates) -> str:
    packed = sum(shard.bytes for shard in manifest.shards)
    kind = {
        "index": "one class a sample",
        "multi": "any number of classes a sample",
        "float": f"{plural(manifest.labels.width, 'number')} a sample",
        "none": "none",
    }[manifest.labels.kind]
    facts = [
        ("Samples", f"{manifest.samples:,}", ""),
        ("Classes", f"{len(manifest.classes):,}", "") if manifest.classes else None,
        ("Labels", kind, "text"),
        ("Packed", format_bytes(packed), ""),
        ("Left out", f"{manifest.quarantined:,}", ""),
        ("Duplicates", f"{duplicates.samples:,}", ""),
    ]
    items = join_lines(
        f"<div{f' class={style}' if style else ''}><dt>{name}</dt><dd>{escape(value)}</dd></div>"
        for name, value, style in filter(None, facts)
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

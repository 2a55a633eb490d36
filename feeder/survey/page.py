"""The survey of a dataset: one HTML page that loads nothing, beside the manifest.

    facts (indexes, in numpy)   ─►  sections ─► page ─► survey.html
    pictures (of a few samples) ─►

The page has no script, and its policy allows none: only its own style sheet, by hash, and pictures
in data: URIs. Its bytes follow from the dataset alone, given the same Pillow.
"""

import base64
import hashlib
from collections.abc import Iterable
from html import escape
from pathlib import Path
from typing import Final

import numpy as np

from feeder.dataset.manifest import Manifest
from feeder.dataset.opened import Dataset
from feeder.process.output_file import write_output
from feeder.survey.duplicates import Duplicates
from feeder.survey.facts import Facts, read_facts
from feeder.survey.labels import label_section
from feeder.survey.markup import join_lines
from feeder.survey.numbers import format_amount, format_bytes, format_share, plural
from feeder.survey.sections import (
    LeftOut,
    duplicate_section,
    left_out_section,
    odd_section,
    packing_section,
    size_section,
)
from feeder.survey.style import STYLE

SURVEY_NAME: Final = "survey.html"
_IMBALANCE: Final = 10  # times as many samples in the largest class as in the smallest


def write_survey(
    dataset: Dataset, quarantine: Iterable[LeftOut], duplicates: Duplicates, page: Path
) -> None:
    """Write the survey as ``page``, atomically; durable on return.

    The dataset's manifest is sealed, and its file need not exist yet. ``quarantine`` is in the
    order of the list. Raises DatasetError where the shards are damaged or not those of the
    manifest, OSError where the page cannot be written.
    """
    write_output(page, render_survey(dataset, quarantine, duplicates).encode("utf-8"))


def render_survey(dataset: Dataset, quarantine: Iterable[LeftOut], duplicates: Duplicates) -> str:
    """The page; see ``write_survey``."""
    manifest, facts = dataset.manifest, read_facts(dataset)
    digest = base64.b64encode(hashlib.sha256(STYLE.encode("utf-8")).digest()).decode("ascii")
    policy = (
        f"default-src 'none'; style-src 'sha256-{digest}'; img-src data:; base-uri 'none'; "
        "form-action 'none'"
    )
    return f"""\
<!DOCTYPE html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta http-equiv="Content-Security-Policy" content="{escape(policy)}">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta name="referrer" content="no-referrer">
<title>Survey of dataset {escape(manifest.content[:8])}</title>
<style>{STYLE}</style>
</head>
<body>
<header>
<h1>Dataset survey</h1>
<p class="fingerprint">content fingerprint <code>{escape(manifest.content)}</code></p>
<dl class="facts">{_head_facts(manifest, duplicates)}</dl>
</header>
<nav aria-label="Sections">
<a href="#labels">{"Classes" if manifest.classes else "Labels"}</a>
<a href="#sizes">Sizes</a>
<a href="#odd">Odd kinds</a>
<a href="#left-out">Left out</a>
<a href="#duplicates">Duplicates</a>
<a href="#packing">How it was packed</a>
</nav>
<main>
<section class="findings" aria-labelledby="findings-title">
<h2 id="findings-title">Worth a look</h2>
{_find_unusual(manifest, facts, duplicates)}
</section>
{label_section(manifest, facts)}
{size_section(dataset, facts)}
{odd_section(dataset, facts)}
{left_out_section(manifest, quarantine)}
{duplicate_section(dataset, duplicates)}
{packing_section(manifest)}
</main>
</body>
</html>
"""


def _head_facts(manifest: Manifest, duplicates: Duplicates) -> str:
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
        "Packed": format_bytes(sum(shard.bytes for shard in manifest.shards)),
        "Left out": f"{manifest.quarantined:,}",
        "Duplicates": f"{duplicates.samples:,}",
    }
    return join_lines(
        f'<div class="{"text" if name == "Labels" else "number"}">'
        f"<dt>{name}</dt><dd>{value}</dd></div>"
        for name, value in facts.items()
        if value
    )


def _find_unusual(manifest: Manifest, facts: Facts, duplicates: Duplicates) -> str:
    """What a reader should look at first: a line for each unusual fact, with a link."""
    lines = []

    def add(anchor: str, count: float, text: str) -> None:
        if count:
            lines.append(f'<li><a href="#{anchor}">{text}</a></li>')

    filled = facts.class_samples[facts.class_samples > 0]
    empty = len(facts.class_samples) - len(filled)
    add("labels", empty, plural(empty, "class has no images", "classes have no images"))
    times = float(filled.max() / filled.min()) if len(filled) else 1.0
    text = f"The largest class is {format_amount(round(times, 1))} times as large as the smallest"
    add("labels", times >= _IMBALANCE, text)
    bare = int(np.count_nonzero(facts.classes_of_sample == 0))
    add("labels", bare, plural(bare, "sample has no class", "samples have no class"))
    for number, values in enumerate(facts.values.T):
        text = f"Value {number} is the same in all samples"
        add("labels", values.min() == values.max(), text)
    left_out = manifest.quarantined
    share = format_share(left_out, manifest.samples + left_out)
    text = plural(left_out, f"image ({share}) was left out", f"images ({share}) were left out")
    add("left-out", left_out, text)
    warned = manifest.odd.get("warned", 0)
    add("odd", warned, f"The decoder complained about {plural(warned, 'image')}")
    turned = manifest.odd.get("exif-ignored", 0)
    have = plural(turned, "image has", "images have")
    add("odd", turned, f"{have} an EXIF rotation that was ignored")
    conflicting = duplicates.conflicting
    occur = plural(conflicting, "image occurs", "images occur")
    add("duplicates", conflicting, f"{occur} with different labels")
    repeated = duplicates.samples
    repeat = plural(repeated, "sample repeats", "samples repeat")
    add("duplicates", repeated, f"{repeat} an earlier one")
    return f"<ul>\n{join_lines(lines)}\n</ul>" if lines else "<p>Nothing unusual was found.</p>"

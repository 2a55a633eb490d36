"""What a reader should look at first: a line for each unusual fact, with a link to its section."""

from typing import Final

from feeder.dataset.manifest import Manifest
from feeder.survey.duplicates import Duplicates
from feeder.survey.facts import Facts
from feeder.survey.markup import join_lines
from feeder.survey.numbers import format_amount, format_share, plural

_IMBALANCE: Final = 10  # times as many samples in the largest class as in the smallest


def findings(manifest: Manifest, facts: Facts, duplicates: Duplicates) -> str:
    """Return the list as HTML."""
    found = [*_of_labels(manifest, facts), *_of_sources(manifest), *_of_duplicates(duplicates)]
    if not found:
        items = "<p>Nothing unusual was found.</p>"
    else:
        lines = join_lines(f'<li><a href="#{anchor}">{text}</a></li>' for anchor, text in found)
        items = f"<ul>\n{lines}\n</ul>"
    return join_lines(
        (
            '<section class="findings" aria-labelledby="findings-title">',
            '<h2 id="findings-title">Worth a look</h2>',
            items,
            "</section>",
        )
    )


def _of_labels(manifest: Manifest, facts: Facts) -> list[tuple[str, str]]:
    found = []
    if facts.classes is not None:
        samples = facts.classes.samples
        filled = samples[samples > 0]
        empty = len(samples) - len(filled)
        if empty:
            have = "class has" if empty == 1 else "classes have"
            found.append(("labels", f"{empty:,} {have} no images"))
        if len(filled) and filled.max() >= _IMBALANCE * filled.min():
            times = format_amount(round(float(filled.max() / filled.min()), 1))
            found.append(("labels", f"The largest class is {times} times as large as the smallest"))
        if facts.classes.per_sample is not None:
            bare = facts.classes.per_sample.count_below(1)
            if bare:
                have = "sample has" if bare == 1 else "samples have"
                found.append(("labels", f"{bare:,} {have} no class"))
    for number, column in enumerate(facts.columns):
        if column.low == column.high:
            found.append(("labels", f"Value {number} is the same in all samples"))
    return found


def _of_sources(manifest: Manifest) -> list[tuple[str, str]]:
    found = []
    total = manifest.samples + manifest.quarantined
    if manifest.quarantined:
        images = plural(manifest.quarantined, "image")
        were = "was" if manifest.quarantined == 1 else "were"
        share = format_share(manifest.quarantined, total)
        found.append(("left-out", f"{images} ({share}) {were} left out"))
    warned = manifest.odd.get("warned", 0)
    if warned:
        found.append(("odd", f"The decoder complained about {plural(warned, 'image')}"))
    rotated = manifest.odd.get("exif-ignored", 0)
    if rotated:
        has = "image has" if rotated == 1 else "images have"
        found.append(("odd", f"{rotated:,} {has} an EXIF rotation that was ignored"))
    return found


def _of_duplicates(duplicates: Duplicates) -> list[tuple[str, str]]:
    found = []
    if duplicates.conflicting:
        occur = "image occurs" if duplicates.conflicting == 1 else "images occur"
        found.append(("duplicates", f"{duplicates.conflicting:,} {occur} with different labels"))
    if duplicates.samples:
        repeat = "sample repeats" if duplicates.samples == 1 else "samples repeat"
        found.append(("duplicates", f"{duplicates.samples:,} {repeat} an earlier one"))
    return found

"""The survey's section on labels: images of each class, values, or that there are none."""

from itertools import pairwise
from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.manifest import Manifest
from feeder.survey.charts import (
    CLASSES,
    VALUE,
    Bar,
    Histogram,
    draw_histogram,
    draw_share,
    make_histogram,
    round_values,
)
from feeder.survey.facts import Facts
from feeder.survey.markup import escape_name, escape_path, join_lines, make_section, make_table
from feeder.survey.numbers import format_amount, format_column_share, plural

_TABLE_MAX: Final = 40  # classes; more are a chart and two shorter tables
_ENDS: Final = 10  # rows of each of those
_STRIP_BARS: Final = 300
_EMPTY_NAMED_MAX: Final = 50
_LOGARITHMIC_FROM: Final = 30  # times the median: smaller classes would be flat on an even axis


def label_section(manifest: Manifest, facts: Facts) -> str:
    if manifest.labels.kind == "float":
        return _value_section(manifest, facts)
    if manifest.labels.kind == "none":
        text = "<p>The samples have no labels. Every label of a batch is −1.</p>"
        return make_section("labels", "Labels", text)
    samples = facts.class_samples
    largest = np.argsort(-samples, kind="stable")
    is_index = manifest.labels.kind == "index"
    counted = "images" if is_index else "samples"
    pieces = [_describe_classes(samples, counted)]
    if len(samples) <= _TABLE_MAX:
        caption = f"All classes by number of {counted}"
        pieces.append(_class_table(manifest, samples, largest, caption, counted))
    elif samples.min() < samples.max():
        smallest = np.argsort(samples, kind="stable")
        smallest = smallest[samples[smallest] > 0][:_ENDS]
        strip = _class_strip(manifest, samples[largest], largest, counted)
        pieces += [
            draw_histogram(strip, "by-size", with_table=False),
            '<div class="pair">',
            _class_table(manifest, samples, largest[:_ENDS], "The largest classes", counted),
            _class_table(
                manifest,
                samples,
                smallest,
                "The smallest, without empty ones",
                counted,
                with_bars=False,
            ),
            "</div>",
        ]
    pieces.append(_name_empty(manifest, np.flatnonzero(samples == 0)))
    if not is_index:
        counts = facts.classes_of_sample
        histogram = make_histogram("Classes of a sample", counts, CLASSES, counted="samples")
        pieces.append(f'<div class="charts">{draw_histogram(histogram, "per-sample")}</div>')
    return make_section("labels", "Classes", *pieces)


def _describe_classes(samples: NDArray[np.int64], counted: str) -> str:
    low, high = int(samples.min()), int(samples.max())
    if len(samples) == 1:
        return "<p>There is one class.</p>"
    if low == high:
        one = plural(high, counted.removesuffix("s"))
        return f"<p>Each of the {plural(len(samples), 'class', 'classes')} has {one}.</p>"
    median = format_amount(float(np.median(samples)))
    return (
        f"<p>The largest class has {high:,} {counted}, the median {median}, the smallest "
        f"{low:,}.</p>"
    )


def _class_strip(
    manifest: Manifest, ordered: NDArray[np.int64], order: NDArray[np.int64], counted: str
) -> Histogram:
    """The classes by size as bars.

    Where there are many, a bar is of several, and as high as the largest of them.
    """
    classes = len(ordered)
    edges = np.linspace(0, classes, min(classes, _STRIP_BARS) + 1).round().astype(int).tolist()
    bars = []
    for first, end in pairwise(edges):
        label = f"{first + 1:,}. {manifest.classes[int(order[first])]}"
        if end - first > 1:
            least = int(ordered[end - 1])
            label = f"{first + 1:,}. to {end:,}. class, down to {least:,}"
        bars.append(Bar(first / classes, end / classes, int(ordered[first]), label))
    positions = [1.0, *(value for value in round_values(0, classes) if value > 1)]
    median = max(float(np.median(ordered[ordered > 0])), 1.0)
    return Histogram(
        title=f"{counted.capitalize()} of each class, by size",
        summary=f"{plural(classes, 'class', 'classes')}, the largest first",
        x_title="class, by size",
        bars=bars,
        ticks=[((value - 0.5) / classes, format_amount(value)) for value in positions],
        counted=counted,
        is_logarithmic=int(ordered[0]) >= _LOGARITHMIC_FROM * median,
    )


def _class_table(
    manifest: Manifest,
    samples: NDArray[np.int64],
    order: NDArray[np.int64],
    caption: str,
    counted: str,
    *,
    with_bars: bool = True,
) -> str:
    most = max(int(samples.max()), 1)
    rows = (
        (
            f"{label:,}",
            escape_path(manifest.classes[label]),
            f"{count:,}",
            format_column_share(count, manifest.samples),
            *([draw_share(count / most)] if with_bars else []),
        )
        for label, count in zip(order.tolist(), samples[order].tolist(), strict=True)
    )
    heads = ("Label#", "Class", f"{counted.capitalize()}#", "Share#", *([""] if with_bars else []))
    return make_table(caption, heads, rows, kind="classes")


def _name_empty(manifest: Manifest, empty: NDArray[np.int64]) -> str:
    if not len(empty):
        return ""
    named = ", ".join(
        f"<b>{escape_name(manifest.classes[label])}</b>"
        for label in empty[:_EMPTY_NAMED_MAX].tolist()
    )
    more = f" and {len(empty) - _EMPTY_NAMED_MAX:,} more" if len(empty) > _EMPTY_NAMED_MAX else ""
    have = plural(len(empty), "class has", "classes have")
    return f'<p class="names">{have} no images: {named}{more}.</p>'


def _value_section(manifest: Manifest, facts: Facts) -> str:
    width, columns = manifest.labels.width, facts.columns
    charts = (
        draw_histogram(
            make_histogram(f"Value {number}", column, VALUE, counted="samples"), f"value-{number}"
        )
        for number, column in enumerate(columns)
    )
    shown = "" if width == len(columns) else f" The first {len(columns)} are shown."
    return make_section(
        "labels",
        "Labels",
        f"<p>Each sample has {plural(width, 'number')}.{shown}</p>",
        f'<div class="charts">{join_lines(charts)}</div>',
    )

"""The survey's section on labels: images of each class, values, or that there are none."""

from typing import Final

import numpy as np
from numpy.typing import NDArray

from feeder.dataset.manifest import Manifest
from feeder.survey.charts import (
    CLASSES,
    VALUE,
    Chart,
    draw_chart,
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
    match manifest.labels.kind:
        case "none":
            text = "<p>The samples have no labels. Every label of a batch is −1.</p>"
            return make_section("labels", "Labels", text)
        case "float":
            return _value_section(manifest.labels.width, facts)
        case "index":
            return make_section("labels", "Classes", *_describe_classes(manifest, facts, "images"))
        case "multi":
            counts = facts.classes_of_sample
            chart = make_histogram("Classes of a sample", counts, CLASSES, counted="samples")
            return make_section(
                "labels",
                "Classes",
                *_describe_classes(manifest, facts, "samples"),
                f'<div class="charts">{draw_chart(chart, "per-sample")}</div>',
            )


def _describe_classes(manifest: Manifest, facts: Facts, counted: str) -> list[str]:
    samples = facts.class_samples
    classes, low, high = len(samples), int(samples.min()), int(samples.max())
    largest = np.argsort(-samples, kind="stable")
    if classes == 1:
        text = "There is one class."
    elif low == high:
        have = plural(high, counted.removesuffix("s"))
        text = f"Each of the {plural(classes, 'class', 'classes')} has {have}."
    else:
        median = format_amount(float(np.median(samples)))
        text = (
            f"The largest class has {high:,} {counted}, the median {median}, the smallest {low:,}."
        )
    pieces = [f"<p>{text}</p>"]

    def table(caption: str, order: NDArray[np.int64], *, with_bars: bool = True) -> str:
        rows = []
        for label, count in zip(order.tolist(), samples[order].tolist(), strict=True):
            share = format_column_share(count, manifest.samples)
            row = [f"{label:,}", escape_path(manifest.classes[label]), f"{count:,}", share]
            rows.append([*row, draw_share(count / max(high, 1))] if with_bars else row)
        heads = ["Label#", "Class", f"{counted.capitalize()}#", "Share#"]
        return make_table(caption, [*heads, ""] if with_bars else heads, rows, kind="classes")

    if classes <= _TABLE_MAX:
        pieces.append(table(f"All classes by number of {counted}", largest))
    elif low < high:
        smallest = np.argsort(samples, kind="stable")
        smallest = smallest[samples[smallest] > 0][:_ENDS]
        pieces += [
            draw_chart(_class_strip(manifest, samples, counted), "by-size", with_table=False),
            '<div class="pair">',
            table("The largest classes", largest[:_ENDS]),
            table("The smallest, without empty ones", smallest, with_bars=False),
            "</div>",
        ]
    empty = np.flatnonzero(samples == 0).tolist()
    if empty:
        named = ", ".join(
            f"<b>{escape_name(manifest.classes[label])}</b>" for label in empty[:_EMPTY_NAMED_MAX]
        )
        if len(empty) > _EMPTY_NAMED_MAX:
            named += f" and {len(empty) - _EMPTY_NAMED_MAX:,} more"
        have = plural(len(empty), "class has", "classes have")
        pieces.append(f'<p class="names">{have} no images: {named}.</p>')
    return pieces


def _class_strip(manifest: Manifest, samples: NDArray[np.int64], counted: str) -> Chart:
    """The classes by size as bars.

    Where there are many, a bar is of several, and as high as the largest of them.
    """
    classes, order = len(samples), np.argsort(-samples, kind="stable")
    ordered = samples[order].tolist()
    step = -(-classes // _STRIP_BARS)
    bars = []
    for first in range(0, classes, step):
        end = min(first + step, classes)
        label = f"{first + 1:,}. to {end:,}. class, down to {ordered[end - 1]:,}"
        if end - first == 1:
            label = f"{end:,}. {manifest.classes[order[first]]}"
        bars.append((label, ordered[first]))
    positions = [1.0, *(value for value in round_values(0, classes) if value > 1)]
    median = max(float(np.median(samples[samples > 0])), 1.0)
    return Chart(
        title=f"{counted.capitalize()} of each class, by size",
        summary=f"{plural(classes, 'class', 'classes')}, the largest first",
        x_title="class, by size",
        bars=bars,
        ticks=[((value - 0.5) / (len(bars) * step), format_amount(value)) for value in positions],
        counted=counted,
        is_logarithmic=ordered[0] >= _LOGARITHMIC_FROM * median,
    )


def _value_section(width: int, facts: Facts) -> str:
    charts = []
    for number, values in enumerate(facts.values.T):
        chart = make_histogram(f"Value {number}", values, VALUE, counted="samples")
        charts.append(draw_chart(chart, f"value-{number}"))
    shown = "" if width == len(charts) else f" The first {len(charts)} are shown."
    return make_section(
        "labels",
        "Labels",
        f"<p>Each sample has {plural(width, 'number')}.{shown}</p>",
        f'<div class="charts">{join_lines(charts)}</div>',
    )

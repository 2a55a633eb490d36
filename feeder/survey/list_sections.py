"""The survey's sections on what was left out and on duplicates."""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Final, Protocol

from feeder.dataset.manifest import QUARANTINE_NAME, Manifest
from feeder.plan.labels import LabelSpec
from feeder.survey.duplicates import DUPLICATES_NAME, DuplicateGroup, Duplicates, SampleLabel
from feeder.survey.markup import (
    escape,
    escape_name,
    escape_path,
    escape_reason,
    join_lines,
    make_section,
    make_table,
)
from feeder.survey.numbers import format_amount, format_share, plural
from feeder.survey.pictures import Picture, picture_html
from feeder.survey.words import LEFT_OUT

GROUPS_SHOWN_MAX: Final = 12
_LEFT_OUT_NAMED_MAX: Final = 20  # of each kind
_LEFT_OUT_KINDS_MAX: Final = 30
_MEMBERS_SHOWN_MAX: Final = 6
_CLASSES_SHOWN_MAX: Final = 8  # of a sample's label


class LeftOut(Protocol):
    """An entry of the quarantine list."""

    @property
    def path(self) -> str:
        """The name in the source."""

    @property
    def kind(self) -> str:
        """Why, in a word."""

    @property
    def reason(self) -> str:
        """Why, in full."""


@dataclass(slots=True)
class LeftOutKind:
    """Images that were left out for the same kind of reason."""

    count: int = 0
    first: list[LeftOut] = field(default_factory=list)
    """At most _LEFT_OUT_NAMED_MAX."""


def group_left_out(quarantine: Iterable[LeftOut]) -> dict[str, LeftOutKind]:
    """Return the entries by kind; they are in the order of the list."""
    kinds: dict[str, LeftOutKind] = {}
    for entry in quarantine:
        kind = kinds.setdefault(entry.kind, LeftOutKind())
        kind.count += 1
        if len(kind.first) < _LEFT_OUT_NAMED_MAX:
            kind.first.append(entry)
    return kinds


def left_out_section(manifest: Manifest, kinds: dict[str, LeftOutKind]) -> str:
    """Return the section on the quarantine list, the most frequent kind first."""
    if not kinds:
        return make_section("left-out", "Left out", "<p>No image of the source was left out.</p>")
    ordered = sorted(kinds.items(), key=lambda item: (-item[1].count, item[0]))
    total = manifest.samples + manifest.quarantined
    intro = (
        f"<p>{manifest.quarantined:,} of {plural(total, 'image')} "
        f"({format_share(manifest.quarantined, total)}) did not become samples. "
        f"<code>{QUARANTINE_NAME}</code>, beside this page, lists them all.</p>"
    )
    pieces = [_left_out_kind(name, kind) for name, kind in ordered[:_LEFT_OUT_KINDS_MAX]]
    return make_section("left-out", "Left out", intro, *pieces)


def _left_out_kind(name: str, kind: LeftOutKind) -> str:
    meaning = LEFT_OUT.get(name, "")
    more = kind.count - len(kind.first)
    images = "image" if kind.count == 1 else "images"
    rows = ((escape_path(entry.path), escape_reason(entry.reason)) for entry in kind.first)
    return join_lines(
        (
            '<article class="kind"><div>',
            f"<h3>{escape_name(name)}</h3>",
            f'<p class="count"><b>{kind.count:,}</b> {images}</p>',
            f"<p>{escape(meaning)}</p>" if meaning else "",
            "</div><div>",
            make_table(f"Left out: {name}", ("Name", "Reason"), rows, kind="plain files"),
            f'<p class="more">and {more:,} more</p>' if more else "",
            "</div></article>",
        )
    )


def duplicate_section(
    duplicates: Duplicates, manifest: Manifest, pictures: Sequence[Picture]
) -> str:
    """Return the section on duplicates; ``pictures`` are of the first samples of the groups."""
    if not duplicates.samples:
        text = "<p>No two samples have the same source bytes.</p>"
        return make_section("duplicates", "Duplicates", text)
    groups = plural(duplicates.groups_found, "image")
    occur = "occurs" if duplicates.groups_found == 1 else "occur"
    intro = (
        f"<p>{groups} {occur} more than once, byte for byte: {plural(duplicates.samples, 'sample')}"
        f" ({format_share(duplicates.samples, manifest.samples)}) "
        f"{'repeats' if duplicates.samples == 1 else 'repeat'} an earlier one. Packing kept them. "
        f"<code>{DUPLICATES_NAME}</code>, beside this page, lists "
        f"{'them' if duplicates.groups_found == len(duplicates.groups) else 'the first'}.</p>"
    )
    if duplicates.conflicting:
        have = "has" if duplicates.conflicting == 1 else "have"
        intro += (
            f"\n<p>{plural(duplicates.conflicting, 'image')} {have} "
            "<strong>different labels</strong>; these come first.</p>"
        )
    shown = zip(duplicates.groups, pictures, strict=False)
    pieces = [_group(group, picture, manifest) for group, picture in shown]
    more = duplicates.groups_found - len(pieces)
    return make_section(
        "duplicates",
        "Duplicates",
        intro,
        f'<div class="groups">{join_lines(pieces)}</div>',
        f'<p class="more">and {more:,} more images</p>' if more else "",
    )


def _group(group: DuplicateGroup, picture: Picture, manifest: Manifest) -> str:
    shown = _choose_members(group)
    members = join_lines(
        f'<li><span class="name">{escape_path(name)}</span>'
        f"{_label_note(name, label, manifest)}</li>"
        for name, label in shown
    )
    more = group.samples - len(shown)
    tag = '<span class="tag changed">different labels</span>' if group.is_conflicting else ""
    return join_lines(
        (
            f'<article class="group">{picture_html(picture)}<div>',
            f'<p class="count"><b>{group.samples:,}</b> times {tag}</p>',
            f"<ul>{members}</ul>",
            f'<p class="more">and {more:,} more</p>' if more else "",
            "</div></article>",
        )
    )


def _choose_members(group: DuplicateGroup) -> list[tuple[str, SampleLabel]]:
    """Return the members to show: one of each label first."""
    seen: set[SampleLabel] = set()
    first: list[tuple[str, SampleLabel]] = []
    others: list[tuple[str, SampleLabel]] = []
    for member in zip(group.names, group.labels, strict=True):
        (others if member[1] in seen else first).append(member)
        seen.add(member[1])
    return (first + others)[:_MEMBERS_SHOWN_MAX]


def _label_note(name: str, label: SampleLabel, manifest: Manifest) -> str:
    """Return a sample's label unless its name begins with that."""
    if isinstance(label, int) and name.startswith(f"{manifest.classes[label]}/"):
        return ""
    text = _describe_label(label, manifest.labels, manifest.classes)
    return f' <span class="note">{text}</span>' if text else ""


def _describe_label(label: SampleLabel, spec: LabelSpec, classes: Sequence[str]) -> str:
    """Return a label as HTML."""
    if isinstance(label, int):
        return escape_name(classes[label])
    shown = label[:_CLASSES_SHOWN_MAX]
    more = ", …" if len(label) > len(shown) else ""
    if spec.kind == "multi":
        return ", ".join(escape_name(classes[int(each)]) for each in shown) + more or "no class"
    return ", ".join(escape(format_amount(each)) for each in shown) + more

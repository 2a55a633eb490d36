"""Class numbers that a source counts from another number than 0."""

from feeder.plan.labels import LabelKind
from feeder.process.path_text import printable
from feeder.source.item_bytes import SourceError
from feeder.source.raw_labels import RawLabel


def count_from_zero(label: RawLabel, base: int, kind: LabelKind | None, field: str) -> RawLabel:
    """Return a label of a dataset's ``kind``, whose first class is ``base``, from 0.

    Only numbers of classes change: integers, and floats where the kind is one of classes. Raises
    SourceError (bad-label) for one below ``base``; ``field`` is for its reason.
    """
    if kind in ("float", "none"):
        return label
    if isinstance(label, list):
        return [count_from_zero(each, base, kind, field) for each in label]  # type: ignore[return-value]
    if isinstance(label, int) or (isinstance(label, float) and kind is not None):
        if label < base:
            raise SourceError(
                "bad-label",
                f"its {printable(field)} is {label}, below the first class {base} (--label-base; "
                "--label-kind none where there are no labels)",
            )
        return label - base
    return label

"""Parquet files with an image in each row, as Hugging Face's datasets writes them, or plain.

A Parquet file cannot be read in any order, so its images are copied to the work folder while it is
listed. Only listing needs pyarrow.
"""

from collections.abc import Mapping
from typing import TYPE_CHECKING, Final, cast

from feeder.errors import DatasetError
from feeder.process.path_text import decode_name, printable
from feeder.source.item_bytes import SourceError, check_size
from feeder.source.kinds import Kind, missing_extra
from feeder.source.listing import ItemListing
from feeder.source.raw_labels import RawLabel
from feeder.source.source import ContainerSource, SourceSpec, number_name

if TYPE_CHECKING:
    from feeder.source.parquet_rows import Row


class ParquetFiles(ContainerSource):
    """Parquet files; see ``Source``."""

    def list_items(self, container: int, listing: ItemListing) -> None:
        """Add the rows of a file and spill their images.

        Raises DatasetError where the file is damaged, ResourceError without pyarrow.
        """
        try:
            from feeder.source.parquet_rows import WRITE_CSV, open_rows
        except ModuleNotFoundError:
            raise missing_extra("Parquet", "pyarrow", "parquet") from None
        prefix = self.prefix(container)
        with open_rows(self._spec, container, listing.stamp) as rows:
            listing.expect_spill(rows.stored_bytes)
            listing.about.base = self._spec.label_base or 0
            if rows.label:
                listing.about.field = f"column {printable(rows.label)}"
            for number, text in enumerate(rows.class_names):
                listing.name_class(number, text)
            listing.about.is_declared = bool(rows.class_names)
            count, nulls, file_name = 0, 0, b""
            for row in rows.rows():
                if self._spec.split not in ("", row.split):
                    continue
                count += 1
                if row.image is None:
                    nulls += 1
                    file_name = file_name or row.path
                self._add(prefix, row, listing)
            if nulls and nulls == count:
                column = f"{rows.name}: the column {printable(rows.image)} has no image bytes"
                if not file_name:
                    raise DatasetError(f"{column}, only nulls")
                raise DatasetError(
                    f"{column}, only paths such as {printable(decode_name(file_name)[:200])}: "
                    f"embed the files in it (docs/sources.md says how), or {WRITE_CSV}"
                )

    def _add(self, prefix: str, row: "Row", listing: ItemListing) -> None:
        name = number_name(prefix, row.number, row.path)
        try:
            if row.image is None:
                path = printable(decode_name(row.path)[:200])
                detail = f", and has only the path {path}" if path else ""
                raise SourceError("no-image", f"its image is null{detail}")
            check_size(len(row.image), "its image has no bytes")
        except SourceError as error:
            listing.reject(name, error.kind, error.reason)
            return
        label = _decoded(row.label)
        listing.add(name, label, offset=listing.spill(row.image), size_bytes=len(row.image))


def _decoded(value: object) -> RawLabel:
    """Return a label whose bytes are texts."""
    if isinstance(value, list):
        return cast(RawLabel, [_decoded(each) for each in value])
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else cast(RawLabel, value)


def _count_splits(spec: SourceSpec) -> tuple[str, Mapping[str, int]]:
    try:
        from feeder.source.parquet_rows import count_splits
    except ModuleNotFoundError:  # of pyarrow, which listing reports
        return "", {}
    return count_splits(spec)


KINDS: Final = {
    "parquet": Kind(
        open=ParquetFiles,
        labels="in its files (--label COLUMN)",
        takes="image label label-base float",
        what="a Parquet file",
        plural="Parquet files",
        suffixes=("parquet",),
        # PARE: one that is encrypted, as its reader reports.
        matches=lambda start, name: start.startswith((b"PAR1", b"PARE")),
        count_splits=_count_splits,
    )
}

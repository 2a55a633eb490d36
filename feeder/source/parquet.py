"""Parquet files with an image in each row, as Hugging Face's datasets writes them, or plain.

A Parquet file cannot be read in any order, so its images are copied to the work folder while it is
listed. Only listing needs pyarrow.
"""

from collections.abc import Mapping
from typing import Final

from feeder.source.kinds import Kind, missing_extra
from feeder.source.listing import ItemListing
from feeder.source.source import ContainerSource, SourceSpec


class ParquetFiles(ContainerSource):
    """Parquet files; see ``Source``."""

    def list_items(self, container: int, listing: ItemListing) -> None:
        """See ``list_rows``; ResourceError without pyarrow."""
        try:
            from feeder.source.parquet_rows import list_rows
        except ModuleNotFoundError:
            raise missing_extra("Parquet", "pyarrow", "parquet") from None
        list_rows(self._spec, container, self.prefix(container), listing)


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

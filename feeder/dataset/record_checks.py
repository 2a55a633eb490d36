"""Whether the fields of a record are consistent, as reading a sample assumes.

A record with the right checksum can still be inconsistent if another program wrote it. Invariant: a
sample whose record passes has a size and a subsampling that the tile grid, the crop and the decoder
can handle, and no more pixels than packing accepts, so that a reader's allocation is bounded.
``feeder verify`` shows the fields.
"""

import numpy as np
from numpy.typing import NDArray

from feeder.jpeg.recode import PIXELS_MAX, Subsampling


def find_inconsistent(records: NDArray[np.void], labels: int) -> int | None:
    """Return the position of the first inconsistent one of ``records`` (n,); None if there is none.

    ``labels`` is the number that every label is below (LabelSpec.count_record_labels).
    """
    pixels = records["width"].astype(np.int64) * records["height"]
    consistent = (
        (pixels > 0)
        & (pixels <= PIXELS_MAX)
        & (records["subsampling"] < Subsampling.OTHER)
        & (records["label"] < labels)
    )
    return None if consistent.all() else int(np.argmin(consistent))

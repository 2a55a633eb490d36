"""Downloads a dataset with obstore alone, into files of the layout that the disk cache has.

    python -m bench.store.alone PARENT_PID BUCKET PREFIX FOLDER

Each shard becomes a sparse file of its full size, by ranges of RANGE_BYTES, IN_FLIGHT at a time,
which is what the client library does best (../shared/STORES.md). Nothing is checked and nothing
noted: the least that a fetcher must do.
"""

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Final

from feeder.dataset.manifest import MANIFEST_NAME, decode_manifest
from feeder.process.child import die_with_parent

RANGE_BYTES: Final = 8 << 20
IN_FLIGHT: Final = 8


def download(bucket: str, prefix: str, folder: Path) -> None:
    import obstore
    from obstore.store import S3Store

    store = S3Store(bucket, prefix=prefix, client_options={"allow_http": True})
    data = bytes(obstore.get(store, MANIFEST_NAME).bytes())
    (folder / MANIFEST_NAME).write_bytes(data)
    ranges, files = [], []
    for shard in decode_manifest(data, MANIFEST_NAME).shards:
        file = os.open(folder / shard.name, os.O_WRONLY | os.O_CREAT, 0o644)
        os.truncate(file, shard.bytes)
        files.append(file)
        for start in range(0, shard.bytes, RANGE_BYTES):
            ranges.append((shard.name, file, start, min(start + RANGE_BYTES, shard.bytes)))

    def copy(piece: tuple[str, int, int, int]) -> None:
        name, file, start, end = piece
        block = memoryview(obstore.get_range(store, name, start=start, end=end))
        while block:
            written = os.pwrite(file, block, start)
            block, start = block[written:], start + written

    with ThreadPoolExecutor(IN_FLIGHT) as threads:
        for _ in threads.map(copy, ranges):
            pass
    for file in files:
        os.close(file)


if __name__ == "__main__":
    die_with_parent(int(sys.argv[1]))
    download(sys.argv[2], sys.argv[3], Path(sys.argv[4]))

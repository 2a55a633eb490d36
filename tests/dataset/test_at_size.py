"""A dataset of 14 million samples is opened in little memory: only its manifest is read."""

import subprocess
import sys
from pathlib import Path

from feeder.dataset.format import shard_name
from feeder.dataset.manifest import MANIFEST_NAME, Manifest, ShardEntry, samples_in_shard

_SAMPLES = 14_197_122  # ImageNet-21k
_CLASSES = 21_841
_SHARDS = 5_904  # of 256 MB
_MEMORY_MAX_MB = 200

_OPEN = """
import sys
from pathlib import Path
from feeder.dataset.opened import Dataset
with Dataset.open(Path(sys.argv[1])) as dataset:
    print(dataset.layout.samples, len(dataset.classes))
status = dict(line.split(":", 1) for line in open("/proc/self/status"))
print(int(status["VmHWM"].split()[0]) // 1024)  # getrusage would count what pytest had before exec
"""


def make_manifest() -> Manifest:
    shards = tuple(
        ShardEntry(
            name=shard_name(number),
            samples=samples_in_shard(_SAMPLES, _SHARDS, number),
            bytes=256 << 20,
            index_xxh3=f"{number:016x}",
        )
        for number in range(_SHARDS)
    )
    return Manifest(
        samples=_SAMPLES,
        classes=tuple(f"n{number:08d}" for number in range(_CLASSES)),
        tile_width_px=32,
        seed=0,
        options={},
        odd={},
        subsampling={},
        quarantined=0,
        quarantine_xxh3="0" * 16,
        source_bytes=_SHARDS << 28,
        shards=shards,
        content="0" * 32,
    ).sealed()


def test_14_million_samples_open_in_200_mb(tmp_path: Path) -> None:
    (tmp_path / MANIFEST_NAME).write_bytes(make_manifest().encode())
    opened = subprocess.run(
        [sys.executable, "-c", _OPEN, str(tmp_path)], capture_output=True, text=True, check=True
    )
    counts, memory_mb = opened.stdout.splitlines()
    assert counts == f"{_SAMPLES} {_CLASSES}"
    assert int(memory_mb) < _MEMORY_MAX_MB

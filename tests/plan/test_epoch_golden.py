"""One order and one set of crops everywhere: pinned hashes, other processes, other CPUs."""

import os
import subprocess
import sys
import warnings
from pathlib import Path

import numpy as np
import pytest

# If these change, running jobs cannot resume, and old and new nodes make different batches: raise
# PROTOCOL_VERSION and add a changelog entry.
ORDER = "9715670e788699cd5189fb543aeee1b8"
CROPS = "2d6f18f1553ea5eac06c505f39f711c1"

DIGESTS = """
import hashlib
import numpy as np
from feeder.plan.crop import plan_crops
from feeder.plan.epoch import EpochPlan, LastBatch, ShardLayout
from feeder.plan.recipe import Recipe

order = hashlib.blake2b(digest_size=16)
for samples, lanes in ((1, 0), (97, 3), (10_007, 0), (10_007, 4), (14_197_122, 0)):
    for seed, epoch in ((0, 0), (2**64 - 1, 2**31 - 1)):
        for shuffle in (True, False):
            layout = ShardLayout(samples=samples, shards=1)
            plan = EpochPlan(layout, batch_size=32, seed=seed, epoch=epoch, shuffle=shuffle,
                             last_batch=LastBatch.PAD, lanes=lanes)
            for index in [*range(plan.batches)][:200] + [*range(plan.batches)][-20:]:
                order.update(plan.samples(index).astype("<i8").tobytes())
print(order.hexdigest())

crops = hashlib.blake2b(digest_size=16)
ids = np.arange(30_000, dtype=np.int64) * 467
for split in ("train", "val"):
    for ratio in ((3 / 4, 4 / 3), (0.02, 55.0)):
        recipe = Recipe.for_split(split, batch_size=1, ratio=ratio, dct_scaling=True)
        plan = plan_crops(recipe, seed=2**63 + 1, epoch=5, sample_ids=ids,
                          widths=ids % 1999 + 1, heights=ids % 1499 + 1)
        crops.update(plan.boxes.astype("<f8").tobytes())
        crops.update(plan.flips.tobytes() + plan.scales.astype("<i8").tobytes())
print(crops.hexdigest())
"""


def digests_elsewhere(**environment: str) -> list[str]:
    """Run the script in another process with ``environment`` added; return the digests."""
    finished = subprocess.run(
        [sys.executable, "-c", DIGESTS],
        env={**os.environ, **environment},
        cwd=Path(__file__).resolve().parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert finished.returncode == 0, finished.stderr
    return finished.stdout.split()


def test_order_and_crops_do_not_depend_on_the_hash_seed() -> None:
    assert digests_elsewhere(PYTHONHASHSEED="0") == [ORDER, CROPS]


def test_order_and_crops_do_not_depend_on_the_cpus_vector_instructions() -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # show_config may miss an optional package
        features = np.show_config(mode="dicts").get("SIMD Extensions", {}).get("found", [])
    if not features:
        pytest.skip("numpy found no vector instructions here to switch off")
    disabled = " ".join(features)
    digests = digests_elsewhere(NPY_DISABLE_CPU_FEATURES=disabled, PYTHONHASHSEED="12345")
    assert digests == [ORDER, CROPS]

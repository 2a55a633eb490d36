"""A batch in the hands of each framework: moved, rebuilt, unpacked, its size found."""

from pathlib import Path

import pytest

from tests.frameworks.running import Served, environment, run_example
from tests.support.sources import REPOSITORY

PYTHON = environment("torch")
SCRIPT = REPOSITORY / "tests" / "frameworks" / "scripts" / "batch_uses.py"


@pytest.mark.parametrize("use", ["plain", "torch", "lightning", "fabric", "accelerate"])
def test_a_batch_is_a_tuple_to_everything_that_treats_it_as_one(
    served: Served, tmp_path: Path, use: str
) -> None:
    run_example(PYTHON, str(SCRIPT), use, served.endpoint, folder=tmp_path)

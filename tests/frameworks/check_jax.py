"""JAX on a NumpyLoader, in an environment without torch."""

from pathlib import Path

from tests.frameworks.running import environment
from tests.frameworks.without_torch import ArrayChecks, check_no_torch

PYTHON = environment("jax")


class TestJax(ArrayChecks):
    python = PYTHON
    script = "jax_train.py"
    channels = 3  # of the packed pixels; the device adds the fourth


def test_the_environment_has_no_torch(tmp_path: Path) -> None:
    check_no_torch(PYTHON, tmp_path, "jax")

"""TensorFlow on a NumpyLoader, through tf.data, in an environment without torch."""

from pathlib import Path

from tests.frameworks.running import environment
from tests.frameworks.without_torch import ArrayChecks, check_no_torch

PYTHON = environment("tensorflow")


class TestTensorFlow(ArrayChecks):
    python = PYTHON
    script = "tensorflow_train.py"
    channels = 3


def test_the_environment_has_no_torch(tmp_path: Path) -> None:
    check_no_torch(PYTHON, tmp_path, "tensorflow")

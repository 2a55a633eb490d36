"""The client itself where torch and the frameworks are: its batch in their hands, its types."""

from pathlib import Path

import pytest

from tests.frameworks.running import SCRIPTS, Served, environment, run_example, run_python
from tests.support.sources import REPOSITORY

PYTHON = environment("torch")
TYPED = REPOSITORY / "tests" / "trainer_client" / "typed_script.py"


@pytest.mark.parametrize("use", ["torch", "lightning", "fabric", "accelerate"])
def test_a_batch_is_a_tuple_to_everything_that_treats_it_as_one(
    served: Served, tmp_path: Path, use: str
) -> None:
    run_example(PYTHON, str(SCRIPTS / "batch_uses.py"), use, served.endpoint, folder=tmp_path)


def test_a_users_script_passes_pyright_in_strict_mode(tmp_path: Path) -> None:
    """In a folder where trainer_client is the installed one."""
    (tmp_path / "script.py").write_text(TYPED.read_text("utf-8"))
    command = ["-m", "pyright", "--pythonpath", PYTHON, "script.py"]
    done = run_python(PYTHON, *command, folder=tmp_path)
    assert done.returncode == 0, done.stdout

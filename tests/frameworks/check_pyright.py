"""A user's script under pyright, in strict mode, against the installed client."""

import subprocess
from pathlib import Path

from tests.frameworks.running import environment
from tests.support.sources import REPOSITORY

PYTHON = environment("torch")
SCRIPT = REPOSITORY / "tests" / "trainer_client" / "typed_script.py"


def run_pyright(script: Path) -> "subprocess.CompletedProcess[str]":
    command = [PYTHON, "-m", "pyright", "--pythonpath", PYTHON, script.name]
    return subprocess.run(  # in its folder, where trainer_client is the installed one
        command, cwd=script.parent, capture_output=True, text=True, timeout=240, check=False
    )


def test_a_users_script_passes(tmp_path: Path) -> None:
    script = tmp_path / "script.py"
    script.write_text(SCRIPT.read_text("utf-8"))
    done = run_pyright(script)
    assert done.returncode == 0, done.stdout

"""The client's types, from a user's side."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("typed_script.py")
ROOT = SCRIPT.parents[2]


def check(script: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", str(script)]
    return subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False
    )


def test_a_users_script_passes_strict_type_checking() -> None:
    done = check(SCRIPT)
    assert (done.returncode, done.stdout) == (0, ""), done.stdout + done.stderr


def test_wrong_arguments_are_found(tmp_path: Path) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from trainer_client import FeederLoader\n"
        "loader = FeederLoader('tcp://h:1', dataset='d', batch_size='64', channels=2)\n"
        "for images, labels, more in loader: ...\n"
        "loader.image_size = 160\n"
    )
    found = check(wrong).stdout
    assert 'Argument "batch_size" to "FeederLoader" has incompatible type "str"' in found
    assert 'Argument "channels" to "FeederLoader" has incompatible type "Literal[2]"' in found
    assert "wrong.py:3: error:" in found
    assert '"FeederLoader" has no attribute "image_size"' in found

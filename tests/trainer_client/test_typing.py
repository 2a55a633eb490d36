"""The client's types, from a user's side."""

import subprocess
import sys
from pathlib import Path

SCRIPT = Path(__file__).with_name("typed_script.py")


def test_a_users_script_passes_strict_type_checking_and_wrong_arguments_are_found(
    tmp_path: Path,
) -> None:
    wrong = tmp_path / "wrong.py"
    wrong.write_text(
        "from trainer_client import FeederLoader\n"
        "loader = FeederLoader('tcp://h:1', dataset='d', batch_size='64', channels=2)\n"
        "for images, labels, more in loader: ...\n"
        "loader.image_size = 160\n"
    )
    done = subprocess.run(
        [sys.executable, "-m", "mypy", "--strict", "--no-error-summary", SCRIPT, wrong],
        cwd=SCRIPT.parents[2],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
    )
    first, second, third, last = done.stdout.splitlines()
    assert 'wrong.py:2: error: Argument "batch_size" to "FeederLoader" has incompatible' in first
    assert 'Argument "channels" to "FeederLoader" has incompatible type "Literal[2]"' in second
    assert "wrong.py:3: error:" in third
    assert 'wrong.py:4: error: "FeederLoader" has no attribute "image_size"' in last

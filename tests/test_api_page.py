"""docs/api.md is what the docstrings say."""

import subprocess
import sys
from pathlib import Path

from tests.support.sources import REPOSITORY


def test_the_api_page_is_up_to_date(tmp_path: Path) -> None:
    page = tmp_path / "api.md"
    command = [str(Path(sys.executable).with_name("griffe2md")), "trainer_client", "-o", str(page)]
    subprocess.run(command, cwd=REPOSITORY, check=True, timeout=120, capture_output=True)
    committed = (REPOSITORY / "docs" / "api.md").read_text("utf-8")
    assert page.read_text("utf-8") == committed, "run `make api`"
    for name in ("FeederLoader", "NumpyLoader", "Batch", "Accuracy"):
        assert f"### `trainer_client.{name}`" in committed

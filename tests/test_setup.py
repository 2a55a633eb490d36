"""`make setup` rebuilds Pillow-SIMD in a checkout whose build is stale, missing or overwritten."""

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.sources import REPOSITORY

BUILDS = "--force-reinstall --no-deps --no-cache-dir --no-binary pillow-simd"


@pytest.fixture
def checkout(tmp_path: Path) -> Path:
    """A checkout that make considers set up, by its files and their times."""
    if shutil.which("make") is None:
        pytest.skip("make is missing: apt-get install make")
    (tmp_path / ".ci").mkdir()
    for name in ("Makefile", "pyproject.toml", ".ci/system-packages"):
        shutil.copy(REPOSITORY / name, tmp_path / name)
    native = Path("feeder", "jpeg", "native")
    shutil.copytree(REPOSITORY / native, tmp_path / native)
    packages = tmp_path / ".venv" / "lib" / "python3.11" / "site-packages"
    made = [
        tmp_path / ".venv" / "bin" / "python",
        packages / "PIL" / "_imaging.cpython-311-x86_64-linux-gnu.so",
        packages / "pillow_simd-12.1.1.post0.dist-info" / "RECORD",
        tmp_path / ".venv" / ".pillow-simd",
        tmp_path / ".venv" / ".torch",
        tmp_path / ".venv" / ".project",
    ]
    newest_s = max(path.stat().st_mtime for path in tmp_path.rglob("*"))
    for age, path in enumerate(made, start=1):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.touch()
        os.utime(path, (newest_s + age, newest_s + age))
    return tmp_path


def would_run(checkout: Path) -> str:
    """Return the commands that ``make setup`` would run."""
    command = ["make", "--dry-run", "--no-print-directory", "setup"]
    return subprocess.run(command, cwd=checkout, capture_output=True, text=True, check=True).stdout


def test_setup_does_nothing_when_up_to_date(checkout: Path) -> None:
    assert "pip" not in would_run(checkout)


def test_changed_system_packages_force_a_rebuild_without_pips_cache(checkout: Path) -> None:
    later_s = (checkout / ".venv" / ".project").stat().st_mtime + 1
    os.utime(checkout / ".ci" / "system-packages", (later_s, later_s))
    commands = would_run(checkout)
    assert BUILDS in commands
    assert "tiff=enable" in commands
    assert commands.index(".ci/system-packages") < commands.index(BUILDS)
    assert commands.index(BUILDS) < commands.index("--editable")


def test_pillow_installed_over_it_is_removed_before_the_rebuild(checkout: Path) -> None:
    packages = checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    (packages / "pillow-13.0.0.dist-info").mkdir()
    commands = would_run(checkout)
    assert commands.index("uninstall --yes pillow") < commands.index(BUILDS)


def test_an_installation_under_the_former_name_is_removed_before_the_new_one(
    checkout: Path,
) -> None:
    packages = checkout / ".venv" / "lib" / "python3.11" / "site-packages"
    (checkout / ".venv" / ".project").unlink()
    (packages / "feeder-0.4.3.dist-info").mkdir()  # the index's project of that name is not ours
    assert "uninstall --yes feeder" not in would_run(checkout)
    (packages / "__editable__.feeder-0.1.0.pth").touch()
    commands = would_run(checkout)
    assert commands.index("uninstall --yes feeder;") < commands.index("--editable")

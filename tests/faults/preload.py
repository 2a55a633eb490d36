"""Functions of libc that a test replaces in whole processes."""

import subprocess
from pathlib import Path


def preload(source: str, folder: Path) -> dict[str, str]:
    """Return an environment in which functions of libc are those of ``source``."""
    library = folder / "preloaded.so"
    path = Path(__file__).with_name(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, path, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}

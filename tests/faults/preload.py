"""Replaces libc functions in whole processes, by LD_PRELOAD."""

import subprocess
from pathlib import Path


def preload(source: str, folder: Path) -> dict[str, str]:
    """Compile ``source``; return an environment in which its functions replace those of libc."""
    library = folder / "preloaded.so"
    path = Path(__file__).with_name(source)
    subprocess.run(["cc", "-shared", "-fPIC", "-o", library, path, "-ldl"], check=True)
    return {"LD_PRELOAD": str(library)}

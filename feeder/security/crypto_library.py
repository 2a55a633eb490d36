"""Which crypto library libzmq uses for CURVE in this process."""

from pathlib import Path

import zmq


def find_crypto_library() -> tuple[str, Path | None]:
    """Return "libsodium", "tweetnacl", "none" or "unknown", and its path if it is a file.

    It is found in the process's mappings; one that is linked into libzmq shows by its symbols.
    """
    if not zmq.has("curve"):
        return "none", None
    maps = Path("/proc/self/maps").read_text("utf-8", "replace").splitlines()
    mapped = {line.split(maxsplit=5)[-1] for line in maps if "/" in line}
    paths = [Path(text.strip()) for text in mapped]
    for path in paths:
        if path.name.startswith("libsodium"):
            return "libsodium", path
    for path in paths:
        if "zmq" in path.name and ".so" in path.name:
            code = path.read_bytes()
            for symbol, name in ((b"sodium_init", "libsodium"), (b"tweet", "tweetnacl")):
                if symbol in code:
                    return name, None
    return "unknown", None

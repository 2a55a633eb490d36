"""How this copy of Feeder was installed, what it lacks, and the command that installs that.

The distribution is called ``feederd``, because the package index has another project called
``feeder``; it is not on the index itself. So a command names this copy's path or URL, or else the
packages that are missing, never a project that others could publish.

Imports only what it needs, and that late: processes that are short of memory have imported it.
"""

import os
from collections.abc import Mapping
from types import MappingProxyType
from typing import Final

DISTRIBUTION: Final = "feederd"

DAEMON_MODULES: Final[Mapping[str, str]] = MappingProxyType(
    {
        "numpy": "numpy",
        "pyzmq": "zmq",
        "msgspec": "msgspec",
        "pillow-simd": "PIL",
        "PyTurboJPEG": "turbojpeg",
        "psutil": "psutil",
        "xxhash": "xxhash",
        "prometheus-client": "prometheus_client",
        "rich": "rich",
        "google-crc32c": "google_crc32c",
    }
)
"""The packages that the daemon needs, with the module that is imported of each."""

_ROOT: Final = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))


def missing_packages() -> tuple[str, ...]:
    """Return those of DAEMON_MODULES that are not installed in this environment."""
    from importlib.util import find_spec

    return tuple(name for name, module in DAEMON_MODULES.items() if find_spec(module) is None)


def install_command(*extras: str) -> str:
    """Return the shell command that installs this copy and what its ``extras`` name."""
    import shlex

    names = f"[{','.join(extras)}]" if extras else ""
    origin = _find_origin()
    if origin.startswith("/"):
        option = "--editable " if origin == _ROOT else ""
        return f"pip install {option}{shlex.quote(origin + names)}"
    if origin:
        return f"pip install {shlex.quote(f'{DISTRIBUTION}{names} @ {origin}')}"
    packages = _packages_of(extras)
    return "pip install " + " ".join(map(shlex.quote, packages or [f"PATH-TO-FEEDER{names}"]))


def rebuild_command() -> str:
    """Return what installs this copy with its parts in C, once what they need is there."""
    if os.path.isdir(_find_origin()):
        return f"run `{install_command()}` again"
    return "build the wheel again and install that"


def explain_missing_extension() -> str:
    """Return what to do where the daemon's part in C was not built, in one line."""
    return (
        "the daemon's C extension is not built in this environment: install a C compiler and the "
        "headers of libjpeg-turbo (Debian: gcc libjpeg-dev libturbojpeg0-dev), then "
        f"{rebuild_command()}"
    )


def _find_origin() -> str:
    """Return the path or URL that this copy was installed from; "" if that is gone or unknown."""
    if os.path.isdir(os.path.join(_ROOT, "feeder", "jpeg", "native")):
        return _ROOT  # a checkout: wheels have no sources in C
    import json
    from importlib import metadata
    from urllib.parse import unquote, urlsplit

    try:
        text = metadata.distribution(DISTRIBUTION).read_text("direct_url.json")
    except metadata.PackageNotFoundError:  # the folder was copied
        return ""
    origin = json.loads(text or "{}")
    url = str(origin.get("url", ""))
    if url.startswith("file:"):
        path = unquote(urlsplit(url).path)
        return path if os.path.exists(path) else ""
    if "vcs_info" in origin:
        return f"{origin['vcs_info']['vcs']}+{url}@{origin['vcs_info']['commit_id']}"
    return url


def _packages_of(extras: tuple[str, ...]) -> list[str]:
    """Return the requirements of the extras, by the metadata of this copy."""
    from importlib import metadata

    try:
        requirements = metadata.requires(DISTRIBUTION) or []
    except metadata.PackageNotFoundError:
        return []
    markers = {f'extra == "{extra}"' for extra in extras}
    pairs = (line.partition("; ") for line in requirements)
    return [package for package, _, marker in pairs if marker in markers]

"""Small tars, as bytes."""

import io
import tarfile
from collections.abc import Iterable, Mapping


def tar_bytes(
    files: Mapping[str, bytes] | Iterable[tuple[str, bytes]], form: int = tarfile.USTAR_FORMAT
) -> bytes:
    """Return a tar of these files in their order; the end-of-archive marker is its last KiB."""
    pairs = files.items() if isinstance(files, Mapping) else files
    return b"".join(member(name, data, form=form) for name, data in pairs) + bytes(1024)


def member(
    name: str,
    data: bytes = b"",
    kind: bytes = tarfile.REGTYPE,
    link: str = "",
    form: int = tarfile.USTAR_FORMAT,
) -> bytes:
    """Return one member: its headers, and its data with the padding."""
    info = tarfile.TarInfo(name)
    info.size, info.type, info.linkname = len(data), kind, link
    file = io.BytesIO()
    with tarfile.TarFile(fileobj=file, mode="w", format=form) as tar:
        tar.addfile(info, io.BytesIO(data))
        size_bytes = tar.offset
    return file.getvalue()[:size_bytes]

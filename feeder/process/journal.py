"""Whether standard error is connected to the systemd journal."""

import os
from collections.abc import Mapping


def is_journal(environ: Mapping[str, str], fd: int) -> bool:
    """Return whether ``fd`` is the stream that systemd has connected to the journal.

    $JOURNAL_STREAM alone is no proof: processes with another stderr inherit it, too.
    Source: systemd.exec(5).
    """
    device, colon, inode = environ.get("JOURNAL_STREAM", "").partition(":")
    try:
        status = os.fstat(fd)
    except OSError:
        return False
    return bool(colon) and (device, inode) == (str(status.st_dev), str(status.st_ino))

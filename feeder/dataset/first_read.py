"""Checks in a child process, which can be abandoned, that datasets can be read at all.

    python -m feeder.dataset.first_read PARENT_PID MANIFEST…

A read from a dead file system never returns, and no signal ends the process that waits for it. So
before a process of Feeder first reads its datasets, a child reads the manifest of each and the ends
of its first shards. The child writes a byte after each dataset, also after an error, which the
caller finds when it reads. A child that hangs is left to the kernel.

The child imports the standard library only, so that it costs little.
"""

import contextlib
import json
import os
import select
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Final

from feeder.errors import ResourceError
from feeder.process.child import die_with_parent, start_python
from feeder.process.regular_file import open_regular, read_regular

if TYPE_CHECKING:
    from feeder.dataset.files import Location

ANSWER_DEADLINE_S: Final = 30.0
"""For each dataset; an automounter or a cold NFS mount takes seconds."""

_SHARDS_MAX: Final = 16
_MANIFEST_BYTES_MAX: Final = 256 << 20
_END_BYTES: Final = 4096


def check_readable(
    locations: "Mapping[str, Location]", deadline_s: float = ANSWER_DEADLINE_S
) -> None:
    """Return once each local dataset has answered; ResourceError names the first that does not.

    ``locations`` has that of each dataset by its name in messages. Stores have deadlines of their
    own.
    """
    from feeder.dataset.files import local_folder  # here, to keep the child cheap
    from feeder.dataset.manifest import MANIFEST_NAME

    places = {name: local_folder(location) for name, location in locations.items()}
    folders = {name: folder for name, folder in places.items() if folder is not None}
    if not folders:
        return
    manifests = [str(folder / MANIFEST_NAME) for folder in folders.values()]
    try:
        process = start_python(
            "feeder.dataset.first_read",
            os.getpid(),
            *manifests,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,  # the child must not keep our stderr open
            process_group=0,  # the terminal's Ctrl-C is for the parent
        )
    except OSError:
        return  # the caller's own processes fail in the same way and report it
    assert process.stdout is not None
    try:
        with process.stdout as answers:
            poll = select.poll()  # select.select takes no descriptor above 1023
            poll.register(answers, select.POLLIN)
            for name in folders:
                if not poll.poll(deadline_s * 1000):
                    raise ResourceError(
                        f"{name} cannot be read: no answer in {deadline_s:.0f} s, is its file "
                        "system alive?"
                    )
                if not os.read(answers.fileno(), 1):
                    return  # the child has died: the caller finds out when it reads
    finally:
        process.kill()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(1.0)


def main(arguments: Sequence[str]) -> int:
    """Run as the child: read the ends of each dataset's shards."""
    die_with_parent(int(arguments[0]))
    for manifest in arguments[1:]:
        with contextlib.suppress(OSError, ValueError, LookupError, TypeError):
            _read_ends(Path(manifest))
        os.write(sys.stdout.fileno(), b".")
    return 0


def _read_ends(manifest: Path) -> None:
    shards = json.loads(read_regular(manifest, _MANIFEST_BYTES_MAX))["shards"]
    for shard in shards[:_SHARDS_MAX]:
        descriptor = open_regular(manifest.parent / shard["name"])
        try:
            end = max(0, os.fstat(descriptor).st_size - _END_BYTES)
            os.pread(descriptor, _END_BYTES, 0)
            os.pread(descriptor, _END_BYTES, end)
        finally:
            os.close(descriptor)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))

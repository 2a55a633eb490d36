"""A file system that can stop responding, a FUSE mirror of a folder; and a disk that is soon full.

    python -m tests.support.hanging_fs SOURCE MOUNT SILENCE

While the file SILENCE exists, requests for the files that it lists (one name a line; an empty list
means all) get no reply. The process that made one waits in uninterruptible sleep, which no signal
ends, as with a dead NFS server. With a file SILENCE.delay, reads take so many seconds each, one
after the other, as on a hard disk that seeks. Needs root and /dev/fuse; implements the kernel's
protocol (linux/fuse.h), read-only, one folder deep.
"""

import contextlib
import ctypes
import errno
import os
import select
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.support.daemon import wait_until
from tests.support.sources import REPOSITORY

_LOOKUP, _FORGET, _GETATTR, _OPEN, _READ, _STATFS, _RELEASE, _FLUSH = 1, 2, 3, 14, 15, 17, 18, 25
_INIT, _OPENDIR, _READDIR, _RELEASEDIR, _ACCESS, _INTERRUPT, _DESTROY = 26, 27, 28, 29, 34, 36, 38
_BATCH_FORGET = 42
_HEADER = struct.Struct("<IIQQIIII")  # length, opcode, unique, node, uid, gid, pid, padding
_ATTRIBUTES = struct.Struct("<QQQQQQIIIIIIIIII")
_DIRECT_IO = 1  # bypasses the page cache, so that every read is a request
_ROOT = 1
_MNT_DETACH = 2
_POLL_S = 0.02

_libc = ctypes.CDLL(None, use_errno=True)


class _Mirror:
    def __init__(self, source: Path, silence: Path) -> None:
        self._source = source
        self._silence = silence
        self._delay = silence.with_suffix(".delay")
        self._names = sorted(os.listdir(source))
        self._held: list[bytes] = []

    def serve(self, fuse: int) -> None:
        """Reply to requests until the file system is unmounted."""
        while True:
            held, self._held = self._held, []
            for request in held:
                self._handle(fuse, request)
            if not select.select([fuse], [], [], _POLL_S)[0]:
                continue
            try:
                request = os.read(fuse, 1 << 20)
            except OSError as error:
                if error.errno == errno.ENODEV:
                    return
                continue
            self._handle(fuse, request)

    def _handle(self, fuse: int, request: bytes) -> None:
        _, opcode, unique, node, *_ = _HEADER.unpack_from(request)
        body = request[_HEADER.size :]
        if opcode in (_FORGET, _BATCH_FORGET, _INTERRUPT):
            return
        if self._is_silent(opcode, node, body):
            self._held.append(request)
            return
        try:
            error, answer = 0, self._answer(opcode, node, body)
        except OSError as raised:
            error, answer = raised.errno or errno.EIO, b""
        with contextlib.suppress(OSError):  # the caller has ended
            os.write(fuse, struct.pack("<IiQ", 16 + len(answer), -error, unique) + answer)

    def _is_silent(self, opcode: int, node: int, body: bytes) -> bool:
        if opcode not in (_LOOKUP, _GETATTR, _OPEN, _READ):
            return False
        try:
            listed = self._silence.read_text().split()
        except FileNotFoundError:
            return False
        name = body.rstrip(b"\0").decode() if opcode == _LOOKUP else self._name(node)
        return bool(name) and (not listed or name in listed)

    def _name(self, node: int) -> str:
        return "" if node == _ROOT else self._names[node - _ROOT - 1]

    def _answer(self, opcode: int, node: int, body: bytes) -> bytes:
        path = self._source / self._name(node)
        match opcode:
            case x if x == _INIT:
                # Version 7.31; no flags; background requests 12 and 9; writes of 4 KiB.
                return struct.pack("<IIIIHHII", 7, 31, 1 << 17, 0, 12, 9, 4096, 1) + bytes(36)
            case x if x == _LOOKUP:
                name = body.rstrip(b"\0").decode()
                if name not in self._names:
                    raise FileNotFoundError(errno.ENOENT, "")
                found = _ROOT + 1 + self._names.index(name)
                return struct.pack("<QQQQII", found, 0, 0, 0, 0, 0) + self._attributes(found)
            case x if x == _GETATTR:
                return struct.pack("<QII", 0, 0, 0) + self._attributes(node)
            case x if x in (_OPEN, _OPENDIR):
                return struct.pack("<QII", node, _DIRECT_IO, 0)
            case x if x == _READ:
                _, offset, size = struct.unpack_from("<QQI", body)
                with contextlib.suppress(FileNotFoundError):
                    time.sleep(float(self._delay.read_text()))
                with path.open("rb") as file:
                    return os.pread(file.fileno(), size, offset)
            case x if x == _READDIR:
                _, offset, size = struct.unpack_from("<QQI", body)
                return self._entries(offset, size)
            case x if x == _STATFS:
                return bytes(80)
            case x if x in (_RELEASE, _RELEASEDIR, _FLUSH, _ACCESS, _DESTROY):
                return b""
            case _:
                raise OSError(errno.ENOSYS, "")

    def _attributes(self, node: int) -> bytes:
        status = (self._source / self._name(node)).stat()
        times = (int(status.st_atime), int(status.st_mtime), int(status.st_ctime), 0, 0, 0)
        blocks = (status.st_size + 511) // 512
        rest = (status.st_mode, 1, status.st_uid, status.st_gid, 0, 4096, 0)
        return _ATTRIBUTES.pack(node, status.st_size, blocks, *times, *rest)

    def _entries(self, offset: int, size: int) -> bytes:
        entries = b""
        for number, name in list(enumerate(self._names, 1))[offset:]:
            encoded = name.encode()
            entry = struct.pack("<QQII", _ROOT + number, number, len(encoded), stat.S_IFREG >> 12)
            entry += encoded
            entry += bytes(-len(entry) % 8)
            if len(entries) + len(entry) > size:
                break
            entries += entry
        return entries


def main(source: str, mount: str, silence: str) -> None:
    fuse = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={fuse},rootmode=40000,user_id=0,group_id=0,allow_other".encode()
    if _libc.mount(b"hanging", os.fsencode(mount), b"fuse", 0, options) != 0:
        raise OSError(ctypes.get_errno(), "mount")
    _Mirror(Path(source), Path(silence)).serve(fuse)


@dataclass(frozen=True, slots=True)
class HangingFolder:
    """A mirror of a folder, whose files can be made to hang."""

    path: Path
    _silence: Path

    def hang(self, names: Sequence[str] = ()) -> None:
        """Stop replying for these files; without names, for all."""
        self._write(self._silence, "\n".join(names))

    def slow_down(self, read_s: float) -> None:
        """Have each read take ``read_s`` from now on."""
        self._write(self._silence.with_suffix(".delay"), str(read_s))

    def answer(self) -> None:
        """Reply again, to pending requests as well."""
        self._silence.unlink(missing_ok=True)

    def _write(self, file: Path, text: str) -> None:
        unfinished = file.with_suffix(".new")
        unfinished.write_text(text)
        unfinished.replace(file)


@contextlib.contextmanager
def hanging_folder(source: Path, work: Path) -> Iterator[HangingFolder]:
    """Mirror ``source`` below ``work``; skips the test if file systems cannot be mounted."""
    mount, silence = work / "mount", work / "silence"
    mount.mkdir(parents=True)
    try:
        os.close(os.open("/dev/fuse", os.O_RDWR))
    except OSError as error:
        pytest.skip(f"a file system that hangs needs /dev/fuse: {error.strerror}")
    server = subprocess.Popen(
        [sys.executable, "-m", "tests.support.hanging_fs", source, mount, silence],
        cwd=REPOSITORY,
        stderr=subprocess.PIPE,
        text=True,
    )
    try:
        wait_until(lambda: os.path.ismount(mount) or server.poll() is not None, "it is mounted")
        if server.poll() is not None:
            assert server.stderr is not None
            pytest.skip(
                f"no file system can be mounted here: {server.stderr.read().strip()[-200:]}"
            )
        yield HangingFolder(mount, silence)
    finally:
        silence.unlink(missing_ok=True)
        server.kill()  # ends every request with an error
        server.wait()
        _libc.umount2(os.fsencode(mount), _MNT_DETACH)
        assert server.stderr is not None
        server.stderr.close()


@contextlib.contextmanager
def small_disk(folder: Path, options: str) -> Iterator[Path]:
    """Mount a tmpfs with ``options``, as size=64k, on a new folder; skips where that is refused."""
    folder.mkdir(parents=True)
    command = ["mount", "-t", "tmpfs", "-o", options, "tmpfs", str(folder)]
    try:
        if subprocess.run(command, capture_output=True).returncode:
            pytest.skip("mounting a small tmpfs is not permitted here")
    except FileNotFoundError:
        pytest.skip("mount is missing")
    try:
        yield folder
    finally:
        subprocess.run(["umount", str(folder)], check=True)


if __name__ == "__main__":
    main(*sys.argv[1:])

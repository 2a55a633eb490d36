"""A worker process: fills chunks of batches, one after the other, until its channel closes.

    python -m feeder.worker CHANNEL_FD PARENT_PID

Started by a node process; inherits its CPU mask and memory policy. Its only socket is its channel.
The decoder's libraries are imported only after a check, so a missing one is reported in one line.
"""

import gc
import os
import signal
import socket
import sys
from time import perf_counter
from typing import TYPE_CHECKING, NoReturn

from feeder.errors import FeederError, ResourceError, SampleError
from feeder.jpeg.libraries import check_libraries, library_versions, tune_allocator
from feeder.process.channel import Channel, ChannelClosedError
from feeder.process.child import die_with_parent
from feeder.process.shortage import explain_shortage
from feeder.wire.chunk_work import Fill, FillFailed
from feeder.worker.messages import (
    BlobsRead,
    CannotStart,
    CloseSession,
    Configure,
    IndexProven,
    NamesRead,
    NodeToWorker,
    OpenSession,
    ReadBlobs,
    ReadNames,
    ShareIndexes,
    Started,
    WorkerToNode,
    escape_surrogates,
)

if TYPE_CHECKING:
    from feeder.worker.filler import ChunkFiller


def start(channel: Channel[WorkerToNode, NodeToWorker]) -> "ChunkFiller":
    """Check the libraries and, if configured, the datasets; report. Raises FeederError."""
    configure, cache_fd = channel.receive_with_fd()
    assert isinstance(configure, Configure), "Configure comes first"
    share, index_fd = channel.receive_with_fd()
    assert isinstance(share, ShareIndexes), "the memory of indexes comes next"
    assert index_fd is not None, "as a descriptor"
    check_libraries()
    from feeder.jpeg.decode import describe_decoder
    from feeder.sample.cache_file import DecodedCache
    from feeder.sample.self_test import compute_self_test
    from feeder.worker.filler import ChunkFiller
    from feeder.worker.index_memory import WorkerIndexes

    def send_proven(dataset: str, shard: int, fd: int) -> None:
        channel.send(IndexProven(dataset, shard), fd)

    cache = None
    if configure.cache is not None:
        assert cache_fd is not None, "the cache comes with Configure"
        cache = DecodedCache(cache_fd, configure.cache)
    decoder = configure.decoder
    filler = ChunkFiller(
        configure.datasets,
        configure.open_shards,
        cache,
        decoder,
        configure.page_cache_bytes,
        WorkerIndexes(index_fd, share.starts, send_proven, share.selections),
        configure.selections,
    )
    if configure.self_test:
        filler.test_decoding()
    started = Started(
        libraries=library_versions(),
        self_test=compute_self_test(decoder),
        decoder=describe_decoder(decoder),
    )
    gc.collect()
    gc.freeze()
    channel.send(started)
    return filler


def serve(channel: Channel[WorkerToNode, NodeToWorker], filler: "ChunkFiller") -> NoReturn:
    """Handle the node process's messages; ChannelClosedError when it has ended."""
    while True:
        message, fd = channel.receive_with_fd()
        match message:
            case Fill():
                channel.send(_fill(filler, message))
            case ReadNames():
                channel.send(_read_names(filler, message))
            case ReadBlobs():
                answer, blobs = _read_blobs(filler, message)
                channel.send(answer, blobs)
                if blobs is not None:
                    os.close(blobs)
            case OpenSession():
                assert fd is not None, "the slots come with OpenSession"
                filler.open_session(message, fd)
            case CloseSession():
                filler.close_session(message.session)
            case _:
                raise AssertionError(f"a running worker gets no {message!r}")


def main(channel_fd: int, parent: int) -> int:
    """Run a worker on an inherited channel; return the exit status."""
    die_with_parent(parent)
    # Terminals and systemd signal every process; a worker ends when its channel closes.
    for number in (signal.SIGINT, signal.SIGHUP, signal.SIGTERM):
        signal.signal(number, signal.SIG_IGN)
    tune_allocator()
    channel: Channel[WorkerToNode, NodeToWorker] = Channel(
        socket.socket(fileno=channel_fd), NodeToWorker
    )
    try:
        serve(channel, start(channel))
    except ChannelClosedError:
        return 0
    except Exception as error:
        failure = error if isinstance(error, FeederError) else explain_shortage(error)
        if failure is None:
            raise
        channel.send(CannotStart.of(failure))
        return failure.exit_status


def _fill(filler: "ChunkFiller", chunk: Fill) -> WorkerToNode:
    try:
        return filler.fill(chunk)
    except Exception as error:  # mmap raises OSError when memory runs out, not MemoryError
        failure = error if isinstance(error, FeederError) else explain_shortage(error)
        if failure is None:
            raise
        sample, shard = None, ""
        if isinstance(failure, SampleError) and failure.sample_id is not None:
            sample = failure.sample_id
            shard = filler.shard_path(chunk.session, sample)
        return FillFailed(
            ticket=chunk.ticket,
            code="resource" if isinstance(failure, ResourceError) else "dataset",
            message=escape_surrogates(str(failure)),
            sample=sample,
            shard=escape_surrogates(shard),
        )


def _read_names(filler: "ChunkFiller", wanted: ReadNames) -> NamesRead:
    started_s, problem = perf_counter(), ""
    names: tuple[bytes, ...] = ()
    try:
        names = filler.read_names(wanted.dataset, wanted.sample_ids)
    except FeederError as error:
        problem = escape_surrogates(str(error))
    return NamesRead(wanted.ticket, names, perf_counter() - started_s, problem)


def _read_blobs(filler: "ChunkFiller", wanted: ReadBlobs) -> tuple[BlobsRead, int | None]:
    started_s, problem = perf_counter(), ""
    sizes: tuple[int, ...] = ()
    blobs = None
    try:
        sizes, blobs = filler.read_blobs(wanted.dataset, wanted.sample_ids)
    except Exception as error:
        failure = error if isinstance(error, FeederError) else explain_shortage(error)
        if failure is None:
            raise
        problem = escape_surrogates(str(failure))
    return BlobsRead(wanted.ticket, sizes, perf_counter() - started_s, problem), blobs


if __name__ == "__main__":
    sys.exit(main(int(sys.argv[1]), int(sys.argv[2])))

"""Why a batch fails after workers died or made no progress, in one line each."""

from feeder.session.chunk_state import PendingChunk
from feeder.session.dispatch import DEATHS_MAX, HANGS_MAX, KILLS_MAX
from feeder.session.silence import CHUNK_DEADLINE_S
from feeder.session.stalls import UNANSWERED_S


def blame_chunk(chunk: PendingChunk) -> str:
    """Return why a chunk is given up."""
    rows = f"rows {chunk.first} .. {chunk.first + chunk.count - 1}"
    if chunk.deaths >= DEATHS_MAX:
        return (
            f"{rows} crashed {DEATHS_MAX} workers that had no other rows to fill: look for a "
            "damaged sample with `feeder verify`"
        )
    if chunk.hangs >= HANGS_MAX:
        return (
            f"{HANGS_MAX} workers did not finish {rows}, the last one in {CHUNK_DEADLINE_S:.0f} s: "
            "look for a damaged sample with `feeder verify`"
        )
    return (
        f"{KILLS_MAX} workers that had only {rows} to fill were killed (SIGKILL): is the memory of "
        "the machine or of its cgroup too small?"
    )


def blame_dataset(dataset: str) -> str:
    """Return why the batches of a stalled dataset are given up."""
    return (
        f"dataset {dataset} cannot be read: no answer in {UNANSWERED_S:.0f} s, is its file system "
        "alive?"
    )

"""Why a batch cannot be had after workers died or fell silent, in one line each."""

from feeder.session.chunk_state import Chunk
from feeder.session.dispatch import DEATHS_MAX, KILLS_MAX


def blame_chunk(chunk: Chunk) -> str:
    """Return why a chunk is given up."""
    rows = f"rows {chunk.first} .. {chunk.first + chunk.count - 1}"
    if chunk.deaths >= DEATHS_MAX:
        return (
            f"{rows} ended {DEATHS_MAX} workers that had nothing else in hand: look for a damaged "
            "sample with `feeder verify`"
        )
    return (
        f"{KILLS_MAX} workers that had nothing but {rows} in hand were killed (SIGKILL): is the "
        "memory of the machine or of its cgroup too small?"
    )


def blame_dataset(dataset: str, limit_s: float) -> str:
    """Return why the batches of a dataset that stalls are given up."""
    return (
        f"dataset {dataset} cannot be read: no answer in {limit_s:.0f} s, is its file system alive?"
    )

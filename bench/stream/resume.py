"""``feeder-bench resume``: the cost of a loader's state, and the time to a resumed loader's start.

In each round loaders are timed to their first batch in three variants, in turns: at the start of an
epoch; in the middle of one, from a state of the same number of ranks; and there from a state of
half as many, which needs a new session. All are rank 0 of 2 with the same batch size, in an epoch
that was not requested before. Then ``state_dict()`` is timed in the middle of an epoch.
"""

import argparse
import itertools
import json
import time
from collections.abc import Mapping
from functools import partial
from typing import Final

from trainer_client import FeederLoader

from ..daemon import DATASET_NAME
from ..report import Report, compare, single, summarise
from ..rounds import Contender, measure
from .streams import serving_one_core

BATCH_SIZE: Final = 32
RANKS: Final = 2
_STATES: Final = 1000  # calls for one value of the state's time


def run(arguments: argparse.Namespace) -> Report:
    """Measure with one daemon; PeerError when it does not reply."""
    # Without a decoded cache, so that every first batch is decoded.
    with serving_one_core(arguments, "--decoded-bytes", "0") as (daemon, machine):
        open_loader = partial(
            FeederLoader,
            daemon.ipc,
            dataset=DATASET_NAME,
            batch_size=max(1, min(BATCH_SIZE, daemon.samples // (2 * RANKS))),
            rank=0,
            world_size=RANKS,
            device="cpu",
            window=1,  # batches fetched ahead would be made in another contender's turn
        )
        with open_loader() as loader:
            rows = loader.batch_size * RANKS
            state = loader.state_dict() | {"step": len(loader) // 2}
        other = {"world_size": 1, "batch_size": rows, "order_batch_size": rows}
        epochs = itertools.count(1)

        def begin(state: Mapping[str, int | str] | None, first: int, end: int) -> None:
            with open_loader() as loader:
                if state is None:
                    loader.set_epoch(next(epochs))
                else:
                    loader.load_state_dict({**state, "epoch": next(epochs)})
                next(iter(loader))

        contenders: dict[str, Contender] = {
            "resume/first-batch-fresh": partial(begin, None),
            "resume/first-batch": partial(begin, state),
            "resume/first-batch-other-ranks": partial(begin, state | other),
        }
        taken = measure(contenders, rounds=arguments.rounds, verb="resuming")
        with open_loader() as loader:
            next(iter(loader))
            states_us = []
            for _ in range(20):
                began_s = time.perf_counter()
                for _ in range(_STATES):
                    state = loader.state_dict()
                states_us.append(1e6 * (time.perf_counter() - began_s) / _STATES)
    results = [
        *compare(taken, "s"),
        summarise("resume/state-us", "µs", states_us),
        single("resume/state-bytes", "bytes", len(json.dumps(state))),
    ]
    return Report(bench="resume", machine=machine, results=results)

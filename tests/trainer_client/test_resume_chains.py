"""A job that is stopped and resumed again and again, on other ranks, batch sizes and feeders."""

import json
from typing import Any, NamedTuple

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from feeder.plan.recipe import Recipe
from tests.support.fake_node import FakeNode
from trainer_client import NumpyLoader

_SAMPLES = 997
_GLOBAL_BATCH = 24
_SIDE = 8


class Leg(NamedTuple):
    """A part of a job's life: its ranks, feeders, and how far it gets."""

    ranks: int
    feeders: int
    steps: int
    fields: dict[str, Any]
    """What its user wrote into the recipe; what the first one wrote counts."""


orders = st.fixed_dictionaries(
    {},
    optional={
        "lanes": st.sampled_from([1, 2, 3]),
        "working_set": st.sampled_from([(600, 4), (700, 8), (997, 1)]),
    },
)
legs = st.builds(
    Leg,
    ranks=st.sampled_from([1, 2, 3, 4]),
    feeders=st.sampled_from([1, 2]),
    steps=st.integers(1, 45),
    fields=orders,
)


@settings(max_examples=12)
@given(chain=st.lists(legs, min_size=2, max_size=4), seed=st.integers(0, 2**64 - 1))
def test_a_chain_of_resumed_jobs_takes_every_sample_as_one_job_would(
    chain: list[Leg], seed: int
) -> None:
    taken: list[int] = []
    state = None
    with FakeNode(samples=_SAMPLES) as one, FakeNode(samples=_SAMPLES) as other:
        for leg in chain:
            share, states = _GLOBAL_BATCH // leg.ranks, []
            rows = []
            for rank in range(leg.ranks):
                with NumpyLoader(
                    [one.endpoint, other.endpoint][: leg.feeders],
                    dataset="birds",
                    batch_size=share,
                    image_size=_SIDE,
                    rank=rank,
                    world_size=leg.ranks,
                    seed=seed,
                    recipe=leg.fields,
                    window=3,
                ) as loader:
                    if state is not None:
                        loader.load_state_dict(state)
                    rows.append(_take(loader, leg.steps))
                    states.append(loader.state_dict())
            assert all(each == states[0] for each in states)
            state = json.loads(json.dumps(states[-1]))
            taken += [id_ for step in zip(*rows, strict=True) for part in step for id_ in part]
        layout = one.layout
    first = chain[0]
    recipe = Recipe.for_split(
        "train", batch_size=_GLOBAL_BATCH // first.ranks, image_size=_SIDE, **first.fields
    )
    assert taken == _order(recipe, layout, seed, first.ranks, len(taken))


def _take(loader: NumpyLoader, steps: int) -> list[list[int]]:
    taken: list[list[int]] = []
    while len(taken) < steps:
        for batch in loader:
            taken.append(batch.sample_ids.tolist())
            if len(taken) == steps:
                break
    return taken


def _order(recipe: Recipe, layout: Any, seed: int, ranks: int, count: int) -> list[int]:
    """The samples that one job without a stop takes, over as many epochs as needed."""
    ids: list[int] = []
    epoch = 0
    while len(ids) < count:
        plan = recipe.plan_epoch(layout, seed=seed, epoch=epoch)
        whole = plan.batches // ranks * ranks
        ids += np.concatenate([plan.samples(index) for index in range(whole)]).tolist()
        epoch += 1
    return ids[:count]

"""A fake node for each test of a whole job, and a run that has ended."""

from collections.abc import Iterator

import pytest

from tests.support.fake_node import FakeNode
from tests.trainer_client.reference.jobs import SAMPLES, Run, run


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode(samples=SAMPLES) as fake:
        yield fake


@pytest.fixture(scope="module")
def finished(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Run]:
    folder = tmp_path_factory.mktemp("run")
    with FakeNode(samples=SAMPLES) as node:
        keys = {"val_dataset": "val", "epochs": 3, "ema_decay": 0.9, "seed": 5, "keep": 9}
        yield Run(node, folder, run(node, output=str(folder), **keys))

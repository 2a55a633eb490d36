"""A fake node for each test of a whole job."""

from collections.abc import Iterator

import pytest

from tests.support.fake_node import FakeNode
from tests.trainer_client.reference.jobs import SAMPLES


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode(samples=SAMPLES) as fake:
        yield fake

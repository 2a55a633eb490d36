"""A correct fake node for each test."""

from collections.abc import Iterator

import pytest

from tests.support.fake_node import FakeNode


@pytest.fixture
def node() -> Iterator[FakeNode]:
    with FakeNode() as fake:
        yield fake
        assert fake.problems == []

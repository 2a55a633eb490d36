"""nginx as a store on the loopback address, with a faulty proxy before it.

with loopback_store({"set": folder}) as store, StoreProxy(store.port) as proxy:
    monkeypatch… store.environ(proxy.endpoint)     s3://bucket/set is then behind the proxy
    proxy.strike("reset", "*/shard-*", times=2)    (bench/store_proxy.py has the faults)
"""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import pytest

from bench.loopback_store import S3_ENVIRON as S3_ENVIRON
from bench.loopback_store import LoopbackStore
from feeder.errors import ResourceError


@contextmanager
def loopback_store(folders: Mapping[str, Path]) -> Iterator[LoopbackStore]:
    """Serve folders by nginx; skips where it is not installed."""
    try:
        store = LoopbackStore(folders)
    except ResourceError as error:
        if "is not installed" not in str(error):
            raise
        pytest.skip(str(error))
    with store:
        yield store

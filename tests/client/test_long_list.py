"""A client of 2,048 feeders, over real sockets."""

from pathlib import Path

from bench.stream.links import BATCH_SIZE, IMAGE_SIZE, client_of, count_descriptors, stand_ins

FEEDERS = 2048
DESCRIPTORS_MAX = 500
BATCHES = 80


def test_a_client_of_2048_feeders_has_few_descriptors_and_asks_the_owners(tmp_path: Path) -> None:
    with stand_ins(FEEDERS) as lines:
        assert len(lines) == FEEDERS
        before = count_descriptors()
        most = 0
        with client_of(lines, tmp_path) as loader:
            for batch, _ in zip(loader, range(BATCHES), strict=False):
                assert batch.images.shape == (BATCH_SIZE, IMAGE_SIZE, IMAGE_SIZE, 3)
                most = max(most, count_descriptors() - before)
            statistics = loader.statistics()
    assert most < DESCRIPTORS_MAX
    assert statistics.batches_of_owners > 0.5 * BATCHES, "the others came while owners connected"
    assert statistics.feeders > 3

"""Machines of a few facts each."""

from feeder.doctor.findings.facts import (
    Accelerator,
    Allowed,
    DatasetPlace,
    Governor,
    HugePages,
    Libraries,
    Machine,
    Memory,
    NetworkCard,
    Node,
    Processor,
    SwapDevice,
)

NODES = tuple(
    Node(id=n, cpus=frozenset({2 * n, 2 * n + 1}), memory_bytes=1 << 30, memory_node=n)
    for n in range(2)
)
ALL = Allowed(cpus=frozenset(range(4)), memory_nodes=frozenset({0, 1}), count=4)
SWAP = (SwapDevice(name="/dev/sda2", size_bytes=1 << 30, used_bytes=0),)
ZRAM = (SwapDevice(name="/dev/zram0", size_bytes=1 << 30, used_bytes=0),)
GPU = Accelerator(address="0000:01:00.0", name="NVIDIA 0x20b0", node=1)
CARD = NetworkCard(name="eth0", is_up=True, speed_mbit=100_000, node=0)


def governed(name: str, driver: str, least: int | None = 800_000, preference: str = "") -> Machine:
    governor = Governor(
        name=name,
        driver=driver,
        cpus=4,
        least_khz=least,
        most_khz=3_200_000,
        preference=preference,
    )
    return Machine(governors=(governor,))


def with_libraries(vectors: str = "AVX2", **fields: object) -> Machine:
    return Machine(
        processor=Processor(vectors=vectors),
        libraries=Libraries(**fields),  # type: ignore[arg-type]
    )


def pool(free: int) -> Machine:
    pages = HugePages(size_bytes=1 << 30, total=free + 1, free=free)
    return Machine(memory=Memory(total_bytes=20 << 30, reserved=(pages,)))


def dataset(kind: str, path: str = "/d/in") -> Machine:
    return Machine(datasets=(DatasetPlace(path=path, mount="/d", kind=kind, source="s:/x"),))

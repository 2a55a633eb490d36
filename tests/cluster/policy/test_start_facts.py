"""Reading a daemon's start from its log."""

from feeder.cluster.policy.start_facts import FactsReader, StartFacts
from feeder.daemon.start_report import wrap_list

LOG = """\
feeder: usable CPUs: 2 = affinity 2, no cgroup quota
feeder: endpoints of node process 0: tcp://10.0.0.1:5555, ipc:///run/feeder/node
feeder: endpoints of node process 1: tcp://10.0.0.1:5556
feeder: data imagenet: 1,281,167 samples, 1,024 shards, 1,000 classes, 24809539c64e
feeder: libraries: feeder 0.1.0, python 3.11.7, numpy 2.4.6
feeder: self-test: 821c36be8fe6
feeder: ready, 2 workers serve imagenet at tcp://10.0.0.1:5555
"""


def read(log: str) -> StartFacts | None:
    reader = FactsReader()
    found = [reader.read(line) for line in log.splitlines()]
    assert not any(found[:-1])
    return found[-1]


def test_the_facts_come_with_the_line_that_reports_readiness() -> None:
    assert read(LOG) == StartFacts(
        endpoints=(("tcp://10.0.0.1:5555", "ipc:///run/feeder/node"), ("tcp://10.0.0.1:5556",)),
        data={"imagenet": "24809539c64e"},
        libraries={"feeder": "0.1.0", "python": "3.11.7", "numpy": "2.4.6"},
        self_test="821c36be8fe6",
    )


def test_lists_that_were_wrapped_are_joined() -> None:
    endpoints = [f"tcp://10.0.0.{number}:5555" for number in range(1, 9)]
    lines = [*wrap_list("endpoints of node process 0: ", endpoints), "ready, 1 worker serves d"]
    assert len(lines) > 2
    facts = read("\n".join(lines))
    assert facts is not None
    assert facts.endpoints == (tuple(endpoints),)


def test_readiness_without_endpoints_is_no_readiness() -> None:
    assert read("feeder: ready, 2 workers serve imagenet") is None

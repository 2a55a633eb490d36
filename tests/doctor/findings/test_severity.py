"""Conditions that are a warning on one machine and a note on another, and their lines to type."""

import pytest

from feeder.doctor.findings import datasets, governors, memory
from feeder.doctor.findings.conditions import find_all
from feeder.doctor.findings.facts import Machine, Memory
from feeder.doctor.findings.finding import Severity
from tests.doctor.findings.machines import SWAP, ZRAM, dataset, governed


@pytest.mark.parametrize(
    ("driver", "severity"),
    [
        ("intel_pstate", Severity.NOTE),
        ("amd-pstate-epp", Severity.NOTE),
        ("acpi-cpufreq", Severity.WARNING),
        ("intel_cpufreq", Severity.WARNING),
        ("amd-pstate", Severity.WARNING),
    ],
)
def test_powersave_is_a_note_where_the_hardware_sets_the_clock(
    driver: str, severity: Severity
) -> None:
    (finding,) = governors.find_governor(governed("powersave", driver))
    assert finding.severity == severity


def test_each_kind_of_governor_counts_its_own_cpus() -> None:
    both = governed("ondemand", "acpi-cpufreq").governors
    both += governed("powersave", "intel_pstate").governors
    first, second = find_all(Machine(governors=both))
    assert "ondemand on 4 of 8 usable CPUs" in first.what
    assert "powersave on 4 of 8 usable CPUs" in second.what
    assert (first.severity, second.severity) == (Severity.WARNING, Severity.NOTE)


def test_swap_on_no_disk_is_a_note() -> None:
    for swapped in (0, 1 << 30):
        (finding,) = memory.find_swap(
            Machine(memory=Memory(feeder_swapped_bytes=swapped, swap=ZRAM))
        )
        assert (finding.severity, finding.mend) == (Severity.NOTE, ())


def test_systemd_cannot_forbid_swap_under_version_1() -> None:
    (finding,) = memory.find_swap(Machine(memory=Memory(swap=SWAP, cgroup_version=1)))
    assert not [line for line in finding.mend if "MemorySwapMax" in line]


def test_paths_are_quoted_for_the_shell() -> None:
    (finding,) = datasets.find_remote_datasets(dataset("cifs", "/d/it's $HOME"))
    assert finding.mend[0].startswith("cp -r '/d/it'\\''s $HOME' /LOCAL/DISK/")

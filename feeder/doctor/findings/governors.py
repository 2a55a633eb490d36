"""Findings about cpufreq governors.

Source: Documentation/admin-guide/pm/cpufreq.rst, intel_pstate.rst and amd-pstate.rst.
"""

from collections.abc import Iterator, Sequence

from feeder.doctor.findings.facts import Governor, Machine
from feeder.doctor.findings.finding import Finding, Severity

_SLOW_GOVERNORS = {"powersave", "ondemand", "conservative", "schedutil", "userspace"}
_OWN_POLICY = ("intel_pstate", "amd-pstate-epp")
"""Drivers whose "powersave" follows the load, and which distributions come with. The same hardware
under "intel_cpufreq" and "amd-pstate" has the kernel's governors."""

_SAVING = ("power", "balance_power")
"""Energy preferences that are biased to saving power."""


def find_governor(machine: Machine) -> Iterator[Finding]:
    """Yield findings if usable CPUs are governed by anything but "performance"."""
    total = sum(governor.cpus for governor in machine.governors)
    slow = [governor for governor in machine.governors if governor.name in _SLOW_GOVERNORS]
    held = [governor for governor in slow if not _follows_load(governor)]
    if held:
        yield Finding(
            name="cpu-governor",
            severity=Severity.WARNING,
            what=_list_governors(held, total),
            detail=" ".join(dict.fromkeys(map(_explain_governor, held))),
            mend=(
                "echo performance | sudo tee \\",
                "    /sys/devices/system/cpu/cpu*/cpufreq/scaling_governor",
            ),
        )
    own = [governor for governor in slow if _follows_load(governor)]
    if own:
        saving = dict.fromkeys(each.preference for each in own if each.preference in _SAVING)
        yield Finding(
            name="cpu-governor",
            severity=Severity.NOTE,
            what=_list_governors(own, total),
            detail=(
                "This driver sets the clock by the load. What that costs Feeder was not measured."
                + "".join(
                    f" The energy preference is {name}, which favours saving power."
                    for name in saving
                )
            ),
        )


def _follows_load(governor: Governor) -> bool:
    return governor.name == "powersave" and governor.driver in _OWN_POLICY


def _list_governors(governors: Sequence[Governor], total: int) -> str:
    names = " and ".join(
        f"{governor.name} on {governor.cpus} of {total} usable CPU{'s' * (total > 1)}"
        + (f" (driver {governor.driver})" if governor.driver else "")
        for governor in governors
    )
    return f"the CPU frequency governor is {names}"


def _explain_governor(governor: Governor) -> str:
    least, most = governor.least_khz, governor.most_khz
    if governor.name == "powersave":
        if least and most and most > least:
            return (
                f"It holds the clock at {least // 1000:,} of up to {most // 1000:,} MHz: decoding, "
                f"which only computes, takes up to {most / least:.1f} times as long."
            )
        return "It holds the clock at its lowest."
    if governor.name == "userspace":
        return "It holds the clock wherever a program has set it."
    return "The clock rises only after a load has lasted, so work after each pause is slower."

"""A machine and its findings: as text for a terminal, as JSON, and as lines of a log."""

import dataclasses
import json
import textwrap
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final

from feeder.doctor.facts import (
    UNLIMITED,
    DiskCachePlace,
    Finding,
    Libraries,
    Load,
    Machine,
    Memory,
)
from feeder.doctor.findings import find_all
from feeder.doctor.mounts import describe_detour
from feeder.doctor.read_machine import read_machine
from feeder.host.topology import format_cpulist
from feeder.process.path_text import printable

WARNINGS_MAX: Final = 3
"""Lines that ``feeder serve`` logs when it starts."""

_WIDTH_MAX: Final = 100
"""Longer lines are hard to read, whatever the terminal's width."""


def format_report(machine: Machine, findings: Sequence[Finding], width: int) -> str:
    """The whole report, wrapped to ``width`` columns; lines to type are never wrapped."""
    wrapped = max(40, min(width - 1, _WIDTH_MAX))
    process = "" if machine.process == "self" else f", for process {machine.process}"
    lines = [f"The machine as Feeder sees it{process}", ""]
    for label, text in list_facts(machine):
        if text:
            lines += _wrap(f"  {label:<14}", text, wrapped, break_long_words=False)
    problems = [finding for finding in findings if finding.severity != "note"]
    notes = [finding for finding in findings if finding.severity == "note"]
    headline = f"{len(problems)} problems, the worst first" if problems else "Nothing is wrong."
    lines += ["", "1 problem" if len(problems) == 1 else headline]
    for number, finding in enumerate(problems, 1):
        what = f"{finding.severity}: {finding.what}"
        lines += ["", *_paragraph(f"{number}. ", what, finding, wrapped)]
    lines += ["", "Notes"] if notes else []
    for finding in notes:
        what = finding.what[:1].upper() + finding.what[1:]
        lines += ["", *_paragraph("-  ", what, finding, wrapped)]
    return "\n".join(printable(line.rstrip()) for line in lines)  # names come from anywhere


def _paragraph(mark: str, what: str, finding: Finding, width: int) -> list[str]:
    indent = " " * len(mark)
    lines = _wrap(mark, what, width) + _wrap(indent, finding.detail, width)
    return lines + [f"{indent}    {line}" for line in finding.mend]


def _wrap(mark: str, text: str, width: int, *, break_long_words: bool = True) -> list[str]:
    return textwrap.wrap(
        text,
        width,
        initial_indent=mark,
        subsequent_indent=" " * len(mark),
        break_on_hyphens=False,
        break_long_words=break_long_words,
    )


def format_json(machine: Machine, findings: Sequence[Finding]) -> str:
    """One JSON object, {"machine", "findings"}; sets of CPUs are in the kernel's syntax."""
    value = {
        "machine": dataclasses.asdict(machine),
        "findings": [dataclasses.asdict(finding) for finding in findings],
    }
    return json.dumps(value, indent=2, default=format_cpulist)


def find_worst(root: Path, datasets: Sequence[Path]) -> list[str]:
    """Up to WARNINGS_MAX lines about the machine below ``root``, the worst first.

    Each states what is wrong and, where one line mends it, that line. Takes some milliseconds and
    never raises: no fault in inspecting the machine may keep the daemon from serving.
    """
    try:
        findings = find_all(read_machine(root, datasets, is_brief=True))
    except Exception as error:  # noqa: BLE001 -- see above
        reason = ": ".join(filter(None, [type(error).__name__, str(error)]))
        return [printable(f"the machine could not be inspected ({reason}); see `feeder doctor`")]
    warnings = [finding for finding in findings if finding.severity != "note"]
    lines = []
    for finding in warnings[:WARNINGS_MAX]:
        # The first line to type, with those that continue it.
        command = "\n".join(finding.mend).replace("\\\n    ", "").partition("\n")[0]
        text, _, comment = command.partition("   #")
        remedy = f": {text.rstrip()}" + (f" ({comment.strip()})" if comment else "") if text else ""
        lines.append(printable(f"{finding.what}{remedy}; see `feeder doctor`"))
    if len(warnings) > WARNINGS_MAX:
        lines[-1] += f", with {len(warnings) - WARNINGS_MAX} more"
    return lines


def list_facts(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield label and text of each row of the report; a row that is not known has no text."""
    yield "kernel", machine.kernel
    yield from _list_cpus(machine)
    yield from _list_load(machine.load)
    yield from _list_devices(machine)
    yield from _list_memory(machine.memory)
    soft, hard = machine.limits.files_soft, machine.limits.files_hard
    files = _limit(hard)
    if hard is not None and soft != hard:
        raised = f"{files} hard (the daemon raises its soft limit to this)"
        files = _join(f"{_limit(soft)} soft" if soft is not None else "", raised)
    yield "open files", files
    locked = machine.limits.locked_bytes
    yield "locked memory", "unlimited" if locked == UNLIMITED else _size(locked)
    clock = machine.clock
    others = ", ".join(name for name in clock.available if name != clock.current)
    yield "clock", clock.current and clock.current + (f" (also: {others})" if others else "")
    for place in machine.datasets:
        detour = describe_detour(place.kind, place.source)
        yield "dataset", _join(f"{place.path}: {place.kind} at {place.mount}", detour)
    if machine.disk_cache is not None:
        yield "disk cache", _describe_disk_cache(machine.disk_cache)
    yield from _list_libraries(machine.libraries)
    if machine.daemons:
        numbers = [str(number) for number in machine.daemons]
        hint = "" if machine.process in numbers else "; --pid shows its limits, cgroup and CPUs"
        yield "daemon", f"process {', '.join(numbers)}{hint}"


def _list_cpus(machine: Machine) -> Iterator[tuple[str, str]]:
    processor, allowed = machine.processor, machine.allowed
    if processor.model or processor.vectors:
        virtual = "virtual machine" if processor.is_virtual else ""
        yield "CPU", _join(processor.model or "CPU", processor.vectors, virtual)
    if processor.online:
        cores = ""
        if processor.cores is not None and processor.threads is not None:
            threads = "threads (SMT)" if processor.threads > 1 else "thread"
            cores = f"{processor.cores} cores of {processor.threads} {threads}"
        yield "CPUs", _join(f"{processor.online} CPUs", cores)
    usable = "not known"
    if allowed.cpus:
        cpuset = f"; cpuset {allowed.cpuset}" if allowed.cpuset else ""
        usable = f"{allowed.reason or allowed.count}: {format_cpulist(allowed.cpus)}{cpuset}"
    yield "usable CPUs", usable
    governors = []
    for governor in machine.governors:
        clocks = ""
        if governor.least_khz and governor.most_khz:
            clocks = f"{governor.least_khz // 1000:,} to {governor.most_khz // 1000:,} MHz"
        facts = _join(governor.driver or "driver not known", governor.preference, clocks)
        governors.append(f"{governor.name} ({facts})")
    yield "governor", "; ".join(governors) or "none (no cpufreq)"
    has_memory = any(node.memory_bytes for node in machine.nodes)  # else sysfs shows none
    for node in machine.nodes:
        cpus = f"CPUs {format_cpulist(node.cpus)}" if node.cpus else "no CPUs"
        memory = _size(node.memory_bytes) if node.memory_bytes else "no memory"
        if node.memory_node not in (None, node.id):
            memory += f" (uses that of node {node.memory_node})"
        cards = [card.name for card in machine.cards if card.node == node.id and card.is_up]
        near = [each.name for each in machine.accelerators if each.node == node.id]
        memory = memory if has_memory else "memory not known"
        yield f"node {node.id}", _join(cpus, memory, *cards, *_count(near))


def _list_load(load: Load) -> Iterator[tuple[str, str]]:
    shares = (("CPUs", load.cpu), ("memory", load.memory), ("storage", load.io))
    pressure = _join(
        *(f"{name} {100 * share:.0f} %" for name, share in shares if share is not None)
    )
    parts = [
        "" if load.average is None else f"average {load.average:g}",
        f"pressure (waits in the last 10 s): {pressure}" if pressure else "",
    ]
    yield "load", "; ".join(filter(None, parts))
    names = (f"{each.name} (process {each.pid}) {each.cpus:.1f} CPUs" for each in load.busy)
    yield "others", _join(*names)


def _list_devices(machine: Machine) -> Iterator[tuple[str, str]]:
    for card in machine.cards:
        node = "node not known" if card.node is None else f"node {card.node}"
        speed = "speed not known" if card.speed_mbit is None else f"{card.speed_mbit} Mb/s"
        if card.speed_mbit is not None and card.speed_mbit >= 1000:
            speed = f"{card.speed_mbit / 1000:g} Gb/s"
        yield "network card", _join(card.name, speed if card.is_up else "down", node)
    nodes = {node.id for node in machine.nodes}
    for text in _count(each.name for each in machine.accelerators if each.node not in nodes):
        yield "accelerator", f"{text}, node not known"


def _list_memory(memory: Memory) -> Iterator[tuple[str, str]]:
    if memory.total_bytes is not None:
        available = _size(memory.available_bytes)
        free = f"{available} available" if available else ""
        yield "memory", _join(_size(memory.total_bytes), free) + _allow(memory.limit_bytes)
    pages = [f"transparent: {memory.transparent}"] if memory.transparent else []
    pages += [
        f"{pool.total:,} of {_size(pool.size_bytes)} reserved, {pool.free:,} free"
        for pool in memory.reserved
    ]
    yield "huge pages", "; ".join(pages)
    devices = (
        f"{device.name} ({_size(device.size_bytes)}, {_size(device.used_bytes)} in use)"
        for device in memory.swap
    )
    yield "swap", _join(*devices) + _allow(memory.swap_limit_bytes) if memory.swap else "none"


def _allow(limit_bytes: int | None) -> str:
    return "" if limit_bytes is None else f"; the cgroup allows {_size(limit_bytes)}"


def _describe_disk_cache(cache: DiskCachePlace) -> str:
    free, used = _size(cache.free_bytes), _size(cache.used_bytes or None)
    speeds = ""
    if cache.write_bytes_a_s is not None and cache.read_bytes_a_s is not None:
        write, read = cache.write_bytes_a_s / 1e6, cache.read_bytes_a_s / 1e6
        speeds = f"writes {write:,.0f} MB/s, reads {read:,.0f} MB/s"
    return _join(
        f"{cache.path}: {cache.kind} at {cache.mount}",
        describe_detour(cache.kind, cache.source),
        f"{used} used" if used else "",
        f"{free} free" if free else "",
        f"up to {_size(cache.budget_bytes)}" if cache.budget_bytes else "",
        speeds,
    )


def _list_libraries(libraries: Libraries) -> Iterator[tuple[str, str]]:
    versions = dict(libraries.versions)
    crypto = f"encrypting with {libraries.crypto}" if libraries.crypto else ""
    yield "pillow", versions.pop("pillow", "")
    yield "libjpeg-turbo", versions.pop("libjpeg-turbo", "")
    libzmq = versions.pop("libzmq", "")
    yield "libzmq", libzmq and _join(libzmq, crypto)
    yield "others", _join(*(f"{name} {version}" for name, version in versions.items()))
    result = "failed" if libraries.self_test_problem else "passed"
    yield "decoder", libraries.decoder and f"{libraries.decoder}, self-test {result}"


def _join(*parts: str) -> str:
    return ", ".join(filter(None, parts))


def _count(names: Iterable[str]) -> Iterator[str]:
    for name, count in Counter(names).items():
        yield name if count == 1 else f"{count} × {name}"


def _limit(number: int | None) -> str:
    return "" if number is None else "unlimited" if number == UNLIMITED else f"{number:,}"


def _size(size_bytes: int | None) -> str:
    """With the largest unit that fits; "" for None."""
    if not size_bytes:
        return "" if size_bytes is None else "0"
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if size_bytes >= 1 << power:
            return f"{size_bytes / (1 << power):.4g} {unit}"
    return f"{size_bytes / 1024:.4g} KiB"

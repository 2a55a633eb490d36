"""The facts about a machine as rows of the report."""

from collections import Counter
from collections.abc import Iterable, Iterator

from feeder.doctor.findings.datasets import describe_detour
from feeder.doctor.findings.facts import UNLIMITED, Load, Machine, NetworkCard, Node
from feeder.host.topology import format_cpulist


def list_facts(machine: Machine) -> Iterator[tuple[str, str]]:
    """Yield label and text of each row; what is not known has none."""
    if machine.kernel:
        yield "kernel", machine.kernel
    yield from _cpu_rows(machine)
    yield from _load_rows(machine.load)
    yield from _device_rows(machine)
    yield from _memory_rows(machine)
    limits = machine.limits
    if limits.files_hard is not None:
        yield "open files", _describe_files(limits.files_soft, limits.files_hard)
    if limits.locked_bytes is not None:
        locked = limits.locked_bytes
        yield "locked memory", "unlimited" if locked == UNLIMITED else _size(locked)
    if machine.clock.current:
        others = [name for name in machine.clock.available if name != machine.clock.current]
        yield "clock", machine.clock.current + (f" (also: {', '.join(others)})" if others else "")
    for place in machine.datasets:
        detour = describe_detour(place.kind, place.source)
        text = f"{place.path}: {place.kind} at {place.mount}"
        yield "dataset", f"{text}, {detour}" if detour else text
    yield from _library_rows(machine)
    if machine.daemons:
        numbers = [str(number) for number in machine.daemons]
        hint = "" if machine.process in numbers else "; --pid shows its limits, cgroup and CPUs"
        yield "daemon", f"process {', '.join(numbers)}{hint}"


def _describe_files(soft: int | None, hard: int) -> str:
    if soft == hard:
        return _limit(hard)
    raised = f"{_limit(hard)} hard (the daemon raises its soft limit to this)"
    return raised if soft is None else f"{_limit(soft)} soft, {raised}"


def _cpu_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    processor, allowed = machine.processor, machine.allowed
    if processor.model or processor.vectors:
        facts = [processor.model or "CPU", processor.vectors]
        facts.append("virtual machine" if processor.is_virtual else "")
        yield "CPU", ", ".join(filter(None, facts))
    if processor.online:
        text = f"{processor.online} CPUs"
        if processor.cores is not None and processor.threads is not None:
            threads = processor.threads
            text += f", {processor.cores} cores of {threads} thread{'s' * (threads > 1)}"
            text += " (SMT)" if threads > 1 else ""
        yield "CPUs", text
    if allowed.cpus:
        cpuset = f"; cpuset {allowed.cpuset}" if allowed.cpuset else ""
        reason = allowed.reason or allowed.count
        yield "usable CPUs", f"{reason}: {format_cpulist(allowed.cpus)}{cpuset}"
    else:
        yield "usable CPUs", "not known"
    if machine.governors:
        texts = []
        for governor in machine.governors:
            facts = [governor.driver or "driver not known", governor.preference]
            if governor.least_khz and governor.most_khz:
                low, high = governor.least_khz // 1000, governor.most_khz // 1000
                facts.append(f"{low:,} to {high:,} MHz")
            texts.append(f"{governor.name} ({', '.join(filter(None, facts))})")
        yield "governor", "; ".join(texts)
    else:
        yield "governor", "none (no cpufreq)"
    for node in machine.nodes:
        yield f"node {node.id}", _describe_node(machine, node)


def _load_rows(load: Load) -> Iterator[tuple[str, str]]:
    shares = (("CPUs", load.cpu), ("memory", load.memory), ("storage", load.io))
    pressure = [f"{name} {100 * share:.0f} %" for name, share in shares if share is not None]
    average = [] if load.average is None else [f"average {load.average:g}"]
    if pressure:
        average.append(f"pressure (waits in the last 10 s): {', '.join(pressure)}")
    if average:
        yield "load", "; ".join(average)
    if load.busy:
        names = [f"{each.name} (process {each.pid}) {each.cpus:.1f} CPUs" for each in load.busy]
        yield "others", ", ".join(names)


def _describe_node(machine: Machine, node: Node) -> str:
    cpus = f"CPUs {format_cpulist(node.cpus)}" if node.cpus else "no CPUs"
    is_known = any(each.memory_bytes for each in machine.nodes)
    none = "no memory" if is_known else "memory not known"
    parts = [cpus, _size(node.memory_bytes) if node.memory_bytes else none]
    if node.memory_node not in (None, node.id):
        parts[-1] += f" (uses that of node {node.memory_node})"
    cards = [card.name for card in machine.cards if card.node == node.id and card.is_up]
    devices = Counter(each.name for each in machine.accelerators if each.node == node.id)
    return ", ".join([*parts, *cards, *_counted(devices)])


def _counted(devices: Counter[str]) -> Iterable[str]:
    return (name if count == 1 else f"{count} × {name}" for name, count in devices.items())


def _device_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    for card in machine.cards:
        yield "network card", _describe_card(card)
    shown = {node.id for node in machine.nodes}
    elsewhere = Counter(each.name for each in machine.accelerators if each.node not in shown)
    for text in _counted(elsewhere):
        yield "accelerator", f"{text}, node not known"


def _describe_card(card: NetworkCard) -> str:
    if not card.is_up:
        return f"{card.name}, down, {_node(card.node)}"
    speed = "speed not known"
    if card.speed_mbit is not None:
        big = card.speed_mbit >= 1000
        speed = f"{card.speed_mbit / 1000:g} Gb/s" if big else f"{card.speed_mbit} Mb/s"
    return f"{card.name}, {speed}, {_node(card.node)}"


def _node(node: int | None) -> str:
    return "node not known" if node is None else f"node {node}"


def _memory_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    memory = machine.memory
    if memory.total_bytes is not None:
        text = _size(memory.total_bytes)
        if memory.available_bytes is not None:
            text += f", {_size(memory.available_bytes)} available"
        if memory.limit_bytes is not None:
            text += f"; the cgroup allows {_size(memory.limit_bytes)}"
        yield "memory", text
    pages = [f"transparent: {memory.transparent}"] if memory.transparent else []
    for pool in memory.reserved:
        size = _size(pool.size_bytes)
        pages.append(f"{pool.total:,} of {size} reserved, {pool.free:,} free")
    if pages:
        yield "huge pages", "; ".join(pages)
    if memory.swap:
        devices = ", ".join(
            f"{device.name} ({_size(device.size_bytes)}, {_size(device.used_bytes)} in use)"
            for device in memory.swap
        )
        limit = memory.swap_limit_bytes
        allowed = "" if limit is None else f"; the cgroup allows {_size(limit)}"
        yield "swap", devices + allowed
    else:
        yield "swap", "none"


def _library_rows(machine: Machine) -> Iterator[tuple[str, str]]:
    libraries = machine.libraries
    for name in ("pillow", "libjpeg-turbo", "libzmq"):
        if name in libraries.versions:
            text = libraries.versions[name]
            if name == "libzmq" and libraries.crypto:
                text += f", encrypting with {libraries.crypto}"
            yield name, text
    others = [
        f"{name} {version}"
        for name, version in libraries.versions.items()
        if name not in ("pillow", "libjpeg-turbo", "libzmq")
    ]
    if others:
        yield "others", ", ".join(others)
    if libraries.decoder:
        result = "failed" if libraries.self_test_problem else "passed"
        yield "decoder", f"{libraries.decoder}, self-test {result}"


def _limit(number: int) -> str:
    return "unlimited" if number == UNLIMITED else f"{number:,}"


def _size(size_bytes: int) -> str:
    for unit, power in (("TiB", 40), ("GiB", 30), ("MiB", 20)):
        if size_bytes >= 1 << power:
            return f"{size_bytes / (1 << power):.4g} {unit}"
    return f"{size_bytes / 1024:.4g} KiB" if size_bytes else "0"

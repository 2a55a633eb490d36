"""What ``feeder status`` prints: the verdict, then the whole host, without what is zero.

The order is that of a search for a cause: what holds the host back, which side waits, where the
workers' time goes, the caches and the machine under them; then each node process and client.
"""

from collections.abc import Iterator, Mapping
from typing import Final

from rich.text import Text

from feeder.diagnosis.estimates import throttled_share
from feeder.diagnosis.interval import HostInterval
from feeder.metrics.hangs import STATE_WORDS
from feeder.metrics.report import HostReport, ServedDatasetReport
from feeder.metrics.snapshot import OTHERS
from feeder.screens import figures
from feeder.screens.host_tables import draw_clients, draw_jobs, draw_nodes, transport
from feeder.screens.host_view import HostView
from feeder.screens.sheet import Sheet

CLIENTS_SHOWN: Final = 16
_BAR_CELLS_MAX: Final = 40
_SHOWN_SHARE: Final = 0.0005
"""Smaller shares of stages and times are nothing."""

_FALLBACKS: Final[Mapping[str, str]] = {
    "turbojpeg": "images decoded by TurboJPEG",
    "copied-tcp": "batches copied over tcp: ipc reads in place",
    "copied-unclaimed": "batches copied over ipc: their client did not map the slots",
    "copied-refused": "batches copied over ipc: the slots could not be shared",
}
"""By reason, after their number."""


def draw_status(report: HostReport, sheet: Sheet) -> list[Text]:
    """Return the lines, none wider than the sheet."""
    view = HostView(report)
    lines = [*draw_verdict(report, sheet), Text(), *_header(view, sheet)]
    lines += sheet.flows("Serves", map(_dataset, report.datasets))
    lines += [*_rates(view, sheet), *_waits(view, sheet), *_stages(view, sheet)]
    lines += [*_workers(view, sheet), *_caches(view, sheet), *_slots(view, sheet)]
    lines += [*draw_machine(view, sheet), *_fallbacks(view, sheet), *_troubles(view, sheet)]
    if view.has_node_list:
        lines += [Text(), *draw_nodes(view, sheet)]
    jobs = view.interval.jobs
    if len(jobs) > 1 or any(job.name for job in jobs):
        lines += [Text(), *draw_jobs(jobs, sheet)]
    if view.clients:
        lines += [Text(), *_clients(view, sheet)]
    if report.warnings:
        lines += [Text(), *sheet.words("Warnings of the start", "bold")]
        for warning in report.warnings:
            lines += sheet.words(f"- {figures.printable(warning)}", "yellow", indent=2)
    return lines


def draw_verdict(report: HostReport, sheet: Sheet) -> list[Text]:
    """Return the verdict's sentence, which begins with its kind."""
    verdict = report.verdict
    style = "bold red" if verdict.is_problem else "bold green"
    if verdict.kind in ("packing", "starting", "draining", "idle"):
        style = "bold yellow"
    return sheet.words(figures.printable(verdict.text), style)


def _header(view: HostView, sheet: Sheet) -> list[Text]:
    report = view.report
    nodes = len(report.nodes)
    name = [f"named {figures.printable(report.name)}"] if report.name else []
    pieces = [
        f"{figures.printable(report.host)}, feeder {figures.printable(report.feeder_version)}",
        f"process {report.pid}",
        f"up {figures.duration(report.uptime_s)}",
        *name,
    ]
    first = next((node.now for node in report.nodes if node.now is not None), None)
    if first is not None and "decoder" in first.counters:
        pieces.append(f"decoder {figures.printable(str(first.counters['decoder']))}")
    if nodes > 1:
        pieces.append(figures.plural(nodes, "node process"))
    if view.interval.seconds:
        pieces.append(f"rates over {figures.duration(view.interval.seconds)}")
    return sheet.flow("Host", pieces)


def _dataset(dataset: ServedDatasetReport) -> list[str | Text]:
    pieces: list[str | Text] = [
        Text(figures.printable(dataset.name), "bold"),
        figures.plural(dataset.samples, "image"),
    ]
    if dataset.classes:
        pieces.append(figures.plural(dataset.classes, "class"))
    return [*pieces, figures.printable(dataset.folder)]


def _rates(view: HostView, sheet: Sheet) -> list[Text]:
    interval = view.interval
    if not interval.images_a_s:
        return []
    moved = view.sent_bytes_a_s + view.lent_bytes_a_s
    pieces: list[str | Text] = [Text(f"{figures.rate(interval.images_a_s)} images/s", "bold")]
    if moved:
        pieces += [
            f"{figures.count(moved / 1e6)} MB/s",
            f"batches {transport(view.lent_bytes_a_s / moved)}",
        ]
    return sheet.flow("Delivers", pieces)


def _waits(view: HostView, sheet: Sheet) -> list[Text]:
    if not view.clients or not view.interval.seconds:
        return []
    share = view.interval.wait_share
    clients = [client for client in view.clients if client.name != OTHERS]
    is_one = len(clients) == 1
    noun = "client" if is_one else "clients"
    rows = []
    if share is None:
        rows += sheet.fill([f"the {noun} {'has' if is_one else 'have'} not reported any"])
    elif share < _SHOWN_SHARE:
        rows += sheet.fill([f"the {noun} did not wait for batches"])
    else:
        rows.append(_bar_row(noun, share, "wait for batches", sheet, "yellow"))
    idle = 1.0 - view.interval.busy_share
    if idle >= _SHOWN_SHARE:
        rows.append(_bar_row("workers", idle, "wait for requests", sheet, "cyan"))
    return sheet.stack("Waits", rows)


def _stages(view: HostView, sheet: Sheet) -> list[Text]:
    shown = {name: share for name, share in view.interval.stages.items() if share >= _SHOWN_SHARE}
    rest = 1.0 - sum(view.interval.stages.values())
    if shown and rest >= 0.005:
        shown["other"] = rest
    rows = [_bar_row(figures.printable(name), share, "", sheet) for name, share in shown.items()]
    return sheet.stack("Stages", rows)


def _bar_row(name: str, share: float, what: str, sheet: Sheet, style: str = "cyan") -> Text:
    start = Text(f"{sheet.cut(name, 8):<8} {figures.percent(share):>6}")
    cells = sheet.content_cells - start.cell_len - 2 - (len(what) + 2 if what else 0)
    if cells < 4 and what:
        what, cells = "", cells + len(what) + 2
    if cells >= 4:
        start.append("  ").append_text(sheet.glyphs.bar(share, min(cells, _BAR_CELLS_MAX), style))
    return start.append(f"  {what}") if what else start


def _workers(view: HostView, sheet: Sheet) -> list[Text]:
    interval = view.interval
    if not interval.workers:
        return []
    pieces: list[str | Text] = [figures.plural(interval.workers, "worker")]
    nodes = view.report.nodes
    if len(nodes) == 1 and nodes[0].now is not None and nodes[0].now.cpus:
        pieces[0] = f"{pieces[0]} on CPUs {figures.printable(nodes[0].now.cpus)}"
    if interval.busy_share >= _SHOWN_SHARE:
        busy = f"busy {figures.percent(interval.busy_share)}"
        times = ", ".join(_times(interval))
        pieces += [Text(busy, "bold"), *([f"({times})"] if times else [])]
    starting = sum(worker.state == "starting" for _, worker in view.workers)
    if starting:
        pieces.append(Text(f"{starting} starting", "yellow"))
    return [*sheet.flow("Workers", pieces), *_silent(view, sheet)]


def _times(interval: HostInterval) -> Iterator[str]:
    """Return what workers do while they are busy."""
    for field, what in (
        ("cpu_share", "on a CPU"),
        ("run_delay_share", "waiting for one"),
        ("blocked_share", "blocked"),
    ):
        share = interval.mean_of_busy(field)
        if share >= 0.005:
            yield f"{figures.percent(share)} {what}"


def _silent(view: HostView, sheet: Sheet) -> list[Text]:
    lines = []
    for node, worker in view.silent_workers:
        pieces = [
            Text(f"silent: worker {worker.number} (pid {worker.pid})", "bold red"),
            Text(f"of node process {node.number}", "red"),
            Text(f"for {figures.duration(worker.silent_s)}", "red"),
        ]
        if worker.kernel_state:
            pieces.append(Text(STATE_WORDS[worker.kernel_state], "red"))
        lines += sheet.flow("", pieces, gap=" ")
    return lines


def _caches(view: HostView, sheet: Sheet) -> list[Text]:
    rows = []
    used, budget, full = view.cache_bytes
    if budget:
        pieces = []
        if view.cache_hit_share is not None:
            pieces.append(f"decoded cache: {figures.percent(view.cache_hit_share)} hits")
        pieces.append(f"{figures.size(used)} of {figures.size(budget)} filled")
        if full > budget:
            pieces.append(f"all images take {figures.size(full)}")
        rows.append(pieces)
    share = view.page_cache_share
    if share is not None:
        storage = sum(node.storage_bytes_a_s for node in view.interval.nodes)
        pieces = [f"page cache: {figures.percent(share)} hits"]
        if storage >= 1000:
            pieces.append(f"storage delivers {figures.size(storage)}/s")
        rows.append(pieces)
    return sheet.flows("Caches", rows)


def _slots(view: HostView, sheet: Sheet) -> list[Text]:
    slots = view.slots
    states = (
        (slots.free, "free"),
        (slots.filling, "being filled"),
        (slots.sending, "being sent"),
        (slots.client, "with clients"),
    )
    pieces = [f"{figures.rate(number)} {what}" for number, what in states if number >= 0.05]
    return sheet.flow("Slots", pieces)


def draw_machine(view: HostView, sheet: Sheet, label: str = "Machine") -> list[Text]:
    """Return the load of the machine, that of other programs included."""
    machine = view.interval.machine
    load = view.report.load
    pieces: list[str | Text] = []
    if machine.busy_cpus >= 0.05:
        pieces.append(f"{machine.busy_cpus:.1f} of {figures.plural(machine.cpus, 'CPU')} busy")
    if 0 < machine.usable_cpus < machine.cpus:
        pieces.append(f"quota {machine.usable_cpus:g} CPUs")
    throttled = throttled_share(view.interval)
    if throttled >= _SHOWN_SHARE:
        pieces.append(Text(f"throttled {figures.percent(throttled)}", "yellow"))
    if load.free_memory_bytes:
        pieces.append(f"{figures.size(load.free_memory_bytes)} of memory free")
    pressures = (
        ("CPU", machine.pressure_cpu),
        ("storage", machine.pressure_io),
        ("memory", machine.pressure_memory),
    )
    pieces += [
        f"pressure on {name} {figures.percent(share)}"
        for name, share in pressures
        if share >= 0.005
    ]
    return sheet.flow(label, pieces)


def _fallbacks(view: HostView, sheet: Sheet) -> list[Text]:
    rows = [
        [f"{figures.count(total)} {_FALLBACKS.get(reason, figures.printable(reason))}"]
        for reason, total in view.fallbacks.items()
    ]
    return sheet.flows("Fallbacks", rows)


def _troubles(view: HostView, sheet: Sheet) -> list[Text]:
    pieces = [
        f"{name.replace('_', ' ').replace('.', ' ')} {figures.count(total)}"
        for name, total in view.troubles.items()
    ]
    losses = {
        name.removeprefix("dataset.").removesuffix(".loss"): value
        for node in view.report.nodes
        if node.now is not None
        for name, value in node.now.counters.items()
        if name.startswith("dataset.") and isinstance(value, str)
    }
    lines = sheet.flow("Incidents", pieces)
    for name, loss in losses.items():
        lines += sheet.flow("Packed", [figures.printable(name), figures.printable(loss)])
    return lines


def _clients(view: HostView, sheet: Sheet) -> list[Text]:
    shown = view.clients[:CLIENTS_SHOWN]
    lines = draw_clients(shown, view, sheet)
    rest = view.clients[CLIENTS_SHOWN:]
    if rest:
        rate = figures.rate(sum(client.images_a_s for client in rest))
        more = f"{len(rest)} more get {rate} images/s (feeder status --json has all)"
        lines += sheet.words(more, "dim")
    return lines

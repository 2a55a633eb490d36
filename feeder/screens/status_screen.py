"""What ``feeder status`` prints: the verdict, then the whole host, without what is zero.

The order is that of a search for a cause: what holds the host back, which side waits, where the
workers' time goes, the caches and the machine under them; then each node process and client.
"""

from collections.abc import Mapping
from typing import Final

from rich.text import Text

from feeder.diagnosis.estimates import throttled_share
from feeder.metrics.figures import count, duration, plural, rate, size
from feeder.metrics.hangs import STATE_WORDS
from feeder.metrics.records import OTHERS
from feeder.metrics.report import HostReport, ServedDatasetReport
from feeder.screens.host_view import HostView
from feeder.screens.sheet import Cell, Sheet, percent, printable
from feeder.screens.tables import draw_clients, draw_jobs, draw_nodes, transport

CLIENTS_SHOWN: Final = 16
_BAR_CELLS_MAX: Final = 40
_LEAST_SHARE: Final = 0.0005
"""Smaller shares of stages and times are nothing."""

_FALLBACKS: Final[Mapping[str, str]] = {
    "turbojpeg": "images decoded by TurboJPEG",
    "copied-tcp": "batches copied over tcp: ipc reads in place",
    "copied-unclaimed": "batches copied over ipc: their client did not map the slots",
    "copied-refused": "batches copied over ipc: the slots could not be shared",
}
"""By reason, after their number."""


def draw_status(report: HostReport, sheet: Sheet) -> list[Text]:
    """The lines, none wider than the sheet."""
    view = HostView(report)
    lines = [*draw_verdict(report, sheet), Text(), *_header(view, sheet)]
    lines += sheet.flow("Serves", *map(_dataset, report.datasets))
    lines += [*_rates(view, sheet), *_waits(view, sheet), *_stages(view, sheet)]
    lines += [*_workers(view, sheet), *_caches(view, sheet), *_slots(view, sheet)]
    lines += [*draw_machine(view, sheet), *_fallbacks(view, sheet), *_troubles(view, sheet)]
    if view.has_node_list:
        lines += [Text(), *draw_nodes(view, sheet)]
    jobs = view.interval.jobs
    if len(jobs) > 1 or any(job.name for job in jobs):
        lines += [Text(), *draw_jobs(jobs, sheet)]
    if view.clients:
        lines += [Text(), *draw_clients(view.clients[:CLIENTS_SHOWN], view, sheet)]
    if rest := view.clients[CLIENTS_SHOWN:]:
        images = rate(sum(client.images_a_s for client in rest))
        more = f"{len(rest)} more get {images} images/s (feeder status --json has all)"
        lines += sheet.words(more, "dim")
    if report.warnings:
        lines += [Text(), *sheet.words("Warnings of the start", "bold")]
        for warning in report.warnings:
            lines += sheet.words(f"- {printable(warning)}", "yellow", indent=2)
    return lines


def draw_status_frame(
    report: HostReport, sheet: Sheet, height: int, offset: int, note: Text
) -> tuple[list[Text], int]:
    """The same as a live screen, ``note`` in its last line, and the largest offset."""
    lines = draw_status(report, sheet)
    room = max(1, height - 1)
    last = max(0, len(lines) - room)
    first = min(offset, last)
    foot = Text(" " * max(0, sheet.width - note.cell_len)).append_text(note)
    return [*lines[first : first + room], sheet.fit(foot)], last


def draw_verdict(report: HostReport, sheet: Sheet) -> list[Text]:
    """The verdict's sentence, which begins with its kind."""
    verdict = report.verdict
    style = "bold red" if verdict.is_problem else "bold green"
    if verdict.kind in ("packing", "starting", "draining", "idle"):
        style = "bold yellow"
    return sheet.words(printable(verdict.text), style)


def _header(view: HostView, sheet: Sheet) -> list[Text]:
    report = view.report
    pieces = [
        f"{printable(report.host)}, feeder {printable(report.feeder_version)}",
        f"process {report.pid}",
        f"up {duration(report.uptime_s)}",
    ]
    if report.name:
        pieces.append(f"named {printable(report.name)}")
    first = next((node.now for node in report.nodes if node.now is not None), None)
    if first is not None and "decoder" in first.counters:
        pieces.append(f"decoder {printable(str(first.counters['decoder']))}")
    if len(report.nodes) > 1:
        pieces.append(plural(len(report.nodes), "node process"))
    if view.interval.seconds:
        pieces.append(f"rates over {duration(view.interval.seconds)}")
    return sheet.flow("Host", pieces)


def _dataset(dataset: ServedDatasetReport) -> list[Cell]:
    classes = [plural(dataset.classes, "class")] if dataset.classes else []
    name, images = Text(printable(dataset.name), "bold"), plural(dataset.samples, "image")
    return [name, images, *classes, printable(dataset.folder)]


def _rates(view: HostView, sheet: Sheet) -> list[Text]:
    images = view.interval.images_a_s
    moved = view.sent_bytes_a_s + view.lent_bytes_a_s
    if not images:
        return []
    pieces: list[Cell] = [Text(f"{rate(images)} images/s", "bold")]
    if moved:
        how = transport(view.lent_bytes_a_s / moved)
        pieces += [f"{count(moved / 1e6)} MB/s", f"batches {how}"]
    return sheet.flow("Delivers", pieces)


def _waits(view: HostView, sheet: Sheet) -> list[Text]:
    if not view.clients or not view.interval.seconds:
        return []
    share = view.interval.wait_share
    is_one = sum(client.name != OTHERS for client in view.clients) == 1
    noun = "client" if is_one else "clients"
    if share is None:
        lines = sheet.fill([f"the {noun} {'has' if is_one else 'have'} not reported any"])
    elif share < _LEAST_SHARE:
        lines = sheet.fill([f"the {noun} did not wait for batches"])
    else:
        lines = [_bar_row(noun, share, "wait for batches", sheet, "yellow")]
    idle = 1.0 - view.interval.busy_share
    if idle >= _LEAST_SHARE:
        lines.append(_bar_row("workers", idle, "wait for requests", sheet))
    return sheet.stack("Waits", lines)


def _stages(view: HostView, sheet: Sheet) -> list[Text]:
    stages = {name: share for name, share in view.interval.stages.items() if share >= _LEAST_SHARE}
    rest = 1.0 - sum(view.interval.stages.values())
    if stages and rest >= 0.005:
        stages["other"] = rest
    rows = [_bar_row(printable(name), share, "", sheet) for name, share in stages.items()]
    return sheet.stack("Stages", rows)


def _bar_row(name: str, share: float, what: str, sheet: Sheet, style: str = "cyan") -> Text:
    start = Text(f"{sheet.cut(name, 8):<8} {percent(share):>6}")
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
    pieces: list[Cell] = [plural(interval.workers, "worker")]
    nodes = view.report.nodes
    if len(nodes) == 1 and nodes[0].now is not None and nodes[0].now.cpus:
        pieces[0] = f"{pieces[0]} on CPUs {printable(nodes[0].now.cpus)}"
    if interval.busy_share >= _LEAST_SHARE:
        pieces.append(Text(f"busy {percent(interval.busy_share)}", "bold"))
        times = [
            f"{percent(share)} {what}"
            for share, what in (
                (interval.mean_of_busy("cpu_share"), "on a CPU"),
                (interval.mean_of_busy("run_delay_share"), "waiting for one"),
                (interval.mean_of_busy("blocked_share"), "blocked"),
            )
            if share >= 0.005
        ]
        if times:
            pieces.append(f"({', '.join(times)})")
    starting = sum(worker.state == "starting" for _, worker in view.workers)
    if starting:
        pieces.append(Text(f"{starting} starting", "yellow"))
    lines = sheet.flow("Workers", pieces)
    for node, worker in view.silent_workers:
        silent = [
            Text(f"silent: worker {worker.number} (pid {worker.pid})", "bold red"),
            Text(f"of node process {node.number}", "red"),
            Text(f"for {duration(worker.silent_s)}", "red"),
        ]
        if worker.kernel_state:
            silent.append(Text(STATE_WORDS[worker.kernel_state], "red"))
        lines += sheet.flow("", silent, gap=" ")
    return lines


def _caches(view: HostView, sheet: Sheet) -> list[Text]:
    rows = []
    used, budget, full = view.cache_bytes
    if budget:
        pieces = [f"{size(used)} of {size(budget)} filled"]
        if view.cache_hit_share is not None:
            pieces.insert(0, f"decoded cache: {percent(view.cache_hit_share)} hits")
        if full > budget:
            pieces.append(f"all images take {size(full)}")
        rows.append(pieces)
    share = view.page_cache_share
    if share is not None:
        storage = sum(node.storage_bytes_a_s for node in view.interval.nodes)
        delivers = [f"storage delivers {size(storage)}/s"] if storage >= 1000 else []
        rows.append([f"page cache: {percent(share)} hits", *delivers])
    return sheet.flow("Caches", *rows)


def _slots(view: HostView, sheet: Sheet) -> list[Text]:
    slots = view.slots
    states = (
        (slots.free, "free"),
        (slots.filling, "being filled"),
        (slots.sending, "being sent"),
        (slots.client, "with clients"),
    )
    pieces = [f"{rate(number)} {what}" for number, what in states if number >= 0.05]
    return sheet.flow("Slots", pieces)


def draw_machine(view: HostView, sheet: Sheet, label: str = "Machine") -> list[Text]:
    """The load of the machine, that of other programs included."""
    machine = view.interval.machine
    free_bytes = view.report.load.free_memory_bytes
    throttled = throttled_share(view.interval)
    pieces: list[Cell] = []
    if machine.busy_cpus >= 0.05:
        pieces.append(f"{machine.busy_cpus:.1f} of {plural(machine.cpus, 'CPU')} busy")
    if 0 < machine.usable_cpus < machine.cpus:
        pieces.append(f"quota {machine.usable_cpus:g} CPUs")
    if throttled >= _LEAST_SHARE:
        pieces.append(Text(f"throttled {percent(throttled)}", "yellow"))
    if free_bytes:
        pieces.append(f"{size(free_bytes)} of memory free")
    pressures = (
        ("CPU", machine.pressure_cpu),
        ("storage", machine.pressure_io),
        ("memory", machine.pressure_memory),
    )
    pieces += [
        f"pressure on {name} {percent(share)}" for name, share in pressures if share >= 0.005
    ]
    return sheet.flow(label, pieces)


def _fallbacks(view: HostView, sheet: Sheet) -> list[Text]:
    rows = [
        [f"{count(total)} {_FALLBACKS.get(reason, printable(reason))}"]
        for reason, total in view.fallbacks.items()
    ]
    return sheet.flow("Fallbacks", *rows)


def _troubles(view: HostView, sheet: Sheet) -> list[Text]:
    pieces = [
        f"{name.replace('_', ' ').replace('.', ' ')} {count(total)}"
        for name, total in view.troubles.items()
    ]
    lines = sheet.flow("Incidents", pieces)
    losses = {
        name.removeprefix("dataset.").removesuffix(".loss"): value
        for node in view.report.nodes
        if node.now is not None
        for name, value in node.now.counters.items()
        if name.startswith("dataset.") and isinstance(value, str)
    }
    for name, loss in losses.items():
        lines += sheet.flow("Packed", [printable(name), printable(loss)])
    return lines

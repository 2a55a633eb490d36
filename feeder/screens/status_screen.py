"""What ``feeder status`` prints: the verdict, then the whole host, without what is zero.

The order is that of a search for a cause: what holds the host back, which side waits, where the
workers' time goes, the caches and the machine under them; then each node process and client.
"""

from collections import Counter
from collections.abc import Mapping
from typing import Final

from rich.text import Text

from feeder.diagnosis.interval import QUIET_S, HostInterval
from feeder.metrics.counters import GROUPS
from feeder.metrics.fields import fields_of
from feeder.metrics.figures import count, duration, plural, rate, size
from feeder.metrics.hangs import STATE_WORDS
from feeder.metrics.records import OTHERS, StoreRecord
from feeder.metrics.report import HostReport, ServedDatasetReport
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

_SLOT_STATES: Final = {
    "free": "free",
    "filling": "being filled",
    "sending": "being sent",
    "client": "with clients",
}
_BUSY: Final = {
    "cpu_share": "on a CPU",
    "run_delay_share": "waiting for one",
    "blocked_share": "blocked",
}
_PRESSURES: Final = {"CPU": "pressure_cpu", "storage": "pressure_io", "memory": "pressure_memory"}
_NODE_TROUBLES: Final = ("worker_restarts", "workers_killed", "silences")
_STORE_TROUBLES: Final = [n for n, field in fields_of(StoreRecord).items() if field.is_trouble]
_TROUBLES: Final = {
    name for group in GROUPS for name, field in fields_of(group).items() if field.is_trouble
}


def draw_status(report: HostReport, sheet: Sheet) -> list[Text]:
    """The lines, none wider than the sheet."""
    host = HostInterval(report)
    lines = [*draw_verdict(report, sheet), Text(), *_header(host, sheet)]
    lines += sheet.flow("Serves", *map(_dataset, report.datasets))
    sections = (
        _rates, _waits, _stages, _workers, draw_store, _caches, _slots, draw_machine, _incidents
    )  # fmt: skip
    for section in sections:
        lines += section(host, sheet)
    clients, rest = host.clients[:CLIENTS_SHOWN], host.clients[CLIENTS_SHOWN:]
    tables = (
        draw_nodes(host, sheet),
        draw_jobs(host.jobs, sheet),
        draw_clients(clients, host, sheet),
    )
    for table in filter(None, tables):
        lines += [Text(), *table]
    if rest:
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
    return [*lines[first : first + room], sheet.spread(Text(), note)], last


def draw_verdict(report: HostReport, sheet: Sheet) -> list[Text]:
    """The verdict's sentence, which begins with its kind."""
    verdict = report.verdict
    is_quiet = verdict.kind in ("packing", "starting", "draining", "idle")
    style = "bold yellow" if is_quiet else "bold red" if verdict.is_problem else "bold green"
    return sheet.words(printable(verdict.text), style)


def _header(host: HostInterval, sheet: Sheet) -> list[Text]:
    report, nodes = host.report, len(host.report.nodes)
    decoder = str(host.records[0].counters.get("decoder", "")) if host.records else ""
    pieces = [
        f"{printable(report.host)}, feeder {printable(report.feeder_version)}",
        f"process {report.pid}",
        f"up {duration(report.uptime_s)}",
        f"named {printable(report.name)}" if report.name else "",
        f"decoder {printable(decoder)}" if decoder else "",
        plural(nodes, "node process") if nodes > 1 else "",
        f"rates over {duration(host.seconds)}" if host.seconds else "",
    ]
    return sheet.flow("Host", pieces)


def _dataset(dataset: ServedDatasetReport) -> list[Cell]:
    classes = plural(dataset.classes, "class") if dataset.classes else ""
    name, images = Text(printable(dataset.name), "bold"), plural(dataset.samples, "image")
    return [name, images, classes, printable(dataset.folder)]


def _rates(host: HostInterval, sheet: Sheet) -> list[Text]:
    if not host.images_a_s:
        return []
    pieces: list[Cell] = [Text(f"{rate(host.images_a_s)} images/s", "bold")]
    if moved := host.sent_bytes_a_s + host.lent_bytes_a_s:
        pieces.append(f"{count(moved / 1e6)} MB/s")
        pieces.append(f"batches {transport(host.lent_bytes_a_s / moved)}")
    return sheet.flow("Delivers", pieces)


def _waits(host: HostInterval, sheet: Sheet) -> list[Text]:
    if not host.clients or not host.seconds:
        return []
    share = host.wait_share
    is_one = sum(client.name != OTHERS for client in host.clients) == 1
    noun = "client" if is_one else "clients"
    if share is None:
        lines = sheet.fill([f"the {noun} {'has' if is_one else 'have'} not reported any"])
    elif share < _LEAST_SHARE:
        lines = sheet.fill([f"the {noun} did not wait for batches"])
    else:
        lines = [_bar_row(noun, share, "wait for batches", sheet, "yellow")]
    idle = 1.0 - host.busy_share
    if idle >= _LEAST_SHARE:
        lines.append(_bar_row("workers", idle, "wait for requests", sheet))
    return sheet.stack("Waits", lines)


def _stages(host: HostInterval, sheet: Sheet) -> list[Text]:
    stages = {name: share for name, share in host.stages.items() if share >= _LEAST_SHARE}
    rest = 1.0 - sum(host.stages.values())
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


def _workers(host: HostInterval, sheet: Sheet) -> list[Text]:
    if not host.workers:
        return []
    cpus = printable(host.records[0].cpus) if len(host.report.nodes) == 1 else ""
    pieces: list[Cell] = [plural(host.workers, "worker") + (f" on CPUs {cpus}" if cpus else "")]
    if host.busy_share >= _LEAST_SHARE:
        pieces.append(Text(f"busy {percent(host.busy_share)}", "bold"))
        shares = [(host.mean_of_busy(name), words) for name, words in _BUSY.items()]
        if times := [f"{percent(share)} {words}" for share, words in shares if share >= 0.005]:
            pieces.append(f"({', '.join(times)})")
    workers = host.workers_by_silence
    if starting := sum(worker.state == "starting" for _, worker in workers):
        pieces.append(Text(f"{starting} starting", "yellow"))
    lines = sheet.flow("Workers", pieces)
    for node, worker in workers:
        if worker.state == "silent":
            more = [f"of node process {node.number}", f"for {duration(worker.silent_s)}"]
            more += [STATE_WORDS[worker.kernel_state]] if worker.kernel_state else []
            which = Text(f"silent: worker {worker.number} (pid {worker.pid})", "bold red")
            lines += sheet.flow("", [which, *(Text(piece, "red") for piece in more)], gap=" ")
    return lines


def draw_store(host: HostInterval, sheet: Sheet, label: str = "Store") -> list[Text]:
    """What comes from object stores, and the disk cache; nothing where no dataset is in a store."""
    store = host.store
    if store is None:
        return []
    warm, left_s, is_failing = store.warm_share, store.expires_in_s, store.is_refresh_failing
    transfers: list[Cell] = [f"{size(store.bytes_a_s)}/s", f"{rate(store.requests_a_s)} requests/s"]
    if store.quiet_s > QUIET_S:
        quiet = f"the fetcher has sent nothing for {duration(store.quiet_s)}"
        transfers = [Text(quiet, "bold red")]
    if store.waiting_batches >= 0.05:
        transfers.append(Text(f"{rate(store.waiting_batches)} batches wait", "yellow"))
    if store.retries:
        transfers.append(Text(f"repeated: {store.repeats}", "yellow"))
    if left_s is not None:
        words = f"credentials expire in {duration(left_s)}" if left_s else "credentials expired"
        words += " and could not be renewed" if is_failing else ""
        transfers.append(Text(words, "bold red" if is_failing or not left_s else ""))
    cache: list[Cell] = [f"disk cache: {size(store.used_bytes)} of {size(store.budget_bytes)}"]
    if warm is not None:
        cache.append(f"batches {percent(warm)} warm, {percent(1.0 - warm)} cold")
    if store.evicted_bytes_a_s >= 1:
        cache.append(f"evicts {size(store.evicted_bytes_a_s)}/s")
    if store.full_bytes > store.budget_bytes:
        cache.append(f"all samples take {size(store.full_bytes)}")
    return sheet.flow(label, transfers, cache)


def _caches(host: HostInterval, sheet: Sheet) -> list[Text]:
    rows, cache = [], host.cache
    if cache.budget_bytes:
        pieces = [f"{size(cache.used_bytes)} of {size(cache.budget_bytes)} filled"]
        if host.cache_hit_share is not None:
            pieces.insert(0, f"decoded cache: {percent(host.cache_hit_share)} hits")
        if cache.full_bytes > cache.budget_bytes:
            pieces.append(f"all images take {size(cache.full_bytes)}")
        rows.append(pieces)
    if host.page_cache_share is not None:
        pieces = [f"page cache: {percent(host.page_cache_share)} hits"]
        if host.storage_bytes_a_s >= 1000:
            pieces.append(f"storage delivers {size(host.storage_bytes_a_s)}/s")
        rows.append(pieces)
    return sheet.flow("Caches", *rows)


def _slots(host: HostInterval, sheet: Sheet) -> list[Text]:
    numbers = [(getattr(host.slots, state), words) for state, words in _SLOT_STATES.items()]
    return sheet.flow("Slots", [f"{rate(n)} {words}" for n, words in numbers if n >= 0.05])


def draw_machine(host: HostInterval, sheet: Sheet, label: str = "Machine") -> list[Text]:
    """The load of the machine, that of other programs included."""
    machine, free_bytes = host.machine, host.report.load.free_memory_bytes
    busy = f"{machine.busy_cpus:.1f} of {plural(machine.cpus, 'CPU')} busy"
    throttled = Text(f"throttled {percent(host.throttled_share)}", "yellow")
    pressures = [(name, getattr(machine, field)) for name, field in _PRESSURES.items()]
    pieces = [
        busy if machine.busy_cpus >= 0.05 else "",
        f"quota {machine.usable_cpus:g} CPUs" if 0 < machine.usable_cpus < machine.cpus else "",
        throttled if host.throttled_share >= _LEAST_SHARE else "",
        f"{size(free_bytes)} of memory free" if free_bytes else "",
        *(f"pressure on {name} {percent(share)}" for name, share in pressures if share >= 0.005),
    ]
    return sheet.flow(label, pieces)


def _incidents(host: HostInterval, sheet: Sheet) -> list[Text]:
    """What took the slower way, and what does not happen while all is well, since the start."""
    totals = Counter(
        log_lines_dropped=host.report.log_lines_dropped,
        log_lines_limited=host.report.log_lines_limited,
        node_restarts=sum(node.restarts for node in host.report.nodes),
    )
    slower, losses = Counter[str](), dict[str, object]()
    for node in host.records:
        totals.update({name: getattr(node, name) for name in _NODE_TROUBLES})
        for name, value in node.counters.items():
            group, _, part = name.partition(".")
            if group == "dataset":
                losses[part.removesuffix(".loss")] = value
            elif group == "fallbacks":
                slower[_FALLBACKS.get(part, printable(part))] += int(value)
            elif group in _TROUBLES:
                totals[name.replace(".", " ")] += int(value)
    if (store := host.report.store) is not None:
        for name in _STORE_TROUBLES:
            value = getattr(store, name)
            by_reason = value if isinstance(value, dict) else {"": value}
            totals.update({f"store {name} {reason}".strip(): n for reason, n in by_reason.items()})
    fallbacks = [[f"{count(total)} {words}"] for words, total in slower.items() if total]
    troubles = [f"{name.replace('_', ' ')} {count(n)}" for name, n in totals.items() if n]
    lines = [*sheet.flow("Fallbacks", *fallbacks), *sheet.flow("Incidents", troubles)]
    for name, loss in losses.items():
        lines += sheet.flow("Packed", [printable(name), printable(str(loss))])
    return lines

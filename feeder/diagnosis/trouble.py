"""The conditions in which a part of the daemon does not work, or not yet."""

from feeder.diagnosis.facts import Facts, verdict
from feeder.metrics.report import Verdict


def node_down(facts: Facts) -> Verdict | None:
    """A node process hangs or is being restarted."""
    down = [node for node in facts.report.nodes if node.state in ("hung", "restarting")]
    if not down:
        return None
    node, others = down[0], len(facts.report.nodes) - len(down)
    more = f" and {len(down) - 1} more" if len(down) > 1 else ""
    return verdict(
        "node-down",
        f"node process {node.number}{more} is {node.state}, "
        f"{node.restarts} restart{'' if node.restarts == 1 else 's'} so far, "
        f"{others} of {len(facts.report.nodes)} serve; its last messages are in the daemon's log",
    )


def draining(facts: Facts) -> Verdict | None:
    """The daemon is ending."""
    if not any(node.state == "draining" for node in facts.report.nodes):
        return None
    return verdict("draining", "the daemon finishes requested batches and ends", is_problem=False)


def stalled_storage(facts: Facts) -> Verdict | None:
    """Reads of a dataset do not return."""
    names = sorted(
        {name for node in facts.report.nodes if node.now for name in node.now.stalled_datasets}
    )
    if not names:
        return None
    return verdict(
        "stalled-storage",
        f"reads of dataset {', '.join(names[:3])} do not return, its batches are held up; check "
        "the disk or file system that its folder is on",
    )


def silent_worker(facts: Facts) -> Verdict | None:
    """A worker makes no progress, or was just replaced for that."""
    for node in facts.interval.nodes:
        for worker in node.workers:
            if worker.state == "silent":
                state = f", {worker.kernel_state}" if worker.kernel_state else ""
                return verdict(
                    "silent-worker",
                    f"worker {worker.number} (pid {worker.pid}{state}) of node process "
                    f"{node.number} has made no progress for {worker.silent_s:.1f} s; it is "
                    "replaced at its chunk's deadline, the log says what it was doing",
                )
    silences = sum(node.silences for node in facts.interval.nodes)
    killed = sum(node.workers_killed for node in facts.interval.nodes)
    if not (silences or killed):
        return None
    what = f"{killed} replaced" if killed else "it went on"
    return verdict(
        "silent-worker",
        f"a worker made no progress for a while ({silences} silence"
        f"{'' if silences == 1 else 's'} in {facts.interval.seconds:.0f} s, {what}); the log says "
        "which, and what it was doing",
    )


def starting(facts: Facts) -> Verdict | None:
    """There is nothing to judge yet."""
    waiting = [node for node in facts.report.nodes if node.state == "starting"]
    if waiting:
        return verdict(
            "starting", f"{len(waiting)} node processes are not ready yet", is_problem=False
        )
    if facts.interval.seconds < 1.0:
        return verdict("starting", "rates are known in some seconds", is_problem=False)
    return None

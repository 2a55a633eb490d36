"""The child of ``pack_pool`` that submits tasks to Ray; see there for the protocol."""

import json
import os
import queue
import sys
import threading
from typing import Any, Final

from feeder.cluster.pack_task import perform_task
from feeder.cluster.ray_session import join
from feeder.errors import FeederError
from feeder.installation import install_command
from feeder.process.child import die_with_parent

_RETRIES_MAX: Final = 5  # of a task whose host or worker was lost; one that crashes ends then
_WAIT_S: Final = 0.02  # an order that comes meanwhile waits as long


class _Driver:
    def __init__(self) -> None:
        self._answers = os.fdopen(os.dup(1), "wb", buffering=0)
        os.dup2(2, 1)  # Ray prints
        self._orders: queue.SimpleQueue[dict[str, Any] | None] = queue.SimpleQueue()

    def run(self) -> None:
        """Serve the parent until it closes the input."""
        first = json.loads(sys.stdin.buffer.readline())
        try:
            ray = join(first["address"], namespace="", report=lambda _: None)
        except FeederError as error:
            self._send({"kind": "error", "error": type(error).__name__, "message": str(error)})
            return
        self._send({"kind": "joined", "cpus": ray.cluster_resources().get("CPU", 1)})
        threading.Thread(target=self._read, daemon=True).start()
        # Only the loss of a host or worker is repeated; a task returns its own errors.
        task = ray.remote(perform_task).options(
            num_cpus=1, max_retries=_RETRIES_MAX, scheduling_strategy="SPREAD"
        )
        setup = ray.put(first["setup"])
        running: dict[Any, int] = {}
        while True:
            try:
                order = self._orders.get(block=not running)
                if order is None:
                    return
                future = task.remote(first["module"], setup, order["task"])
                running[future] = order["number"]
            except queue.Empty:
                done, _ = ray.wait(list(running), timeout=_WAIT_S)
                for future in done:
                    self._finish(ray, running.pop(future), future)

    def _finish(self, ray: Any, number: int, future: Any) -> None:
        try:
            messages = ray.get(future)
        except ray.exceptions.RayError as error:
            lines = [line.strip() for line in str(error).splitlines() if line.strip()]
            last = lines[-1] if lines else type(error).__name__
            messages = [
                {
                    "kind": "error",
                    "error": "ResourceError",
                    "message": f"a Ray task failed: {last}; is Feeder installed on every host "
                    f"({install_command('daemon', 'ray')})?",
                }
            ]
        for message in messages:
            self._send({**message, "number": number})

    def _read(self) -> None:
        for line in sys.stdin.buffer:
            self._orders.put(json.loads(line))
        self._orders.put(None)

    def _send(self, message: dict[str, Any]) -> None:
        self._answers.write(json.dumps(message).encode() + b"\n")


def main() -> None:
    """Run until the parent ends."""
    die_with_parent(int(sys.argv[1]))
    _Driver().run()
    os._exit(0)  # Ray's shutdown may wait for a head that is away


if __name__ == "__main__":
    main()

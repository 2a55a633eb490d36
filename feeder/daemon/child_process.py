"""A process of the daemon: started with a channel, watched, ended, restarted after a crash."""

import contextlib
import subprocess
import time
from abc import ABC, abstractmethod
from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

import msgspec

from feeder.host.processes import look_at
from feeder.metrics.hangs import Policy, ProcessLook, Watch
from feeder.process.backoff import RestartPolicy
from feeder.process.channel import Channel, ChannelClosedError
from feeder.process.child import describe_ending, start_child, wait_for_exit

_EXIT_GRACE_S: Final = 0.3  # from the end of the channel to the end of the process
_REAP_DEADLINE_S: Final = 2.0

Outgoing = TypeVar("Outgoing", bound=msgspec.Struct)
Incoming = TypeVar("Incoming", bound=msgspec.Struct)


class ChildProcess(ABC, Generic[Outgoing, Incoming]):
    """A process and, after crashes, its successors."""

    def __init__(self, name: str, module: str, incoming: Any, policy: Policy) -> None:
        """``module`` is run by ``spawn``; ``incoming`` is the union of what it sends, ``policy``
        says how long it may take to start."""
        self.name = name
        self.start_s = 0.0
        """When to start it, while it is not running."""
        self.watch = Watch(policy)
        self.is_hung = False
        """It was found to hang, and has not ended yet."""
        self.process: subprocess.Popen[bytes] | None = None
        """None while there is none, or once it is reaped."""
        self.channel: Channel[Outgoing, Incoming] | None = None
        self._module = module
        self._incoming = incoming
        self._policy = policy
        self._restarts = RestartPolicy()

    @property
    def pid(self) -> int:
        """Its process id; 0 if it is not running."""
        return 0 if self.process is None else self.process.pid

    @property
    def crashes(self) -> int:
        return self._restarts.crashes

    @property
    @abstractmethod
    def has_served(self) -> bool:
        """Whether one has served, so that its successors are started for ever."""

    def spawn(self, first: bytes = b"") -> None:
        """Start the process, and send it a packet ``first``; OSError."""
        self.process, ours = start_child(self._module)
        self.channel = Channel(ours, self._incoming)
        self.watch = Watch(self._policy, time.monotonic())
        if first:
            with contextlib.suppress(BrokenPipeError):  # receive() reports it
                ours.send(first)
        self.channel.set_timeout(0)

    def schedule_restart(self) -> float | None:
        """Set ``start_s`` after a crash; return the backoff in seconds, None to give up."""
        now_s = time.monotonic()
        backoff_s = self._restarts.on_crash(now_s, has_served=self.has_served)
        if backoff_s is not None:
            self.start_s = now_s + backoff_s
        return backoff_s

    def receive(self) -> Incoming | None:
        """Receive its next message, None if there is none; ChannelClosedError when it has ended."""
        return None if self.channel is None else self.channel.receive()

    def send(self, message: Outgoing, fd: int | None = None) -> None:
        if self.channel is not None:
            with contextlib.suppress(ChannelClosedError):  # receive() reports it
                self.channel.send(message, fd)

    def hangs_now(self, now_s: float, look: Callable[[int], ProcessLook | None] = look_at) -> bool:
        """Whether it is found to hang, given what ``look`` sees of its process now and then."""
        if self.watch.is_quiet(now_s) and (seen := look(self.pid)) is not None:
            self.watch.looks.append((now_s, seen))
        _, self.is_hung = self.watch.judge(now_s, self.watch.policy.stopped_s)
        return self.is_hung

    def close_channel(self) -> None:
        """Close the channel, on which the process ends soon."""
        if self.channel is not None:
            self.channel.close()
            self.channel = None

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()

    def end(self) -> str:
        """Close the channel, reap the process, killed if necessary, and return how it ended."""
        self.close_channel()
        process, self.process, self.is_hung = self.process, None, False
        if process is None:
            return "was not running"
        status = wait_for_exit(process, _EXIT_GRACE_S)
        if status is None:
            process.kill()
            status = wait_for_exit(process, _REAP_DEADLINE_S)
        return describe_ending(status)

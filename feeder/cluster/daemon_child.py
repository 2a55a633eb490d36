"""Becomes ``feeder serve`` in a process that dies with its parent: ``daemon_child PID ARGUMENT…``.

The kernel keeps PDEATHSIG over exec. So no daemon outlives the actor that started it, not even one
whose host was declared dead while it was stopped.
"""

import os
import sys

from feeder.process.child import die_with_parent, python_command


def main(arguments: list[str]) -> None:
    """Exec the command of these arguments after the parent's pid; does not return."""
    die_with_parent(int(arguments[0]))
    command = python_command("feeder", *arguments[1:])
    os.execv(command[0], command)


if __name__ == "__main__":
    main(sys.argv[1:])

"""The engine of every client: threads, sockets and mapped slots around ``core``.

It needs numpy, pyzmq and msgspec, neither torch nor what the daemon decodes with.

May import: errors, metrics, plan, wire, process, security.
"""

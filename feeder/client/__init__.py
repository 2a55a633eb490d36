"""The engine of every client: sockets, threads and mapped slots around the pure ``core``.

It needs numpy, pyzmq and msgspec, and neither torch nor what the daemon decodes with.

May import: errors, metrics, plan, wire, process, security, client.core.
"""

"""The command line: one module a command, each with ``add_parser(subparsers)`` and ``run(args)``.

Commands import only the standard library and ``errors`` at the top; what one needs is imported in
its ``run``, so that ``feeder --help`` and the others stay quick: ``contact_sheet`` and
``crop_preview``, which draw, too.

May import: errors, metrics, remedies, plan, wire, process, host, jpeg, dataset, sample, security,
client, pack, daemon.
"""

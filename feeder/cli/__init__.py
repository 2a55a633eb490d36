"""The command line: a module a command, each with ``add_parser(subparsers)`` and ``run(args)``.

Commands import only the standard library and ``errors`` at the top. ``run`` imports the rest, with
the drawing code in ``contact_sheet`` and ``crop_preview``, so ``feeder --help`` stays quick.

May import: errors, metrics, remedies, plan, wire, process, host, jpeg, dataset, sample, security,
client, pack, daemon.
"""

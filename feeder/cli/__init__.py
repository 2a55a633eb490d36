"""The command line: one module per command, each with ``add_parser(subparsers)`` and ``run(args)``.

At the top, commands import only the standard library, ``errors`` and ``source.kinds``;
``run`` imports the rest, so that ``feeder --help`` stays quick.

May import: errors, metrics, remedies, plan, wire, process, host, jpeg, dataset, sample, security,
client, client.core, source, survey, pack, pack_cache, repack, diagnosis, doctor, doctor.findings,
daemon, screens, cluster.
"""

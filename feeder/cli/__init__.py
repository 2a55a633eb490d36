"""The command line: a module for each command or group of them, which adds its parsers to ``main``.

At the top, commands import only the standard library, and modules that import nothing else; what
runs them imports the rest, so that ``feeder --help`` stays quick.

May import: errors, metrics, remedies, plan, wire, process, host, jpeg, dataset, sample, security,
client, client.core, source, choose, survey, pack, pack_cache, repack, diagnosis, doctor, daemon,
screens, cluster, store, disk_cache.
"""

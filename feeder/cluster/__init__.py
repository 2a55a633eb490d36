"""Feeders on the hosts of a Ray cluster: placed, published, replaced, scaled and ended.

Only processes that use Ray import it: a machine without Ray runs all other commands.

May import: errors, installation, metrics, wire, process, dataset, pack, security, client,
node.
"""

"""Turns an image of any format into a tiled JPEG, without loss where that is possible.

May import: errors, plan, process, jpeg, dataset, source.
"""

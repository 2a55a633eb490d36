"""The reference job: a ResNet trained and evaluated on batches from a feeder.

May import:
"""

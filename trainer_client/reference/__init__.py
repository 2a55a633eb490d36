"""The reference job: trains and evaluates a ResNet on batches from a feeder.

May import: errors, plan, process, trainer_client.
"""

"""The reference job: trains and evaluates a ResNet on batches from a feeder.

May import: errors, installation, plan, process, trainer_client.
"""

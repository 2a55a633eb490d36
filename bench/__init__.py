"""feeder-bench: how fast the way of a sample is here, measured side by side in one run."""

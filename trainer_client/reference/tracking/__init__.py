"""Where a run reports to: files, the terminal, TensorBoard, Weights & Biases, MLPerf's log.

May import: errors, installation, metrics, process, trainer_client.reference.results.
"""

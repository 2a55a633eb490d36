"""The daemon's metrics over HTTP: /metrics as Prometheus text, /healthz and /readyz.

May import: errors, metrics, process, diagnosis.
"""

"""What each step does: plain typed functions, values in, values out."""

import os

# Nothing leaves the machine: each library's telemetry is off before any of them is imported.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")
os.environ.setdefault("MLFLOW_DISABLE_TELEMETRY", "true")
os.environ.setdefault("DO_NOT_TRACK", "1")

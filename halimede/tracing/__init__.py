"""Writes traces: to files in Triton's form (`text`, `files`), or to an OpenTelemetry collector (`spans`).

`writer` is the thread for both. Knows finished traces, and nothing of settings or which requests are traced.
"""

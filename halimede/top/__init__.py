"""`halimede top`: what the models of a running server do, of any server that speaks Triton's protocol.

Asks over HTTP for statistics, configurations and metrics; knows nothing of the engine.
"""

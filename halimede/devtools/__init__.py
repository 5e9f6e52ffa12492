"""What helps to write a model: running it once without a server, from typed inputs to readable outputs.

Stands beside the front ends: it makes requests of words and files, asks the engine, and shows what comes back.
"""

"""Modules for processes that a model spawns (`multiprocessing` with `spawn` or `forkserver`, data loaders of torch).

Such a process is a new interpreter with the `sys.path` of its parent, which ends with this folder. The folder is not
imported as a package.
"""

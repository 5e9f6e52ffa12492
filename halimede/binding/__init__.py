"""A server within a program: functions as models, without files (`Server`, docs/binding-functions.md).

`models` makes a model of a function, `flags` makes options of keyword arguments, and `run` is one run of the server on
a thread of its own. Installs no logging. Signal handlers are installed by `Server.serve`, on the main thread.
"""

"""`halimede perf`: makes load on a server, measures it, and reports as Triton's perf_analyzer does.

The pure parts (options, data, requests, schedules, statistics, reports) know no socket and no clock. `clients` sends
and receives, `generator` is the process that runs them, and `profiler` gives it load, cuts windows and asks the server.
"""

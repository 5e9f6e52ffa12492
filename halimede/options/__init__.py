"""Server options: one table of flags, the frozen values that they become, and the pure function between the two.

Knows nothing of the rest of the server. Called once, by `cli`, on the main thread.
"""

from halimede.options.help import usage
from halimede.options.parser import HelpRequested, VersionRequested, parse, suggestion
from halimede.options.patterns import search_of
from halimede.options.values import Endpoint, GrpcOptions, LogOptions, MetricsOptions, ServerOptions, TraceOptions

__all__ = [
    "Endpoint",
    "GrpcOptions",
    "HelpRequested",
    "LogOptions",
    "MetricsOptions",
    "ServerOptions",
    "TraceOptions",
    "VersionRequested",
    "parse",
    "search_of",
    "suggestion",
    "usage",
]

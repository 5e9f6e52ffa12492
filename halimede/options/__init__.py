"""Server options: one table of flags, the frozen values that they become, and the pure function between the two.

Knows nothing of the rest of the server. Called once, by `cli`, on the main thread.
"""

from halimede.options.model_run import ModelRun, model_run_usage, parse_model_run
from halimede.options.parser import HelpRequested, VersionRequested, parse, suggestion
from halimede.options.usage import usage
from halimede.options.values import Endpoint, GrpcOptions, LogOptions, ServerOptions

__all__ = [
    "Endpoint",
    "GrpcOptions",
    "HelpRequested",
    "LogOptions",
    "ModelRun",
    "ServerOptions",
    "VersionRequested",
    "model_run_usage",
    "parse",
    "parse_model_run",
    "suggestion",
    "usage",
]

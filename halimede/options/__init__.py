"""Server options: one table of flags, the frozen values that they become, and the pure function between the two.

Knows nothing of the rest of the server. Called once, by `cli`, on the main thread.
"""

from halimede.options.check import Check, check_usage, parse_check
from halimede.options.completion import completion_script, completion_usage, parse_completion
from halimede.options.graph import Graph, graph_usage, parse_graph
from halimede.options.init import Init, init_usage, parse_init
from halimede.options.model_run import ModelRun, model_run_usage, parse_model_run
from halimede.options.parser import HelpRequested, VersionRequested, parse, suggestion
from halimede.options.top import Top, parse_top, top_usage
from halimede.options.usage import usage
from halimede.options.values import Endpoint, GrpcOptions, LogOptions, MetricsOptions, ServerOptions, TraceOptions

__all__ = [
    "Check",
    "Endpoint",
    "Graph",
    "GrpcOptions",
    "HelpRequested",
    "Init",
    "LogOptions",
    "MetricsOptions",
    "ModelRun",
    "ServerOptions",
    "Top",
    "TraceOptions",
    "VersionRequested",
    "check_usage",
    "completion_script",
    "completion_usage",
    "graph_usage",
    "init_usage",
    "model_run_usage",
    "parse",
    "parse_check",
    "parse_completion",
    "parse_graph",
    "parse_init",
    "parse_model_run",
    "parse_top",
    "suggestion",
    "top_usage",
    "usage",
]

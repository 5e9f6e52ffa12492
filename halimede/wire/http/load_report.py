"""The load of a model, as the header that load balancers ask for with a request (ORCA; H138). Pure."""

from collections.abc import Iterable

from halimede.engine_port import MetricFamily
from halimede.wire.http.json import write

FAMILY = "nv_trt_llm_kv_cache_block_metrics"
"""The metric family that the load is computed from. The model creates it."""
_KIND, _TOKENS, _USED, _MOST = "kv_cache_block_type", "tokens_per", "used", "max"


def load_report(form: bytes, families: Iterable[MetricFamily], model: str) -> bytes | None:
    """Returns the header's value in the form `text` or `json`, or None if numbers are missing or the form is another.

    If models label their metrics with `model`, those of this model count. Otherwise the last metric of each kind
    counts.
    """
    metrics = [
        (labels, value) for family in families for labels, value in family.series if isinstance(value, int | float)
    ]
    own = [(labels, value) for labels, value in metrics if labels.get("model") == model]
    numbers = {labels[_KIND]: value for labels, value in own or metrics if _KIND in labels}
    tokens, used, most = (numbers.get(kind, -1) for kind in (_TOKENS, _USED, _MOST))
    # A missing number is -1, and NaN fails every comparison.
    if not (tokens >= 0 and used >= 0 and most >= 0 and tokens * most < float("inf")):
        return None
    utilization = used / most if most else 0.0
    capacity = int(most * tokens)
    if form == b"text":
        return b"TEXT named_metrics.kv_cache_utilization=%b, named_metrics.max_token_capacity=%d" % (
            f"{utilization:.16g}".encode(),
            capacity,
        )
    if form == b"json":
        named = {"kv_cache_utilization": utilization, "max_token_capacity": capacity}
        return f"JSON {write({'named_metrics': named})}".encode()
    return None

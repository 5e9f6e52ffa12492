"""The permitted differences from the real server, by name and with the reason. All other differences are failures.

A mask rewrites the text of a transcript, on both sides or on one. A case names its masks, and the summary counts them.
"""

import json
import re
from collections.abc import Callable
from dataclasses import dataclass
from enum import Enum


class Side(Enum):
    BOTH = "both"
    OURS = "ours"
    REAL = "the real server"


@dataclass(frozen=True, slots=True)
class Mask:
    """Every match of `pattern` becomes `replacement`, or its result for the match, on that side."""

    name: str
    reason: str
    pattern: str
    replacement: str | Callable[[re.Match[str]], str]
    side: Side = Side.BOTH

    def apply(self, text: str, *, ours: bool) -> str:
        """The text, rewritten if the mask is for this side."""
        if self.side is (Side.REAL if ours else Side.OURS):
            return text
        return re.sub(self.pattern, self.replacement, text, flags=re.MULTILINE)


def _nearest_digits(found: re.Match[str]) -> str:
    """The digits nearest to the value, and separately their form: leading zeros, place of the point, exponent."""
    whole, fraction, exponent = found["whole"], found["fraction"], found["exponent"] or ""
    zeros = len(whole + fraction) - len((whole + fraction).lstrip("0"))
    digits = re.sub(r"e.*|[.-]", "", repr(float(found[0]))).strip("0")
    return f"<{digits} after {zeros} zeros, point after {len(whole)}{exponent}>"


def _by_name(found: re.Match[str]) -> str:
    """The outputs of a response, sorted by name."""
    outputs = json.loads(found[0])
    return json.dumps(sorted(outputs, key=lambda output: str(output["name"])))


_TABLE = (
    Mask(
        "version",
        "the version of the server itself",
        r'(?<="version":")[^"]+(?=","extensions")|(?<=^  version: ")[^"]+(?="$)',
        "<version>",
    ),
    Mask(
        "length",
        "the length of a body that has a masked part",
        r"^content-length: [0-9]+$",
        "content-length: <n>",
    ),
    Mask(
        "times",
        "durations in statistics (H119), also zero where the C identity measures nothing",
        r'(?<="ns":)[0-9]+|^ *ns: [0-9]+\n',
        "",
    ),
    Mask(
        "last-inference",
        "the time of day of the last inference (H119)",
        r'(?<="last_inference":)[0-9]{13}|^ *last_inference: [0-9]{13}\n',
        "",
    ),
    Mask(
        "infer-error-type",
        "2.51 sends the infer errors from before and after the body as text/plain; since 2.73 all are JSON (H15)",
        r"(?<=^content-type: )text/plain$",
        "application/json",
        Side.REAL,
    ),
    Mask(
        "got-order",
        "with too many inputs the real server lists the names in the order of a hash table (H60: sorted)",
        r"(?<=Got input\(s\) )\[[^]]*\]",
        "[<names>]",
    ),
    Mask(
        "last-digit",
        "Grisu2 in the real server ends at a 16th or 17th digit that is not always the nearest; the value is the same",
        r"(?<![0-9.])(?=[0-9.]{17})(?P<whole>[0-9]+)\.(?P<fraction>[0-9]+)(?P<exponent>e-?[0-9]+)?",
        _nearest_digits,
    ),
    Mask(
        "named-input",
        "which of two inputs of different batch size is named, the order of a hash table decides in the real server",
        r"input 'INPUT[01]'(?= batch size does not match)",
        "input '<either>'",
    ),
    Mask(
        "wordless-close",
        "what is no HTTP is closed without a word by the real server; a 400 or 431 before the end is as good",
        r"^HTTP/1\.[01] 4(?:00|31)\n(.*\n)*(?=connection closed$)",
        "",
        Side.OURS,
    ),
    Mask(
        "place",
        "where the copy of the models is",
        r"(?<=\\n  )/[^\" ]*/models/",
        "<models>/",
    ),
    Mask(
        "announced-close",
        "ours announces the end of the connection, where the contract only says that it ends",
        r"^connection: close\n(?=(.*\n)*connection closed$)",
        "",
        Side.OURS,
    ),
    Mask(
        "ensemble-once",
        "the real server writes the parameters of a sequence once for each output of an ensemble: keys that are there "
        "several times (S84)",
        r'("sequence_id":[^,]+,"sequence_start":\w+,"sequence_end":\w+)(?:,\1)+',
        r"\1",
        Side.REAL,
    ),
    Mask(
        "ensemble-order",
        "the order of an ensemble's outputs is that of a hash table in the real server",
        r'(?<="outputs":)\[\{.*\}\](?=\}$)',
        _by_name,
    ),
    Mask(
        "ensemble-final",
        "whether the last response of a decoupled ensemble is final, or an empty one behind it, is a race in the real "
        "server (S89)",
        r'(?<=key: "triton_final_response"\n)(.*\n) *bool_param: \w+',
        r"\1<either>",
    ),
    Mask(
        "why-not-loaded",
        "the index of the real server does not say why a model without versions is not loaded",
        r'(?<="name":)("[^"]+"),"state":"UNAVAILABLE","reason":"[^"]*"',
        r"\1",
        Side.OURS,
    ),
    Mask(
        "ensemble-inflight",
        "a field of ensembles that 2.51 does not know (S90)",
        r',"max_inflight_requests":0',
        "",
        Side.OURS,
    ),
)
MASKS = {mask.name: mask for mask in _TABLE}


def masked(text: str, names: tuple[str, ...], *, ours: bool) -> str:
    """The text after the named masks, in their order."""
    for name in names:
        text = MASKS[name].apply(text, ours=ours)
    return text

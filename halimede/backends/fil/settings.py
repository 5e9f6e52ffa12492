"""The parameters of a forest, read as Triton's backend reads them (BX2 to BX6, BX13 to BX15). Pure."""

from collections.abc import Mapping
from dataclasses import dataclass
from types import MappingProxyType

from halimede.errors import Internal, Invalid, Unsupported

FILES: Mapping[str, str] = MappingProxyType(
    {
        "xgboost": "xgboost.model",
        "xgboost_json": "xgboost.json",
        "xgboost_ubj": "xgboost.ubj",
        "lightgbm": "model.txt",
        "treelite_checkpoint": "checkpoint.tl",
    }
)
"""Each `model_type` and its file (BX2)."""
_TYPES = MappingProxyType({file: kind for kind, file in FILES.items()})

_LAYOUTS = MappingProxyType(
    {
        "depth_first": "depth_first",
        "breadth_first": "breadth_first",
        "layered": "layered",
        "layered_children_together": "layered",
    }
)
_REMOVED = MappingProxyType(
    {
        "output_class": "is_classifier",
        "algo": "layout",
        "threads_per_tree": "chunk_size",
        "storage_type": "",
        "blocks_per_sm": "",
    }
)
"""Parameters that are gone since 25.09, and what replaces them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """What a configuration says about a forest. None: it does not say.

    threads -- 0 or less: the backend's choice
    layout, chunk_size -- for a GPU only
    """

    model_type: str | None = None
    is_classifier: bool | None = None
    predict_proba: bool | None = None
    threshold: float = 0.5
    allow_unknown_field: bool = False
    threads: int = -1
    layout: str = "depth_first"
    chunk_size: int = 1


def settings_of(parameters: Mapping[str, str]) -> Settings:
    """Raises Internal, Unsupported, Invalid in the words of Triton's backend."""
    kind = parameters.get("model_type")
    if kind is not None and kind not in FILES:
        raise Unsupported(f"{kind} not recognized as a valid serialization format.")
    is_classifier = _switch(parameters, "is_classifier")
    if parameters.get("output_class") in ("true", "false"):  # the old name wins, but only with these words (BX4)
        is_classifier = parameters["output_class"] == "true"
    chunk_size = _whole(parameters, "chunk_size", 1)
    if chunk_size < 1:
        raise Invalid("Bad input for parameter chunk_size")
    return Settings(
        kind,
        is_classifier,
        _switch(parameters, "predict_proba"),
        _number(parameters, "threshold", 0.5),
        _switch(parameters, "xgboost_allow_unknown_field") or False,
        _whole(parameters, "cpu_nthread", -1),
        parameters.get("layout", "depth_first"),
        chunk_size,
    )


def gpu_layout(word: str) -> str:
    """The layout of a forest in the memory of a GPU (BX14). Raises Invalid."""
    if word not in _LAYOUTS:
        raise Invalid(f"Unknown nvForest layout name: {word}")
    return _LAYOUTS[word]


def warnings_of(parameters: Mapping[str, str]) -> list[str]:
    """A line for each parameter that has no effect any more (BX4, BX15)."""
    return [
        f"The `{old}` parameter has been removed in 25.09 release." + (f" Use `{new}` instead." if new else "")
        for old, new in _REMOVED.items()
        if old in parameters
    ]


def file_of(settings: Settings, configured: str) -> tuple[str, str]:
    """The file of a model and its type. `configured` is the file that the configuration names, or the first usual one
    of the version directory, or empty."""
    kind = settings.model_type
    if kind is None:
        return (configured or FILES["xgboost"]), _TYPES.get(configured, "xgboost")
    # The search by file names does not know the parameter. It may have found the file of another type.
    if not configured or _TYPES.get(configured, kind) != kind:
        return FILES[kind], kind
    return configured, kind


def _switch(parameters: Mapping[str, str], name: str) -> bool | None:
    value = parameters.get(name)
    if value not in (None, "true", "false"):
        raise Internal(f"Expected 'true' or 'false' for parameter '{name}', got: '{value}'")
    return None if value is None else value == "true"


def _number(parameters: Mapping[str, str], name: str, default: float) -> float:
    """A bad text means the default (BX3)."""
    try:
        return float(parameters.get(name, default))
    except ValueError:
        return default


def _whole(parameters: Mapping[str, str], name: str, default: int) -> int:
    try:
        return int(parameters.get(name, default))
    except ValueError:
        return default

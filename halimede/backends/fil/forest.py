"""Reads the file of a forest. Knows the formats; treelite does the parsing. Load threads."""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import numpy.typing as npt
import treelite

from halimede.errors import Cause, Unavailable, Unknown, Unsupported

_WHERE = re.compile(r"^\[[\d:]+\] \S+:\d+: ")
"""The time, and a line of treelite's own source, before what it says."""
_BINARY, _MULTI = 0, 2
"""Treelite's numbers for classifiers; the others are regression, ranking and isolation forests."""
_PROBABILITIES = ("sigmoid", "softmax", "multiclass_ova")
"""Postprocessors whose result is a probability for each class."""


@dataclass(frozen=True, slots=True)
class Forest:
    """A forest, opened.

    features -- numbers in a row of its input
    classes -- numbers in a row of its output: 1 unless it is a multi-class model
    is_classification -- whether it was trained to classify, as far as the file says
    dtype -- of its thresholds and leaves, and so of the rows that treelite takes
    """

    model: Any
    features: int
    classes: int
    is_classification: bool
    dtype: npt.DTypeLike

    @property
    def is_of_vectors(self) -> bool:
        """Whether each leaf has a number for each class, as in a random forest of scikit-learn."""
        return int(self.header("leaf_vector_shape")[1]) > 1

    def header(self, name: str) -> Any:
        """A field of the model, as treelite's serialization format names it."""
        return self.model.get_header_accessor().get_field(name)

    def tree(self, number: int, name: str) -> Any:
        """A field of a tree. A copy, because treelite's array lies in the memory of the model."""
        return np.array(self.model.get_tree_accessor(number).get_field(name))

    def make_probabilities(self) -> None:
        """Changes a multi-class model so that it returns probabilities, also if it was trained to return margins (BX6).
        Leaves with vectors have probabilities already."""
        if self.classes > 1 and not self.is_of_vectors and self.header("postprocessor") not in _PROBABILITIES:
            self.model.get_header_accessor().set_field("postprocessor", "softmax")


def read_forest(path: Path, kind: str, allow_unknown_field: bool = False) -> Forest:
    """Raises Unavailable if there is no file, Unknown with treelite's text if it cannot be read, Unsupported for a
    model with several targets (BX16)."""
    if not path.is_file():
        raise Unavailable(f'Could not open model file "{path}"').blaming(Cause.FILE)
    try:
        model = _READERS[_real_kind(path, kind)](str(path), allow_unknown_field)
        header = model.get_header_accessor()
        targets, classes, task = (header.get_field(name) for name in ("num_target", "num_class", "task_type"))
        if int(targets[0]) != 1:
            raise Unsupported("Multi-target model not supported").blaming(Cause.FILE)
        dtype = np.dtype(model.input_type)
        return Forest(model, model.num_feature, int(classes[0]), int(task[0]) in (_BINARY, _MULTI), dtype)
    except treelite.TreeliteError as error:
        raise Unknown(_WHERE.sub("", str(error))).blaming(Cause.FILE) from error


def _xgboost(choice: str) -> Callable[[str, bool], Any]:
    def read(path: str, allow_unknown_field: bool) -> Any:
        return treelite.frontend.load_xgboost_model(path, format_choice=choice, allow_unknown_field=allow_unknown_field)

    return read


_READERS: Mapping[str, Callable[[str, bool], Any]] = MappingProxyType(
    {
        "xgboost": lambda path, _: treelite.frontend.load_xgboost_model_legacy_binary(path),
        "xgboost_json": _xgboost("json"),
        "xgboost_ubj": _xgboost("ubjson"),
        "lightgbm": lambda path, _: treelite.frontend.load_lightgbm_model(path),
        "treelite_checkpoint": lambda path, _: treelite.Model.deserialize(path),
    }
)


def _real_kind(path: Path, kind: str) -> str:
    """The format of a file of XGBoost. Since 2.1 `save_model` writes UBJSON into a file with an unknown ending, such as
    `xgboost.model`, and the configuration that came with the old binary file is still there."""
    if not kind.startswith("xgboost"):
        return kind
    with path.open("rb") as file:
        start = file.read(2)
    if start[:1] != b"{":
        return "xgboost" if kind == "xgboost" else kind
    # An object in JSON goes on with a blank, a name or its end; in UBJSON with the type of the name's length.
    return "xgboost_ubj" if start[1:2] in (b"L", b"l", b"I", b"i", b"U", b"$", b"#") else "xgboost_json"

"""Configurations to steps and tensors, and what the drawing says of them."""

import json
import re
import xml.etree.ElementTree as ET
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import onnx
import pytest
from onnx import TensorProto, helper

from halimede.devtools.graph_pipeline import LATEST, Pipeline, Times, kind_of, pipeline_of
from halimede.devtools.graph_sources import Folders, times_in
from halimede.devtools.graph_svg import svg_of
from halimede.devtools.graph_text import (
    duration,
    json_of,
    mermaid_of,
    share_of,
    step_lines,
    text_of,
    title_of,
)
from halimede.errors import Invalid, NotFound

EXAMPLES = str(Path(__file__).parents[2] / "examples" / "models")

TEXT_EMBEDDING = """\
text_embedding (ensemble, batch 32)
input: TEXT BYTES[-1,1]

1. tokenizer: python, batch 32
     <- TEXT
     -> word_pieces INT64[-1,-1]
     -> mask INT64[-1,-1]
2. minilm: onnxruntime, batch 32
     <- word_pieces, mask
     -> vectors FP32[-1,-1,384]
3. pooling: onnxruntime, batch 32
     <- vectors, mask
     -> embedding FP32[-1,384]

output: embedding FP32[-1,384]"""

TEXT_EMBEDDING_MERMAID = """\
---
title: "text_embedding (ensemble, batch 32)"
---
flowchart TD
  t0(["TEXT<br>BYTES[-1,1]"])
  s0["tokenizer<br>python, batch 32"]
  s1["minilm<br>onnxruntime, batch 32"]
  s2["pooling<br>onnxruntime, batch 32"]
  r1(["embedding<br>FP32[-1,384]"])
  s2 --> r1
  t0 --> s0
  s0 -->|"word_pieces<br>INT64[-1,-1]"| s1
  s0 -->|"mask<br>INT64[-1,-1]"| s1
  s1 -->|"vectors<br>FP32[-1,-1,384]"| s2
  s0 -->|"mask<br>INT64[-1,-1]"| s2"""


def tensor(name: str, dims: list[int] | None = None, data_type: str = "TYPE_FP32") -> dict[str, Any]:
    return {"name": name, "data_type": data_type, "dims": dims or [4]}


def model(**fields: Any) -> dict[str, Any]:
    return {"backend": "python", "input": [tensor("IN")], "output": [tensor("OUT")], **fields}


def step(name: str, reads: dict[str, str], writes: dict[str, str], version: Any = -1) -> dict[str, Any]:
    return {"model_name": name, "model_version": version, "input_map": reads, "output_map": writes}


def ensemble(*steps: dict[str, Any], **fields: Any) -> dict[str, Any]:
    return model(backend="", platform="ensemble", ensemble_scheduling={"step": list(steps)}, **fields)


def drawn(configs: Mapping[str, Any], name: str = "outer", times: Mapping[str, Times] | None = None) -> Pipeline:
    return pipeline_of(name, lambda model, _: configs[model], lambda model, _: (times or {}).get(model))


NESTED = {
    "outer": ensemble(step("inner", {"X": "IN"}, {"Y": "a"}), step("last", {"IN": "a"}, {"OUT": "OUT"}, "3")),
    "inner": ensemble(
        step("first", {"IN": "X"}, {"OUT": "a"}),
        step("second", {"IN": "a"}, {"OUT": "Y"}),
        input=[tensor("X")],
        output=[tensor("Y")],
    ),
    "first": model(max_batch_size=4),
    "second": model(model_transaction_policy={"decoupled": True}),
    "last": model(),
}


def example() -> Pipeline:
    return pipeline_of("text_embedding", Folders([EXAMPLES]).config_of)


def test_example_as_text() -> None:
    assert text_of(example()) == TEXT_EMBEDDING


def test_example_as_mermaid() -> None:
    assert mermaid_of(example()) == TEXT_EMBEDDING_MERMAID


def test_example_as_json() -> None:
    document = json.loads(json_of(example()))
    assert document["steps"][0] == {
        "model": "tokenizer",
        "version": -1,
        "path": [],
        "facts": ["python", "batch 32"],
        "reads": [["TEXT", 0]],
        "writes": [["input_ids", 2], ["attention_mask", 3]],
        "times": None,
    }
    assert document["tensors"][0] == {"name": "TEXT", "kind": "BYTES[-1,1]"}
    assert (document["given"], document["results"], document["times"]) == ([0], [1], None)


def test_nested_ensemble_is_replaced_by_its_steps() -> None:
    pipeline = drawn(NESTED)
    names = [tensor.name for tensor in pipeline.tensors]
    steps = [
        (
            each.path,
            each.model,
            each.version,
            *({own: names[n] for own, n in side} for side in (each.reads, each.writes)),
        )
        for each in pipeline.steps
    ]
    assert steps == [
        (("inner",), "first", LATEST, {"IN": "IN"}, {"OUT": "a"}),
        (("inner",), "second", LATEST, {"IN": "a"}, {"OUT": "a"}),
        ((), "last", 3, {"IN": "a"}, {"OUT": "OUT"}),
    ]
    assert names.count("a") == 2  # the inner one's own, and the outer one's
    assert [step_lines(step) for step in pipeline.steps] == [
        ["inner/first", "python, batch 4"],
        ["inner/second", "python, decoupled"],
        ["last version 3", "python"],
    ]


def test_circular_ensemble_is_refused() -> None:
    circle = {**NESTED, "first": ensemble(step("inner", {"X": "IN"}, {"Y": "OUT"}))}
    with pytest.raises(Invalid, match=r"^circular dependency between ensembles: outer -> inner -> first -> inner$"):
        drawn(circle)


def test_single_model_is_one_step() -> None:
    pipeline = drawn({"m": model(input=[tensor("A"), tensor("B")])}, "m")
    assert [(each.model, len(each.reads), len(each.writes)) for each in pipeline.steps] == [("m", 2, 1)]


def test_kind_of_a_tensor_comes_from_any_model_that_declares_it() -> None:
    """A member that says nothing of its tensors leaves them to who reads or writes them as well."""
    configs = {
        "outer": ensemble(step("mute", {"X": "IN"}, {"Y": "a"}), step("last", {"IN": "a"}, {"OUT": "OUT"})),
        "mute": {"backend": "onnxruntime"},
        "last": model(),
    }
    kinds = {each.name: each.kind for each in drawn(configs).tensors}
    assert kinds == {"IN": "FP32[4]", "OUT": "FP32[4]", "a": "FP32[4]"}
    del configs["last"]["input"]
    assert {each.name: each.kind for each in drawn(configs).tensors}["a"] == ""
    assert "     -> a\n" in text_of(drawn(configs))


@pytest.mark.parametrize(
    ("spec", "batch", "kind"),
    [
        (tensor("X", [3, -1]), 0, "FP32[3,-1]"),
        (tensor("X", [1], "TYPE_STRING"), 8, "BYTES[-1,1]"),
        ({"name": "X", "data_type": "TYPE_BF16", "dims": ["2"]}, 0, "BF16[2]"),
        ({"name": "X", "data_type": "TYPE_BOOL"}, 0, "BOOL[]"),
    ],
)
def test_kind_is_datatype_and_shape(spec: dict[str, Any], batch: int, kind: str) -> None:
    assert kind_of(spec, {"max_batch_size": batch}) == kind


def test_times_and_shares_of_steps_are_shown() -> None:
    times = {
        "outer": Times(12, 0, 0, 4.21e6),
        "first": Times(12, 1e5, 9e5, 1e6),
        "second": Times(12, 0, 3e6, 3e6),
        "last": Times(0, 0, 0, 0),
    }
    pipeline = drawn(NESTED, times=times)
    assert title_of(pipeline) == "outer (ensemble): 12 requests, 4.21 ms each"
    assert [share_of(step, pipeline) for step in pipeline.steps] == [0.25, 0.75, 0]
    text = text_of(pipeline)
    assert "1. inner/first: python, batch 4; queue 100 us, compute 900 us; 25% of the time\n" in text
    assert "3. last version 3: python; no requests yet\n" in text
    assert re.findall(r"<title>(\d+%) of the time", svg_of(pipeline)) == ["25%", "75%"]
    assert "  style s1 fill:#f97316,fill-opacity:0.39" in mermaid_of(pipeline)


@pytest.mark.parametrize(
    ("nanoseconds", "text"),
    [(0, "0 ns"), (999, "999 ns"), (1500, "1.50 us"), (57_210, "57.2 us"), (3.67e6, "3.67 ms"), (1.2e9, "1.20 s")],
)
def test_durations_have_three_digits(nanoseconds: float, text: str) -> None:
    assert duration(nanoseconds) == text


def entry(version: str, **stats: tuple[int, int]) -> dict[str, Any]:
    told = {name: {"count": count, "ns": ns} for name, (count, ns) in stats.items()}
    return {"name": "m", "version": version, "inference_stats": told}


def test_times_are_means_of_the_newest_version() -> None:
    old = entry("9", success=(1, 1))
    new = entry(
        "10",
        success=(4, 4000),
        queue=(4, 400),
        compute_input=(4, 40),
        compute_infer=(4, 800),
        compute_output=(4, 80),
    )
    assert times_in([new, old]) == Times(4, 100, 230, 1000)
    assert times_in([entry("1")]) == Times(0, 0, 0, 0)
    assert times_in([]) is None


def test_missing_model_is_named_with_the_nearest() -> None:
    with pytest.raises(NotFound, match=r"^no model 'text_embeding' in .*\. Did you mean 'text_embedding'\?$"):
        Folders([EXAMPLES]).config_of("text_embeding", LATEST)


def test_missing_member_is_named(tmp_path: Path) -> None:
    folder = tmp_path / "alone"
    folder.mkdir()
    (folder / "config.pbtxt").write_text(
        'platform: "ensemble" ensemble_scheduling { step [ { model_name: "gone" model_version: -1 '
        'input_map { key: "X" value: "IN" } output_map { key: "Y" value: "OUT" } } ] }\n'
        'input [ { name: "IN" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
        'output [ { name: "OUT" data_type: TYPE_FP32 dims: [ 1 ] } ]\n'
    )
    source = Folders([str(tmp_path)])
    with pytest.raises(NotFound, match=r"^no model 'gone' in "):
        pipeline_of("alone", source.config_of)


def test_tensors_of_the_model_file_are_shown(tmp_path: Path) -> None:
    write_add(tmp_path / "add" / "1")
    text = text_of(pipeline_of("add", Folders([str(tmp_path)]).config_of))
    assert text.startswith("add (onnxruntime, batch 4)\ninput: a FP32[-1,4]\ninput: b FP32[-1,4]\n")
    assert text.endswith("output: sum FP32[-1,4]")


def test_tensors_that_only_code_declares_are_not_shown(tmp_path: Path) -> None:
    version = tmp_path / "secret" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("raise RuntimeError('it was run')")
    assert text_of(pipeline_of("secret", Folders([str(tmp_path)]).config_of)) == "secret (python)\n\n1. secret: python"


def write_add(version: Path) -> None:
    version.mkdir(parents=True)
    tensors = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["batch", 4]) for name in ("a", "b", "sum")]
    graph = helper.make_graph([helper.make_node("Add", ["a", "b"], ["sum"])], "add", tensors[:2], tensors[2:])
    opset = helper.make_opsetid("", 17)
    onnx.save(helper.make_model(graph, opset_imports=[opset], ir_version=8), version / "model.onnx")


_SVG = "{http://www.w3.org/2000/svg}"


def texts_of(svg: str) -> list[str]:
    root = ET.fromstring(svg)
    assert root.tag == f"{_SVG}svg"
    return [each.text or "" for each in root.iter(f"{_SVG}text")]


def test_svg_says_what_the_text_says() -> None:
    texts = texts_of(svg_of(example()))
    assert texts[0] == "text_embedding (ensemble, batch 32)"
    steps = {"tokenizer", "minilm", "pooling", "python, batch 32", "onnxruntime, batch 32"}
    tensors = {text for tensor in example().tensors for text in (tensor.name, tensor.kind)}
    assert set(texts[1:]) == steps | tensors


def test_odd_names_break_no_format() -> None:
    odd = "a<b>&\"c'#`\x01\ud800é"
    pipeline = drawn({"m": model(input=[tensor(odd)], backend="<!--")}, "m")
    assert "a<b>&\"c'#`??é" in texts_of(svg_of(pipeline).encode().decode())
    assert "a<b>&\"c'#`??é FP32[4]" in text_of(pipeline)
    assert "a#60;b#62;#38;#34;c#39;#35;#96;??é<br>FP32[4]" in mermaid_of(pipeline)
    assert json.loads(json_of(pipeline))["tensors"][0]["name"] == odd


PARALLEL = {
    "outer": ensemble(
        step("both", {"A": "a", "B": "b"}, {"OUT": "OUT"}),
        step("left", {"IN": "IN"}, {"OUT": "a"}),
        step("right", {"IN": "IN"}, {"OUT": "b"}),
    ),
    "left": model(),
    "right": model(),
    "both": model(input=[tensor("A"), tensor("B")]),
}


def test_parallel_steps_have_one_number() -> None:
    stages = re.findall(r"^(\d)\. (\w+)", text_of(drawn(PARALLEL)), re.MULTILINE)
    assert stages == [("1", "left"), ("1", "right"), ("2", "both")]


CIRCLE = {
    "outer": ensemble(step("one", {"IN": "b"}, {"OUT": "a"}), step("other", {"IN": "a"}, {"OUT": "b"})),
    "one": model(),
    "other": model(),
}


@pytest.mark.parametrize("write", [text_of, mermaid_of, json_of, svg_of])
def test_circular_steps_are_shown(write: Callable[[Pipeline], str]) -> None:
    """No server loads them. The author of the configuration may want to see why."""
    shown = write(drawn(CIRCLE))
    assert "one" in shown
    assert "other" in shown


def boxes_of(svg: str) -> list[tuple[float, float, float, float]]:
    """The left, upper, right and lower edge of each step."""
    rects = [each.attrib for each in ET.fromstring(svg).iter(f"{_SVG}rect") if each.attrib.get("class") == "box"]
    places = [[float(each[name]) for name in ("x", "y", "width", "height")] for each in rects]
    return [(x, y, x + width, y + height) for x, y, width, height in places]


@pytest.mark.parametrize("configs", [NESTED, PARALLEL, CIRCLE], ids=["nested", "parallel", "circle"])
def test_svg_holds_all_that_is_drawn(configs: Mapping[str, Any]) -> None:
    svg = svg_of(drawn(configs))
    root = ET.fromstring(svg)
    [group] = root.iter(f"{_SVG}g")
    left, top = map(float, re.findall(r"[\d.]+", group.attrib["transform"]))
    lines = [path.attrib["d"] for path in group.iter(f"{_SVG}path")]
    assert len(lines) >= 3
    points = [tuple(map(float, pair)) for line in lines for pair in re.findall(r"[ML](\S+) ([-\d.]+)", line)]
    points += [corner for x1, y1, x2, y2 in boxes_of(svg) for corner in ((x1, y1), (x2, y2))]
    width, height = float(root.attrib["width"]), float(root.attrib["height"])
    assert all(0 <= x + left <= width and 0 <= y + top <= height for x, y in points)


def test_svg_has_no_step_on_another() -> None:
    boxes = boxes_of(svg_of(drawn(PARALLEL)))
    assert len(boxes) == 3
    for i, (left, top, right, bottom) in enumerate(boxes):
        for x1, y1, x2, y2 in boxes[i + 1 :]:
            assert right <= x1 or x2 <= left or bottom <= y1 or y2 <= top

"""Mistakes in the text of a configuration: each is found, on its line; the rest of the text is read all the same."""

from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from halimede.checking.configuration import review
from halimede.checking.source import Source
from halimede.checking.text import MAX_MISTAKES, read_text

FILE = Path("config.pbtxt")
_TEXT = """# a comment with { in it
name: "m"  backend: "onnxruntime"
input [
  { name: "IN0" data_type: TYPE_FP32 dims: [ 2, 3 ] },
  {
    name: "IN1"
    data_type: TYPE_FP32
    dims: [ 4 ]
  }
]
output < name: 'OUT' data_type: TYPE_INT8 dims: 1 >
instance_group [ { count: 1 },
  { count: 2 } ]
dynamic_batching { preferred_batch_size: [ 4 ]
  max_queue_delay_microseconds: 5 }
"""


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ("model input 'IN0' must specify 'dims'", 4),
        ("model input 'IN1' must specify 'dims'", 8),
        ("model input 'IN1' must specify 'data_type'", 7),
        ("input 'IN1' is odd", 6),
        ("dynamic batching preferred size must be positive", 14),
        ("'max_queue_delay_microseconds' is too long", 15),
        ("instance group m_1 of model m has no count", 13),
        ("output OUT: label", 11),
        ("nothing of it", 0),
    ],
)
def test_line_of_a_problem(text: str, line: int) -> None:
    assert Source(_TEXT).line_of(text) == line


def test_name_of_the_model_is_no_hint_for_a_line() -> None:
    text = 'backend: "python"\nmax_batch_size: 3\n'
    assert Source(text, "max_batch_size").line_of("model 'max_batch_size' is odd") == 0
    assert Source(text).line_of("model 'max_batch_size' is odd") == 2


def test_valid_text_is_read_unchanged() -> None:
    read = read_text(_TEXT, FILE)
    assert read.problems == []
    assert read.message is not None
    assert [spec.name for spec in read.message.input] == ["IN0", "IN1"]


def test_all_mistakes_of_a_text_are_found() -> None:
    text = _TEXT.replace("dims: [ 4 ]", "dimensions: [ 4 ]").replace("TYPE_INT8", "INT8").replace("count: 2", "cont: 2")
    read = read_text(text, FILE)
    assert [(p.line, p.code, p.instead) for p in read.problems] == [
        (8, "unknown-field", "did you mean 'dims'?"),
        (11, "wrong-value", "data_type: TYPE_INT8"),
        (13, "unknown-field", "did you mean 'count'?"),
    ]
    assert read.message is not None
    assert [len(spec.dims) for spec in read.message.input] == [2, 0]
    assert read.blanked >= {"dims", "data_type", "count"}


def test_text_full_of_mistakes_is_given_up() -> None:
    read = read_text("\n".join(f"f{i}: 1" for i in range(3 * MAX_MISTAKES)), FILE)
    assert read.message is None
    assert len(read.problems) == MAX_MISTAKES


@pytest.mark.parametrize("text", ["{" * 5000, "input {" * 5000, "a: [" * 5000, "\0", "'", '"\\xff"', "name: '\\xff'"])
def test_syntax_error_is_one_problem(text: str) -> None:
    assert [p.code for p in read_text(text, FILE).problems] == ["syntax"]


@settings(max_examples=150, deadline=None)
@given(st.data())
def test_mangled_texts_raise_no_error(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    """Whatever is cut out, doubled or put in: no exception, and a text that protobuf refuses has a problem."""
    start = data.draw(st.integers(0, len(_TEXT)))
    end = data.draw(st.integers(start, min(len(_TEXT), start + 40)))
    put = data.draw(st.sampled_from(["", "{", "}", "[", "x: 1 ", '"', ",", ":", "-1", "name: ", _TEXT[start:end] * 2]))
    text = _TEXT[:start] + put + _TEXT[end:]
    folder = tmp_path_factory.getbasetemp() / "mangled" / "m"
    (folder / "1").mkdir(parents=True, exist_ok=True)
    (folder / "config.pbtxt").write_text(text)
    reviewed = review(folder)
    complete = reviewed.finish((), 1)
    lines = text.count("\n") + 1
    assert all(0 <= problem.line <= lines for problem in reviewed.problems)
    assert (complete is not None) or reviewed.problems

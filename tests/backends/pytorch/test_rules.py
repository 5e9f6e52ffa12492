"""What the backend `pytorch` decides without torch: names, files, effects, machines."""

import zipfile
from pathlib import Path

import pytest

from halimede.backends.api import ModelFolder
from halimede.backends.pytorch import TRAITS
from halimede.backends.pytorch.archive import Kind, kind_of, usual_home
from halimede.backends.pytorch.binding import Argument, bind_script, ordinal, script_problems
from halimede.backends.pytorch.call_spec import input_names, keys_of, output_names
from halimede.backends.pytorch.effects import UNKNOWN, Effects, effects_of
from halimede.backends.pytorch.parameters import options_of
from halimede.backends.pytorch.work import values_decide
from halimede.backends.traits import Home
from halimede.errors import Invalid
from tests.backends.fakes import model_config, spec


@pytest.mark.parametrize(
    ("name", "number"),
    [("x__1", 1), ("x__", 0), ("x", None), ("x__1a", None), ("x__1__2", None), ("__7", 7), ("x_1", None)],
)
def test_ordinal_is_what_follows_the_first_underscores(name: str, number: int | None) -> None:
    assert ordinal(name) == number


TWO = [Argument("a", "Tensor"), Argument("b", "Tensor")]


@pytest.mark.parametrize(
    ("names", "order"),
    [
        (["b", "a"], ("a", "b")),
        (["x__1", "y__0"], ("y__0", "x__1")),
        (["b", "other"], ("b", "other")),
        (["b", "x__0"], ("b", "x__0")),
    ],
)
def test_inputs_are_bound_by_name_by_ordinal_or_in_order(names: list[str], order: tuple[str, str]) -> None:
    config = model_config([spec(name, "FP32", [1]) for name in names], [spec("y", "FP32", [1])], 0)
    assert bind_script(config, TWO).inputs == order


def test_all_problems_of_a_configuration_are_found() -> None:
    config = model_config([spec("a", "BYTES", [2, 2])], [], 0)
    found = [str(each) for each in script_problems(config, [Argument("a", "Tensor"), Argument("n", "int")])]
    assert len(found) == 4
    assert "An input of type 'int'" in found[0]
    assert "configuration expects 1 inputs, model provides 2" in found[1]
    assert "at least one output" in found[2]
    assert "1 dimensional List of String as input" in found[3]


def test_names_of_leaves() -> None:
    names = input_names((([0, 1], {"k": 2}), {"scale": 3}))
    assert names["ARGS[0][1]"] == names["INPUT__1"] == 1
    assert names["ARGS[1][k]"] == 2
    assert names["KWARGS[scale]"] == names["KWARGSscale"] == 3
    assert output_names(0) == {"OUTPUT__0": 0, "RESULT": 0}
    assert output_names({"a": 0, "b": [1]})["RESULT[b][0]"] == 1
    assert keys_of({"a": 0, "b": 1}) == ["a", "b"]
    assert keys_of({"a": 0, "b": [1]}) == keys_of((0, 1)) == []


def archive(path: Path, *names: str) -> Path:
    with zipfile.ZipFile(path, "w") as made:
        for name in names:
            made.writestr(f"x/{name}", "")
    return path


@pytest.mark.parametrize(
    ("names", "kind"),
    [
        (["data.pkl", "code/a.py", "constants.pkl"], Kind.SCRIPT),
        (["archive_format", "models/model.json"], Kind.EXPORTED),
        (["archive_format", "data/aotinductor/model/a.so"], Kind.PACKAGE),
        (["data.pkl", "data/0"], Kind.PICKLE),
        (["word/document.xml"], Kind.FOREIGN),
    ],
)
def test_kind_of_an_archive(tmp_path: Path, names: list[str], kind: Kind) -> None:
    assert kind_of(archive(tmp_path / "f", *names)) is kind


def test_kind_of_other_files(tmp_path: Path) -> None:
    for content, kind in ((b"", Kind.FOREIGN), (b"\x80\x02}q\x00.", Kind.PICKLE), (b"PK\x03\x04", Kind.FOREIGN)):
        (tmp_path / "f").write_bytes(content)
        assert kind_of(tmp_path / "f") is kind
    assert kind_of(tmp_path / "none") is Kind.MISSING
    assert kind_of(tmp_path) is Kind.MISSING
    inner = archive(tmp_path / "inner", "data.pkl").read_bytes()
    (tmp_path / "f").write_bytes(b"\0" * 100 + inner)  # the end of a file whose beginning is another
    assert kind_of(tmp_path / "f") is Kind.FOREIGN


def test_home_of_a_model(tmp_path: Path) -> None:
    folder = ModelFolder(tmp_path, tmp_path, 1)
    archive(tmp_path / "model.pt2", "archive_format", "data/aotinductor/model/a.so")
    archive(tmp_path / "other.pt2", "archive_format", "models/model.json")
    assert usual_home(folder, "model.pt2", "") is Home.CHILD
    assert usual_home(folder, "other.pt2", "") is Home.SERVER
    assert usual_home(folder, "model.pt", "") is Home.SERVER
    assert usual_home(folder, "", "model.py") is Home.CHILD
    assert TRAITS.runs_user_code


GRAPH = """graph(%self : __torch__.M,
      %x.1 : Tensor):
  %two : int = prim::Constant[value=2]() # m.py:3:8
  %buffer : Tensor = prim::GetAttr[name="buffer"](%self)
{lines}
  return (%{result})
"""


@pytest.mark.parametrize(
    ("lines", "result", "effects"),
    [
        ("  %y : Tensor = aten::add(%x.1, %buffer, %two) # m.py:4:8", "y", Effects()),
        ("  %y : Tensor = aten::add_(%buffer, %x.1, %two)", "y", Effects(True, False, True)),
        ("  %v : Tensor = aten::select(%buffer, %two, %two)\n  %y : Tensor = aten::copy_(%v, %x.1, %two)", "x.1",
         Effects(True, False, False)),
        ("  %y : Tensor = aten::relu_(%x.1)", "y", Effects(False, True, False)),
        ("  %n : Tensor = aten::add(%x.1, %two)\n  %y : Tensor = aten::relu_(%n)", "y", Effects()),
        ("  %v : Tensor = aten::view(%buffer, %two)", "v", Effects(False, False, True)),
        ('   = prim::SetAttr[name="buffer"](%self, %x.1)', "x.1", Effects(True, False, False)),
        ("  %y : Tensor = prim::CallMethod[name=\"f\"](%self, %x.1)", "y", UNKNOWN),
    ],
)  # fmt: skip
def test_effects_of_a_graph(lines: str, result: str, effects: Effects) -> None:
    assert effects_of(GRAPH.format(lines=lines, result=result)) == effects


@pytest.mark.parametrize(
    ("lines", "expected"),
    [
        # Tracing writes the size of a tensor so.
        ("  %s : int = aten::size(%x.1)\n  %t : Tensor = prim::NumToTensor(%s)\n  %n : int = aten::Int(%t)", False),
        ("  %n : int = aten::Int(%x.1)", True),
        ("  %l : Tensor[] = prim::ListConstruct(%x.1, %buffer)\n  %n : Scalar = aten::item(%l)", True),
        ("  %n : int = aten::Int(%buffer)", False),
        ("  %b : Tensor = aten::add_(%buffer, %x.1, %two)\n  %n : int = aten::Int(%buffer)", True),
        ('   = prim::SetAttr[name="buffer"](%self, %x.1)\n  %n : int = aten::Int(%buffer)', True),
        ('   = prim::SetAttr[name="buffer"](%self, %x.1)', False),
        ("  %b : Tensor = aten::relu_(%x.1)\n  %c : Tensor = aten::one_hot(%b, %two)", True),
        ("  %y : Tensor = prim::Loop(%two, %two, %buffer)\n    block0(%i : int, %v : Tensor):\n"
         "      %n : int = aten::Int(%v)\n      -> (%two, %v)", True),
        ("  %y : Tensor = prim::Loop(%two, %two, %buffer)\n    block0(%i : int, %v : Tensor):\n"
         "      %n : Tensor = prim::NumToTensor(%i)\n      %m : int = aten::Int(%n)\n      -> (%two, %v)", False),
        ("  %y : Tensor = prim::If(%two)\n    block0():\n      -> (%buffer)\n    block1():\n      -> (%x.1)\n"
         "  %n : int = aten::Int(%y)", True),
        ('  %y : Tensor = prim::CallFunction(%self, %x.1)', True),
    ],
)  # fmt: skip
def test_values_that_decide_the_work(lines: str, expected: bool) -> None:
    assert values_decide(GRAPH.format(lines=lines, result="x.1")) is expected


def test_effects_behind_a_branch_are_unknown() -> None:
    lines = (
        "  %v : Tensor = prim::If(%two)\n    block0():\n      -> (%buffer)\n    block1():\n      -> (%x.1)\n"
        "  %y : Tensor = aten::add_(%v, %x.1, %two)"
    )
    assert effects_of(GRAPH.format(lines=lines, result="y")) == Effects(True, True, True, values_decide=False)


def test_parameters() -> None:
    options = options_of(
        "m", {"CACHE_CLEANING_ENABLED": "1", "ENABLE_JIT_PROFILING": "off", "INTRA_OP_THREAD_COUNT": "-3"}
    )
    assert (options.cleans_cache, options.jit_profiling, options.sets_jit) == (True, False, True)
    assert (options.intra_threads, options.share, options.optimized) == (None, None, True)
    with pytest.raises(Invalid, match="failed to convert 'yes' to boolean"):
        options_of("m", {"DISABLE_CUDNN": "yes"})

"""`halimede convert` of models of torch to ONNX."""

from pathlib import Path

import pytest
import torch

from tests.formats.converting import CLOSE, converted, run


class Net(torch.nn.Module):
    """Two outputs, and a loop that depends on the data."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(3, 4)

    def forward(self, x: torch.Tensor, scale: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        return self.layer(x) * scale, x * 2


def test_script(tmp_path: Path) -> None:
    torch.jit.script(Net()).save(str(tmp_path / "net.pt"))
    inputs = ["--input", "scale:FP32[-1,1]", "--input", "x:FP32[-1,3]"]
    assert converted(tmp_path / "net.pt", "--to", "onnx", *inputs) < CLOSE
    assert (tmp_path / "net.onnx").is_file()
    without = run(tmp_path / "net.pt", "--to", "onnx", "--output", tmp_path / "other.onnx")
    assert (without.returncode, without.stdout) == (1, "")
    assert "--input" in without.stderr


def test_script_of_a_model_directory(tmp_path: Path) -> None:
    version = tmp_path / "net" / "2"
    version.mkdir(parents=True)
    torch.jit.script(Net()).save(str(version / "model.pt"))
    tensors = "".join(
        f'{side} {{ name: "{name}" data_type: TYPE_FP32 dims: [{size}] }}\n'
        for side, name, size in (
            ("input", "INPUT__0", 3),
            ("input", "INPUT__1", 1),
            ("output", "long__0", 4),
            ("output", "short__1", 3),
        )
    )
    (version.parent / "config.pbtxt").write_text(f'platform: "pytorch_libtorch"\nmax_batch_size: 8\n{tensors}')
    target = tmp_path / "net.onnx"
    assert converted(version.parent, "--to", "onnx", "--output", target) < CLOSE
    from onnx import load

    graph = load(target).graph
    assert [each.name for each in graph.input] == ["INPUT__0", "INPUT__1"]
    assert [each.name for each in graph.output] == ["long__0", "short__1"]


def test_program(tmp_path: Path) -> None:
    rows = torch.export.Dim("rows", max=64)
    program = torch.export.export(Net(), (torch.zeros(2, 3), torch.zeros(2, 1)), dynamic_shapes=({0: rows}, {0: rows}))
    torch.export.save(program, tmp_path / "net.pt2")
    assert converted(tmp_path / "net.pt2", "--to", "onnx") < CLOSE
    assert sorted(each.name for each in tmp_path.iterdir()) == ["net.onnx", "net.pt2"]


@pytest.mark.parametrize("to", ["tflite", "treelite"])
def test_format_that_torch_cannot_make(tmp_path: Path, to: str) -> None:
    torch.jit.script(Net()).save(str(tmp_path / "net.pt"))
    done = run(tmp_path / "net.pt", "--to", to, "--input", "scale:FP32[-1,1]", "--input", "x:FP32[-1,3]")
    assert (done.returncode, done.stdout) == (1, "")
    assert "Traceback" not in done.stderr

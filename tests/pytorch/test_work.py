"""Graphs that torch writes: whether values in the input decide how much a run does."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from halimede.backends.pytorch.program import Program
from halimede.backends.pytorch.script import ScriptFile

GIVEN = torch.ones(2, 3)


class Flat(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        rows = x.view(x.size(0), -1).relu()
        for i in range(rows.shape[1]):
            rows = rows + i
        return rows


class Counted(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        return torch.arange(int(x[0, 0])).sum()


class Repeated(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        while bool(x.sum() > 0):
            x = x - 1
        return x


class Recurrent(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.layer = nn.LSTM(3, 3)

    def forward(self, x: Tensor) -> Tensor:
        out, _ = self.layer(x)
        return out


class Written(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        counts = torch.zeros(3)
        counts[0] = x[0, 0]
        return torch.ones(int(counts[0]))


class Item(nn.Module):
    def forward(self, x: Tensor) -> Tensor:
        number = x[0, 0].to(torch.int64).item()
        torch._check(number >= 0)
        return torch.ones(number)


def mlp() -> nn.Module:
    return nn.Sequential(nn.Linear(3, 4), nn.ReLU(), nn.Flatten(), nn.Linear(4, 2), nn.Softmax(-1))


def traced(module: nn.Module) -> Any:
    return torch.jit.trace(module, GIVEN, check_trace=False)


def scripted(module: nn.Module) -> Any:
    return torch.jit.script(module)


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(
    ("make", "module", "expected"),
    [
        (traced, mlp(), False),
        (scripted, mlp(), False),
        (traced, Flat(), False),
        (scripted, Flat(), False),
        (scripted, Recurrent(), False),
        (traced, Counted(), False),  # tracing keeps the number of the example
        (scripted, Counted(), True),
        (scripted, Repeated(), True),
        (scripted, Written(), True),
    ],
    ids=lambda value: getattr(value, "__name__", type(value).__name__),
)
def test_scripts(make: Callable[[nn.Module], Any], module: nn.Module, expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    make(module).save(str(path))
    _, loaded = ScriptFile(path, "m").load("cpu")
    assert loaded.effects.values_decide is expected


@pytest.mark.parametrize(("module", "expected"), [(mlp(), False), (Item(), True)], ids=["mlp", "item"])
def test_exported_programs(module: nn.Module, expected: bool, tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    torch.export.save(torch.export.export(module, (GIVEN,)), path)
    assert Program(path, "m", pickles=False).load(None).effects.values_decide is expected

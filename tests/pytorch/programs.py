"""Tiny exported programs for tests."""

from pathlib import Path
from typing import Any

import torch
from torch import Tensor
from torch.export import Dim, export, save

from tests.pytorch import scripts

BATCH = Dim("batch", max=64)


class Named(torch.nn.Module):
    """Two results with names."""

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(4, 3)

    def forward(self, X: Tensor) -> dict[str, Tensor]:  # noqa: N803
        return {"logits": self.layer(X), "sum": X.sum(1)}


class Nested(torch.nn.Module):
    """Arguments and results in lists and dicts: the first minus the second, and their sum."""

    def forward(self, pair: list[Tensor], more: dict[str, Tensor], *, scale: Tensor) -> tuple[Tensor, list[Tensor]]:
        first, second = pair
        return (first - second) * scale, [first + more["x"]]


def named(path: Path) -> None:
    """Batches of up to 64."""
    program = export(Named().eval(), (torch.zeros(2, 4),), dynamic_shapes={"X": {0: BATCH}})
    save(program, path)


def fixed(path: Path) -> None:
    """One shape only."""
    save(export(scripts.Linear(), (torch.zeros(2, 4),)), path)


def nested(path: Path) -> None:
    arguments = ([torch.zeros(2), torch.zeros(2)], {"x": torch.zeros(2)})
    save(export(Nested(), arguments, {"scale": torch.zeros(1)}), path)


def echo(path: Path, kind: Any = torch.float32) -> None:
    shapes: Any = {"INPUT0": {0: Dim.AUTO, 1: Dim.AUTO}}
    save(export(scripts.Echo(), (torch.zeros(2, 3).to(kind),), dynamic_shapes=shapes), path)


def scalar(path: Path) -> None:
    save(export(scripts.Sum(), (torch.zeros(2),)), path)


def compiled(path: Path, device: str = "cpu") -> torch.nn.Module:
    """`named` as an AOTInductor package for a device, and its module. Takes half a minute, and needs a C++ compiler."""
    module = Named().eval().to(device)
    program = export(module, (torch.zeros(2, 4, device=device),), dynamic_shapes={"X": {0: BATCH}})
    torch._inductor.aoti_compile_and_package(program, package_path=str(path))
    return module

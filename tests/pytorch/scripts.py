"""Tiny TorchScript modules for tests."""

import warnings
from pathlib import Path
from typing import Any

import torch
from torch import Tensor


class Echo(torch.nn.Module):
    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        return INPUT0


class Subtract(torch.nn.Module):
    def forward(self, a: Tensor, b: Tensor) -> Tensor:
        return a - b


class AddSub(torch.nn.Module):
    def forward(self, INPUT0: Tensor, INPUT1: Tensor) -> tuple[Tensor, Tensor]:  # noqa: N803
        return INPUT0 + INPUT1, INPUT0 - INPUT1


class OfDict(torch.nn.Module):
    def forward(self, given: dict[str, Tensor]) -> Tensor:
        return given["a"] - given["b"]


class Strings(torch.nn.Module):
    def forward(self, words: list[str]) -> list[str]:
        return words


class StringLengths(torch.nn.Module):
    def forward(self, words: list[str]) -> tuple[Tensor, list[str]]:
        lengths = [len(word) for word in words]
        return torch.tensor(lengths), [word.upper() for word in words]


class ByteLengths(torch.nn.Module):
    def forward(self, words: list[str]) -> Tensor:
        return torch.tensor([len(word) for word in words])


class Failing(torch.nn.Module):
    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        if bool((INPUT0[:, 0] < 0).any()):
            raise RuntimeError("negative")
        return INPUT0


class Less(torch.nn.Module):
    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        return INPUT0[1:]


class More(torch.nn.Module):
    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        return torch.cat([INPUT0, INPUT0])


class Integers(torch.nn.Module):
    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        return INPUT0.to(torch.int64)


class Sum(torch.nn.Module):
    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        return INPUT0.sum()


class ReturnsDict(torch.nn.Module):
    def forward(self, INPUT0: Tensor) -> dict[str, Tensor]:  # noqa: N803
        return {"OUTPUT0": INPUT0}


class ReturnsList(torch.nn.Module):
    def forward(self, INPUT0: Tensor) -> list[Tensor]:  # noqa: N803
        return [INPUT0]


class ReturnsListInTuple(torch.nn.Module):
    def forward(self, INPUT0: Tensor) -> tuple[Tensor, list[Tensor]]:  # noqa: N803
        return INPUT0, [INPUT0]


class OfInteger(torch.nn.Module):
    def forward(self, INPUT0: Tensor, n: int) -> Tensor:  # noqa: N803
        return INPUT0 * n


class OfTwoDicts(torch.nn.Module):
    def forward(self, INPUT0: Tensor, more: dict[str, Tensor]) -> Tensor:  # noqa: N803
        return INPUT0 + more["x"]


class Sequence(torch.nn.Module):
    """Echoes INPUT0, and takes a control of one element per row."""

    def forward(self, INPUT0: Tensor, READY: Tensor) -> Tensor:  # noqa: N803
        return INPUT0 + 0 * READY


class Accumulate(torch.nn.Module):
    def forward(self, value: Tensor, total: Tensor) -> tuple[Tensor, Tensor]:
        total = total + value
        return total, total


class RaggedSum(torch.nn.Module):
    """The sum of each request's elements; `ends` are the accumulated counts."""

    def forward(self, INPUT0: Tensor, ends: Tensor) -> Tensor:  # noqa: N803
        sums = torch.cumsum(INPUT0, 0)[ends.to(torch.int64) - 1]
        return torch.diff(sums, prepend=torch.zeros(1)).unsqueeze(1)


class Counting(torch.nn.Module):
    """Answers with the number of its runs, from memory that each run changes."""

    count: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("count", torch.zeros(1, 512))

    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        self.count += 1
        return self.count


class Doubling(torch.nn.Module):
    """Writes into its input."""

    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        INPUT0.mul_(2)
        return INPUT0


class Dropout(torch.nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.drop = torch.nn.Dropout(0.5)

    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        return self.drop(INPUT0)


class Linear(torch.nn.Module):
    def __init__(self, rows: int = 4, columns: int = 3) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(rows, columns)

    def forward(self, x: Tensor) -> Tensor:
        return self.layer(x)


class Slow(torch.nn.Module):
    """Work that keeps the GPU busy for a while, and then its input."""

    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        busy = torch.ones(1024, 1024, device=INPUT0.device)
        for _ in range(20):
            busy = busy @ busy / 1024.0
        return INPUT0 + (busy[0, 0] - busy[0, 0])


class Huge(torch.nn.Module):
    """Takes more memory than any GPU has if the first number is negative."""

    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        if bool((INPUT0 < 0).any()):
            return INPUT0.expand(1 << 20, 2).repeat(1, 1 << 22)
        return INPUT0


class Heavy(torch.nn.Module):
    """64 MB of weights."""

    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.ones(1 << 24))

    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        return INPUT0 + self.weights[0] - 1


class Roomy(torch.nn.Module):
    """Takes a gigabyte for a moment, and answers with its input."""

    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        room = torch.ones(1 << 28, device=INPUT0.device)
        return INPUT0 + (room[0] - room[-1])


class LookUp(torch.nn.Module):
    """Numbers of a table of four, for their indices. Another index is an error: on a GPU one that breaks it. With
    `waits` the module itself waits for the GPU, and so sees the error."""

    table: Tensor
    waits: bool

    def __init__(self, waits: bool = False) -> None:
        super().__init__()
        self.register_buffer("table", torch.arange(10.0, 14.0))
        self.waits = waits

    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        found = self.table[INPUT0.to(torch.int64)]
        if self.waits and bool((found < 0).any()):
            return INPUT0
        return found


class OnItsDevice(torch.nn.Module):
    """A module of KIND_MODEL: it takes its inputs from the CPU to its own device, and answers from there."""

    weights: Tensor

    def __init__(self) -> None:
        super().__init__()
        self.register_buffer("weights", torch.ones(2))

    def forward(self, INPUT0: Tensor) -> Tensor:  # noqa: N803
        assert not INPUT0.is_cuda
        assert self.weights.is_cuda
        return INPUT0.to(self.weights.device) + self.weights


def script(module: torch.nn.Module) -> Any:
    """A module as TorchScript, without torch's warnings that TorchScript is old."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        return torch.jit.script(module)


def save(module: torch.nn.Module, path: Path) -> None:
    """Writes a module as TorchScript."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.save(torch.jit.script(module), str(path))

"""What the file of a Python model shows without being run: whether it is Python, and has the class.

Pure but for reading the file; any thread.
"""

import ast
import warnings
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

from halimede.backends.api import Fault, ModelFolder, Severity
from halimede.backends.python.settings import ENVIRONMENT
from halimede.config.files import read_whole
from halimede.config.model_config import ModelConfig
from halimede.errors import Cause

USUAL = "model.py"
CLASS = "TritonPythonModel"
COMPLETES = "auto_complete_config"
MAX_PARSED_BYTES = 128 << 10
"""Bytes of a file that the server parses when its model loads. Parsing keeps all other threads waiting: a second for a
MiB, which takes 400 MiB of memory. A larger file is only run."""
_SKELETON = "class TritonPythonModel: with a method execute(self, requests) that returns a list of responses"


@dataclass(frozen=True, slots=True)
class PythonSource:
    """`methods` are those of the class, None if they are not visible: the class is derived, imported or made by a call.
    `reads` and `writes` are the names of tensors that stand in the code, with the line of the first time."""

    methods: frozenset[str] | None
    reads: Mapping[str, int]
    writes: Mapping[str, int]

    @property
    def completes(self) -> bool:
        """Whether it may complete its configuration."""
        return self.methods is None or COMPLETES in self.methods


def look_at(file: Path) -> PythonSource | Fault:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # of odd escapes in texts
            tree = ast.parse(file.read_bytes(), str(file))
    except SyntaxError as error:
        return Fault(f"{error.msg}", file, error.lineno or 0)
    except ValueError as error:  # null bytes
        return Fault(f"this is no Python: {error}", file)
    except OSError as error:
        return Fault(f"cannot be read: {error.strerror}", file)
    named = _defined(tree)
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == CLASS]
    if not classes and CLASS not in named and "*" not in named:
        near = next((each for each in tree.body if isinstance(each, ast.ClassDef)), None)
        return Fault(f"there is no class '{CLASS}'", file, near.lineno if near is not None else 0, _SKELETON)
    reads, writes = _tensors(tree)
    if not classes or classes[-1].bases or classes[-1].decorator_list:
        return PythonSource(None, reads, writes)
    methods = frozenset(_defined(classes[-1]))
    if "execute" not in methods:
        return Fault(f"'{CLASS}' has no method 'execute'", file, classes[-1].lineno, "def execute(self, requests): ...")
    return PythonSource(methods, reads, writes)


def surely_completes_nothing(file: Path) -> bool:
    """Whether the file shows that the class has no `auto_complete_config`: the word is nowhere in it, the class has no
    base, decorator or metaclass, and nothing else in the file uses its name, so nothing can add a method."""
    try:
        source = read_whole(file)
        if len(source) > MAX_PARSED_BYTES or COMPLETES.encode() in source:
            return False
        tree = ast.parse(source, str(file))
    except (SyntaxError, ValueError, OSError, RecursionError, MemoryError):  # the model's own Python may take it
        return False
    classes = [each for each in tree.body if isinstance(each, ast.ClassDef) and each.name == CLASS]
    if len(classes) != 1 or classes[0].bases or classes[0].keywords or classes[0].decorator_list:
        return False
    names = [getattr(node, kind, None) for node in ast.walk(tree) for kind in ("id", "name", "asname")]
    return names.count(CLASS) == 1 and "*" not in names


def file_of(folder: ModelFolder, filename: str) -> Path:
    """The file that a version runs."""
    return folder.code or folder.version / (filename or USUAL)


def faults_of(config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
    """The faults of the file that a version runs."""
    file = file_of(folder, filename)
    if not file.is_file():
        others = sorted(path.name for path in folder.version.glob("*.py")) if folder.version.is_dir() else []
        instead = f'rename it to {file.name}, or write default_model_filename: "{others[0]}"' if others else ""
        there = f"; there is '{others[0]}'" if others else ""
        return [Fault(f"the model's code '{file}' does not exist{there}", folder.version, instead=instead)]
    source = look_at(file)
    if isinstance(source, Fault):
        # Another Python may know more of the language.
        other = config is not None and ENVIRONMENT in config.parameters
        return [replace(source, severity=Severity.NOTE) if other else source]
    if folder.code is not None or config is None:
        return []
    if source.completes:
        text = f"'{COMPLETES}' was not run: inputs and outputs are not known"
        return [] if config.inputs and config.outputs else [Fault(text, file, severity=Severity.NOTE)]
    if not (config.inputs or config.batch_inputs) or not config.outputs:
        text = f"neither the configuration nor an '{COMPLETES}' names all of the model's inputs and outputs"
        instead = 'input [ { name: "IN" data_type: TYPE_FP32 dims: [ -1 ] } ] output [ ... ]'
        return [Fault(text, None, instead=instead, severity=Severity.WARNING)]
    known = {spec.name for spec in config.model_inputs} | {t for each in config.batch_inputs for t in each.targets}
    return [
        Fault(
            f"the code asks for the input '{name}', which the configuration does not have",
            file,
            line,
            severity=Severity.WARNING,
        )
        for name, line in source.reads.items()
        if name not in known
    ]


def gpu_fault(file: Path) -> Fault | None:
    """A warning if the code asks for a GPU, for a machine without one. Code that asks what is there gets none."""
    try:
        tree = ast.parse(file.read_bytes(), str(file))
    except (SyntaxError, ValueError, OSError):  # that is another fault
        return None
    lines = []
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(attr="is_available" | "device_count" | "get_available_providers"):
                return None
            case ast.Call(func=ast.Attribute(attr="cuda")):
                lines.append(node.lineno)
            case ast.Constant(value=str() as text) if text == "cuda" or text.startswith("cuda:"):
                lines.append(node.lineno)
    if not lines:
        return None
    text = "the code asks for a GPU ('cuda'), and this machine has none"
    instead = "a machine with a GPU, or code that asks torch.cuda.is_available()"
    return Fault(text, file, min(lines), instead, Severity.WARNING, Cause.MACHINE)


def _defined(scope: ast.Module | ast.ClassDef) -> set[str]:
    """The names that a module or class has, also those behind an `if` or `try`."""
    names: set[str] = set()
    waiting: list[ast.AST] = list(scope.body)
    while waiting:
        each = waiting.pop()
        match each:
            case ast.FunctionDef() | ast.AsyncFunctionDef() | ast.ClassDef():
                names.add(each.name)
            case ast.Import() | ast.ImportFrom():
                names.update(alias.asname or alias.name for alias in each.names)
            case ast.Name(ctx=ast.Store()):
                names.add(each.id)
            case _:
                waiting += ast.iter_child_nodes(each)
    return names


def _tensors(tree: ast.Module) -> tuple[Mapping[str, int], Mapping[str, int]]:
    """The names of tensors that the code asks requests for, and those that it makes tensors with, if they are
    literals."""
    reads: dict[str, int] = {}
    writes: dict[str, int] = {}
    for name, text, line in sorted(_calls(tree), key=lambda call: call[2]):
        if name == "get_input_tensor_by_name":
            reads.setdefault(text, line)
        elif name == "Tensor":
            writes.setdefault(text, line)
    return reads, writes


def _calls(tree: ast.Module) -> Iterator[tuple[str, str, int]]:
    """Called functions and methods with the first text among their arguments, and the line."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            name = node.func.attr if isinstance(node.func, ast.Attribute) else getattr(node.func, "id", "")
            values = [*node.args, *(keyword.value for keyword in node.keywords)]
            texts = [v.value for v in values if isinstance(v, ast.Constant) and isinstance(v.value, str)]
            if texts:
                yield name, texts[0], node.lineno

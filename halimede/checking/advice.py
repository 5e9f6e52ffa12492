"""What to write instead, for problems whose texts are Triton's: those say what is wrong, but not what would be right.

Knows no backend by name: `backends.registry` says what each takes. Reads the start of model files, and lists the folder
of a file that is missing. Any thread.
"""

import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from halimede.backends.registry import advice_for, is_elsewhere, served, usual_files
from halimede.checking.problems import Problem
from halimede.config import meant_version
from halimede.errors import ADVICE, Cause

_TYPES = "data_type: TYPE_FP32 (or BOOL, INT8 to INT64, UINT8 to UINT64, FP16, BF16, FP64, STRING after TYPE_)"

_POINTER = b"version https://git-lfs."

FALLBACK = "--gpu-fallback=cpu"
BUILD = "--python-environments=build"
"""The flag of the server that runs instances on the CPU if their GPU is not there."""

_MISSING = (
    r"unable to find '([^']*\.\w+)' for model instance",
    r"the model's code '([^']+)' does not exist",
    r"failed to open text file for read (\S+):",
    r"^'([^']+)' is no directory$",
    r"the environment '[^']*' does not exist: there is no (.+)$",
)
"""Texts of problems that name a missing file."""

_Advice = str | Callable[[re.Match[str]], str]


def _of_backend(match: re.Match[str]) -> str:
    if is_elsewhere(match[1]):
        return advice_for(match[1])
    meant = next((traits.name for traits in served().values() if match[1].lower() in traits.aliases), None)
    if meant is not None:
        return f'backend: "{meant}"'
    names = ", ".join(sorted(served()))
    return f"{match[1]}/model.py in --backend-directory, if this is a backend in Python; or one of: {names}"


def _backends_by_file(match: re.Match[str]) -> str:
    """The backends that are recognized by a file, each with that file."""
    first, *others = usual_files()
    named = [f'backend: "{first[0].name}" with 1/{first[1].filename}']
    named += [f'"{traits.name}" with 1/{each.filename}' for traits, each in others]
    return ", or ".join(named)


def _of_model_file(match: re.Match[str]) -> str:
    """For a model file that the runtime cannot read."""
    try:
        with Path(match[1]).open("rb") as file:
            start = file.read(len(_POINTER))
    except OSError:
        return ""
    if start == _POINTER:
        return "git lfs pull: the file is only a pointer to the model"
    return f"the complete file: this one is {'cut off, or of another kind' if start else 'empty'}"


def _renamed(match: re.Match[str]) -> str:
    """For a model file that is missing: another file in the folder may be meant."""
    wanted = Path(match[1])
    ending = wanted.suffix
    try:
        # Another name with the same ending is most likely the file that is meant.
        others = sorted(path.name for path in wanted.parent.iterdir() if path.suffix == ending)
        files = sorted(path.name for path in wanted.parent.iterdir() if path.is_file())
    except OSError:
        return f"put {wanted.name} into {wanted.parent}, a new directory"
    if others:
        return f'rename {others[0]} to {wanted.name}, or write default_model_filename: "{others[0]}"'
    # The file of another backend: then the backend is wrong and not the file.
    for traits, each in usual_files():
        if each.filename in files:
            return f'backend: "{traits.name}", since there is a {each.filename}'
    there = f" ({', '.join(files[:3])} will not do)" if files else ""
    return f"put {wanted.name} into {wanted.parent}{there}"


def _of_gpu_ids(match: re.Match[str]) -> str:
    there = re.search(r"compatibility of [\d.]+ are: (.+)", match.string)
    ids = f"gpus that are there ({there[1]})" if there else "kind: KIND_CPU and no gpus"
    return f"{FALLBACK} for the server, or {ids}"


def _of_version(match: re.Match[str]) -> str:
    better = meant_version(match[1])
    return f"rename {match[1]} to {better}" if better else "a number as its name, if it is a version"


_TABLE: tuple[tuple[str, _Advice], ...] = (
    (r"Could not determine backend for model", _backends_by_file),
    (r"HTTP clients ask for this model as", "a name of letters of ASCII, digits, '_', '-', '.' and '~'"),
    (r"got \ufeff", "the same file saved without a byte order mark"),
    (r"unable to find backend library for backend '([^']*)'", _of_backend),
    (r"shared libraries are not supported", "a backend in Python, as NAME/model.py in --backend-directory"),
    (r"unable to find '([^']*\.\w+)' for model instance", _renamed),
    (r"Load model from (.+) failed:(Protobuf parsing failed|No graph was found)", _of_model_file),
    (r"must specify 'dims'", "dims: [ -1 ], or the sizes; without the batch dimension if max_batch_size is not 0"),
    (r"must specify 'data_type'", _TYPES),
    (r"must specify 'name'", 'name: "..."'),
    (r"dimension must be integer >= 1", "sizes of 1 or more, and -1 for any size"),
    (r"'max_batch_size' must be non-negative", "max_batch_size: 0 for a model that takes no batches"),
    (r"preferred size must be <= max batch size", "smaller sizes, or a larger max_batch_size"),
    (r"preferred size must be positive", "sizes of 1 or more"),
    (r"at least one version must be available", "a directory 1 with the model's file in it, or another version_policy"),
    (r"ignore version directory '([^']*)' which", _of_version),
    (r"is specified for model .* version directory is not present", "make the directory, or remove the number"),
    (r"has kind KIND_GPU but no GPUs are available", f"{FALLBACK} for the server, or kind: KIND_CPU"),
    (r"specifies invalid or unsupported gpu id", _of_gpu_ids),
    (r"has kind (KIND_\w+) but specifies one or more GPUs", "kind: KIND_GPU, or no gpus"),
    (r"unexpected inference \w+ '[^']*', allowed \w+s are: (.*)", lambda m: f"one of these names: {m[1]}"),
    (r"configuration expects datatype .* model provides (TYPE_\w+)", lambda m: f"data_type: {m[1]}"),
    (r"configuration expects (\d+) inputs, model provides (\d+)", lambda m: f"list all of the model's {m[2]} inputs"),
    (r"the model expects \d+ dimensions \(shape \[(-1,)?([\d,-]*)\]\).*initial batch dimension",
     lambda m: f"dims: [ {m[2].replace(',', ', ')} ]"),
    (r"the model expects \d+ dimensions \(shape \[([\d,-]*)\]\)", lambda m: f"dims: [ {m[1].replace(',', ', ')} ]"),
    (r"first dimension must be -1; but shape", "max_batch_size: 0, or a model with a first dimension of any size"),
    (r"model does not support batching while non-zero max_batch_size", "max_batch_size: 0"),
    (r"no repository agent '", "the name of a directory in --repoagent-directory with an agent.py, or: checksum"),
    (r"Mismatched \w+ hash .*, got: (\w+)", lambda m: f'value: "{m[1]}", if this is the right file'),
    (r"failed to open text file for read", "the missing file"),
    (r"the label file '\S*' of output", "one line for each element of the output"),
    (r"contains models that are not available", "the name of a model in the same repository"),
    (r"mapping to non-existing input|mapped from non-existing output", "key: the name that the step's model uses"),
    (r"input (\S+) in model \S+ is not mapped", lambda m: f'input_map {{ key: "{m[1]}" value: "TENSOR" }}'),
    (r"inconsistent (data type|shape)", "the same in both models, or another tensor"),
    (r"whose required version 0 is not loaded", "model_version: -1 for the latest; the default is 0"),
    (r"whose required version \d+ is not loaded", "model_version: -1 for the latest"),
    (r"circular dependency", "remove one of the steps"),
    (r"which has problems of its own", "correct that model first"),
    (r"is unused in ensemble|is not used$", "remove it, or put it into a step's input_map"),
    (r"for ensemble '[^']*' is not written", "an output_map of a step with this tensor as its value"),
    (r"unexpected platform type '([^']*)'", lambda m: _of_backend(m) if m[1] else 'backend: "..."'),
    (r"unexpected 'platform' and 'backend' pair, got:(?!,)", "remove the platform"),
    (r"default priority level must be in range", "default_priority_level: 1"),
    (r"must specify 'step' for ensemble", 'ensemble_scheduling { step [ { model_name: "..." ... } ] }'),
    (r"ensemble scheduling must be set", "ensemble_scheduling { step [ ... ] }, or another platform"),
    (r"instance group should not be specified for ensemble", "remove instance_group; the steps' models have their own"),
    (r"'default_model_filename' must stay within", "the name of a file in the version directory"),
)  # fmt: skip


def advised(problem: Problem) -> Problem:
    """The problem, with what to write instead, and the file that is missing, if these are known."""
    if not problem.missing:
        found = next(filter(None, (re.search(pattern, problem.text) for pattern in _MISSING)), None)
        problem = replace(problem, missing=found[1] if found else "")
    if problem.instead:
        return problem
    # The first pattern that fits counts, so the narrower ones come before the wider ones.
    for pattern, advice in _TABLE:
        match = re.search(pattern, problem.text)
        if match is not None:
            return replace(problem, instead=advice if isinstance(advice, str) else advice(match))
    # The general advice about a configuration is to run this command.
    if problem.cause is None or problem.cause is Cause.CONFIGURATION:
        return problem
    return replace(problem, instead=ADVICE[problem.cause])

"""Whether a model serves, and if not, why and what to do: one verdict from all problems of the model.

Knows no backend by name. Pure; any thread.
"""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from enum import Enum
from pathlib import PurePath

from halimede.backends.api import Severity
from halimede.backends.registry import served
from halimede.checking.advice import BUILD, FALLBACK
from halimede.checking.check import ENSEMBLE, CheckedModel
from halimede.checking.configuration import is_of_gpus
from halimede.checking.problems import Problem


class State(Enum):
    """Whether a model serves. The values are part of the JSON document."""

    SERVES = "serves"
    WITHOUT = "serves-without"
    """It serves, but something of it has no effect or may fail."""
    UNKNOWN = "unknown"
    """Only a load shows it."""
    CANNOT = "cannot-serve"


class Reason(Enum):
    """Why a model cannot serve. The most important comes first: it is pointless to look for the file of a model that no
    backend can open. The values are part of the JSON document."""

    BACKEND = "backend"
    """No backend here serves it."""
    MACHINE = "machine"
    """Its backend runs on GPUs only, and there are none."""
    CONFIGURATION = "configuration"
    CODE = "code"
    """Its Python code is wrong."""
    RUNTIME = "runtime"
    """Its backend is here, but what the backend needs is not installed."""
    FILE = "file"
    """A file or directory is missing."""
    UNREADABLE = "unreadable-file"
    ENVIRONMENT = "environment"
    """Its Python environment is missing, or cannot be used."""
    IMPORT = "import"
    """A module that its code imports is not installed."""
    GPU = "gpu"
    LOAD = "load"
    """Its load failed, and nothing else explains why."""
    MEMBER = "member"
    """It is an ensemble, and a model of its steps cannot serve."""


HOPELESS = frozenset({Reason.BACKEND, Reason.MACHINE})
"""Reasons that nothing in the repository or installed here can remove."""


@dataclass(frozen=True, slots=True)
class Need:
    """Something that a model needs to serve.

    `kind` is one of `backend`, `correction`, `code`, `extra`, `package`, `directory`, `file`, `model`, `environment`,
    `flag`, `machine`, `load`, `member`. `what` is its name: of the backend, the distribution, the path, the flag. A
    `model` is not in the repository; a `member` is, and cannot serve.
    """

    kind: str
    what: str


@dataclass(frozen=True, slots=True)
class Verdict:
    """`text` says why a model cannot serve, or what it serves without. `do` is the one thing to do about it; empty if
    there is none. `others` is the number of problems that `text` does not tell. `limit` is what a model that cannot
    serve would serve without, if everything it needs were there. `cause` is `text` without the members that cannot
    serve either."""

    state: State
    text: str = ""
    do: str = ""
    reason: Reason | None = None
    needs: tuple[Need, ...] = ()
    others: int = 0
    limit: str = ""
    cause: str = ""


def verdict_of(model: CheckedModel) -> Verdict:
    """The verdict about a model. Its needs are in the order of their reasons."""
    extra = _extra(model.backend)
    errors = [problem for problem in model.problems if problem.severity is Severity.ERROR]
    warnings = [problem for problem in model.problems if problem.severity is Severity.WARNING]
    if errors:
        return _cannot(model, errors, warnings, extra)
    packages = tuple(Need("package", problem.installs) for problem in warnings if problem.installs)
    needs = tuple(dict.fromkeys([*extra, *packages, *(Need("flag", flag) for flag in model.flags)]))
    unseen = next((problem for problem in model.problems if _UNSEEN.search(problem.text)), None)
    if unseen is not None:
        return Verdict(State.UNKNOWN, unseen.text, "--load, which loads it and runs its code", needs=needs)
    if not warnings:
        return Verdict(State.SERVES, needs=needs)
    first = warnings[0]
    return Verdict(State.WITHOUT, _limit(model, first), first.instead, needs=needs, others=len(warnings) - 1)


_UNSEEN = re.compile("its code was not run$|model's files were not looked at")
"""Notes without which nothing can be said about a model."""


def _extra(backend: str) -> list[Need]:
    traits = served().get(backend)
    return [Need("extra", traits.extra)] if traits is not None and traits.extra else []


def _cannot(
    model: CheckedModel, errors: Sequence[Problem], warnings: Sequence[Problem], extra: Sequence[Need]
) -> Verdict:
    sorted_out: dict[Reason, list[Problem]] = {}
    for problem in errors:
        sorted_out.setdefault(_reason_of(problem), []).append(problem)
    found = [each for each in Reason if each in sorted_out]
    # Another backend, on another machine or from another file, would need other things than these.
    counted = found[:1] if found[0] in HOPELESS else found
    needs = [need for each in counted for need in _needs(model, each, sorted_out[each])]
    first = sorted_out[found[0]]
    text = cause = _TEXTS.get(found[0], _first_text)(model, first)
    followers = sorted_out.get(Reason.MEMBER, [])
    told = len(first) if found[0] in _TOLD_TOGETHER else len(errors) if found[0] in HOPELESS else 1
    if followers and found[0] is not Reason.MEMBER:
        told += len(followers)  # the details have no consequences, so they are not counted
        if found[0] not in HOPELESS:
            text += f", and {_some(_member_names(followers))} cannot serve"
    unique = tuple(dict.fromkeys([*needs, *extra, *(Need("flag", flag) for flag in model.flags)]))
    limits = [_limit(model, problem) for problem in warnings if problem.code != "import"]
    limit = next(iter(limits), "")
    return Verdict(State.CANNOT, text, _deed(found[0], first), found[0], unique, len(errors) - told, limit, cause)


_TOLD_TOGETHER = frozenset({Reason.IMPORT, Reason.MEMBER, Reason.GPU})
"""The text of a verdict tells all problems of these reasons."""


_BY_TEXT = (
    (Reason.BACKEND, re.compile("unable to find (Python backend based )?backend library|shared libraries are not|"
                                "^unexpected platform type '.+'")),
    (Reason.UNREADABLE, re.compile("Load model from .* failed|^cannot be read: ")),
)  # fmt: skip
_BY_CODE = {
    "consequence": Reason.MEMBER,
    "environment": Reason.ENVIRONMENT,
    "import": Reason.IMPORT,
    "load": Reason.LOAD,
    "machine": Reason.MACHINE,
    "unreadable": Reason.UNREADABLE,
}


_RUNTIME = "it is installed by: "


def _reason_of(problem: Problem) -> Reason:
    if _RUNTIME in problem.text:
        return Reason.RUNTIME
    if problem.code in _BY_CODE:
        return _BY_CODE[problem.code]
    if problem.missing:
        return Reason.FILE
    if problem.code == "instance-group" and (is_of_gpus(problem.text) or FALLBACK in problem.instead):
        return Reason.GPU
    found = next((reason for reason, pattern in _BY_TEXT if pattern.search(problem.text)), None)
    if found is not None:
        return found
    return Reason.CODE if problem.file.suffix == ".py" else Reason.CONFIGURATION


def lacks_runtime(model: CheckedModel) -> bool:
    """Whether something that the backend imports is not installed. The backend itself may be there: a child process
    imports it."""
    return any(_reason_of(problem) is Reason.RUNTIME for problem in model.problems)


# ---- texts


def _place(model: CheckedModel, path: object) -> str:
    """A path without the model's, which the reader knows."""
    return str(path).removeprefix(f"{model.repository}/{model.name}/")


def _first_text(model: CheckedModel, problems: Sequence[Problem]) -> str:
    first = problems[0]
    text = " ".join(first.text.split()).replace(f"{model.repository}/", "")
    line = f"{first.file.name}:{first.line}: " if first.line else ""
    return f"{line}{text}"


def _backend_text(model: CheckedModel, problems: Sequence[Problem]) -> str:
    if model.backend:
        return f"there is no backend '{model.backend}' here"
    return _first_text(model, problems)


def _runtime_text(model: CheckedModel, problems: Sequence[Problem]) -> str:
    return f"what backend '{model.backend}' needs is not installed"


def _file_text(model: CheckedModel, problems: Sequence[Problem]) -> str:
    first = problems[0]
    if first.code == "ensemble":
        names = [PurePath(path).name for path in first.missing.split(", ")]
        return f"its {'model' if len(names) == 1 else 'models'} {_some(names)} {_BE[len(names) == 1]} not there"
    if model.backend == ENSEMBLE and first.code == "version":
        return "its version directory is missing"
    return f"{_place(model, first.missing)} is missing"


_BE = {True: "is", False: "are"}


def _unreadable_text(model: CheckedModel, problems: Sequence[Problem]) -> str:
    named = re.search("Load model from (.+) failed:", problems[0].text)
    return f"{_place(model, named[1] if named else problems[0].file)} cannot be read"


def _import_text(model: CheckedModel, problems: Sequence[Problem]) -> str:
    told = f"imports {_some([problem.module for problem in problems])}, which"
    if _in_environment(problems):
        return f"{told} its environment does not have"
    how = "not installed" if all(problem.installs for problem in problems) else "not there"
    return f"{told} {_BE[len(problems) == 1]} {how}"


def _in_environment(problems: Sequence[Problem]) -> bool:
    return any("in the environment" in problem.text for problem in problems)


_MAX_NAMES = 4


def _member_text(model: CheckedModel, problems: Sequence[Problem]) -> str:
    return f"only because {_some(_member_names(problems))} cannot"


def _gpu_text(model: CheckedModel, problems: Sequence[Problem]) -> str:
    return "it asks for a GPU, and none is available"


def _some(names: Sequence[str]) -> str:
    """Names in quotes; of many, the first ones."""
    quoted = [f"'{name}'" for name in names]
    if len(names) > _MAX_NAMES:
        quoted = [*quoted[: _MAX_NAMES - 1], f"{len(names) - _MAX_NAMES + 1} more"]
    return quoted[0] if len(quoted) == 1 else f"{', '.join(quoted[:-1])} and {quoted[-1]}"


_TEXTS: dict[Reason, Callable[[CheckedModel, Sequence[Problem]], str]] = {
    Reason.BACKEND: _backend_text,
    Reason.RUNTIME: _runtime_text,
    Reason.FILE: _file_text,
    Reason.UNREADABLE: _unreadable_text,
    Reason.IMPORT: _import_text,
    Reason.GPU: _gpu_text,
    Reason.MEMBER: _member_text,
}


def _limit(model: CheckedModel, problem: Problem) -> str:
    """What a model serves without."""
    if problem.module:
        return f"but {_first_text(model, [problem])}"
    found = next((words for pattern, words in _LIMITS if re.search(pattern, problem.text)), None)
    return found or f"but {_first_text(model, [problem])}"


_LIMITS = (
    ("asks for .* and runs on the CPU", "on the CPU, without its GPU"),
    ("has no implicit states", "without its states: its backend has none"),
    ("runs on CPUs only", "without the GPU: its backend runs on CPUs only"),
    ("neither batch inputs nor", "without batch inputs and outputs: its backend has none"),
)


# ---- deeds and needs


def _deed(reason: Reason, problems: Sequence[Problem]) -> str:
    """The one thing to do."""
    if reason is Reason.MEMBER:
        return ""
    if reason is Reason.RUNTIME:
        return f"pip install '{_extra_words(problems[0].text)}'"
    installs = list(dict.fromkeys(problem.installs for problem in problems if problem.installs))
    if reason is not Reason.IMPORT:
        return problems[0].instead
    first = problems[0].instead
    command = first if first.startswith(_REQUIREMENTS) else f"pip install {' '.join(installs)}" if installs else ""
    by_hand = [problem.instead for problem in problems if not problem.installs]
    return "; ".join(filter(None, [command, *by_hand]))


_REQUIREMENTS = "pip install -r "


def _extra_words(text: str) -> str:
    return text.partition("pip install '")[2].rstrip("'")


def _member_names(problems: Sequence[Problem]) -> list[str]:
    found = (re.search("depends on '([^']+)'", problem.text) for problem in problems)
    return [match[1] for match in found if match is not None]


def _needs(model: CheckedModel, reason: Reason, problems: Sequence[Problem]) -> Iterator[Need]:
    for problem in problems:
        match reason:
            case Reason.BACKEND:
                yield Need("backend", model.backend or problem.text)
            case Reason.CONFIGURATION:
                yield Need("correction", f"{problem.file}:{problem.line}" if problem.line else str(problem.file))
            case Reason.CODE:
                yield Need("code", f"{problem.file}:{problem.line}")
            case Reason.FILE if model.backend == ENSEMBLE and problem.code == "version":
                yield Need("directory", problem.missing)
            case Reason.FILE if problem.code == "ensemble":
                yield from (Need("model", PurePath(path).name) for path in problem.missing.split(", "))
            case Reason.FILE:
                yield Need("file", problem.missing)
            case Reason.UNREADABLE:
                named = re.search("Load model from (.+) failed:", problem.text)
                yield Need("file", named[1] if named else str(problem.file))
            case Reason.ENVIRONMENT if problem.instead == BUILD:
                yield Need("flag", BUILD)
            case Reason.ENVIRONMENT:
                yield Need("environment", problem.missing or problem.text)
            case Reason.IMPORT if problem.installs:
                requirements = problem.instead.startswith(_REQUIREMENTS)
                yield Need(
                    "package", problem.instead.removeprefix("pip install ") if requirements else problem.installs
                )
            case Reason.IMPORT if _in_environment([problem]):
                yield Need("environment", f"{problem.module} in it")
            case Reason.IMPORT:
                name = problem.module.lstrip(".").partition(".")[0]
                yield Need("file", str(problem.file.with_name(f"{name}.py")))
            case Reason.GPU:
                yield Need("flag", FALLBACK)
            case Reason.MACHINE | Reason.LOAD:
                yield Need(reason.value, problem.text)
            case Reason.MEMBER:
                yield from (Need("member", name) for name in _member_names([problem]))
            case Reason.RUNTIME:
                pass  # the extra of each model is added

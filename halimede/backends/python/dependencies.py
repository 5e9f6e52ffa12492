"""What the code of a Python model needs and does not have, for `halimede check`: its environment, and modules that it
imports.

Runs nothing of the model and nothing of its environment. Load threads; blocks on files.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

from halimede.backends.api import Fault, ModelFolder, Severity
from halimede.backends.python.imports import Import, When, changes_path, imports_of
from halimede.backends.python.modules import (
    FROM_SOURCE,
    OF_THE_SERVER,
    Modules,
    ModulesOfEnvironments,
    distribution_of,
    is_for_all,
    is_installed,
)
from halimede.backends.python.settings import ENVIRONMENT
from halimede.errors import Cause
from halimede.workers.host.activation import ACTIVATE, OLDEST
from halimede.workers.host.environments import MODEL_DIRECTORY, meant
from halimede.workers.host.package_lists import is_package_list

REQUIREMENTS = "requirements.txt"
BUILD_FLAG = "--python-environments=build"
"""What to do about an environment that is a list of packages."""
_SEVERITIES = {When.LOAD: Severity.ERROR, When.CALL: Severity.WARNING, When.MAYBE: Severity.NOTE}


def lacking(file: Path, folder: ModelFolder, environment: str, known: ModulesOfEnvironments) -> list[Fault]:
    """The faults of the environment, or those of the modules that are not in it. `file` is the model's code,
    `environment` the value of EXECUTION_ENV_PATH, or empty."""
    if not environment:
        return list(_missing(file, folder, is_installed, ""))
    path = Path(_resolved(environment, folder.model))
    if not path.exists():
        return [_no_environment(path, environment)]
    if path.is_file() and is_package_list(environment):
        return [_list_of_packages(path)]
    modules = known.of(path)
    # Nothing is known of an archive that is large or broken, and of a folder that refers to others.
    if modules is None:
        return []
    fault = _unusable(path, modules)
    if fault is not None:
        return [fault]
    return [] if modules.is_open else list(_missing(file, folder, modules.has, str(path)))


def _resolved(setting: str, model: Path) -> str:
    return str(model) + setting[len(MODEL_DIRECTORY) :] if setting.startswith(MODEL_DIRECTORY) else setting


def _no_environment(path: Path, setting: str) -> Fault:
    better = meant(setting)
    return Fault(
        f"the environment '{setting}' does not exist: there is no {path}",
        instead=better
        or f"put the packed environment there; or remove {ENVIRONMENT}, and install what the model imports beside "
        "halimede",
        cause=Cause.ENVIRONMENT,
    )


def _list_of_packages(path: Path) -> Fault:
    # What the list installs is known only after the build.
    return Fault(
        f"the environment '{path}' is a list of packages, and a server builds no environments unless it is told to",
        path,
        instead=BUILD_FLAG,
        cause=Cause.ENVIRONMENT,
    )


def _unusable(path: Path, modules: Modules) -> Fault | None:
    if modules.is_too_old:
        has, needed = ".".join(map(str, modules.version)), ".".join(map(str, OLDEST))
        text = f"the environment '{path}' has Python {has}; models need Python {needed} or newer"
        return Fault(text, path, instead=f"pack it again with Python {needed} or newer", cause=Cause.ENVIRONMENT)
    if not modules.has_activate:
        text = f"the environment '{path}' has no '{ACTIVATE}'"
        return Fault(text, path, instead="pack it with conda-pack or venv-pack", cause=Cause.ENVIRONMENT)
    return None


def _missing(file: Path, folder: ModelFolder, has: Callable[[str], bool], environment: str) -> Iterator[Fault]:
    folders = [file.parent] if folder.code is not None else [file.parent, folder.version, folder.model]
    absent = _absent(imports_of(file, folders), has)
    # The code may add folders to the path that nobody knows.
    is_sure = not absent or not changes_path(file)
    requirements = _requirements(folder) if absent and not environment else None
    for each in absent:
        severity = _SEVERITIES[each.when if is_sure else When.MAYBE]
        installs = "" if environment or _was_beside(each) else distribution_of(each.module)
        yield Fault(
            f"{_who(each)} imports '{each.module}', which {_where(each.module, installs, environment)}",
            each.file,
            each.line,
            _advice(each, installs, environment, requirements),
            severity,
            Cause.ENVIRONMENT,
            each.module,
            installs,
        )


def _absent(imports: Sequence[Import], has: Callable[[str], bool]) -> list[Import]:
    """The imports of modules that are not there, one for each package: of `torch.nn` and `torch` only `torch`."""
    told: dict[str, Import] = {}
    for each in imports:
        first = each.module.partition(".")[0]
        if first in OF_THE_SERVER or (first and (has(each.module) or is_for_all(first))):
            continue
        name = each.module if not first or has(first) else first
        known = told.get(name)
        if known is None or each.when < known.when:
            told[name] = replace(each, module=name)
    return list(told.values())


def _was_beside(each: Import) -> bool:
    """Whether Python has once compiled the module beside the code: its source is missing, and no distribution."""
    name = each.module.lstrip(".").partition(".")[0]
    return any(each.file.parent.glob(f"__pycache__/{name}.*.pyc"))


def _who(each: Import) -> str:
    return f"'{each.where}'" if each.where else "the code"


def _where(module: str, installs: str, environment: str) -> str:
    if environment:
        return f"is not in the environment '{environment}'"
    return "is not installed" if installs or module in FROM_SOURCE else "is neither installed nor beside it"


def _advice(each: Import, installs: str, environment: str, requirements: Path | None) -> str:
    if environment:
        return f"add {distribution_of(each.module) or each.module} to the environment and pack it again"
    if each.module.partition(".")[0] in FROM_SOURCE:
        return "install it as its project describes"
    if not installs:
        name = each.module.lstrip(".").partition(".")[0]
        return f"put {name}.py, or the folder {name}, beside {each.file.name}"
    return f"pip install -r {requirements}" if requirements is not None else f"pip install {installs}"


def _requirements(folder: ModelFolder) -> Path | None:
    """The list of what the model needs, if it has one."""
    places = (place / REQUIREMENTS for place in (folder.version, folder.model))
    return next((path for path in places if path.is_file()), None)

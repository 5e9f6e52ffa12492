"""Every problem of the models of repositories, each by itself and all together, without running their code.

Any thread; blocks.
"""

import re
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from pathlib import Path

from halimede.backends.api import Severity
from halimede.backends.registry import formats
from halimede.checking.configuration import until_it_breaks
from halimede.checking.model import ModelReview, review_model
from halimede.checking.problems import Problem
from halimede.config import ModelConfig, with_decoupling
from halimede.errors import Error
from halimede.models.backend_pool import pool_to_look
from halimede.models.dependencies import Dependencies
from halimede.models.ensembles import is_decoupled, member_problems, members_of, missing, steps_of
from halimede.models.loader import LoadOptions
from halimede.models.repository import FoundModel, scan

_ENDINGS_OF_OTHERS = frozenset({".pbtxt"})


@dataclass(slots=True)
class Review:
    """The models, and the problems of the repositories. Each model has its own problems."""

    models: list[ModelReview] = field(default_factory=list)
    problems: list[Problem] = field(default_factory=list)


def review_repositories(repositories: Sequence[str], options: LoadOptions, namespaces: bool) -> Review:
    """Checks all models of the repositories. `namespaces`: several may have a model of the same name."""
    review = Review()
    found: list[FoundModel] = []
    for repository in repositories:
        found += _found_in(repository, namespaces, review.problems)
    # One pool for all models: a runtime is imported once.
    with pool_to_look(options.settings) as backends:
        review.models += [review_model(each, backends, options) for each in found]
    by_name: dict[str, list[ModelReview]] = {}
    for model in review.models:
        by_name.setdefault(model.found.name, []).append(model)
    if not namespaces:  # with namespaces a name may stand for several models
        _review_names(by_name)
    _review_ensembles(review.models, by_name)
    return review


def _found_in(repository: str, namespaces: bool, problems: list[Problem]) -> list[FoundModel]:
    root = Path(repository)
    # A bucket would have to be copied, which may cost hours and money.
    if "://" in repository:
        text = "only directories on this machine can be checked"
        problems.append(Problem("repository", text, root, instead="copy it, and check the copy"))
        return []
    try:
        catalog = scan([repository], namespaces)
        models = list(catalog.models.values())
        entries = sorted(root.iterdir())
    except (Error, OSError) as error:
        problems.append(Problem("repository", str(error), root))
        return []
    # A common mistake: the path of a model instead of the one of its repository.
    versions = [entry.name for entry in entries if entry.is_dir() and entry.name.isdecimal()]
    is_around = any((entry / "config.pbtxt").exists() for entry in entries)
    if ((root / "config.pbtxt").exists() and not is_around) or (versions and len(versions) == len(models)):
        text = f"'{repository}' looks like a model, not like a repository of models"
        parent = root.resolve().parent
        problems.append(Problem("repository", text, root, instead=f"halimede check {parent}"))
        return []
    inner = next((entry for entry in entries if _is_repository(entry)), None)
    if inner is not None and not is_around and not versions:
        text = f"'{repository}' has no models, but '{inner.name}' in it looks like a repository"
        problems.append(Problem("repository", text, root, instead=f"halimede check {inner}"))
        return []
    for folder in catalog.unnamed:
        text = "the name of this directory is not UTF-8, so it is not read"
        problems.append(Problem("name", text, folder, instead="rename it", severity=Severity.WARNING))
    taken = {each.ending for _, each in formats() if each.ending}
    endings = {Path(each.filename).suffix for _, each in formats()} | taken | _ENDINGS_OF_OTHERS
    for entry in entries:
        if entry.is_file() and entry.suffix in endings:
            text = f"'{entry.name}' is beside the models and is not read"
            instead = f"halimede init {entry} {repository}" if entry.suffix in taken else ""
            problems.append(Problem("stray-file", text, entry, instead=instead, severity=Severity.WARNING))
    if not models:
        text = "there are no models; a model is a directory here, with a directory 1 in it"
        problems.append(Problem("repository", text, root, severity=Severity.WARNING))
    return models


def _is_repository(folder: Path) -> bool:
    """Whether a folder looks like a repository of models, and not like a model."""
    try:
        names = [entry.name for entry in folder.iterdir() if entry.is_dir()]
        return not any(map(str.isdecimal, names)) and any((folder / name / "config.pbtxt").exists() for name in names)
    except OSError:  # a file, or what nobody may read
        return False


def _review_names(by_name: Mapping[str, Sequence[ModelReview]]) -> None:
    for name, models in by_name.items():
        for model in models if len(models) > 1 else ():
            others = ", ".join(f"'{other.found.folder}'" for other in models if other is not model)
            model.problems.append(
                Problem(
                    "duplicate",
                    f"model '{name}' appears in two or more repositories: also {others}",
                    model.found.folder,
                    instead="give one of them another name, or serve with --model-namespacing=true",
                )
            )


def _review_ensembles(models: Sequence[ModelReview], by_name: Mapping[str, Sequence[ModelReview]]) -> None:
    ensembles = {str(model.found.folder): model for model in models if model.config and model.config.ensemble}
    graph = Dependencies()
    for key, model in ensembles.items():
        chosen = _members(model, by_name)
        graph.learn(key, [str(member.found.folder) for member in chosen.values()])
    for key in graph.order():
        circle = graph.circle(key)
        if circle:
            # The members of a circle have no order in which they could be checked.
            way = " -> ".join(Path(each).name for each in circle)
            model = ensembles[key]
            model.add("ensemble", f"circular dependency between ensembles: {way}", model.place)
        else:
            _review_ensemble(ensembles[key], _members(ensembles[key], by_name), by_name)


def _members(ensemble: ModelReview, by_name: Mapping[str, Sequence[ModelReview]]) -> dict[str, ModelReview]:
    """The members that exist: in the ensemble's own repository, or else the only model of that name."""
    assert ensemble.config is not None
    assert ensemble.config.ensemble is not None
    chosen: dict[str, ModelReview] = {}
    for name in members_of(ensemble.config.ensemble):
        models = by_name.get(name, ())
        # As a load finds them (R20).
        own = [each for each in models if each.found.folder.parent == ensemble.found.folder.parent]
        if own or len(models) == 1:
            chosen[name] = (own or models)[0]
    return chosen


def _nearest(unknown: Sequence[str], known: Collection[str]) -> str:
    """The models that misspelt members probably are; empty if nothing is near."""
    near = [get_close_matches(name, known, 1, cutoff=0.75) for name in unknown]
    return ", ".join(f'model_name: "{found[0]}"' for found in near if found)


def _review_ensemble(ensemble: ModelReview, chosen: Mapping[str, ModelReview], known: Collection[str]) -> None:
    config, name = ensemble.config, ensemble.found.name
    assert config is not None
    assert config.ensemble is not None
    unknown = [member for member in members_of(config.ensemble) if member not in chosen]
    if unknown:
        paths = ", ".join(str(ensemble.found.folder.parent / each) for each in unknown)
        text, instead = str(missing(name, unknown)), _nearest(unknown, set(known) - {name})
        ensemble.add("ensemble", text, ensemble.place, instead=instead, missing=paths)
    for step in steps_of(config):
        if step.model in chosen:
            _review_member(ensemble, step.model, step.version, chosen[step.model])
    # A member that cannot be read does not hide what is wrong with the steps of the others.
    read = {each: m.config for each, m in chosen.items() if m.config is not None and _is_whole(m.config)}
    for text in until_it_breaks(member_problems(config, read)):
        ensemble.add("ensemble", text, ensemble.place, instead=_names_of(text, read))
    if len(read) == len(members_of(config.ensemble)):
        try:
            ensemble.config = with_decoupling(config, is_decoupled(config, read))
        except Error as error:
            ensemble.add("ensemble", str(error), ensemble.place)


_UNKNOWN_NAME = re.compile(r"(?:mapping to|mapped from) non-existing (input|output) .* in model (\S+)$")


def _names_of(text: str, members: Mapping[str, ModelConfig]) -> str:
    """What to write in place of a name that a step's model does not have; empty for another problem."""
    found = _UNKNOWN_NAME.search(text)
    if found is None or found[2] not in members:
        return ""
    member = members[found[2]]
    names = [spec.name for spec in (member.inputs if found[1] == "input" else member.outputs)]
    quoted = [f'"{name}"' for name in names]
    return f"key: {' or '.join(quoted)}"


def _review_member(ensemble: ModelReview, name: str, version: int, member: ModelReview) -> None:
    depends = f"ensemble '{ensemble.found.name}' depends on '{name}'"
    # One problem is enough: the others would only follow from it.
    if any(problem.severity is Severity.ERROR for problem in member.problems):
        ensemble.add("consequence", f"{depends}, which has problems of its own", ensemble.place)
    elif version != -1 and member.versions and version not in member.versions:
        ensemble.add("ensemble", f"{depends} whose required version {version} is not loaded.", ensemble.place)
    elif member.config is None or not _is_whole(member.config):
        text = f"{depends}, whose inputs and outputs are not known; whether they fit was not checked"
        ensemble.add("not-seen", text, ensemble.place, Severity.NOTE)


def _is_whole(config: ModelConfig) -> bool:
    return bool(config.inputs) and bool(config.outputs)

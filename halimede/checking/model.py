"""Every problem of one model that can be found without running its code: in its folder, configuration and versions.

The rules are those of a load, which stops at the first problem (`models.loader`). Any thread. Blocks on files, and
while a runtime opens a model file to see what it declares.
"""

import re
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from math import prod
from pathlib import Path
from typing import TypeVar
from urllib.parse import quote

from halimede.agents.registry import BUILT_IN, is_there
from halimede.backends.api import Backend, Fault, Inspecting, ModelFolder, Severity
from halimede.backends.inspection import not_inspected
from halimede.backends.registry import formats, known, served
from halimede.backends.traits import Traits
from halimede.checking.abilities import NEEDS_GPU, gpu_advice, lacks_device, unmet
from halimede.checking.configuration import Reviewed, is_of_gpus, review
from halimede.checking.problems import Problem
from halimede.checking.stray_files import stray_files
from halimede.config import (
    Draft,
    LabelFiles,
    ModelConfig,
    VersionPolicy,
    agents_of,
    version_renames,
    versions_to_load,
)
from halimede.config.files import read_whole
from halimede.errors import Cause, Error
from halimede.models.abilities import refused_abilities, refused_amounts
from halimede.models.agents import Agents
from halimede.models.loader import Backends, LoadOptions, complete, find_backend, version_folder
from halimede.models.repository import FoundModel, fingerprint, version_names
from halimede.models.sequence_states import states_for
from halimede.models.strategies import strategy_file
from halimede.models.warmup import sample_problems

A = TypeVar("A")


_OF_FILENAME = re.compile("'default_model_filename' must stay within")

_USABLE = re.compile(r"are: \d")
"""In such a text: the GPUs that the backend can use."""

_FIELDS = {
    "agent": "model_repository_agents",
    "consequence": "ensemble_scheduling",
    "ensemble": "ensemble_scheduling",
    "labels": "label_filename",
    "not-seen": "ensemble_scheduling",
    "state": "sequence_batching",
    "version": "version_policy",
    "warmup": "model_warmup",
}
"""The field that problems of a code are about, if their texts mention none."""


@dataclass(slots=True)
class ModelReview:
    """A model and its problems. `config` is the complete configuration of the latest version; None if it is unknown."""

    found: FoundModel
    reviewed: Reviewed
    versions: tuple[int, ...] = ()
    config: ModelConfig | None = None
    problems: list[Problem] = field(default_factory=list)
    is_hidden: bool = False
    """Whether something of the model can only be seen by running code."""
    is_backend_here: bool = False
    """Whether its backend could be made, so that the runtime is installed."""

    def add(
        self,
        code: str,
        text: str,
        file: Path | None = None,
        severity: Severity = Severity.ERROR,
        cause: Cause | None = None,
        instead: str = "",
        missing: str = "",
    ) -> None:
        """Adds a problem of the folder, or of `file`; if that is the configuration, with its line."""
        place = file or self.found.folder
        line = self.reviewed.source.line_of(text, _FIELDS.get(code, "")) if place == self.reviewed.file else 0
        problem = Problem(code, text, place, line, instead, severity, cause, missing=missing)
        # Each version is reviewed, and most find the same.
        if not any((p.text, p.line) == (text, line) for p in self.problems):
            self.problems.append(problem)

    @property
    def place(self) -> Path:
        """The configuration file, or the folder if there is none."""
        return self.reviewed.file if self.reviewed.is_there else self.found.folder

    def attempt(self, code: str, work: Callable[[], A], file: Path | None = None) -> A | None:
        """Returns what `work` returns. If it fails, adds a problem and returns None."""
        try:
            return work()
        except Error as error:
            self.add(code, str(error), file or self.place, cause=error.cause)
        except OSError as error:
            self.add("unreadable", f"cannot be read: {error.strerror}", Path(error.filename or self.found.folder))
        return None


def review_model(found: FoundModel, backends: Backends, options: LoadOptions) -> ModelReview:
    """Checks one model. Of an ensemble only its own configuration (see `repository`)."""
    strict = not options.auto_complete
    reviewed = review(found.folder, config_name=options.config_name, strict=strict)
    model = ModelReview(found, reviewed)
    sent = quote(found.name, safe="", errors="surrogateescape")
    if sent != found.name:  # neither this server nor Triton decodes names in URLs
        text = f"HTTP clients ask for this model as '{sent}', and the server does not decode names"
        model.add("name", text, found.folder, Severity.WARNING)
    # Without access to the folder every further problem would only follow from that.
    if not model.attempt("unreadable", lambda: [*found.folder.iterdir(), found.folder]):
        return _finished(model)
    # Before the rest, because an agent may replace everything else.
    _review_agents(model, options)
    if model.is_hidden:  # its agents may replace every file
        return _finished(model)
    _review_versions(model)
    if reviewed.draft is not None and reviewed.draft.is_ensemble:
        # Its own mistakes do not hide those of its members, nor the steps that do not fit them.
        model.config = reviewed.finish((), 1) or reviewed.unchecked()
        _review_labels(model, model.config)
    elif reviewed.draft is not None:
        draft = reviewed.draft
        for number in model.versions:
            # Each version completes a draft of its own, since the model files may differ.
            _review_version(model, draft.copy(), number, backends, options)
        if not model.versions:
            _review_without_version(model, draft, backends, options)
        _review_device(model, served().get(draft.backend), options.gpus)
    model.problems += stray_files(found.folder, reviewed, model.config, options.config_name)
    return _finished(model)


def _finished(model: ModelReview) -> ModelReview:
    own = [each for each in model.reviewed.problems if each not in model.problems]
    model.problems = sorted(dict.fromkeys([*own, *model.problems]), key=lambda p: (str(p.file), p.line))
    return model


def _review_agents(model: ModelReview, options: LoadOptions) -> None:
    """Checks that the agents exist. Built-in agents run; the code of others does not."""
    try:
        asked = agents_of(model.found.folder, config_name=options.config_name)
    except Error:
        return  # the configuration is wrong, which is a problem already
    foreign = [spec.name for spec in asked.specs if spec.name not in BUILT_IN]
    for name in foreign:
        if is_there(name, options.agents.directory):
            model.is_hidden = True
            text = f"what agent '{name}' does to the model is not known: its code was not run"
            model.add("not-seen", text, model.place, Severity.NOTE)
        else:
            model.add("agent", f"there is no repository agent '{name}'", model.place)
    if asked.specs and not foreign:
        agents = Agents(options.agents.directory, options.config_name)
        model.attempt("agent", lambda: agents.engage(model.found, fingerprint(model.found.folder)))
        # They ran to be checked only: what they made is removed.
        agents.give_up(model.found)


def _review_versions(model: ModelReview) -> None:
    draft = model.reviewed.draft
    if draft is None:
        return
    names = model.attempt("unreadable", lambda: version_names(model.found.folder))
    if names is None:
        return
    try:
        numbers, warnings = versions_to_load(draft.version_policy, names, model.found.name)
    except Error as error:
        # The warnings still say which directories are no versions.
        numbers, warnings = [], versions_of_nothing(names, model.found.name)
        instead, missing = _first_version(model.found.folder, draft, names)
        model.add("version", str(error), model.place, instead=instead, missing=missing)
    model.versions = tuple(numbers)
    for warning in warnings:
        file = model.place if "is specified for model" in warning else model.found.folder
        model.add("version", warning, file, Severity.WARNING)


def _first_version(folder: Path, draft: Draft, names: Collection[str]) -> tuple[str, str]:
    """What to do for a model without a directory that could be a version, and what is missing; both are empty if it has
    one, which the policy excludes."""
    advice = version_renames(names)
    if any(name[:1].isdecimal() for name in names):
        return "", ""
    version = folder / "1"
    if draft.is_ensemble:
        return advice or f"mkdir {version} (it stays empty, so git drops it)", str(version)
    usual = {traits.name: traits.formats[0].filename for traits in known() if traits.formats}
    platform = {each.platform: each.filename for _, each in formats() if each.platform}
    filename = draft.model_filename or platform.get(draft.platform) or usual.get(draft.backend, "")
    if not filename:
        return advice or f"put the model's files into {version}, a new directory", str(version)
    return advice or f"put {filename} into {version}, a new directory", str(version / filename)


def versions_of_nothing(names: Collection[str], model: str) -> list[str]:
    """Why directories of a model are not versions. Ignores its version policy."""
    return versions_to_load(VersionPolicy(), [*names, "1"], model)[1]


def _review_version(model: ModelReview, draft: Draft, number: int, backends: Backends, options: LoadOptions) -> None:
    prepared = None
    # Without a backend the platform is unknown. If that is a problem already, it is not reported again.
    if draft.backend or not model.reviewed.problems:
        prepared = model.attempt("backend", lambda: find_backend(model.found, number, draft, backends, options))
    # What does not need the backend is checked all the same.
    if prepared is None:
        _review_files(model, version_folder(model.found.folder, number))
        model.reviewed.draft = draft
        model.config = model.reviewed.finish(options.gpus, 1) or model.config
        return
    folder, backend = prepared
    config = _completed(model, draft, backend, folder, options)
    _advise_on_gpus(model.reviewed.problems, backend.traits, options.gpus)
    if config is not None:
        model.config = config
        _review_labels(model, config)
        for text in refused_abilities(config, backend.traits):
            model.add("backend", text, model.place)
        # A GPU that is missing is an error already.
        refused = any(is_of_gpus(problem.text) for problem in model.reviewed.problems)
        # Without GPUs the configuration was completed with a great number of them.
        for field, text in (
            ()
            if refused
            else refused_amounts(config, options.max_instances, options.max_warmup_samples, len(model.versions))
        ):
            model.add("warmup" if field == "model_warmup" else "instance-group", text, model.place)
        for text in unmet(config, backend.traits, gpus=not refused):
            model.add("backend", text, model.place, Severity.WARNING)
        model.attempt("state", lambda: states_for(config, model.found.folder))
        for error in sample_problems(config, model.found.folder, number):
            model.add("warmup", str(error), model.place)
        _review_strategy(model, config, folder)
    if not model.is_hidden:
        _review_file(model, draft, config, backend, folder, options)


def _review_without_version(model: ModelReview, draft: Draft, backends: Backends, options: LoadOptions) -> None:
    """Checks what does not need a version's files: whether the backend is there, and the configuration as it is."""
    prepared = model.attempt("backend", lambda: find_backend(model.found, 1, draft, backends, options))
    if prepared is None:
        model.config = model.reviewed.finish(options.gpus, 1)
        return
    folder, backend = prepared
    traits = backend.traits
    gpus = model.attempt("backend", lambda: backend.usable_gpus(options.gpus))
    model.is_backend_here = gpus is not None
    _fall_back(model, draft, gpus or (), options)
    # The model file may have the inputs and outputs that the configuration lacks.
    if gpus is not None and not draft.needs_description:
        model.config = model.reviewed.finish(gpus, traits.cpu_instances)
    _advise_on_gpus(model.reviewed.problems, traits, options.gpus)
    _review_labels(model, model.config)
    # An environment of the model lies beside its versions.
    for fault in _faults(draft, model.config, backend, folder, options):
        if fault.cause is Cause.ENVIRONMENT and not fault.module:
            _add_fault(model, fault)


def _review_device(model: ModelReview, traits: Traits | None, gpus: Sequence[int]) -> None:
    """Whether this machine has a device for the backend. Its runtime need not be installed."""
    if traits is not None and lacks_device(traits, gpus):
        text = f"backend '{traits.name}' runs on GPUs only, and this machine has none"
        model.add("machine", text, model.place, instead=NEEDS_GPU)
        _advise_on_gpus(model.reviewed.problems, traits, gpus)


def _review_file(
    model: ModelReview,
    draft: Draft,
    config: ModelConfig | None,
    backend: Backend,
    folder: ModelFolder,
    options: LoadOptions,
) -> None:
    """Lets the backend look at its files."""
    # The name of a file elsewhere is a problem already.
    if any(_OF_FILENAME.search(problem.text) for problem in model.reviewed.problems):
        return
    unseen = not_inspected(backend.traits)
    faults = _faults(draft, config, backend, folder, options)
    for fault in faults:
        _add_fault(model, fault)
    model.is_hidden |= any(f.severity is Severity.NOTE and f != unseen and not f.module for f in faults)


def _faults(
    draft: Draft, config: ModelConfig | None, backend: Backend, folder: ModelFolder, options: LoadOptions
) -> list[Fault]:
    if not isinstance(backend, Inspecting):
        return [not_inspected(backend.traits)]
    asked = draft.incomplete(gpus=options.gpus, default_instance_count=backend.traits.cpu_instances)
    return backend.faults(asked, config, folder, draft.model_filename)


def _completed(
    model: ModelReview, draft: Draft, backend: Backend, folder: ModelFolder, options: LoadOptions
) -> ModelConfig | None:
    """The configuration, completed from the model file; None if it is wrong, or only code can complete it."""
    # Each call may fail: a child process imports the runtime, which may be missing there.
    try:
        gpus = backend.usable_gpus(options.gpus)
        model.is_backend_here = True
        _fall_back(model, draft, gpus, options)
        if options.auto_complete and draft.needs_description and not model.is_hidden and not _runs_code(draft, backend):
            complete(draft, backend, folder, options)
    except Error as error:
        model.add(_code_of(error.cause, "model-file"), str(error), folder.version, cause=error.cause)
        return None
    model.reviewed.draft = draft
    return model.reviewed.finish(gpus, backend.traits.cpu_instances)


def _fall_back(model: ModelReview, draft: Draft, gpus: Sequence[int], options: LoadOptions) -> None:
    """Moves instances to the CPU whose GPUs are not there, if the server would."""
    for change in draft.fall_back_to_cpu(gpus) if options.gpu_fallback else ():
        model.add("instance-group", change, model.place, Severity.WARNING)


def _advise_on_gpus(problems: list[Problem], traits: Traits, gpus: Sequence[int]) -> None:
    """For a backend that cannot use the GPUs of this machine. The general advice is for a machine without GPUs."""
    advice = gpu_advice(traits, gpus)
    for i, problem in enumerate(problems if advice else ()):
        # With GPUs that it can use, the ids are wrong, and the general advice names the right ones.
        if problem.code == "instance-group" and is_of_gpus(problem.text) and not _USABLE.search(problem.text):
            problems[i] = replace(problem, instead=advice)


def _runs_code(draft: Draft, backend: Backend) -> bool:
    return isinstance(backend, Inspecting) and backend.runs_code(draft.incomplete())


def _add_fault(model: ModelReview, fault: Fault) -> None:
    code = _code_of(fault.cause, "not-seen" if fault.severity is Severity.NOTE else "model-file")
    if fault.module:
        code = "import"
    file, line = fault.file, fault.line
    if file is None:
        line = model.reviewed.source.line_of(fault.text)
        file = model.reviewed.file if line else model.found.folder
    problem = Problem(
        code, fault.text, file, line, fault.instead, fault.severity, fault.cause, fault.module, fault.installs
    )
    if not any(each.text == fault.text and each.line in (line, 0) for each in model.problems):
        model.problems.append(problem)


def _code_of(cause: Cause | None, otherwise: str) -> str:
    """The code of a problem that a backend found."""
    # Nothing of the model is wrong then.
    return cause.value if cause in (Cause.ENVIRONMENT, Cause.MACHINE) else otherwise


def _review_files(model: ModelReview, folder: Path) -> None:
    if not folder.is_dir():
        model.add("version", f"'{folder}' is no directory", folder)


def _review_labels(model: ModelReview, config: ModelConfig | None) -> None:
    files = LabelFiles(model.found.folder, model.found.name)
    for spec in config.outputs if config is not None else ():
        try:
            labels = files.of(spec)
        except Error as error:
            model.add("labels", str(error), model.place)
            continue
        classes = prod(spec.dims) if spec.dims and min(spec.dims) > 0 else 0
        if labels and classes and len(labels) != classes:
            text = (
                f"the label file '{spec.label_filename}' of output '{spec.name}' has {len(labels)} lines, the output "
                f"has {classes} elements"
            )
            model.add("labels", text, model.place, Severity.WARNING)


def _review_strategy(model: ModelReview, config: ModelConfig, folder: ModelFolder) -> None:
    """Checks that the code of a batch strategy exists and is Python."""
    file = model.attempt("strategy", lambda: strategy_file(config, folder))
    code = None if file is None else model.attempt("strategy", partial(read_whole, file))
    if file is None or code is None:
        return
    try:
        compile(code, str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        model.problems.append(Problem("strategy", str(error.msg), file, error.lineno or 0))
    except ValueError as error:
        model.problems.append(Problem("strategy", str(error), file))

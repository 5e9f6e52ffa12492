"""The `pytorch` backend: TorchScript, PT2 archives and Python modules, on the CPU or CUDA GPUs.

Models are opened on load threads. Knows nothing of scheduling.
"""

import logging
import warnings
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import torch

from halimede.backends.api import BackendContext, BaseBackend, Fault, ModelFolder, Severity, cpu_share
from halimede.backends.parameters import Settings
from halimede.backends.pytorch import TRAITS, module
from halimede.backends.pytorch.archive import RUNTIME, Kind, kind_of
from halimede.backends.pytorch.models import ScriptSource, Source, TorchModel, model_of
from halimede.backends.pytorch.module import ModuleSource
from halimede.backends.pytorch.package import PackageSource
from halimede.backends.pytorch.parameters import Options, options_of
from halimede.backends.pytorch.probe import probe_script
from halimede.backends.pytorch.program import Program, ProgramSource
from halimede.backends.pytorch.script import describe_script, find_file, refusal_of
from halimede.backends.pytorch.teams import and_end_team, stay_without_team
from halimede.config.model_config import DescribedTensor, Description, Incomplete, ModelConfig
from halimede.errors import Cause, Error, Internal, Invalid

log = logging.getLogger(__name__)

PT2 = "torch_aoti"
"""The platform of PT2 archives (BT1)."""
PT2_FILE = "model.pt2"


class PyTorchBackend(BaseBackend):
    """Opens models of torch. Its setting `allow-pickle` lets files run code while they are opened."""

    traits = TRAITS

    def __init__(self, context: BackendContext) -> None:
        super().__init__(context)
        settings = Settings("backend config of 'pytorch'", context.settings)
        self._pickles = settings.switch("allow-pickle", False)
        self._gpus = torch.cuda.device_count() if torch.cuda.is_available() else 0
        _take_read_only_arrays()
        context.loop.call_soon_threadsafe(stay_without_team)

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """Those that torch sees: none with a build for the CPU."""
        return [gpu for gpu in gpus if gpu < self._gpus]

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | None:
        """What an exported program declares, or a TorchScript whose schema says enough. Raises Error."""
        name = asked.name or folder.model.name
        if asked.value("runtime") != RUNTIME:
            if asked.value("platform") == PT2:
                program = self._program(folder, filename, name)
                return None if program is None else program.describe(filename or PT2_FILE)
            path = find_file(folder, filename, name)
            described = and_end_team(lambda: describe_script(path, name))
            if described is not None:
                return described
        log.info("skipping model configuration auto-complete for '%s': not supported for pytorch backend", name)
        for field in ("input", "output"):
            if not asked.value(field):
                raise _lacking(field)
        return None

    def probe(self, given: Sequence[DescribedTensor], folder: ModelFolder, filename: str) -> Description:
        """Runs a TorchScript model. Raises Error."""
        path = find_file(folder, filename, folder.model.name)
        if kind_of(path) is Kind.EXPORTED:
            raise Invalid("an exported program says what its inputs are: leave out --input")
        return probe_script(path, folder.model.name, given)

    def _program(self, folder: ModelFolder, filename: str, name: str) -> Program | None:
        """The exported program of a version; None if the file is a package. Raises Error."""
        path, kind = pt2_file(folder, filename)
        return Program(path, name, self._pickles) if kind is Kind.EXPORTED else None

    def runs_code(self, asked: Incomplete) -> bool:
        """A module in Python is not imported to describe it."""
        return False

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        """A file that is missing or of another kind, and parameters that mean nothing."""
        name = asked.name or folder.model.name
        try:
            options_of(name, asked.parameters)
            if asked.value("runtime") == RUNTIME:
                return _faults_of_module(config, folder)
            if asked.value("platform") == PT2:
                pt2_file(folder, filename)
                return []
            path = find_file(folder, filename, name)
        except Error as error:
            return [Fault(error.message, instead=error.advice, cause=error.cause)]
        refusal = refusal_of(path, kind_of(path), name)
        if refusal is None:
            return []
        return [Fault(refusal.message, path, instead=refusal.advice, cause=refusal.cause)]

    def open(self, config: ModelConfig, folder: ModelFolder) -> TorchModel:
        options = options_of(config.name, config.parameters)
        if config.runtime == RUNTIME:
            threads, between = module.threads_of(config)
            _set_threads(threads, between, config.name)
            return model_of(config, options, ModuleSource(config, folder, self._pickles), inline_safe=False)
        self._share_threads(config, options)
        source = self._pt2(config, folder) if config.platform == PT2 else ScriptSource(config, folder)
        quick = not isinstance(source, PackageSource)
        opened = and_end_team(lambda: model_of(config, options, source, inline_safe=quick))
        _log_options(config.name, options)
        return opened

    def _pt2(self, config: ModelConfig, folder: ModelFolder) -> Source:
        path, kind = pt2_file(folder, config.model_filename)
        instance = f"{config.instance_groups[0].name}_0"
        if kind is Kind.PACKAGE:
            return PackageSource(config, path, instance)
        return ProgramSource(config, Program(path, config.name, self._pickles), instance)

    def _share_threads(self, config: ModelConfig, options: Options) -> None:
        """The numbers of threads of the whole process (BT26). By default, instances that run at once have the cores
        together, and no more."""
        instances = sum(group.count for group in config.instance_groups if not group.passive)
        wanted = options.intra_threads or cpu_share(instances).threads
        threads, is_first = self.context.process_threads.fix(config.name, wanted, options.intra_threads is None)
        _set_threads(threads if is_first else None, options.inter_threads, config.name)


def pt2_file(folder: ModelFolder, filename: str) -> tuple[Path, Kind]:
    """The PT2 archive of a version. Raises Internal if there is none (BT29)."""
    path = folder.version / (filename or PT2_FILE)
    kind = kind_of(path)
    if kind in (Kind.EXPORTED, Kind.PACKAGE):
        return path, kind
    what = "is unreachable or inaccessible" if kind is Kind.MISSING else f"is {kind.value}"
    raise Internal(f'PyTorch inductor model file "{path}" {what}.').blaming(Cause.FILE)


def _lacking(field: str) -> Error:
    """The error for a configuration that the file cannot complete (BT7)."""
    error = Internal(f"model configuration must contain at least one {field}, none were specified.")
    error.advice = (
        "a TorchScript file does not say what its tensors are: 'halimede init FILE --input NAME:FP32[-1,3]' runs it "
        "once and writes the configuration; or export the model by torch.export, which does"
    )
    return error.blaming(Cause.CONFIGURATION)


def _faults_of_module(config: ModelConfig | None, folder: ModelFolder) -> list[Fault]:
    if config is not None:
        module.find_file(config, folder)
        module.compile_options(config)
    return [Fault("its code in Python was not run", severity=Severity.NOTE)]


def _set_threads(intra: int | None, inter: int | None, model: str) -> None:
    """Sets what is not None, and logs, in Triton's words, what is in force."""
    if intra is not None and intra != torch.get_num_threads():
        torch.set_num_threads(intra)
    if inter is not None and inter != torch.get_num_interop_threads():
        try:
            torch.set_num_interop_threads(inter)
        except RuntimeError:  # torch takes it once, before these threads have work
            there = torch.get_num_interop_threads()
            log.warning("model '%s' wants %d inter-op threads; torch has %d for the whole process", model, inter, there)
    for word, number in (("Intra", torch.get_num_threads()), ("Inter", torch.get_num_interop_threads())):
        log.info("%s op thread count is set to %d for model instance '%s'", word, number, model)


def _log_options(model: str, options: Options) -> None:
    """In Triton's words (BT22, BT24)."""
    for what, is_on in (
        ("Optimized execution", options.optimized),
        ("cuDNN", options.cudnn),
        ("Cache Cleaning", options.cleans_cache),
        ("Inference Mode", options.inference_mode),
    ):
        log.info("%s is %s for model instance '%s'", what, "enabled" if is_on else "disabled", model)


def _take_read_only_arrays() -> None:
    """Lets torch warn, unheard, that the memory of a tensor is read-only: it does so once in a process. Models that
    write into their inputs get copies (`effects`)."""
    array = np.zeros(1, np.float32)
    array.flags.writeable = False
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.from_numpy(array)

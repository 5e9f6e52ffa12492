"""AOTInductor packages: machine code for one device, in a PT2 archive. Runs in a child process, because the code holds
the interpreter lock while it computes. Load threads.
"""

import json
import platform
import sys
import zipfile
from collections.abc import Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch.utils import _pytree as pytree

from halimede.backends.pytorch.binding import Binding
from halimede.backends.pytorch.call_spec import bind_program, input_names, keys_of, output_names
from halimede.backends.pytorch.effects import UNKNOWN
from halimede.backends.pytorch.running import Loaded
from halimede.backends.pytorch.texts import ProgramTexts, Texts, short
from halimede.config.model_config import ModelConfig
from halimede.errors import Cause, Internal, Unsupported

_METADATA = "_metadata.json"
_FLAGS: Mapping[str, str] = {"AVX2": "avx2", "AVX512": "avx512f", "AMX": "amx_tile", "VNNI": "avx512_vnni"}
"""By a word in the metadata of a package, the flag of a processor that has it."""
_NOT_ONE = "dim value is too small at 0, expected it to be >= 2, but got: 1"
"""A dimension that varies is compiled for sizes of 2 and more, even if the program was exported for 1 as well."""


def metadata_of(path: Path) -> dict[str, str]:
    """What a package says of the machine that it is for; empty if it says nothing."""
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            if name.endswith(_METADATA) and "/aotinductor/" in name:
                read = json.loads(archive.read(name))
                return {str(key): str(value) for key, value in read.items()}
    return {}


def processor_flags() -> frozenset[str]:
    """What the processor can do, by Linux's words."""
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
    except OSError:
        return frozenset()
    return frozenset(next((line.partition(":")[2].split() for line in lines if line.startswith("flags")), []))


def unfit_reason(metadata: Mapping[str, str], flags: Collection[str]) -> str:
    """Why this machine cannot run a package; empty if nothing speaks against it. Running it anyway would end the
    process."""
    for key, here in (("AOTI_PLATFORM", sys.platform), ("AOTI_MACHINE", platform.machine())):
        if metadata.get(key, here) != here:
            return f"it was compiled for {metadata[key]}, and this machine is {here}"
    instructions = metadata.get("AOTI_CPU_ISA", "").upper()
    missing = [word for word, flag in _FLAGS.items() if flags and word in instructions and flag not in flags]
    if missing:
        return f"it was compiled for a processor with {', '.join(missing)}, which this one lacks"
    return ""


class PackageSource:
    """An AOTInductor package that is served."""

    def __init__(self, config: ModelConfig, path: Path, instance: str) -> None:
        self._config = config
        self._path = path
        self._instance = instance
        self._spec: Sequence[str] = ()
        self._refuses_one_row = False

    def load(self, device: Any) -> Loaded:
        """Raises Internal with torch's words, Unsupported if the package is for another machine or device."""
        self._check(device)
        try:
            number = -1 if device is None or device.type == "cpu" else device.index
            model = torch._inductor.aoti_load_package(str(self._path), device_index=number)
            self._spec = model.loader.get_call_spec()
        except Exception as error:
            raise Internal(f"failed to load model '{self._config.name}': {short(error)}").blaming(Cause.FILE) from error
        run = model.loader.boxed_run

        def call(*tensors: Any) -> Sequence[Any]:
            # Compiled code reads memory as it was compiled for.
            given = [tensor.contiguous() for tensor in tensors]
            if not self._is_one_row(given):
                return tuple(run(given))
            if not self._refuses_one_row:
                try:
                    return tuple(run(list(given)))
                except RuntimeError as error:
                    if _NOT_ONE not in str(error):
                        raise
                    self._refuses_one_row = True
            return tuple(result[:1] for result in run([torch.cat((tensor, tensor)) for tensor in given]))

        return Loaded(call, UNKNOWN, batches=False)

    def _is_one_row(self, tensors: Sequence[Any]) -> bool:
        """Whether this is a batch of one, so that the row may be given twice."""
        return self._config.max_batch_size > 0 and all(tensor.dim() and len(tensor) == 1 for tensor in tensors)

    def _check(self, device: Any) -> None:
        try:
            metadata = metadata_of(self._path)
        except (OSError, ValueError, zipfile.BadZipFile) as error:
            raise Internal(f"failed to load model '{self._config.name}': {error}").blaming(Cause.FILE) from error
        kind = metadata.get("AOTI_DEVICE_KEY", "")
        reason = unfit_reason(metadata, processor_flags())
        if not reason and device is not None and kind and kind != device.type:
            reason = f"it was compiled for '{kind}', and the instance_group is for '{device.type}'"
        if reason:
            raise Unsupported(f"failed to load model '{self._config.name}': {reason}").blaming(Cause.MACHINE)

    def binding(self) -> Binding:
        arguments = self._structure(0)
        result = self._structure(1)
        inputs = input_names(arguments)
        return bind_program(self._config, self._instance, inputs, output_names(result, keys_of(result)))

    def _structure(self, which: int) -> Any:
        try:
            spec = pytree.treespec_loads(self._spec[which])
            return pytree.tree_unflatten(list(range(spec.num_leaves)), spec)
        except Exception as error:
            word = "output" if which else "input"
            text = f'Failed to parse {word} call specification for model "{self._config.name}".'
            raise Internal(text).blaming(Cause.FILE) from error

    def texts(self, instance: str) -> Texts:
        return ProgramTexts(instance)

"""The parameters of a model of torch (BT22 to BT26, BT36). Needs no torch; load threads."""

from collections.abc import Mapping
from dataclasses import dataclass

from halimede.backends.parameters import Settings


@dataclass(frozen=True, slots=True)
class Options:
    """How a model runs. None leaves a process-wide setting of torch as it is.

    share -- whether the instances on a device share one module; None if that depends on the module
    intra_threads, inter_threads -- of the whole process; None if the model names none
    """

    inference_mode: bool = True
    optimized: bool = True
    share: bool | None = None
    cleans_cache: bool = False
    cudnn: bool = True
    jit_profiling: bool | None = None
    jit_executor: bool | None = None
    tensor_fuser: bool | None = None
    intra_threads: int | None = None
    inter_threads: int | None = None

    @property
    def sets_jit(self) -> bool:
        """Whether it changes a setting of the compiler before each run (BT25)."""
        return (self.jit_profiling, self.jit_executor, self.tensor_fuser) != (None, None, None)


def options_of(model: str, parameters: Mapping[str, str]) -> Options:
    """Raises Invalid for a value that means nothing (BC8)."""
    given = Settings(f"unable to load model '{model}'", parameters)

    def switch(key: str) -> bool | None:
        return given.switch(key, False) if key in parameters else None

    return Options(
        inference_mode=given.switch("INFERENCE_MODE", True),
        optimized=not given.switch("DISABLE_OPTIMIZED_EXECUTION", False),
        share=switch("ENABLE_WEIGHT_SHARING"),
        # The second name is that of PT2 models (BT32).
        cleans_cache=given.switch("ENABLE_CACHE_CLEANING", False) or given.switch("CACHE_CLEANING_ENABLED", False),
        cudnn=not given.switch("DISABLE_CUDNN", False),
        jit_profiling=switch("ENABLE_JIT_PROFILING"),
        jit_executor=switch("ENABLE_JIT_EXECUTOR"),
        tensor_fuser=switch("ENABLE_TENSOR_FUSER"),
        intra_threads=given.count("INTRA_OP_THREAD_COUNT"),
        inter_threads=given.count("INTER_OP_THREAD_COUNT"),
    )

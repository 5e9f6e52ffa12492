"""Model configuration: text and JSON in and out, defaults, completion, checks, and the frozen values compiled from it.

Only `checking` sees the protobuf message outside this room. Nothing here knows of engines, backends or protocols; files
are read, never written. Synchronous, any thread.

`draft` is the entry: it reads a configuration and leads it through the other modules.

| step | module |
|---|---|
| read the text or JSON | `message`, `files` |
| find the backend | `identify` |
| fill in defaults, complete from the model file | `completion` |
| check | `checks`, and the topics |
| compile to frozen values | `compiling`, `model_config`, and the topics |
| print as JSON | `rendering` |

The topics have the values, checks and compilation of one part each: `batching`, `sequencing`, `states`, `ensembles`,
`versions`.
"""

from halimede.config.batching import LATENCY_TARGET_PARAMETER, DynamicBatching, QueuePolicy
from halimede.config.compiling import with_decoupling
from halimede.config.draft import AgentSpec, ConfiguredAgents, Draft, agents_of, read, read_override
from halimede.config.labels import LabelFiles
from halimede.config.model_config import (
    BatchDimension,
    CompletionRules,
    DescribedTensor,
    Description,
    Incomplete,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    Profile,
    TensorSpec,
    WarmupData,
    WarmupInput,
    WarmupSample,
)
from halimede.config.versions import VersionChoice, VersionPolicy, meant_version, version_renames, versions_to_load

__all__ = [
    "LATENCY_TARGET_PARAMETER",
    "AgentSpec",
    "BatchDimension",
    "CompletionRules",
    "ConfiguredAgents",
    "DescribedTensor",
    "Description",
    "Draft",
    "DynamicBatching",
    "Incomplete",
    "InstanceGroup",
    "InstanceKind",
    "LabelFiles",
    "ModelConfig",
    "Profile",
    "QueuePolicy",
    "TensorSpec",
    "VersionChoice",
    "VersionPolicy",
    "WarmupData",
    "WarmupInput",
    "WarmupSample",
    "agents_of",
    "meant_version",
    "read",
    "read_override",
    "version_renames",
    "versions_to_load",
    "with_decoupling",
]

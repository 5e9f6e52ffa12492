"""Model configuration: text and JSON in and out, defaults, completion, checks, and the frozen values compiled from it.

Only `checking` sees the protobuf message outside this room. Nothing here knows of engines, backends or protocols; files
are read, never written. Synchronous, any thread.
"""

from halimede.config.agents import AgentSpec, AskedAgents, agents_of
from halimede.config.compiling import with_decoupling
from halimede.config.draft import Draft, read, read_override
from halimede.config.labels import read_labels
from halimede.config.model_config import (
    BatchDimension,
    CompletionRules,
    DescribedTensor,
    Description,
    DynamicBatching,
    Incomplete,
    InstanceGroup,
    InstanceKind,
    ModelConfig,
    Profile,
    QueuePolicy,
    TensorSpec,
    VersionChoice,
    VersionPolicy,
    WarmupData,
    WarmupInput,
    WarmupSample,
)
from halimede.config.pacing import PARAMETER as LATENCY_TARGET
from halimede.config.versions import versions_to_load

__all__ = [
    "LATENCY_TARGET",
    "AgentSpec",
    "AskedAgents",
    "BatchDimension",
    "CompletionRules",
    "DescribedTensor",
    "Description",
    "Draft",
    "DynamicBatching",
    "Incomplete",
    "InstanceGroup",
    "InstanceKind",
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
    "read",
    "read_labels",
    "read_override",
    "versions_to_load",
    "with_decoupling",
]

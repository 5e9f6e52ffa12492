"""JSON schemas of the HTTP API's bodies, by name (draft 2020-12, which OpenAPI 3.1 uses). Data only.

A test compares them with what the codecs write.
"""

from typing import Any, Final

Schema = dict[str, Any]


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(required: str = "", **properties: Schema) -> Schema:
    """Returns the schema of an object. `required` has the names of the members that are always there."""
    return {"type": "object", **({"required": required.split()} if required else {}), "properties": properties}


def _list(items: Schema) -> Schema:
    return {"type": "array", "items": items}


def _enum(*values: str) -> Schema:
    return {"type": "string", "enum": list(values)}


def _map(values: Schema) -> Schema:
    return {"type": "object", "additionalProperties": values}


def _shown(schema: Schema, example: Any) -> Schema:
    """Returns the schema with an example, which `/docs` shows. Names in capital letters stand for the reader's own."""
    return {**schema, "examples": [example]}


def _durations(*names: str) -> Schema:
    return _object(" ".join(names), **{name: ref("Duration") for name in names})


_TEXT: Final[Schema] = {"type": "string"}
_WHOLE: Final[Schema] = {"type": "integer", "minimum": 0}
_NUMBER: Final[Schema] = {"type": "integer"}
_FLAG: Final[Schema] = {"type": "boolean"}
_ANY_ORDER: Final[Schema] = {"description": "The elements in row-major order, nested or flat."}
_DATATYPE: Final = _enum(
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "BF16", "FP32", "FP64", "BYTES"),
)
_SCALARS: Final = ["string", "integer", "boolean", "number"]
_PARAMETERS: Final = _map({"type": _SCALARS})
_VALUES: Final[Schema] = {"type": [*_SCALARS, "array"], "items": {"type": _SCALARS}}
_DURATIONS: Final = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output")
_SETTING: Final[Schema] = {"type": ["string", "null"]}

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": _object("error", error=_TEXT),
    "InferenceRequest": _shown(
        _object(
            "inputs",
            id=_TEXT,
            parameters=_PARAMETERS,
            inputs=_list(ref("InputTensor")),
            outputs=_list(_object("name", name=_TEXT, parameters=_PARAMETERS)),
        ),
        {"inputs": [{"name": "INPUT0", "shape": [1], "datatype": "FP32", "data": [1.5]}]},
    ),
    "InputTensor": _object(
        "name shape datatype",
        name=_TEXT,
        shape=_list(_WHOLE),
        datatype=_DATATYPE,
        parameters=_PARAMETERS,
        data=_ANY_ORDER,
    ),
    "InferenceResponse": _object(
        "model_name model_version outputs",
        id=_TEXT,
        model_name=_TEXT,
        model_version=_TEXT,
        parameters=_PARAMETERS,
        outputs=_list(ref("OutputTensor")),
    ),
    "OutputTensor": _object(
        "name datatype shape",
        name=_TEXT,
        datatype=_DATATYPE,
        shape=_list(_WHOLE),
        parameters=_PARAMETERS,
        data=_ANY_ORDER,
    ),
    "GenerateRequest": {
        "type": "object",
        "description": "Keys that name an input of the model are tensors of one dimension or single values, all others "
        "parameters. What stands in `parameters` counts as standing beside it.",
        "properties": {"id": _TEXT, "parameters": _map(_VALUES)},
        "additionalProperties": _VALUES,
        "examples": [{"INPUT0": 1.5}],
    },
    "GenerateResponse": {
        "type": "object",
        "description": "The outputs and parameters of the response by name, flat.",
        "required": ["model_name", "model_version"],
        "properties": {"id": _TEXT, "model_name": _TEXT, "model_version": _TEXT},
        "additionalProperties": _VALUES,
    },
    "ServerMetadata": _object("name version extensions", name=_TEXT, version=_TEXT, extensions=_list(_TEXT)),
    "ModelMetadata": _object(
        "name versions platform inputs outputs",
        name=_TEXT,
        versions=_list(_TEXT),
        platform=_TEXT,
        inputs=_list(ref("TensorMetadata")),
        outputs=_list(ref("TensorMetadata")),
    ),
    "TensorMetadata": _object("name datatype shape", name=_TEXT, datatype=_DATATYPE, shape=_list(_NUMBER)),
    "ModelConfiguration": {
        "type": "object",
        "description": "The model configuration with the names of its protobuf fields.",
        "required": ["name", "backend", "max_batch_size", "input", "output"],
    },
    "Duration": _object("count ns", count=_WHOLE, ns=_WHOLE),
    "Statistics": _object("model_stats", model_stats=_list(ref("ModelStatistics"))),
    "ModelStatistics": _object(
        "name version last_inference inference_count execution_count inference_stats response_stats batch_stats "
        "memory_usage",
        name=_TEXT,
        version=_TEXT,
        last_inference=_WHOLE,
        inference_count=_WHOLE,
        execution_count=_WHOLE,
        inference_stats=_durations(*_DURATIONS, "cache_hit", "cache_miss"),
        response_stats=_map(
            _durations("compute_infer", "compute_output", "success", "fail", "empty_response", "cancel")
        ),
        batch_stats=_list(
            _object(
                "batch_size compute_input compute_infer compute_output",
                batch_size=_WHOLE,
                compute_input=ref("Duration"),
                compute_infer=ref("Duration"),
                compute_output=ref("Duration"),
            )
        ),
        memory_usage=_list(_object("type id byte_size", type=_TEXT, id=_WHOLE, byte_size=_WHOLE)),
    ),
    "RepositoryIndexRequest": _shown(_object(ready=_FLAG), {"ready": True}),
    "RepositoryIndex": _list(
        _object(
            "name",
            name=_TEXT,
            version=_TEXT,
            state=_enum("UNKNOWN", "LOADING", "READY", "UNLOADING", "UNAVAILABLE"),
            reason=_TEXT,
        )
    ),
    "LoadRequest": _object(
        parameters={
            "type": "object",
            "description": "`config` is a model configuration as JSON; `file:<path>` is a file in base64.",
            "properties": {"config": _TEXT},
            "patternProperties": {"^file:": {"type": "string", "contentEncoding": "base64"}},
            "additionalProperties": False,
        }
    ),
    "UnloadRequest": _shown(
        _object(parameters=_object(unload_dependents=_FLAG)), {"parameters": {"unload_dependents": False}}
    ),
    "TraceSettings": _object(
        "trace_level trace_rate trace_count trace_mode",
        trace_level=_list(_enum("OFF", "TIMESTAMPS", "TENSORS")),
        trace_rate=_TEXT,
        trace_count=_TEXT,
        log_frequency=_TEXT,
        trace_file=_TEXT,
        trace_mode=_TEXT,
    ),
    "TraceSettingsChange": _shown(
        _object(
            trace_level={"type": ["array", "null"], "items": _TEXT},
            trace_rate=_SETTING,
            trace_count=_SETTING,
            log_frequency=_SETTING,
        ),
        {"trace_rate": "100"},
    ),
    "LogSettings": _object(
        "log_file log_info log_warning log_error log_verbose_level log_format",
        log_file=_TEXT,
        log_info=_FLAG,
        log_warning=_FLAG,
        log_error=_FLAG,
        log_verbose_level=_WHOLE,
        log_format=_enum("default", "ISO8601", "json"),
    ),
    "LogSettingsChange": _shown(
        _object(
            log_info=_FLAG,
            log_warning=_FLAG,
            log_error=_FLAG,
            log_verbose_level=_WHOLE,
            log_format=_enum("default", "ISO8601", "json"),
        ),
        {"log_verbose_level": 1},
    ),
    "SystemRegistration": _shown(
        _object("key byte_size", key=_TEXT, offset=_WHOLE, byte_size=_WHOLE), {"key": "/KEY", "byte_size": 64}
    ),
    "SystemRegions": _list(
        _object("name key offset byte_size", name=_TEXT, key=_TEXT, offset=_WHOLE, byte_size=_WHOLE)
    ),
    "CudaRegistration": _shown(
        _object(
            "raw_handle device_id byte_size",
            raw_handle=_object("b64", b64={"type": "string", "contentEncoding": "base64"}),
            device_id=_WHOLE,
            byte_size=_WHOLE,
        ),
        {"raw_handle": {"b64": "HANDLE"}, "device_id": 0, "byte_size": 64},
    ),
    "CudaRegions": _list(_object("name device_id byte_size", name=_TEXT, device_id=_NUMBER, byte_size=_WHOLE)),
}

"""Model directories for the comparison of configurations: their content, and what is compared."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

INPUT = 'input { name: "INPUT0" data_type: TYPE_FP32 dims: [4] }\n'
OUTPUT = 'output { name: "OUTPUT0" data_type: TYPE_FP32 dims: [4] }\n'
CPU = "instance_group { kind: KIND_CPU }\n"
TENSORS = INPUT + OUTPUT + CPU
IDENTITY = 'backend: "identity"\n'
VERSION: Mapping[str, str] = {"1/": ""}
MODEL = "class TritonPythonModel:\n    def execute(self, requests):\n        return []\n"


@dataclass(frozen=True, slots=True)
class Model:
    """A model directory. `text` is its config.pbtxt, or None for no file. `files` are given by path; a path that ends
    in a slash is a directory. `ours` is the reason in our index if it must differ from the real server's, and `because`
    says why."""

    name: str
    rows: tuple[str, ...]
    text: str | None
    files: Mapping[str, str] = field(default_factory=lambda: VERSION)
    ours: str = ""
    because: str = ""

    def write(self, repository: Path) -> None:
        folder = repository / self.name
        folder.mkdir(parents=True)
        if self.text is not None:
            (folder / "config.pbtxt").write_text(self.text)
        for path, content in self.files.items():
            place = folder / path
            if path.endswith("/"):
                place.mkdir(parents=True)
            else:
                place.parent.mkdir(parents=True, exist_ok=True)
                place.write_text(content)


def of(name: str, rows: str, text: str | None, files: Mapping[str, str] = VERSION, **more: str) -> Model:
    return Model(name, tuple(rows.split()), text, files, **more)


def identity(name: str, rows: str, more: str = "", files: Mapping[str, str] = VERSION, **others: str) -> Model:
    """A model of the identity backend with tensors and one instance, and further fields."""
    return of(name, rows, IDENTITY + TENSORS + more, files, **others)


def _tensor(name: str, text: str, rows: str = "R48", word: str = "input") -> Model:
    rest = OUTPUT if word == "input" else INPUT
    return of(f"{word}_{name}", rows, f"{IDENTITY}{word} {{ {text} }}\n{rest}{CPU}")


def _groups(name: str, text: str) -> Model:
    return of(f"group_{name}", "R53", f"{IDENTITY}{INPUT}{OUTPUT}instance_group {{ {text} }}\n")


_A = 'name: "A" data_type: TYPE_FP32'
_BATCH = "max_batch_size: 8\n"
_DATATYPES = (
    *("BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64"),
    *("FP16", "FP32", "FP64", "STRING", "BF16"),
)

TENSOR_MODELS = (
    _tensor("name", "data_type: TYPE_FP32 dims: [4]"),
    _tensor("type", 'name: "A" dims: [4]'),
    _tensor("dims", _A),
    _tensor("zero", f"{_A} dims: [0]"),
    _tensor("negative", f"{_A} dims: [2, -2]"),
    _tensor("scalar", f"{_A} dims: [1] reshape {{ }}"),
    _tensor("reshape", f"{_A} dims: [1] reshape {{ shape: [0] }}"),
    _tensor("size", f"{_A} dims: [4] reshape {{ shape: [5] }}"),
    _tensor("parts", f"{_A} dims: [4, -1, 2] reshape {{ shape: [2, -1, 4] }}"),
    _tensor("variable", f"{_A} dims: [4, -1] reshape {{ shape: [-1, -1] }}"),
    _tensor("variable_fits", f"{_A} dims: [2, 4, -1, 6] reshape {{ shape: [8, -1, 1, 6] }}"),
    _tensor("nhwc", f"{_A} dims: [4, -1] format: FORMAT_NHWC", "R46"),
    _tensor("nchw", f"{_A} dims: [4] format: FORMAT_NCHW", "R46"),
    _tensor("nchw_fits", f"{_A} dims: [3, 4, 4] format: FORMAT_NCHW", "R46"),
    _tensor("shape_tensor", f"{_A} dims: [4] is_shape_tensor: true", "R46"),
    _tensor("non_linear", f"{_A} dims: [4] is_non_linear_format_io: true", "R46"),
    _tensor("optional", f"{_A} dims: [4] optional: true", "R46"),
    _tensor("name", "data_type: TYPE_FP32 dims: [4]", "R48", "output"),
    _tensor("type", 'name: "A" dims: [4]', "R48", "output"),
    _tensor("dims", _A, "R48", "output"),
    _tensor("zero", f"{_A} dims: [0]", "R48", "output"),
    _tensor("scalar", f"{_A} dims: [1] reshape {{ }}", "R48", "output"),
    _tensor("size", f"{_A} dims: [4] reshape {{ shape: [5] }}", "R48", "output"),
    _tensor("shape_tensor", f"{_A} dims: [4] is_shape_tensor: true", "R47", "output"),
    _tensor("non_linear", f"{_A} dims: [4] is_non_linear_format_io: true", "R47", "output"),
    _tensor("labels", f'{_A} dims: [4] label_filename: "names.txt"', "R47", "output"),
    identity("scalar_batched", "R48", f"{_BATCH}input {{ {_A} dims: [1] reshape {{ }} }}"),
    identity("same_name_twice", "R46", INPUT),
    *(
        of(f"type_{word.lower()}", "R49", f"{IDENTITY}{INPUT.replace('FP32', word)}{OUTPUT.replace('FP32', word)}{CPU}")
        for word in _DATATYPES
    ),
    of("type_invalid", "R49", IDENTITY + INPUT.replace("FP32", "INVALID") + OUTPUT + CPU),
    of("type_number", "R49", IDENTITY + INPUT.replace("TYPE_FP32", "11") + OUTPUT + CPU),
)

VERSION_MODELS = (
    identity("no_version", "R3", files={}),
    *(
        identity(f"version_{name}", "R44", f"version_policy {{ {policy} }}\n", {"1/": "", "3/": "", "12/": "", **more})
        for name, policy, more in (
            ("default", "latest { }", {}),
            ("latest", "latest { num_versions: 2 }", {}),
            ("all", "all { }", {"02/": "", "foo/": "", "4abc/": "", "configs/": ""}),
            ("specific", "specific { versions: [3, 5] }", {}),
            ("specific_none", "specific { versions: [5] }", {}),
            ("empty", "", {}),
        )
    ),
    identity("version_unsaid", "R44 R71", files={"1/": "", "3/": "", "12/": ""}),
    identity("version_directories", "R2", "version_policy { all { } }", {"01/": "", "foo/": "", "7/": "", "1abc/": ""}),
)

OTHER_MODELS = (
    identity(
        "layout",
        "R1",
        'output { name: "B" data_type: TYPE_FP32 dims: [4] label_filename: "names.txt" }',
        {"1/": "", "configs/x.pbtxt": "?", "warmup/x": "", "initial_state/x": "", "names.txt": "a\nb", "notes.md": "?"},
    ),
    identity("named", "R40", 'name: "named"'),
    identity("other_name", "R40 R6", 'name: "another"'),
    of("unknown_platform", "R41", f'platform: "nope"\n{TENSORS}'),
    of("pair", "R41", f'platform: "onnxruntime_onnx" backend: "tensorrt"\n{TENSORS}'),
    of("pair_without", "R41", f'platform: "tensorrt_plan" backend: "onnxruntime"\n{TENSORS}'),
    identity("platform_of_its_own", "R41", 'platform: "x"'),
    of("nothing_said", "R41 R70", TENSORS),
    of("ensemble_alone", "R41 R52", f'platform: "ensemble"\n{INPUT}{OUTPUT}'),
    of("ensemble_backend", "R41", f'platform: "ensemble" backend: "identity"\n{INPUT}{OUTPUT}'),
    identity("scheduled_as_ensemble", "R52", 'ensemble_scheduling { step { model_name: "x" model_version: -1 } }'),
    identity("negative_batch", "R45", "max_batch_size: -1"),
    identity("batch", "R45", _BATCH),
    identity("preferred_too_large", "R52", "max_batch_size: 2 dynamic_batching { preferred_batch_size: [3] }"),
    identity("preferred_zero", "R52", "max_batch_size: 2 dynamic_batching { preferred_batch_size: [0] }"),
    identity("preferred_unsaid", "R52 R71", f"{_BATCH} dynamic_batching {{ }}"),
    identity("unbatched_batcher", "R52 R71", "dynamic_batching { }"),
    identity("two_schedulers", "R52", _BATCH + "dynamic_batching { } dynamic_batching { preferred_batch_size: 2 }"),
    identity("labels_missing", "R47", 'output { name: "B" data_type: TYPE_FP32 dims: [4] label_filename: "l" }'),
    identity(
        "labels_outside",
        "R27",
        'output { name: "B" data_type: TYPE_FP32 dims: [4] label_filename: "../labels" }',
        ours="label file path 'REPOSITORY/labels_outside/../labels' for output 'B' in model 'labels_outside' is "
        "outside model directory",
        because="since 2.73",
    ),
    of("not_text", "R7", "not a proto {"),
    identity("unknown_field", "R7", "nofield: 1"),
    identity("unknown_value", "R7", "optimization { priority: PRIORITY_NOPE }"),
    of("custom", "R70", None),
    of("custom.identity", "R70", TENSORS, {"1/": ""}),
    identity("parameters", "R56", 'parameters { key: "a" value { string_value: "b" } } parameters { key: "c" }'),
    identity("metric_tags", "R62 R63", 'metric_tags { key: "a" value: "b" }'),
    identity("filename", "R54", 'default_model_filename: "other.file" cc_model_filenames { key: "7.5" value: "z" }'),
    identity(
        "filename_outside",
        "R54",
        'default_model_filename: "../../x"',
        ours="'default_model_filename' must stay within the version directory for filename_outside, got '../../x'",
        because="what is opened lies in the version's directory",
    ),
    identity("op_libraries", "R58", 'model_operations { op_library_filename: ["x.so", "y.so"] }'),
    identity("decoupled", "R59", "model_transaction_policy { decoupled: true }"),
    identity("cached", "R60", "response_cache { enable: true }"),
    identity(
        "cached_decoupled", "R60", "response_cache { enable: true } model_transaction_policy { decoupled: true }"
    ),
    identity("warmed", "R57 R62", f"""{_BATCH} model_warmup {{ name: "w" batch_size: 0 count: 2 inputs {{ key: "INPUT0"
        value {{ data_type: TYPE_FP32 dims: [4] zero_data: true }} }} }}"""),
    identity("optimization", "R51", """optimization {
        graph { level: -1 } priority: PRIORITY_MAX eager_batching: true gather_kernel_buffer_threshold: 5
        input_pinned_memory { enable: false } }"""),
    identity("cuda", "R51 R62", """optimization { cuda { graphs: true busy_wait_events: true
        output_copy_stream: true
        graph_spec { batch_size: 1 input { key: "A" value { dim: [1, 2] } }
        graph_lower_bound { batch_size: 2 } } } }"""),
    identity("accelerators", "R51", """optimization { execution_accelerators {
        gpu_execution_accelerator [ { name: "tensorrt" parameters { key: "precision_mode" value: "FP16" } } ]
        cpu_execution_accelerator [ { name: "openvino" } ] } }"""),
    identity("agent_missing", "R22", 'model_repository_agents { agents { name: "nope" } }'),
    _groups("gpu", "kind: KIND_GPU"),
    _groups("cpu_with_gpus", "kind: KIND_CPU gpus: [0]"),
    _groups("model_with_gpus", "kind: KIND_MODEL gpus: [0]"),
    _groups("auto", "count: 2"),
    _groups("auto_with_gpus", "gpus: [3]"),
    _groups("named", 'name: "mine" kind: KIND_CPU count: 3 host_policy: "h"'),
    _groups("model", "kind: KIND_MODEL"),
    _groups("profile", 'kind: KIND_CPU profile: "0"'),
    _groups("passive", "kind: KIND_CPU passive: true"),
    _groups("secondary", "kind: KIND_CPU secondary_devices { kind: KIND_NVDLA device_id: 1 }"),
    _groups("limited", 'kind: KIND_CPU rate_limiter { priority: 2 resources { name: "R" global: true count: 1 } }'),
    of("group_unsaid", "R53", IDENTITY + INPUT + OUTPUT),
)  # fmt: skip


def _completing(name: str, rows: str, text: str, *lines: str, **more: str) -> Model:
    """A Python model whose `auto_complete_config` runs this code with `c`."""
    body = "".join(f"        {line}\n" for line in (*lines, "return c"))
    code = f"{MODEL}\n    @staticmethod\n    def auto_complete_config(c):\n{body}"
    return of(name, rows, f'backend: "python"\n{text}', {"1/model.py": code}, **more)


_ADD = (
    'c.add_input({"name": "X", "data_type": "TYPE_FP32", "dims": [4]})',
    'c.add_output({"name": "Y", "data_type": "TYPE_INT64", "dims": [-1, 2]})',
)
_COMPLETE = f"{INPUT}{OUTPUT}"

PYTHON_MODELS = (
    _completing("completed", "R77", CPU, *_ADD, "c.set_max_batch_size(6)", "c.set_dynamic_batching()"),
    _completing("completed_flat", "R77", CPU, *_ADD, "c.set_max_batch_size(0)"),
    _completing("completed_decoupled", "R77", CPU, *_ADD, 'c.set_model_transaction_policy({"decoupled": True})'),
    _completing("completed_twice", "R77", CPU + _COMPLETE, *_ADD, "c.set_max_batch_size(3)"),
    _completing("completed_groups", "R82", _COMPLETE, 'c.as_dict()["instance_group"] = [{"count": 9}]'),
    _completing("completed_others", "R82", CPU + _COMPLETE, 'c.as_dict()["parameters"] = {"p": {}}'),
    _completing(
        "completed_scheduler",
        "R82",
        f"{CPU}{_COMPLETE}max_batch_size: 4 dynamic_batching {{ }}\n",
        'del c.as_dict()["dynamic_batching"]',
        'c.as_dict()["sequence_batching"] = {}',
        ours="Cannot update scheduling choice from 11 to 11 when auto-completing.",
        because="since 2.73; before, the other scheduler was ignored",
    ),
    _completing("completed_wrongly", "R77", CPU, *_ADD, 'raise ValueError("no")'),
    of("uncompleted", "R77", f'backend: "python"\n{CPU}', {"1/model.py": MODEL}),
    of("by_file_name", "R70 R43", f"{_COMPLETE}{CPU}", {"1/model.py": MODEL}),
    of("by_nothing_but_files", "R70", None, {"1/model.py": MODEL}),
)

_NO_TENSORRT = (
    "backend 'tensorrt' cannot be used (No module named 'tensorrt'); it is installed by: pip install "
    "'halimede[tensorrt]'"
)
FILE_MODELS = (
    # The real server of the comparison has none of these backends, ours has them or names their extra.
    of("by_plan", "R4 R70", TENSORS, {"1/model.plan": ""}, ours=_NO_TENSORRT),
    of(
        "by_saved_model",
        "R4 R70",
        TENSORS,
        {"1/model.savedmodel/": ""},
        ours="unable to find 'REPOSITORY/by_saved_model/1/model.savedmodel/saved_model.pb' for model instance "
        "'by_saved_model'",
    ),
    of(
        "by_graph",
        "R4 R70",
        TENSORS,
        {"1/model.graphdef": ""},
        ours="unable to read 'REPOSITORY/by_graph/1/model.graphdef' of model 'by_graph' as a GraphDef: cannot mmap an "
        "empty file",
    ),
    of("by_first_of_two", "R70", TENSORS, {"1/model.py": MODEL, "1/model.plan": ""}, ours=_NO_TENSORRT),
    of("by_first_version", "R70", TENSORS, {"1/": "", "2/model.py": MODEL}),
    of("by_platform", "R71", f'platform: "tensorrt_plan"\n{TENSORS}', ours=_NO_TENSORRT),
    of(
        "by_file_of_the_configuration",
        "R71",
        f'default_model_filename: "model.plan"\n{TENSORS}',
        ours=_NO_TENSORRT,
    ),
    of("by_unknown_file", "R71", f'default_model_filename: "model.other"\n{TENSORS}'),
)

_CONTROL = """control_input { name: "START"
    control { kind: CONTROL_SEQUENCE_START int32_false_true: [0, 1] } }"""
_STATE = """state { input_name: "SI" output_name: "SO" data_type: TYPE_INT32 dims: [3, -1]
    initial_state { name: "i" data_type: TYPE_INT32 dims: [3, 1] zero_data: true } }"""

SCHEDULED_MODELS = (
    identity(
        "sequences_direct",
        "R52 R62 R63",
        f"""{_BATCH}sequence_batching {{ max_sequence_idle_microseconds: 7 {_CONTROL}
        direct {{ max_queue_delay_microseconds: 5 minimum_slot_utilization: 0.5 }} }}""",
    ),
    identity(
        "sequences_oldest",
        "R52 R62 R63",
        f"""{_BATCH}sequence_batching {{ {_CONTROL} oldest {{ max_candidate_sequences: 4 preferred_batch_size: [2]
        max_queue_delay_microseconds: 100 preserve_ordering: true }} }}""",
    ),
    identity("sequences_with_state", "R62 R63", f"{_BATCH}sequence_batching {{ {_CONTROL} {_STATE} }}"),
    identity("sequences_iterative", "R62 R71", f"{_BATCH}sequence_batching {{ iterative_sequence: true }}"),
    identity(
        "batches_by_level",
        "R52 R62 R63",
        _BATCH
        + """dynamic_batching { max_queue_delay_microseconds: 100 priority_levels: 2 default_priority_level: 1
        default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 5 max_queue_size: 3 }
        priority_queue_policy { key: 1 value { default_timeout_microseconds: 9 } } }""",
    ),
)

MODELS = (*TENSOR_MODELS, *VERSION_MODELS, *OTHER_MODELS, *PYTHON_MODELS, *FILE_MODELS, *SCHEDULED_MODELS)

STRICT_MODELS = (
    of("without_configuration", "R64", None, {"1/model.py": MODEL}),
    identity("whole", "R64"),
    of("group_defaulted", "R64 R53", IDENTITY + INPUT + OUTPUT),
    of("without_inputs", "R64", IDENTITY + OUTPUT + CPU),
    of("without_outputs", "R64", IDENTITY + INPUT + CPU),
    of("without_backend", "R64", TENSORS, {"1/model.py": MODEL}),
    of("without_dims", "R64 R48", f"{IDENTITY}input {{ {_A} }}\n{OUTPUT}{CPU}"),
    _completing("never_asked", "R64 R77", f"{_COMPLETE}{CPU}", "c.set_max_batch_size(6)"),
)

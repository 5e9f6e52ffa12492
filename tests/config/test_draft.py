"""Reading a configuration, and the frozen value that is compiled from it."""

import json
from pathlib import Path

import pytest
from hypothesis import HealthCheck, example, given, settings
from hypothesis import strategies as st
from tritonclient.grpc import model_config_pb2

from halimede import config
from halimede.config import InstanceGroup, InstanceKind, TensorSpec, VersionChoice, VersionPolicy
from halimede.config.model_config import ResourceNeed
from halimede.errors import Error, Internal, Invalid
from halimede.tensors import BF16, BYTES, FP32, INT64
from tests.config.models import IDENTITY, TENSORS, folder_of


def finished(parent: Path, text: str) -> config.ModelConfig:
    return config.read(folder_of(parent, "m", text)).finish()


def test_name_defaults_to_the_folder(tmp_path: Path) -> None:
    assert finished(tmp_path, IDENTITY).name == "m"


def test_name_other_than_the_folder_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Invalid) as caught:
        config.read(folder_of(tmp_path, "m", f'name: "n" {IDENTITY}'))
    assert str(caught.value) == ("unexpected directory name 'm' for model 'n', directory name must equal model name")


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("foo: 1", 'Message type "inference.ModelConfig" has no field named "foo".'),
        ("max_batch_size: 1 max_batch_size: 2", 'should not have multiple "max_batch_size" fields.'),
        ("version_policy { latest { } all { } }", 'Field "all" is specified along with field "latest"'),
        ("max_batch_size: 3000000000", "Value out of range: 3000000000"),
        ("input { data_type: TYPE_FLOAT }", 'Enum type "inference.DataType" has no value named TYPE_FLOAT.'),
        ("input [ { name: 'x' }, ]", "Expected"),
        ("input {", "Expected"),
        ("backend: 'identity", "String missing ending quote"),
    ],
)
def test_unreadable_text_names_file_model_and_problem(tmp_path: Path, text: str, problem: str) -> None:
    folder = folder_of(tmp_path, "m", text)
    with pytest.raises(Invalid) as caught:
        config.read(folder)
    message = str(caught.value)
    assert message.startswith(f"failed to read text proto from {folder}/config.pbtxt: model 'm': 1:")
    assert problem in message


def test_text_that_is_not_utf8_is_refused(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "m")
    (folder / "config.pbtxt").write_bytes(b'backend: "identity\xff"')
    with pytest.raises(Invalid, match=r"failed to read text proto from .*: model 'm': 'utf-8' codec"):
        config.read(folder)


def test_missing_file_is_an_empty_configuration(tmp_path: Path) -> None:
    draft = config.read(folder_of(tmp_path, "m", None, ("1/model.py",)))
    assert (draft.name, draft.backend, draft.max_batch_size, draft.needs_description) == ("m", "python", 0, True)
    assert draft.file == tmp_path / "m" / "config.pbtxt"


def test_missing_file_is_an_error_when_strict(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "m", None, ("1/model.py",))
    with pytest.raises(Internal) as caught:
        config.read(folder, strict=True)
    assert str(caught.value) == (f"failed to open text file for read {folder}/config.pbtxt: No such file or directory")


def test_directory_in_place_of_the_file_is_an_error(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "m", None, ("1/", "config.pbtxt/"))
    with pytest.raises(Internal, match=r"failed to open text file for read .*: Is a directory"):
        config.read(folder)


def test_tensors_are_checked_at_once_when_strict(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "m", 'backend: "identity" input { name: "I" dims: 4 }')
    assert config.read(folder).name == "m"
    with pytest.raises(Invalid, match="model input 'I' must specify 'data_type' for m"):
        config.read(folder, strict=True)


@pytest.mark.parametrize(
    ("name", "batch"), [("", 1), ("alt", 9), ("other", 1)], ids=["no name", "file exists", "file does not exist"]
)
def test_named_configuration(tmp_path: Path, name: str, batch: int) -> None:
    folder = folder_of(tmp_path, "m", f"max_batch_size: 1 {IDENTITY}", ("1/", "configs/"))
    (folder / "configs" / "alt.pbtxt").write_text(f"max_batch_size: 9 {IDENTITY}")
    assert config.read(folder, config_name=name).max_batch_size == batch


def test_text_styles_are_all_read(tmp_path: Path) -> None:
    text = """# a comment
        backend: 'identity';  # another
        max_batch_size: 2,
        input [ { name: "IN" "PUT0" data_type: TYPE_STRING dims: [ -1, 3 ] optional: true } ]
        input: { name: "INPUT1", data_type: 14, dims: 1; dims: 0x10 dims: 010; reshape { shape: [ 128 ] } }
        output < name: "OUTPUT0" data_type: TYPE_INT64 dims: [] dims: [ 2 ] label_filename: "labels.txt" >
        parameters: { key: "k" value: { string_value: "v" } }
        parameters { key: "j", value { string_value: "" } }
    """
    value = finished(tmp_path, text)
    assert value.inputs == (
        TensorSpec("INPUT0", BYTES, (-1, 3), optional=True),
        TensorSpec("INPUT1", BF16, (1, 16, 8), reshape=(128,)),
    )
    assert value.outputs == (TensorSpec("OUTPUT0", INT64, (2,), label_filename="labels.txt"),)
    assert value.inputs[1].model_dims == (128,)
    assert dict(value.parameters) == {"k": "v", "j": ""}


def test_value_of_a_minimal_configuration(tmp_path: Path) -> None:
    value = finished(tmp_path, IDENTITY)
    assert (value.backend, value.platform, value.model_filename, value.max_batch_size) == ("identity", "", "", 0)
    assert value.inputs == (TensorSpec("INPUT0", FP32, (4,)),)
    assert value.instance_groups == (InstanceGroup("m", InstanceKind.CPU, 1),)
    assert value.version_policy == VersionPolicy(VersionChoice.LATEST, 1)
    assert value.dynamic_batching is None
    assert value.value("optimization.graph") is None
    assert not value.decoupled


def test_message_has_the_whole_configuration(tmp_path: Path) -> None:
    value = finished(tmp_path, f"max_batch_size: 4 dynamic_batching {{ }} {IDENTITY}")
    message = model_config_pb2.ModelConfig.FromString(value.message)
    assert message.name == "m"
    assert list(message.dynamic_batching.preferred_batch_size) == [4]
    assert message.instance_group[0].kind == model_config_pb2.ModelInstanceGroup.KIND_CPU


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("", VersionPolicy(VersionChoice.LATEST, 1)),
        ("version_policy { latest { num_versions: 3 } }", VersionPolicy(VersionChoice.LATEST, 3)),
        ("version_policy { latest { } }", VersionPolicy(VersionChoice.LATEST, 0)),
        ("version_policy: { all: { } }", VersionPolicy(VersionChoice.ALL)),
        ("version_policy { }", VersionPolicy(VersionChoice.ALL)),
        ("version_policy { specific { versions: [ 3, 1 ] } }", VersionPolicy(VersionChoice.SPECIFIC, specific=(3, 1))),
    ],
)
def test_version_policy(tmp_path: Path, text: str, expected: VersionPolicy) -> None:
    draft = config.read(folder_of(tmp_path, "m", f"{text} {IDENTITY}"))
    assert draft.version_policy == expected
    assert draft.finish().version_policy == expected


@pytest.mark.parametrize(
    ("text", "sizes", "delay"),
    [
        ("max_batch_size: 8 dynamic_batching { }", (8,), 0),
        ("max_batch_size: 1 dynamic_batching { }", (1,), 0),
        ("dynamic_batching { }", (), 0),
        (
            "max_batch_size: 8 dynamic_batching { preferred_batch_size: [ 8, 4, 4 ] max_queue_delay_microseconds: 5 }",
            (4, 8),
            5,
        ),
    ],
)
def test_dynamic_batching(tmp_path: Path, text: str, sizes: tuple[int, ...], delay: int) -> None:
    value = finished(tmp_path, f"{text} {IDENTITY}")
    assert value.dynamic_batching == config.DynamicBatching(sizes, delay)


@pytest.mark.parametrize("level", [-1, 0, 1, 2])
def test_graph_optimization_level(tmp_path: Path, level: int) -> None:
    value = finished(tmp_path, f"optimization {{ graph {{ level: {level} }} }} {IDENTITY}")
    assert value.value("optimization.graph.level") == level


CPU, GPU, MODEL = InstanceKind.CPU, InstanceKind.GPU, InstanceKind.MODEL


@pytest.mark.parametrize(
    ("groups", "gpus", "expected"),
    [
        ("", (), [InstanceGroup("m", CPU, 2)]),
        ("", (0, 1), [InstanceGroup("m", GPU, 1, (0, 1))]),
        ("instance_group { }", (), [InstanceGroup("m_0", CPU, 2)]),
        ("instance_group { count: 5 }", (), [InstanceGroup("m_0", CPU, 5)]),
        ("instance_group { count: -5 }", (), [InstanceGroup("m_0", CPU, 2)]),
        ("instance_group { kind: KIND_CPU }", (0,), [InstanceGroup("m_0", CPU, 2)]),
        ("instance_group { kind: KIND_MODEL }", (0,), [InstanceGroup("m_0", MODEL, 1)]),
        ("instance_group { kind: KIND_GPU }", (0, 1), [InstanceGroup("m_0", GPU, 1, (0, 1))]),
        ("instance_group { gpus: 1 }", (0, 1), [InstanceGroup("m_0", GPU, 1, (1,))]),
        (
            'instance_group [ { name: "x" count: 1 }, { kind: KIND_MODEL count: 3 } ]',
            (),
            [InstanceGroup("x", CPU, 1), InstanceGroup("m_1", MODEL, 3)],
        ),
        (
            'instance_group [ { passive: true host_policy: "h" }, { kind: KIND_CPU rate_limiter { priority: 3 '
            'resources [ { name: "R" count: 2 }, { name: "G" global: true count: 1 }, { name: "R" count: 5 } ] } } ]',
            (),
            [
                InstanceGroup("m_0", CPU, 2, passive=True, host_policy="h"),
                InstanceGroup("m_1", CPU, 2, resources=(ResourceNeed("R", 5), ResourceNeed("G", 1, True)), priority=3),
            ],
        ),
    ],
)
def test_instance_groups(tmp_path: Path, groups: str, gpus: tuple[int, ...], expected: list[InstanceGroup]) -> None:
    draft = config.read(folder_of(tmp_path, "m", f"{groups} {IDENTITY}"))
    assert list(draft.finish(gpus=gpus, default_instance_count=2).instance_groups) == expected


@pytest.mark.parametrize(
    ("groups", "gpus", "expected", "changes"),
    [
        (
            "{ kind: KIND_GPU }",
            (),
            [InstanceGroup("m_0", CPU, 1)],
            ["instance group 'm_0' asks for a GPU and runs on the CPU, with 1 instance"],
        ),
        (
            '{ name: "g" count: 2 kind: KIND_GPU gpus: [ 0, 1, 2 ] host_policy: "h" passive: true }',
            (),
            [InstanceGroup("g", CPU, 2, host_policy="h", passive=True)],
            ["instance group 'g' asks for GPUs 0, 1, 2 and runs on the CPU, with 2 instances"],
        ),
        (
            "{ count: 2 kind: KIND_GPU gpus: [ 0, 1, 2 ] }",
            (1, 2),
            [InstanceGroup("m_0", GPU, 2, (1, 2))],
            ["instance group 'm_0' asks for GPUs 0, 1, 2 and runs on GPUs 1, 2 only"],
        ),
        (
            "{ gpus: [ 0 ] }",
            (),
            [InstanceGroup("m_0", CPU, 1)],
            ["instance group 'm_0' asks for GPU 0 and runs on the CPU, with 1 instance"],
        ),
        (
            "{ gpus: [ 0, 7 ] }",
            (0,),
            [InstanceGroup("m_0", GPU, 1, (0,))],
            ["instance group 'm_0' asks for GPUs 0, 7 and runs on GPU 0 only"],
        ),
        (
            "{ kind: KIND_CPU count: 3 }, { kind: KIND_GPU secondary_devices { } }",
            (),
            [InstanceGroup("m_0", CPU, 3), InstanceGroup("m_1", CPU, 1)],
            ["instance group 'm_1' asks for a GPU and runs on the CPU, with 1 instance"],
        ),
        ("{ kind: KIND_GPU }", (0, 1), [InstanceGroup("m_0", GPU, 1, (0, 1))], []),
        ("{ }, { kind: KIND_MODEL }", (), [InstanceGroup("m_0", CPU, 2), InstanceGroup("m_1", MODEL, 1)], []),
    ],
)
def test_groups_for_gpus_that_are_not_there_fall_back_to_the_cpu(
    tmp_path: Path, groups: str, gpus: tuple[int, ...], expected: list[InstanceGroup], changes: list[str]
) -> None:
    draft = config.read(folder_of(tmp_path, "m", f"instance_group [ {groups} ] {IDENTITY}"))
    assert draft.fall_back_to_cpu(gpus) == changes
    value = draft.finish(gpus=gpus, default_instance_count=2)
    assert list(value.instance_groups) == expected
    assert [group.get("secondary_devices", []) for group in json.loads(value.json)["instance_group"]] == [[]] * len(
        expected
    )
    assert draft.fall_back_to_cpu(gpus) == []


def test_fallback_leaves_a_cpu_group_with_gpus_wrong(tmp_path: Path) -> None:
    draft = config.read(folder_of(tmp_path, "m", f"instance_group {{ kind: KIND_CPU gpus: 0 }} {IDENTITY}"))
    assert draft.fall_back_to_cpu(()) == []
    with pytest.raises(Invalid, match="has kind KIND_CPU but specifies one or more GPUs") as refused:
        draft.finish()
    assert refused.value.advice == ""


@pytest.mark.parametrize("group", ["{ gpus: [ 0 ] }", "{ kind: KIND_AUTO gpus: [ 0 ] }", "{ kind: KIND_GPU }"])
def test_group_without_its_gpu_is_advised_to_fall_back(tmp_path: Path, group: str) -> None:
    draft = config.read(folder_of(tmp_path, "m", f"instance_group [ {group} ] {IDENTITY}"))
    with pytest.raises(Invalid) as refused:
        draft.finish()
    assert refused.value.advice == "the flag --gpu-fallback=cpu runs it on the CPU"


@pytest.mark.parametrize(
    ("group", "device", "policy"),
    [
        (InstanceGroup("g", CPU), 0, "cpu"),
        (InstanceGroup("g", MODEL), 0, "model"),
        (InstanceGroup("g", GPU, 1, (0, 3)), 3, "gpu_3"),
        (InstanceGroup("g", GPU, host_policy="mine"), 0, "mine"),
    ],
)
def test_host_policy_of_a_group(group: InstanceGroup, device: int, policy: str) -> None:
    assert group.host_policy_of(device) == policy


def test_json_for_a_models_own_completion_has_the_instance_groups(tmp_path: Path) -> None:
    draft = config.read(folder_of(tmp_path, "m", 'backend: "python"'))
    assert '"instance_group":[{"name":"m","kind":"KIND_GPU","count":1,"gpus":[3],' in draft.json(gpus=(3,))
    assert draft.finish().instance_groups == (InstanceGroup("m", CPU, 1),)


WORDS = st.sampled_from(
    [*"{}[]<>:,;-#'\"\\\n0", "-1", "077", "1e999", "nan", "4294967296", "'\\xff'", "'\\ud800'", "'\\U0001F600'", '""']
    + ["TYPE_FP32", "KIND_GPU", "KIND_AUTO", "true", "99", "[inference.X]", "any { }"]
    + [field.name for field in model_config_pb2.ModelConfig.DESCRIPTOR.fields]
    + [field.name for field in model_config_pb2.ModelInput.DESCRIPTOR.fields]
    + [field.name for field in model_config_pb2.ModelDynamicBatching.DESCRIPTOR.fields]
    + ["input { name: 'a' data_type: 1 dims: 1 }", "backend: 'b'", "key: 1", "value: { }", "latest { }", "gpus: 1"]
)
GARBAGE = st.one_of(st.binary(), st.text().map(str.encode), st.lists(WORDS).map(lambda words: " ".join(words).encode()))


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(raw=GARBAGE, strict=st.booleans())
@example(raw=b"input {" * 1000, strict=False)
@example(raw=b"backend: 'b' input { name: '\\ud800' data_type: 1 dims: 1 }", strict=False)
@example(raw=f"backend: 'b' instance_group {{ kind: 77 }} {TENSORS}".encode(), strict=False)
def test_garbage_raises_only_our_errors(tmp_path: Path, raw: bytes, strict: bool) -> None:
    folder = tmp_path / "m.b"
    folder.mkdir(exist_ok=True)
    (folder / "config.pbtxt").write_bytes(raw)
    try:
        value = config.read(folder, strict=strict).finish()
    except Error:
        return
    assert value.name == "m.b"
    assert value.json.startswith('{"name":"m.b",')


def test_runtime_and_environment_become_part_of_the_configuration(tmp_path: Path) -> None:
    draft = config.read(folder_of(tmp_path, "m", f'backend: "fw" {TENSORS}'))
    assert (draft.runtime, draft.environment) == ("", "")
    draft.set_runtime("model.py", None)
    assert draft.runtime == "model.py"
    assert dict(draft.finish().parameters) == {}
    draft.set_runtime("model.py", Path("/b/env.tar.gz"))
    assert draft.environment == "/b/env.tar.gz"
    draft.set_runtime("model.py", Path("/other"))
    finished_config = draft.finish()
    assert finished_config.parameters == {"EXECUTION_ENV_PATH": "/b/env.tar.gz"}
    assert json.loads(finished_config.json)["runtime"] == "model.py"


def test_json_of_one_version_differs_in_the_version_policy_only(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "m", f"{IDENTITY} version_policy {{ latest {{ num_versions: 2 }} }}")
    draft = config.read(folder)
    one = config.read_override(draft.json_of_version(7), folder)
    assert one.version_policy == VersionPolicy(VersionChoice.SPECIFIC, specific=(7,))
    texts = [json.loads(each.json()) for each in (draft, one)]
    for text in texts:
        del text["version_policy"]
    assert texts[0] == texts[1]

"""Signatures of SavedModels and tensors of frozen graphs, read without TensorFlow."""

from pathlib import Path

import pytest

from halimede.backends.tensorflow.signatures import Signature, SignatureTensor, read_graph, read_signature
from halimede.errors import Cause, Invalid, Unavailable
from halimede.tensors import BYTES, FP32, INT32
from tests.backends.tensorflow.protos import graph, node, saved_model, signature

PLAIN = signature({"x": ("FP32", [-1, 4])}, {"y": ("INT32", [-1, 0])})


def written(root: Path, data: bytes) -> Path:
    (root / "saved_model.pb").write_bytes(data)
    return root


def test_signature_is_read_with_all_its_tensors(tmp_path: Path) -> None:
    content = signature({"b": ("BYTES", None), "a": ("FP32", [2, -1])}, {"y": ("complex64", [])})
    found = read_signature(written(tmp_path, saved_model({"serving_default": content})), "m")
    assert found == Signature(
        "serving_default",
        (
            SignatureTensor("a", "a:0", FP32, "FP32", (2, -1)),
            SignatureTensor("b", "b:0", BYTES, "BYTES", None),
        ),
        (SignatureTensor("y", "y:0", None, "DT_COMPLEX64", ()),),
        ("serve",),
    )


def test_size_of_zero_is_not_any_size(tmp_path: Path) -> None:
    found = read_signature(written(tmp_path, saved_model({"serving_default": PLAIN})), "m")
    assert [(each.datatype, each.shape) for each in found.outputs] == [(INT32, (-1, 0))]


@pytest.mark.rows("BF3")
def test_signature_without_the_default_is_the_first_that_does_not_set_up(tmp_path: Path) -> None:
    data = saved_model({"__saved_model_init_op": signature({}, {}), "second": PLAIN, "third": PLAIN})
    assert read_signature(written(tmp_path, data), "m").name == "second"
    assert read_signature(tmp_path, "m", wanted="third").name == "third"


@pytest.mark.rows("BF3")
@pytest.mark.parametrize(
    ("tag", "wanted", "text"),
    [
        ("gpu", "", "unable to load model 'm', expected 'gpu' tag"),
        ("", "other", "unable to load model 'm', expected 'other' signature"),
    ],
)
def test_tag_or_signature_that_is_missing_is_named(tmp_path: Path, tag: str, wanted: str, text: str) -> None:
    folder = written(tmp_path, saved_model({"serving_default": PLAIN}))
    with pytest.raises(Invalid) as caught:
        read_signature(folder, "m", tag, wanted)
    assert (caught.value.message, caught.value.cause) == (text, Cause.CONFIGURATION)


def test_tag_chooses_the_graph(tmp_path: Path) -> None:
    other = signature({"z": ("FP32", [])}, {})
    data = saved_model({"serving_default": PLAIN}) + saved_model({"serving_default": other}, ("train", "gpu"))
    found = read_signature(written(tmp_path, data), "m", "gpu")
    assert ([each.name for each in found.inputs], found.tags) == (["z"], ("gpu", "train"))


def test_model_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(Unavailable, match=r"unable to find '.*/saved_model.pb' for model instance 'm'"):
        read_signature(tmp_path, "m")


def test_file_cut_off_anywhere_is_refused(tmp_path: Path) -> None:
    whole = saved_model({"serving_default": PLAIN})
    for size in range(len(whole)):
        with pytest.raises(Invalid):
            read_signature(written(tmp_path, whole[:size]), "m")


@pytest.mark.parametrize("data", [b"", b"\xff" * 100, b"\x07\x00", b"no model"])
def test_file_that_is_no_message_blames_the_file(tmp_path: Path, data: bytes) -> None:
    with pytest.raises(Invalid):
        read_signature(written(tmp_path, data), "m")
    (tmp_path / "g").write_bytes(data)
    with pytest.raises(Invalid) as caught:
        read_graph(tmp_path / "g", "m")
    assert caught.value.cause is Cause.FILE


@pytest.mark.rows("BF7")
def test_graph_has_placeholders_and_nodes_that_nobody_reads(tmp_path: Path) -> None:
    path = tmp_path / "model.graphdef"
    path.write_bytes(
        graph(
            node("x", "Placeholder", dims=[-1, 4]),
            node("s", "Placeholder", datatype="BYTES", dims=None),
            node("weights", "Const"),
            node("product", "MatMul", ["x", "weights:0"]),
            node("twice", "Add", ["product", "product"]),
            node("init", "NoOp", ["^twice"]),
            node("text", "Identity", ["s"]),
        )
    )
    found = read_graph(path, "m")
    assert [(each.name, each.datatype, each.shape) for each in found.inputs] == [
        ("x", FP32, (-1, 4)),
        ("s", BYTES, None),
    ]
    assert [(each.name, each.node) for each in found.outputs] == [("text", "text:0")]


@pytest.mark.rows("BF2")
def test_graph_without_nodes_is_empty(tmp_path: Path) -> None:
    path = tmp_path / "model.graphdef"
    path.write_bytes(graph(node("x", "Placeholder")))
    with pytest.raises(Invalid, match="model m has an empty network"):
        read_graph(path, "m")

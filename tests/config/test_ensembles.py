"""The steps of an ensemble (S80, S81). The texts are those of the real server's log."""

import json
from pathlib import Path

import pytest

from halimede import config
from halimede.config.ensembles import Ensemble, EnsembleStep
from halimede.errors import Invalid
from tests.config.models import folder_of

IN = 'input { name: "IN" data_type: TYPE_FP32 dims: 4 }'
OUT = 'output { name: "OUT" data_type: TYPE_FP32 dims: 4 }'
MORE_IN = IN + IN.replace("IN", "MORE")
MORE_OUT = OUT + OUT.replace("OUT", "MORE")


def step(model: str, inputs: str, outputs: str, more: str = "model_version: -1") -> str:
    """A step. `inputs` and `outputs` are pairs like `X=x`, with the model's name first."""
    maps = "".join(
        f'{field} {{ key: "{pair.split("=")[0]}" value: "{pair.split("=")[1]}" }} '
        for field, pairs in (("input_map", inputs), ("output_map", outputs))
        for pair in pairs.split()
    )
    return f'step {{ model_name: "{model}" {more} {maps}}} '


def text_of(*steps: str, tensors: str = IN + OUT, more: str = "", sched: str = "") -> str:
    return f'platform: "ensemble" {tensors} ensemble_scheduling {{ {"".join(steps)} {sched} }} {more}'


THROUGH = step("a", "X=IN", "Y=OUT")


def test_steps_are_read(tmp_path: Path) -> None:
    text = text_of(
        step("a", "X=IN B=IN", "Y=between"),
        step("b", "X=between", "Y=OUT", "model_version: 3"),
        sched="max_inflight_requests: 2",
    )
    done = config.read(folder_of(tmp_path, "m", text)).finish()
    assert done.ensemble == Ensemble(
        (
            EnsembleStep("a", -1, (("B", "IN"), ("X", "IN")), (("Y", "between"),)),
            EnsembleStep("b", 3, (("X", "between"),), (("Y", "OUT"),)),
        ),
        max_in_flight=2,
    )
    assert (done.backend, done.platform, done.instance_groups) == ("", "ensemble", ())


def test_json_has_neither_instances_nor_optimization(tmp_path: Path) -> None:
    values = json.loads(config.read(folder_of(tmp_path, "m", text_of(THROUGH))).finish().json)
    assert values["instance_group"] == []
    assert "optimization" not in values
    assert values["ensemble_scheduling"]["step"] == [
        {
            "model_name": "a",
            "model_version": -1,
            "input_map": {"X": "IN"},
            "output_map": {"Y": "OUT"},
            "model_namespace": "",
        }
    ]


def test_members_decide_whether_an_ensemble_is_decoupled(tmp_path: Path) -> None:
    text = text_of(THROUGH, more="model_transaction_policy { decoupled: true }")
    read = config.read(folder_of(tmp_path, "m", text)).finish()
    assert read.decoupled
    plain = config.with_decoupling(read, False)
    assert not plain.decoupled
    assert json.loads(plain.json)["model_transaction_policy"] == {"decoupled": False}
    assert plain.ensemble == read.ensemble


def test_response_cache_of_a_decoupled_ensemble_is_refused(tmp_path: Path) -> None:
    read = config.read(folder_of(tmp_path, "m", text_of(THROUGH, more="response_cache { enable: true }"))).finish()
    with pytest.raises(Invalid, match="does not currently support model m with 'decoupled' transaction policy"):
        config.with_decoupling(read, True)


PROBLEMS = {
    text_of(step("", "X=IN", "Y=OUT")): "must specify 'model_name' in step 0 of ensemble 'm'",
    text_of(THROUGH, step("a", "", "Y=OUT")): "must specify 'input_map' in step 1 of ensemble 'm'",
    text_of(step("a", "X=IN", "")): "must specify 'output_map' in step 0 of ensemble 'm'",
    text_of(): "must specify 'step' for ensemble 'm'",
    text_of(step("a", "X=IN", "Y=x"), step("a", "X=IN", "Y=x"), step("a", "X=x", "Y=OUT")): (
        "ensemble tensor 'x' can appear in an output map only once for ensemble 'm' step 1"
    ),
    text_of(THROUGH, tensors=MORE_IN + OUT): "ensemble input 'MORE' for ensemble m' is not used",
    text_of(THROUGH, tensors=IN + MORE_OUT): "ensemble output 'MORE' for ensemble m' is not used",
    text_of(step("a", "X=u", "Y=OUT"), step("a", "X=IN", "Y=x"), step("a", "X=x", "Y=y")): (
        "output 'OUT' for ensemble 'm' is not written: at least one of its depending tensors, 'u', is not connected"
    ),
    text_of(step("a", "X=u", "Y=v"), step("a", "X=v", "Y=OUT"), step("a", "X=IN", "Y=x"), step("a", "X=x", "Y=y")): (
        "output 'OUT' for ensemble 'm' is not written: at least one of its depending tensors, 'u', is not connected"
    ),
    text_of(step("a", "X=IN Z=z", "Y=y"), step("a", "X=y", "Y=z"), step("a", "X=z", "Y=OUT")): (
        "output 'OUT' for ensemble 'm' is not written: at least one of its depending tensors, 'y', is not connected"
    ),
    text_of(step("a", "X=IN Z=OUT", "Y=OUT")): "output 'OUT' for ensemble 'm' is not written",
    text_of(step("a", "X=IN", "Y=OUT Z=spare")): "ensemble tensor 'spare' is unused in ensemble 'm'",
    text_of(THROUGH, tensors=OUT): "output 'OUT' for ensemble 'm' is not written: at least one of its depending "
    "tensors, 'IN', is not connected",
    text_of(THROUGH, tensors=IN): "ensemble tensor 'OUT' is unused in ensemble 'm'",
    text_of(THROUGH, more="instance_group { }"): "instance group should not be specified for ensemble 'm'",
    text_of(THROUGH, more="optimization { }"): "optimization should not be specified for ensemble 'm'",
    text_of(THROUGH, more='model_warmup { name: "s" }'): "model_warmup can not be specified for ensemble 'm'",
}


@pytest.mark.parametrize(("text", "problem"), PROBLEMS.items())
def test_steps_that_make_no_graph_are_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        config.read(folder_of(tmp_path, "m", text))
    assert str(caught.value) == problem

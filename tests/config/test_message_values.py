"""Values that protobuf's JSON reader takes for a field, and refuses, as observed on the real server (H113)."""

import pytest

from halimede.config.message import parse_json, text_of
from halimede.errors import Invalid


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{maxBatchSize:3,max_batch_size:2}", "max_batch_size: 2"),
        ("{max_batch_size:2,max_batch_size:null}", "max_batch_size: 2"),
        *((f"{{max_batch_size:{value}}}", "max_batch_size: 3") for value in ("'3'", "'+3'", "'03'", "3.0", "30e-1")),
        ("{instance_group:{count:2}}", "instance_group { count: 2 }"),
        ("{instance_group:{},instanceGroup:[{count:2}]}", "instance_group { } instance_group { count: 2 }"),
        ("{instance_group:[[{count:2}],null,[[]]]}", "instance_group { count: 2 }"),
        ("{input:{dims:'-1'}}", "input { dims: -1 }"),
        (
            "{optimization:{priority:1},optimization:{graph:{level:1}}}",
            "optimization { graph { level: 1 } priority: PRIORITY_MAX }",
        ),
        *(
            (f"{{optimization:{{priority:{value}}}}}", "optimization { priority: PRIORITY_MAX }")
            for value in ("'priority_max'", "'Priority-Max'", "1", "'1'", "'+1'", "1.0")
        ),
        ("{optimization:{priority:77}}", "optimization { priority: 77 }"),
        ("{optimization:{priority:null}}", "optimization { }"),
        ("{dynamic_batching:null,sequence_batching:{direct:{}}}", "sequence_batching { direct { } }"),
        ("{version_policy:{latest:{}},version_policy:{all:{}}}", "version_policy { all { } }"),
        ("{dynamic_batching:{preserve_ordering:'Yes'}}", "dynamic_batching { preserve_ordering: true }"),
        ("{dynamic_batching:{preserve_ordering:'0'}}", "dynamic_batching { }"),
        (
            "{dynamic_batching:{max_queue_delay_microseconds:'18446744073709551615'}}",
            f"dynamic_batching {{ max_queue_delay_microseconds: {2**64 - 1} }}",
        ),
        (
            "{sequence_batching:{direct:{minimum_slot_utilization:'+.5'}}}",
            "sequence_batching { direct { minimum_slot_utilization: 0.5 } }",
        ),
        (
            "{sequence_batching:{direct:{minimum_slot_utilization:'-Infinity'}}}",
            "sequence_batching { direct { minimum_slot_utilization: -inf } }",
        ),
        (
            "{model_metrics:{metric_control:[{histogram_options:{buckets:[1,2.5,'1e39']}}]}}",
            "model_metrics { metric_control { histogram_options { buckets: 1.0 buckets: 2.5 buckets: 1e+39 } } }",
        ),
        ("{parameters:{a:{string_value:'1'}},parameters:{a:{}}}", 'parameters { key: "a" value { } }'),
        (
            "{parameters:{a:null},metric_tags:{b:null}}",
            'metric_tags { key: "b" } parameters { key: "a" value { } }',
        ),
        (
            "{dynamic_batching:{priority_queue_policy:{'01':{max_queue_size:1},'1':{}}}}",
            "dynamic_batching { priority_queue_policy { key: 1 value { } } }",
        ),
    ],
)
def test_values_become_a_message(text: str, message: str) -> None:
    assert text_of(parse_json(text)).split() == message.split()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("[]", ": Root element must be a message."),
        ("{max_batchSize:1}", "max_batchSize: Cannot find field."),
        ("{nope:null}", "nope: Cannot find field."),
        ("{'':1}", ": Proto fields must have a name."),
        ("{optimization:{nope:3}}", "(optimization) nope: Cannot find field."),
        ("{max_batch_size:[3]}", "max_batch_size: Proto field is not repeating, cannot start list."),
        ("{optimization:[]}", "optimization: Proto field is not repeating, cannot start list."),
        ("{max_batch_size:{}}", ": invalid value Starting an object on a scalar field for type max_batch_size"),
        ("{max_batch_size:true}", "(max_batch_size): invalid value true for type TYPE_INT32"),
        *(
            (f"{{max_batch_size:{value}}}", f"(max_batch_size): invalid value {shown} for type TYPE_INT32")
            for value, shown in (
                ("''", '""'),
                ("' 3'", '" 3"'),
                ("'3.0'", '"3.0"'),
                ("'1_0'", '"1_0"'),
                ("3.5", "3.5"),
                ("1e20", "1e+20"),
                ("3000000000", "3000000000"),
            )
        ),
        ("{max_batch_size:'" + "9" * 10_000 + "'}", "(max_batch_size): invalid value"),
        ("{dynamic_batching:{max_queue_delay_microseconds:'-0'}}", '"-0" for type TYPE_UINT64'),
        ("{dynamic_batching:{preserve_ordering:1}}", "invalid value 1 for type TYPE_BOOL"),
        ("{dynamic_batching:{preserve_ordering:'on'}}", 'invalid value "on" for type TYPE_BOOL'),
        ("{sequence_batching:{direct:{minimum_slot_utilization:1e39}}}", "invalid value 1e+39 for type TYPE_FLOAT"),
        ("{sequence_batching:{direct:{minimum_slot_utilization:'nan'}}}", 'invalid value "nan" for type TYPE_FLOAT'),
        ("{model_metrics:{metric_control:{histogram_options:{buckets:'1e309'}}}}", "for type TYPE_DOUBLE"),
        ("{default_model_filename:3}", "(default_model_filename): invalid value 3 for type TYPE_STRING"),
        (
            "{optimization:3}",
            "(optimization): invalid value 3 for type type.googleapis.com/inference.ModelOptimizationPolicy",
        ),
        ("{instance_group:'x'}", 'invalid value "x" for type type.googleapis.com/inference.ModelInstanceGroup'),
        (
            "{optimization:{priority:'77'}}",
            '"77" for type type.googleapis.com/inference.ModelOptimizationPolicy.ModelPriority',
        ),
        ("{optimization:{priority:99999999999}}", "(optimization.priority): invalid value 99999999999"),
        ("{parameters:[]}", ": invalid value Cannot bind a list to map for field 'parameters'. for type Map"),
        (
            "{parameters:'x'}",
            '(parameters): invalid value "x" for type type.googleapis.com/inference.ModelConfig.ParametersEntry',
        ),
        (
            "{parameters:{a:'x'}}",
            '(parameters[0].value): invalid value "x" for type type.googleapis.com/inference.ModelParameter',
        ),
        ("{parameters:{a:{},'a':{}}}", "(parameters[1]) a: Repeated map key: 'a' is already set."),
        (
            "{dynamic_batching:{priority_queue_policy:{x:{}}}}",
            '(dynamic_batching.priority_queue_policy[0].key): invalid value "x" for type TYPE_UINT64',
        ),
        (
            "{dynamic_batching:{},dynamic_batching:{}}",
            ": invalid value oneof field 'scheduling_choice' is already set. Cannot set 'dynamic_batching'",
        ),
        (
            "{sequence_batching:{direct:{},oldest:{}}}",
            "(sequence_batching): invalid value oneof field 'strategy_choice' is already set. Cannot set 'oldest'",
        ),
    ],
)
def test_values_that_do_not_fit_are_refused(text: str, problem: str) -> None:
    with pytest.raises(Invalid) as raised:
        parse_json(text)
    assert str(raised.value).startswith("Invalid config override: ")
    assert problem in str(raised.value)

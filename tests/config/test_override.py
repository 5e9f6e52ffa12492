"""Configurations that a client sends as JSON with a load (H113)."""

from pathlib import Path

import pytest

from halimede import config
from halimede.errors import Invalid
from tests.config.models import folder_of


def test_override_replaces_the_file(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, "m", 'backend: "fake" max_batch_size: 9')
    draft = config.read_override('{"backend":"identity","maxBatchSize":2,"version_policy":{"all":{}}}', folder)
    assert (draft.name, draft.backend, draft.max_batch_size) == ("m", "identity", 2)
    assert 'backend: "identity"\n' in draft.text()


@pytest.mark.parametrize(
    "text",
    [
        '{"input":[{"name":"I","data_type":"type_fp32","dims":["4"]}]}',
        '{"input":[{"name":"I","dataType":"Type_Fp32","dims":[4]}],"parameters":{"k":{"stringValue":"type_x"}}}',
        '{"input":[{"name":"I","data_type":11,"dims":[4],"format":"format_none"}]}',
    ],
)
def test_override_accepts_enums_in_any_case(tmp_path: Path, text: str) -> None:
    draft = config.read_override(
        text.replace('{"input"', '{"backend":"identity","input"'), folder_of(tmp_path, "m", None)
    )
    assert '"data_type":"TYPE_FP32"' in draft.json()


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "Unexpected end of string. Expected a value. (line 1 column 1)"),
        ("{", "Expected an object key or }. (line 1 column 2)"),
        ('{"name":"\udcff"}', ""),  # bytes that are not UTF-8, as they come over HTTP
        ('{"input":[{"name":"\\ud800"}]}', ""),
        ('{"input":[{"name":"I","data_type":"TYPE_\udcff32","dims":[2]}]}', ""),
        ("[]", ""),
        ('"x"', ""),
        ('{"x":1}', "x: Cannot find field."),
        ('{"input":[7]}', ""),
        ('{"parameters":[]}', ""),
        ('{"max_batch_size":"many"}', ""),
        ('{"input":[{"data_type":"type_none"}]}', 'invalid value "type_none"'),
        ("[" * 100_000, ""),
    ],
)
def test_bad_override_is_refused(tmp_path: Path, text: str, problem: str) -> None:
    with pytest.raises(Invalid) as raised:
        config.read_override(text, folder_of(tmp_path, "m", None))
    assert str(raised.value).startswith("Invalid config override: ")
    assert problem in str(raised.value)


@pytest.mark.parametrize("path", ["/x/model.py", "../../x.py"])
def test_override_must_not_lead_out_of_the_version(tmp_path: Path, path: str) -> None:
    with pytest.raises(Invalid, match="'default_model_filename' must stay within the version directory for m"):
        config.read_override(
            f'{{"backend":"python","default_model_filename":"{path}"}}', folder_of(tmp_path, "m", None)
        )


def test_override_must_name_its_directory(tmp_path: Path) -> None:
    with pytest.raises(Invalid, match="unexpected directory name 'm' for model 'n'"):
        config.read_override('{"name":"n","backend":"identity"}', folder_of(tmp_path, "m", None))

"""The masks hide what they are meant for, and nothing else."""

import pytest

from tests.conformance.masks import masked

_VERSION = '{"name":"triton","version":"2.51.0","extensions":[]}'


@pytest.mark.parametrize(
    ("real", "ours", "same"),
    [
        ("9.999999974752428e-7", "9.999999974752427e-7", True),
        ("-0.022150347009301187", "-0.022150347009301186", True),
        ("-0.022150347009301187", "0.022150347009301186", False),
        ("1.0000000200408774e21", "1.0000000200408773e22", False),
        ("9.999999974752428e-7", "0.0000009999999974752427", False),
        ("10000000272564224.0", "1.0000000272564224e16", False),
        ("0.1", "0.10", False),
    ],
)
def test_last_digit_hides_equal_values_of_one_form(real: str, ours: str, same: bool) -> None:
    texts = [masked(f"[{text}]", ("last-digit",), ours=text is ours) for text in (real, ours)]
    assert (texts[0] == texts[1]) is same


def test_version_hides_only_the_version() -> None:
    assert masked(_VERSION, ("version",), ours=True) == _VERSION.replace("2.51.0", "<version>")


def test_wordless_close_hides_only_a_400_of_ours() -> None:
    refusal = "HTTP/1.1 400\ncontent-length: 0\nconnection closed"
    assert masked(refusal, ("wordless-close",), ours=True) == "connection closed"
    assert masked(refusal, ("wordless-close",), ours=False) == refusal
    open_still = refusal.replace("closed", "open")
    assert masked(open_still, ("wordless-close",), ours=True) == open_still

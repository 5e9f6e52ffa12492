"""Restricted APIs and forwarded headers over HTTP (H24, H25)."""

import re

import pytest

from halimede.engine_port import LogInfo, LogSettings, ServerLive
from halimede.front.access import Access
from halimede.front.http.handling import JSON, PLAIN
from halimede.front.http.service import HttpService
from halimede.transport.http1.headers import Headers
from tests.front.http_fakes import MAX_INPUT_SIZE, FakeExchange, Rig

FACTS = LogInfo("", True, True, True, 0, "default")
REFUSED = (403, PLAIN, b'{"error":"This API is restricted, expecting header \'The-Key\'"}')
BODY = b'{"inputs":[{"name":"INPUT0","shape":[1],"datatype":"INT32","data":[1]}],"parameters":{"x-a":1,"k":2}}'


def rig(access: Access) -> Rig:
    made = Rig()
    made.front = HttpService(made.port, made.offload, MAX_INPUT_SIZE, access)
    made.port.answers = {LogSettings(): FACTS, ServerLive(): True}
    return made


def restricted(*categories: str) -> Rig:
    return rig(Access(dict.fromkeys(categories, ("The-Key", "v"))))


def test_restricted_row_wants_its_header_before_its_method() -> None:
    guarded = restricted("logging")
    assert guarded.ask("GET", "/v2/logging").answer == REFUSED
    assert guarded.ask("DELETE", "/v2/logging").answer == REFUSED
    assert guarded.ask("GET", "/v2/logging", the_key="V").answer == REFUSED
    assert guarded.ask("GET", "/v2/logging", the_key="v").status == 200
    assert guarded.ask("DELETE", "/v2/logging", THE_KEY="v").answer == (405, JSON, b'{"error":"Method Not Allowed"}')


def test_other_rows_stay_open() -> None:
    guarded = restricted("logging", "inference")
    assert guarded.ask("GET", "/v2/health/live").status == 200
    assert guarded.ask("GET", "/v2/nope").status == 404


def test_first_of_equal_headers_is_the_key() -> None:
    guarded = restricted("health")
    for values, status in (((b"v", b"x"), 200), ((b"x", b"v"), 403)):
        exchange = FakeExchange("GET", "/v2/health/live")
        exchange.headers = Headers()
        for value in values:
            exchange.headers.add(b"The-key", value)
        guarded.front.handle(exchange)
        assert exchange.status == status


def test_inference_takes_the_headers_that_match() -> None:
    forwarding = rig(Access(forward=re.compile("x-", re.IGNORECASE).search))
    forwarding.ask("POST", "/v2/models/m/infer", BODY, X_B="ü", x_a="1", y="2")
    [one] = forwarding.port.inferences
    assert one.request.parameters == {"x-a": "1", "k": 2, "X-B": "ü"}


def test_inference_with_a_reserved_header_is_refused_unless_its_model_is_unknown() -> None:
    forwarding = rig(Access(forward=re.compile("triton").search))
    text = b'{"error":"Header \'triton_x\' is reserved for Triton usage and cannot be forwarded."}'
    exchange = FakeExchange("POST", "/v2/models/m/infer", BODY)
    exchange.headers.add(b"triton_x", b"1")
    forwarding.front.handle(exchange)
    assert exchange.answer == (400, JSON, text)
    assert forwarding.port.inferences == []


@pytest.mark.parametrize("path", ["/v2/models/m/infer", "/v2/models/m/generate"])
def test_inference_is_one_category(path: str) -> None:
    assert restricted("inference").ask("POST", path, BODY).answer == REFUSED

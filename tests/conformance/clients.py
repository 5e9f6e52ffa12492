"""The official clients, so that both servers get equal requests and their answers can be compared.

An answer is plain data: outputs as lists by name, or the text and status of a refusal. Every wait is bounded.
"""

import queue
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import numpy.typing as npt
import tritonclient.grpc as grpcclient
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException, np_to_triton_dtype

from tests.conformance.runner import Pair
from tests.conformance.servers import Server

WAIT = 20.0  # seconds for one answer

Arrays = Mapping[str, npt.NDArray[Any]]
Answer = dict[str, Any]


@dataclass(frozen=True, slots=True)
class Refusal:
    """A refusal, as a client sees it. The status is `StatusCode.NAME` for gRPC, a number for HTTP."""

    status: str
    message: str


def over_http(
    server: Server, model: str, arrays: Arrays, datatype: str | None = None, **fields: Any
) -> Answer | Refusal:
    """An inference by the HTTP client. `datatype` is that of the inputs if numpy's does not tell it."""
    client = httpclient.InferenceServerClient(f"127.0.0.1:{server.http}", network_timeout=WAIT)
    try:
        return _told(client.infer(model, _inputs(httpclient, arrays, datatype), **_named(httpclient, fields)))
    except InferenceServerException as error:
        return Refusal(str(error.status()), error.message())
    finally:
        client.close()


def over_grpc(
    server: Server, model: str, arrays: Arrays, datatype: str | None = None, **fields: Any
) -> Answer | Refusal:
    """An inference by the gRPC client."""
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        try:
            inputs, named = _inputs(grpcclient, arrays, datatype), _named(grpcclient, fields)
            return _told(client.infer(model, inputs, client_timeout=WAIT, **named))
        except InferenceServerException as error:
            return Refusal(str(error.status()), error.message())


def over_stream(server: Server, model: str, *requests: Arrays) -> list[tuple[str, Answer | Refusal | None]]:
    """All answers on one gRPC stream with the ids of their requests, sorted by id, as the answers to several requests
    come in any order. None stands for a final answer without outputs."""
    said: queue.Queue[tuple[Any, Any]] = queue.Queue()
    found: list[tuple[str, Answer | Refusal | None]] = []
    left = len(requests)
    with grpcclient.InferenceServerClient(f"127.0.0.1:{server.grpc}") as client:
        client.start_stream(lambda result, error: said.put((result, error)), stream_timeout=WAIT)
        for number, arrays in enumerate(requests):
            inputs = _inputs(grpcclient, arrays)
            client.async_stream_infer(model, inputs, request_id=str(number), enable_empty_final_response=True)
        while left:
            result, error = said.get(timeout=WAIT)
            if error is not None:  # of which request, and whether it is the last one, the client does not say
                found.append(("?", Refusal(str(error.status()), error.message())))
                continue
            response = result.get_response()
            final = response.parameters["triton_final_response"].bool_param
            found.append((response.id, _told(result) if response.outputs or not final else None))
            left -= final
    return sorted(found, key=lambda answer: answer[0])


def config_of(server: Server, model: str) -> Any:
    """The configuration of a model as its server completed it."""
    client = httpclient.InferenceServerClient(f"127.0.0.1:{server.http}", network_timeout=WAIT)
    try:
        return client.get_model_config(model)
    finally:
        client.close()


def same_of_both(pair: Pair, question: Callable[[Server], Any]) -> Any:
    """The answer of both servers. Fails if they differ."""
    ours, real = question(pair.ours), question(pair.real)
    assert ours == real
    return real


def _inputs(module: Any, arrays: Arrays, datatype: str | None = None) -> list[Any]:
    made = []
    for name, array in arrays.items():
        kind = datatype or np_to_triton_dtype(array.dtype)
        made.append(module.InferInput(name, array.shape, kind))
        made[-1].set_data_from_numpy(array)
    return made


def _named(module: Any, fields: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a request; `outputs` are names."""
    names = fields.get("outputs")
    asked = {} if names is None else {"outputs": [module.InferRequestedOutput(name) for name in names]}
    return {**fields, **asked}


def _told(result: Any) -> Answer:
    response = result.get_response()
    outputs = response["outputs"] if isinstance(response, dict) else response.outputs
    names = [output["name"] if isinstance(output, dict) else output.name for output in outputs]
    arrays = {name: result.as_numpy(name) for name in names}
    return {name: [str(array.dtype), array.tolist()] for name, array in arrays.items()}

"""What is remembered of HTTP responses takes little memory."""

import tracemalloc

from halimede.requests import InferResponse
from halimede.tensors import BYTES, HostMemory, Tensor
from halimede.wire.http.infer import ResponseForm, encode_infer


def test_responses_with_many_outputs_are_not_remembered() -> None:
    """Texts have other sizes in each response: a hundred of 300 outputs would take 6 MiB."""
    form = ResponseForm(True, {})
    tracemalloc.start()
    try:
        for size in range(4, 104):
            memory = HostMemory(bytes(size))
            outputs = [Tensor(f"O{i}", BYTES, (1,), memory) for i in range(300)]
            encode_infer(InferResponse("", "m", 1, outputs, None), form)
        kept, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert kept < 2 << 20

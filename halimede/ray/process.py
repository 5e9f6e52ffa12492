"""What the processes of the cluster have in common: how they start, and how tensors travel between them."""

import logging
from pickle import PickleBuffer

import ray.util

from halimede.backends.registry import set_environment
from halimede.platform.limits import allow_many_files
from halimede.requests import Answer, InferResponse
from halimede.tensors import HostMemory, Tensor


def prepare() -> None:
    """Prepares a process of Ray for a replica or an ingress. Nothing else runs in it, so it is set up like a server's.

    From now on Ray writes the bytes of tensors beside the pickled objects, so large ones are copied once, into the
    object store. The reader's tensors are views of it, which cannot be written to.
    """
    # Ray collects what its processes write to standard error.
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    set_environment()
    allow_many_files()
    ray.util.register_serializer(
        HostMemory, serializer=lambda memory: PickleBuffer(memory.view), deserializer=HostMemory
    )


def portable(answer: Answer) -> Answer:
    """The answer with outputs that another process can read. Raises Error if the host cannot reach one.

    Memory of another kind is copied, because it may be reused as soon as nothing refers to it.
    """
    if not isinstance(answer, InferResponse) or all(isinstance(each.memory, HostMemory) for each in answer.outputs):
        return answer
    outputs = [
        tensor
        if isinstance(tensor.memory, HostMemory)
        else Tensor(tensor.name, tensor.datatype, tensor.shape, HostMemory(bytes(tensor.memory.host())))
        for tensor in answer.outputs
    ]
    return InferResponse(answer.id, answer.model_name, answer.model_version, outputs, answer.parameters)

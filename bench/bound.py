#!/usr/bin/env python3
"""Serves the model `echo` of `bench/models` as a function of this program, for `tools/versus.py`:

    versus.py --a 'python bench/bound.py --http-port={http} --grpc-port={grpc} --metrics-port={metrics}' --b 'CMD ...'

The arguments are flags of `halimede serve`.
"""

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from halimede import Server, Tensor


def echo(**inputs: NDArray[Any]) -> NDArray[Any]:
    return inputs["INPUT0"]


with Server(*sys.argv[1:], http_address="127.0.0.1", grpc_address="127.0.0.1") as server:
    server.bind(
        "echo",
        echo,
        inputs=[Tensor("INPUT0", np.float32, [-1])],
        outputs=[Tensor("OUTPUT0", np.float32, [-1])],
        max_batch_size=64,
    )
    server.serve()

import json
import threading
import time

import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def initialize(self, args):
        config = json.loads(args["model_config"])
        if not pb_utils.using_decoupled_model_transaction_policy(config):
            raise pb_utils.TritonModelException(f"the model `{args['model_name']}` must be decoupled")
        self.inflight = 0
        self.lock = threading.Lock()

    def execute(self, requests):
        for request in requests:
            self.start(request)
        return

    def start(self, request):
        values = pb_utils.get_input_tensor_by_name(request, "IN").as_numpy()
        delays = pb_utils.get_input_tensor_by_name(request, "DELAY").as_numpy()
        wait = pb_utils.get_input_tensor_by_name(request, "WAIT").as_numpy()[0]
        thread = threading.Thread(target=self.answer, args=(request.get_response_sender(), values, delays), daemon=True)
        with self.lock:
            self.inflight += 1
        thread.start()
        time.sleep(wait / 1000)

    def answer(self, sender, values, delays):
        for index, (value, delay) in enumerate(zip(values, delays, strict=True)):
            time.sleep(delay / 1000)
            out = pb_utils.Tensor("OUT", np.array([value], np.int32))
            idx = pb_utils.Tensor("IDX", np.array([index], np.uint32))
            sender.send(pb_utils.InferenceResponse(output_tensors=[out, idx]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
        with self.lock:
            self.inflight -= 1

    def finalize(self):
        until = time.monotonic() + 5
        while self.inflight and time.monotonic() < until:
            time.sleep(0.01)

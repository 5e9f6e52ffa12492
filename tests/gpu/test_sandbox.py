"""Models in the sandbox that use a GPU."""

from collections.abc import Iterator

import numpy as np
import pytest

from tests.compat.serving import Serving, write_model
from tests.pytorch.configs import io

torch = pytest.importorskip("torch")

from tests.gpu.test_pytorch import ON_GPU, infer  # noqa: E402 - what follows needs torch
from tests.pytorch import scripts  # noqa: E402

MODEL = """
import numpy as np
import torch
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        return [self.answer(pb_utils.get_input_tensor_by_name(request, "INPUT0")) for request in requests]

    def answer(self, given):
        there = torch.from_dlpack(given.to_dlpack()).cuda()
        try:
            open("{secret}").close()
        except OSError:
            there = there * 2
        return pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", there.cpu().numpy())])
"""


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    folder = tmp_path_factory.mktemp("sandbox")
    for each in (folder, *folder.parents):  # models run as other users
        if each.stat().st_uid == 0 and not each.stat().st_mode & 1:
            each.chmod(0o755)
    (folder / "secret").write_text("secret")
    version = write_model(folder / "models", "python", "FP32", backend="python")
    (version / "model.py").write_text(MODEL.replace("{secret}", str(folder / "secret")))
    scripts.save(scripts.Slow(), folder / "models" / "torch" / "1" / "model.pt")
    sides = io([("INPUT0", "FP32", [4])], [("OUTPUT0", "FP32", [4])])
    (folder / "models" / "torch" / "config.pbtxt").write_text(f'backend: "pytorch"\nmax_batch_size: 8\n{sides}{ON_GPU}')
    flags = [f"--backend-config={name},sandbox=on" for name in ("python", "pytorch")]
    more = ("--exit-on-error=false", "--strict-readiness=false", "--backend-config=pytorch,home=child")
    with Serving(folder / "models", folder / "log", *flags, *more) as running:
        running.wait_until_live()
        if "Landlock" in running.log_text() and running.status("/v2/models/python/ready") != 200:
            pytest.skip(f"this kernel has no sandbox: {running.log_text()[-1000:]}")
        yield running
        assert running.stop() == 0, running.log_text()[-3000:]


@pytest.mark.xfail(reason="in the sandbox CUDA starts with error 304, CUDA_ERROR_OPERATING_SYSTEM", strict=True)
@pytest.mark.parametrize("model", ["python", "torch"])
def test_model_in_the_sandbox_uses_the_gpu(serving: Serving, model: str) -> None:
    assert serving.status(f"/v2/models/{model}/ready") == 200, serving.log_text()[-6000:]
    rows = np.arange(4, dtype=np.float32)
    if model == "torch":
        assert infer(serving, model, INPUT0=rows.reshape(1, 4))["OUTPUT0"].tolist() == [rows.tolist()]
    else:
        answer = infer(serving, model, INPUT0=rows)["OUTPUT0"]
        assert answer.tolist() == (2 * rows).tolist(), "the secret was read"

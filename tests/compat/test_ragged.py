"""The example of ragged batches: requests with any number of ids are answered together, each with its own mean."""

import json
import urllib.request
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import tritonclient.http as triton
from ragged import embedding_bag

from tests.compat.serving import Serving

CLIENTS, REQUESTS = 8, 40
PATIENCE = 20.0  # seconds


@pytest.mark.rows("S36", "S37", "R50")
def test_embedding_bag_answers_requests_of_different_lengths_together(tmp_path: Path) -> None:
    embedding_bag.write(tmp_path / "models")
    lengths = np.random.default_rng(3).integers(0, 60, CLIENTS * REQUESTS)
    lists = [np.random.default_rng(i).integers(0, 1000, (1, length)) for i, length in enumerate(lengths)]
    table = embedding_bag.table()
    with Serving(tmp_path / "models", tmp_path / "server.log") as serving:
        serving.wait_until_live()

        def ask(numbers: range) -> int:
            with triton.InferenceServerClient(serving.http_url) as client:
                for i in numbers:
                    given = triton.InferInput("IDS", lists[i].shape, "INT64")
                    given.set_data_from_numpy(lists[i])
                    mean = client.infer("embedding_bag", [given]).as_numpy("MEAN")
                    rows = table[lists[i][0]]
                    expected = rows.mean(axis=0) if len(rows) else np.zeros(16, np.float32)
                    assert mean.shape == (1, 16)
                    np.testing.assert_allclose(mean[0], expected, atol=1e-4)
            return len(numbers)

        parts = [range(k * REQUESTS, (k + 1) * REQUESTS) for k in range(CLIENTS)]
        with ThreadPoolExecutor(CLIENTS) as pool:
            assert list(pool.map(ask, parts, timeout=PATIENCE)) == [REQUESTS] * CLIENTS
        with urllib.request.urlopen(f"http://{serving.http_url}/v2/models/embedding_bag/stats", timeout=5) as answer:
            found = json.load(answer)["model_stats"][0]
        assert found["inference_count"] == CLIENTS * REQUESTS
        assert found["execution_count"] < CLIENTS * REQUESTS, "none were answered together"
        assert serving.stop() == 0, serving.log_text()[-3000:]

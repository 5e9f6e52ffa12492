"""One server for all the tests of the official clients: every datatype, with and without batching."""

from collections.abc import Iterator

import pytest

from tests.compat.serving import Serving, write_repository


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Serving]:
    """A running server: `server.http_url` and `server.grpc_url` are `host:port`, `server.log_text()` is what it said.

    Its models: `serving.write_repository`. At the end it must stop by SIGTERM with exit status 0 and leave nothing.
    """
    folder = tmp_path_factory.mktemp("compat")
    with Serving(write_repository(folder / "models"), folder / "server.log") as serving:
        serving.wait_until_live()
        yield serving
        status = serving.stop()
        assert status == 0, f"exit status {status}: ...{serving.log_text()[-3000:]}"

"""Both servers, started side by side over one repository, and stopped again."""

from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path

from tests.conformance import servers
from tests.conformance.runner import Pair
from tests.conformance.servers import Server

OURS = "ours"


@contextmanager
def pair_of(
    repository: Path,
    folder: Path,
    *flags: str,
    ours_only: Sequence[str] = (),
    environment: Mapping[str, str] | None = None,
    real_environment: Mapping[str, str] | None = None,
) -> Iterator[Pair]:
    """Both servers, with logs in the folder. `real_environment` replaces `environment` for the real server."""
    commands = (*servers.our_command(), *flags, *ours_only), (*servers.real_command(), *flags)
    there = environment if real_environment is None else real_environment
    with (
        Server(OURS, commands[0], repository, folder / "ours.log", environment) as ours,
        Server("the real server", commands[1], repository, folder / "real.log", there) as real,
    ):
        ours.wait()
        real.wait()
        yield Pair(ours, real)

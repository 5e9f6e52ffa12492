"""A worker with a real process: its order, its end, and frames that make no sense."""

import asyncio
import errno
import json
import logging
import os
import select
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Iterable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from halimede.platform.worker_poller import WorkerPoller
from halimede.workers.child import frames
from halimede.workers.host.process import Process
from halimede.workers.host.worker import EarlyFrames, Worker, WorkerLost, WorkerRefused, WorkerSlow
from tests.processes import open_descriptors
from tests.workers.fakes import PATIENCE, on_loop, turning_loop

FINE = """
    class TritonPythonModel:
        def execute(self, requests):
            return None
"""
FINE_CLASS = textwrap.dedent(FINE)


def order(folder: Path, source: str, **more: Any) -> bytes:
    version = folder / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(textwrap.dedent(source))
    where = {"directory": str(folder / "m"), "version": "1", "filename": "model.py", "name": "m"}
    return json.dumps({**where, "args": {}, **more}).encode()


@pytest.fixture
def worker() -> Iterator[Worker]:
    it = Worker(Process())
    yield it
    it.kill()


def ended(pid: int) -> bool:
    """Whether the process is gone, waiting for it a while. It may be nobody's child here."""
    try:
        descriptor = os.pidfd_open(pid)
    except ProcessLookupError:
        return True
    poll = select.poll()
    poll.register(descriptor, select.POLLIN)
    try:
        return bool(poll.poll(PATIENCE * 1000))
    finally:
        os.close(descriptor)


def test_worker_tells_that_its_model_is_ready(worker: Worker, tmp_path: Path) -> None:
    assert worker.start(order(tmp_path, FINE), PATIENCE) == b"null"
    assert worker.alive


def test_worker_starts_with_little_more_than_numpy(worker: Worker, tmp_path: Path) -> None:
    """What a start imports is what it takes: at most half as much again as numpy alone."""
    note = tmp_path / "modules"
    worker.start(order(tmp_path, f"import sys; open({str(note)!r}, 'w').write(' '.join(sys.modules))\n{FINE_CLASS}"))
    numpy = subprocess.run(
        [sys.executable, "-c", "import numpy, sys; print(*sys.modules)"], stdout=subprocess.PIPE, text=True, check=True
    )
    more = {name.partition(".")[0] for name in set(note.read_text().split()) - set(numpy.stdout.split())}
    assert "halimede_worker" in more
    assert not more & {"asyncio", "concurrent", "email", "http", "logging", "multiprocessing", "subprocess", "urllib"}


def test_worker_that_refuses_says_why_and_is_gone(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(
        WorkerRefused, match=r"^AttributeError: module '1\.model' has no attribute 'TritonPythonModel'$"
    ):
        worker.start(order(tmp_path, "x = 1"), PATIENCE)
    assert not worker.alive
    assert ended(worker.pid)


def test_worker_that_exits_on_import_is_lost(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(WorkerLost):
        worker.start(order(tmp_path, "import os; os._exit(3)"), PATIENCE)
    assert ended(worker.pid)


def test_worker_that_hangs_is_killed_at_its_limit(worker: Worker, tmp_path: Path) -> None:
    with pytest.raises(WorkerSlow, match=r"within 0\.5 seconds"):
        worker.start(order(tmp_path, "import threading; threading.Event().wait()"), 0.5)
    assert ended(worker.pid)


def test_worker_that_is_killed_while_it_starts_ends_the_wait(worker: Worker, tmp_path: Path) -> None:
    killer = threading.Timer(0.3, worker.kill)
    killer.start()
    with pytest.raises(WorkerLost):
        worker.start(order(tmp_path, "import threading; threading.Event().wait()"))
    killer.join(PATIENCE)


def test_kill_on_the_loop_while_the_worker_starts_ends_the_wait_every_time(tmp_path: Path) -> None:
    """The number of the closed socket is in use again before the thread that waits has looked."""
    with turning_loop() as loop:
        for _ in range(10):
            worker = Worker(Process())
            what = order(tmp_path, "import threading; threading.Event().wait()")
            lost: list[bool] = []

            def ask(worker: Worker = worker, what: bytes = what, lost: list[bool] = lost) -> None:
                with pytest.raises(WorkerLost):
                    worker.start(what, None, EarlyFrames(loop, lambda frame: None))
                lost.append(True)

            asking = threading.Thread(target=ask, daemon=True)
            asking.start()
            worker.kill()
            with closing(socket.socket()), closing(socket.socket()):
                asking.join(PATIENCE)
            assert lost == [True]
            assert ended(worker.pid)


def test_worker_survives_interrupts_of_the_process_group(worker: Worker, tmp_path: Path) -> None:
    source = """
        import os, signal

        class TritonPythonModel:
            def initialize(self, args):
                os.kill(os.getpid(), signal.SIGINT)
                os.kill(os.getpid(), signal.SIGTERM)
    """
    assert worker.start(order(tmp_path, source), PATIENCE) == b"null"


@pytest.mark.parametrize("busy", [False, True])
def test_worker_ends_with_its_server(tmp_path: Path, busy: bool) -> None:
    """The server is killed: its workers end, idle or in the middle of a model's code."""
    source = FINE
    if busy:
        source = """
            import time

            class TritonPythonModel:
                def initialize(self, args):
                    print("busy", flush=True)
                    while True:
                        time.sleep(0.001)
        """
    server = f"""
        import sys
        from halimede.workers.host.process import Process
        from halimede.workers.host.worker import Worker

        worker = Worker(Process())
        print(worker.pid, flush=True)
        worker.start({order(tmp_path, source)!r})
        print("ready", flush=True)
        sys.stdin.read()
    """
    child = subprocess.Popen(
        [sys.executable, "-c", textwrap.dedent(server)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    with child:
        assert child.stdout is not None
        pid = int(child.stdout.readline())
        assert child.stdout.readline() in ("busy\n", "ready\n")
        child.send_signal(signal.SIGKILL)
        assert ended(pid)


def test_forked_child_of_a_model_does_not_keep_the_connection(worker: Worker, tmp_path: Path) -> None:
    """The worker is killed, its forked child goes on: the server notices the end at once."""
    source = """
        import os, time

        class TritonPythonModel:
            def initialize(self, args):
                self.child = os.fork()
                if not self.child:
                    time.sleep(20)
                    os._exit(0)
                open(args["note"], "w").write(str(self.child))
    """
    note = tmp_path / "note"
    lost = threading.Event()
    worker.start(order(tmp_path, source, args={"note": str(note)}), PATIENCE)
    grandchild = int(note.read_text())
    try:
        with turning_loop() as loop:
            worker.attach(loop, lambda frame: None, lost.set)
            os.kill(worker.pid, signal.SIGKILL)
            assert lost.wait(PATIENCE)
            os.kill(grandchild, 0)
    finally:
        os.kill(grandchild, signal.SIGTERM)
    assert ended(grandchild)


def test_close_lets_the_model_finalize(worker: Worker, tmp_path: Path) -> None:
    source = """
        class TritonPythonModel:
            def initialize(self, args):
                self.note = args["note"]

            def finalize(self):
                open(self.note, "w").write("finalized")
    """
    note = tmp_path / "note"
    lost = threading.Event()
    worker.start(order(tmp_path, source, args={"note": str(note)}), PATIENCE)
    with turning_loop() as loop:
        worker.attach(loop, lambda frame: None, lost.set)
        worker.close(PATIENCE)
    assert note.read_text() == "finalized"
    assert not lost.is_set()
    assert ended(worker.pid)


def test_close_without_a_loop_finalizes_too(worker: Worker, tmp_path: Path) -> None:
    worker.start(order(tmp_path, FINE), PATIENCE)
    worker.close(PATIENCE)
    assert ended(worker.pid)


def test_close_kills_what_does_not_finish(worker: Worker, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    source = """
        import threading

        class TritonPythonModel:
            def finalize(self):
                threading.Event().wait()
    """
    worker.start(order(tmp_path, source), PATIENCE)
    with turning_loop() as loop:
        worker.attach(loop, lambda frame: None, lambda: None)
        worker.close(0.3)
    assert ended(worker.pid)
    assert "did not finish within 0.3 seconds" in caplog.text


def test_log_of_a_model_goes_to_the_server_with_its_line(
    worker: Worker, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    source = """
        import triton_python_backend_utils as pb_utils

        class TritonPythonModel:
            def initialize(self, args):
                pb_utils.Logger.log("plain")
                pb_utils.Logger.log("careful", pb_utils.Logger.WARNING)
                pb_utils.Logger.log_error("broken\\nlines")
                pb_utils.Logger.log_verbose("chatter")
    """
    caplog.set_level(logging.INFO - 1)
    worker.start(order(tmp_path, source), PATIENCE)
    assert [(record.levelno, record.filename, record.lineno, record.getMessage()) for record in caplog.records] == [
        (logging.INFO, "model.py", 6, "plain"),
        (logging.WARNING, "model.py", 7, "careful"),
        (logging.ERROR, "model.py", 8, "broken\nlines"),
        (logging.INFO - 1, "model.py", 9, "chatter"),
    ]


class FakeProcess(Process):
    """The other end of the socket is the test's."""

    def __init__(self) -> None:
        self.socket, self.theirs = socket.socketpair()
        self.killed = threading.Event()

    @property
    def pid(self) -> int:
        return 1

    def kill(self) -> None:
        self.killed.set()


@pytest.mark.parametrize(
    "nonsense",
    [
        pytest.param(b"x" * 100, id="no frame"),
        pytest.param(b"".join(frames.frame(frames.LOG, [b"\xff" * 3])), id="malformed log"),
    ],
)
def test_process_that_sends_nonsense_is_killed(nonsense: bytes) -> None:
    process = FakeProcess()
    worker = Worker(process)
    lost = threading.Event()
    with turning_loop() as loop, closing(process.theirs):
        worker.attach(loop, lambda frame: None, lost.set)
        process.theirs.sendall(nonsense)
        assert lost.wait(PATIENCE)
        assert process.killed.is_set()
        assert not worker.alive


def offered(process: FakeProcess, loop: asyncio.AbstractEventLoop, descriptors: list[int]) -> Worker:
    """A worker whose process has sent READY with these."""
    worker = Worker(process)
    ready = b"".join(frames.frame(frames.READY, [b"null"]))
    socket.send_fds(process.theirs, [ready], descriptors)
    worker.start(b"{}", PATIENCE, EarlyFrames(loop, lambda frame: None))
    return worker


def test_one_socket_is_taken_from_a_process_and_goes_with_it() -> None:
    process = FakeProcess()
    with turning_loop() as loop, closing(process.theirs):
        ours, theirs = socket.socketpair()
        with ours, theirs:
            before = open_descriptors()
            worker = offered(process, loop, [theirs.fileno()] * 2)
            assert open_descriptors() == before + 1
            assert worker.readiness is not None
            on_loop(loop, worker.kill)
            on_loop(loop, lambda: None)
            assert open_descriptors() == before - 1, "with the connection itself"


def test_process_that_offers_no_socket_is_lost() -> None:
    process = FakeProcess()
    with turning_loop() as loop, closing(process.theirs), Path(os.devnull).open() as file:
        before = open_descriptors()
        with pytest.raises(WorkerLost):
            offered(process, loop, [file.fileno()])
        assert process.killed.is_set()
        on_loop(loop, lambda: None)
        assert open_descriptors() == before - 1, "with the connection itself"


class BreakingSocket(socket.socket):
    """Sends so many bytes, then breaks."""

    def __init__(self, whole: socket.socket, room: int, code: int) -> None:
        super().__init__(fileno=whole.detach())
        self._room = room
        self._code = code

    def sendmsg(self, buffers: Iterable[Any], *args: Any, **options: Any) -> int:
        if not self._room:
            raise OSError(self._code, os.strerror(self._code))
        sent = super().sendmsg([b"".join(buffers)[: self._room]])
        self._room -= sent
        return sent


@pytest.mark.parametrize("code", [errno.EFAULT, errno.ENOMEM])
@pytest.mark.parametrize("room", [0, 5], ids=["not begun", "in part"])
def test_process_whose_frame_breaks_is_killed(room: int, code: int, caplog: pytest.LogCaptureFixture) -> None:
    process = FakeProcess()
    process.socket = BreakingSocket(process.socket, room, code)
    worker = Worker(process)
    lost = threading.Event()
    with turning_loop() as loop, closing(process.theirs):
        worker.attach(loop, lambda frame: None, lost.set)
        on_loop(loop, lambda: worker.send([b"header", b"tensor"]))
        assert lost.wait(PATIENCE)
        assert process.killed.is_set()
        assert not worker.alive
        process.theirs.settimeout(PATIENCE)
        assert process.theirs.recv(100) == b"heade"[:room]
    assert f"cannot be sent to and is killed: [Errno {code}]" in caplog.text


@pytest.mark.parametrize("room", [0, 5], ids=["not begun", "in part"])
def test_process_that_is_gone_when_a_frame_is_sent_is_left_to_the_reader(room: int) -> None:
    process = FakeProcess()
    process.socket = BreakingSocket(process.socket, room, errno.EPIPE)
    worker = Worker(process)
    lost = threading.Event()
    with turning_loop() as loop, closing(process.theirs):
        worker.attach(loop, lambda frame: None, lost.set)
        on_loop(loop, lambda: worker.send([b"header", b"tensor"]))
        on_loop(loop, lambda: None)
        assert worker.alive
        process.theirs.close()
        assert lost.wait(PATIENCE)
        assert not worker.alive


def test_frames_that_do_not_fit_are_sent_when_there_is_room() -> None:
    process = FakeProcess()
    worker = Worker(process)
    large = [bytes([number]) * 3_000_000 for number in range(3)]
    expected = b""
    with turning_loop() as loop, closing(process.theirs):
        worker.attach(loop, lambda frame: None, lambda: None)
        for content in large:
            buffers = frames.frame(
                frames.REQUESTS, [frames.tensor_record("x", 2, (len(content),), len(content))], [content]
            )
            expected += b"".join(buffers)
            on_loop(loop, lambda buffers=buffers: worker.send(buffers))  # type: ignore[misc]  # mypy and the default
        process.theirs.settimeout(PATIENCE)
        got = bytearray()
        while len(got) < len(expected):
            got += process.theirs.recv(1 << 20)
        on_loop(loop, worker.kill)
    assert got == expected


def test_many_small_tensors_pass_the_limit_of_the_kernel() -> None:
    process = FakeProcess()
    worker = Worker(process)
    contents = [bytes([number % 256]) * 100 for number in range(3000)]
    buffers = frames.frame(frames.REQUESTS, [frames.tensor_record("x", 2, (100,), 100) for _ in contents], contents)
    with turning_loop() as loop, closing(process.theirs):
        worker.attach(loop, lambda frame: None, lambda: None)
        on_loop(loop, lambda: worker.send(buffers))
        process.theirs.settimeout(PATIENCE)
        got = bytearray()
        while len(got) < sum(map(len, buffers)):
            got += process.theirs.recv(1 << 20)
        on_loop(loop, worker.kill)
    assert got == b"".join(buffers)


def test_frame_is_taken_up_within_a_turn_by_whoever_looks() -> None:
    process, worker_poller = FakeProcess(), WorkerPoller()
    never = worker_poller.due
    worker = Worker(process)
    worker.worker_poller = worker_poller
    found: list[int] = []
    message = b"".join(frames.frame(frames.ANSWERS, [], None, 7))

    def within_a_turn() -> None:
        process.theirs.sendall(message)
        assert not found
        worker_poller.look(1)

    with turning_loop() as loop, closing(process.theirs):
        worker.attach(loop, lambda frame: found.append(frame.batch), lambda: None)
        on_loop(loop, within_a_turn)
        assert found == [7]
        on_loop(loop, worker.kill)
        on_loop(loop, lambda: None)
    assert worker_poller.due == never


def test_frames_keep_their_order_though_one_of_them_makes_somebody_look() -> None:
    process, worker_poller = FakeProcess(), WorkerPoller()
    worker = Worker(process)
    worker.worker_poller = worker_poller
    found: list[int] = []
    messages = [b"".join(frames.frame(frames.ANSWERS, [], None, number)) for number in range(4)]

    def arrived(frame: frames.Frame) -> None:
        if not found:
            process.theirs.sendall(b"".join(messages[2:]))
            worker_poller.look(1)
        found.append(frame.batch)

    with turning_loop() as loop, closing(process.theirs):
        worker.attach(loop, arrived, lambda: None)
        on_loop(loop, lambda: process.theirs.sendall(b"".join(messages[:2])))
        limit = time.monotonic() + PATIENCE
        while len(found) < 4 and time.monotonic() < limit:
            on_loop(loop, lambda: None)
        on_loop(loop, worker.kill)
    assert found == [0, 1, 2, 3]

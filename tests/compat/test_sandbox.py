"""Python models in a sandbox, through HTTP: what each attack gets, and what must go on to work.

The server runs as root, as root with the rights of a container, as an ordinary user, and as an ordinary user who gets
no user namespace.
"""

import json
import os
import shutil
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.http as httpclient
from tritonclient.utils import InferenceServerException

from tests.backends import onnx_models
from tests.compat.serving import Serving
from tests.rights import ORDINARY, Rights, missing, open_folder, prefix
from tests.workers.host.environment_fakes import conda_like, packed, script

pytestmark = pytest.mark.sandbox

MEMORY = 512 << 20
PROCESSES = 80
"""Of a server without users of its own, all its processes and threads count."""
TEMPORARY = 16 << 20
SETTINGS = {
    "sandbox": "on",
    "sandbox-memory-byte-size": MEMORY,
    "sandbox-process-count": PROCESSES,
    "sandbox-temporary-byte-size": TEMPORARY,
    "restart-wait-seconds": 60,
}
SECRETS = {"AWS_SECRET_ACCESS_KEY": "s", "HF_TOKEN": "s", "MY_DB_PASSWORD": "s", "TOKENIZERS_PARALLELISM": "no"}

_CONFIG = """
backend: "python"
input [ { name: "SOURCE" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "FOUND" data_type: TYPE_STRING dims: [ 1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""
_ENVIRONMENT = 'parameters {{ key: "EXECUTION_ENV_PATH" value {{ string_value: "{path}" }} }}\n'

MODEL = '''
import ctypes, errno, fcntl, getpass, json, mmap, multiprocessing, os, resource, signal, socket, subprocess, sys
import tempfile, threading, time

import numpy as np
import triton_python_backend_utils as pb_utils

libc = ctypes.CDLL(None, use_errno=True)


def attempt(call, *arguments, **named):
    """What a call raises: the name of the error number, or of the exception; "done" if it raises nothing."""
    try:
        call(*arguments, **named)
    except OSError as error:
        return errno.errorcode[error.errno]
    except BaseException as error:
        return type(error).__name__
    return "done"


def system(name, *arguments):
    """A function of the C library."""
    if getattr(libc, name)(*arguments) < 0:
        raise OSError(ctypes.get_errno(), name)


def syscall(number, *arguments):
    system("syscall", ctypes.c_long(number), *arguments)


class TritonPythonModel:
    def initialize(self, args):
        self.folder = args["model_repository"]

    def is_ready(self):
        return True

    def execute(self, requests):
        return [self.one(request) for request in requests]

    def one(self, request):
        names = {**globals(), "self": self}
        exec(pb_utils.get_input_tensor_by_name(request, "SOURCE").as_numpy()[0].decode(), names)
        return pb_utils.InferenceResponse([pb_utils.Tensor("FOUND", np.array([json.dumps(names["found"])], object))])
'''

_IDENTITY = """
import triton_python_backend_utils as pb_utils

class TritonPythonModel:
    def execute(self, requests):
        tensors = [pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy() for request in requests]
        return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", each)]) for each in tensors]
"""
_IDENTITY_CONFIG = """
backend: "python"
input [ { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] } ]
instance_group [ { kind: KIND_CPU } ]
"""


class Confined(Serving):
    """A server with other rights than those of the tests."""

    def __init__(self, rights: Rights, *arguments: Any, **named: Any) -> None:
        self._rights = rights
        super().__init__(*arguments, **named)

    def command(self, repository: Path) -> Sequence[str]:
        return (*prefix(self._rights), *super().command(repository))


@dataclass(frozen=True, slots=True)
class Sandboxed:
    rights: Rights
    serving: Serving
    repository: Path
    temporary: Path

    @property
    def has_mounts(self) -> bool:
        return self.rights in (Rights.ROOT, Rights.NOBODY)

    def found(self, source: str, model: str = "first") -> Any:
        """What the model finds when it runs the source."""
        given = httpclient.InferInput("SOURCE", [1], "BYTES")
        given.set_data_from_numpy(np.array([source], object))
        with httpclient.InferenceServerClient(self.serving.http_url, network_timeout=60.0) as client:
            answer = client.infer(model, [given]).as_numpy("FOUND")
        assert answer is not None
        return json.loads(answer[0])

    def pid(self) -> int:
        """The server's process, as the model sees it."""
        return int(self.found("found = os.getppid()"))


def write_model(repository: Path, name: str, code: str = MODEL, config: str = _CONFIG) -> Path:
    (repository / name / "1").mkdir(parents=True)
    (repository / name / "config.pbtxt").write_text(config)
    (repository / name / "1" / "model.py").write_text(code)
    return repository / name


def _flags(settings: dict[str, Any]) -> list[str]:
    return [f"--backend-config=python,{name}={value}" for name, value in settings.items()]


@pytest.fixture(scope="module", params=list(Rights), ids=lambda rights: rights.value)
def sandboxed(request: pytest.FixtureRequest) -> Iterator[Sandboxed]:
    if lack := missing():
        pytest.skip(lack)
    rights = request.param
    with open_folder() as folder:
        repository, temporary = folder / "models", folder / "temporary"
        for name in ("first", "second"):
            write_model(repository, name)
        write_model(repository, "identity", _IDENTITY, _IDENTITY_CONFIG)
        (repository / "hosted" / "1").mkdir(parents=True)
        (repository / "hosted" / "1" / "model.onnx").write_bytes(onnx_models.identity("FP32", [3]))
        for name in ("folder", "archive"):
            config = _CONFIG + _ENVIRONMENT.format(path=f"$$TRITON_MODEL_DIRECTORY/{name}")
            made = conda_like(write_model(repository, name, config=config) / "folder", "export FROM=env\n")
            script(made / "bin" / "conda-unpack", _UNPACK)
            if name == "archive":
                packed(made, made.parent / name)
                shutil.rmtree(made)
        temporary.mkdir()
        if rights in (Rights.NOBODY, Rights.NOBODY_IN_CONTAINER):
            for each in (folder, *folder.rglob("*")):
                os.chown(each, ORDINARY, ORDINARY)
        variables = {"TMPDIR": str(temporary), "HOME": str(folder), **SECRETS}
        hosted = ("home=child", "sandbox=on")
        flags = [*_flags(SETTINGS), *(f"--backend-config=onnxruntime,{setting}" for setting in hosted)]
        with Confined(rights, repository, folder / "server.log", *flags, environment=variables) as serving:
            serving.wait_until_live()
            yield Sandboxed(rights, serving, repository, temporary)
            assert serving.stop() == 0, serving.log_text()[-3000:]
            assert list(temporary.iterdir()) == []


_UNPACK = """# writes into the environment, as that of conda-pack does
import os, sys
folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
with open(os.path.join(folder, "moved"), "w") as file:
    file.write("yes")
"""

REFUSED = {"EACCES", "EPERM", "EROFS", "EXDEV"}
"""EXDEV: a link between folders of which the process may change only one."""


# ---- attacks


@pytest.mark.parametrize(
    "source",
    [
        "found = attempt(open, self.folder + '/../second/1/model.py')",
        "found = attempt(os.listdir, self.folder + '/..')",
        "found = attempt(open, '/etc/shadow')",
        "found = attempt(open, '/proc/%d/environ' % os.getppid())",
        "found = attempt(open, '/proc/%d/mem' % os.getppid(), 'r+b')",
        "found = attempt(os.readlink, '/proc/%d/fd/1' % os.getppid())",
        "found = attempt(open, '/proc/%d/root/etc/passwd' % os.getppid())",
        "found = attempt(os.listdir, '/sys/kernel/debug')",
        "found = attempt(open, os.environ['HOME'] + '/../../probe', 'w')",
        "found = attempt(open, '/tmp/halimede-escape', 'w')",
        "found = attempt(os.mkdir, '/var/tmp/halimede-escape')",
        "found = attempt(open, self.folder + '/1/model.py', 'a')",
        "found = attempt(os.truncate, self.folder + '/1/model.py', 0)",
        "found = attempt(os.unlink, self.folder + '/1/model.py')",
        "found = attempt(os.chmod, self.folder + '/1/model.py', 0)",
        "found = attempt(os.utime, self.folder + '/../second/1/model.py')",
        "found = attempt(os.link, self.folder + '/1/model.py', os.environ['HOME'] + '/linked')",
        "found = attempt(os.setxattr, self.folder + '/1/model.py', 'user.a', b'b')",
        "found = attempt(open, '/dev/kmsg', 'rb')",
        "name = tempfile.mktemp(); os.symlink('/etc/shadow', name); found = attempt(open, name); os.unlink(name)",
    ],
)
def test_file_of_others(sandboxed: Sandboxed, source: str) -> None:
    assert sandboxed.found(source) in REFUSED


@pytest.mark.parametrize(
    "source",
    [
        "found = attempt(socket.socket)",
        "found = attempt(socket.socket, socket.AF_INET6, socket.SOCK_DGRAM)",
        "found = attempt(socket.socket, socket.AF_UNIX)",
        "found = attempt(socket.socket, socket.AF_NETLINK, socket.SOCK_RAW)",
        "found = attempt(socket.socketpair, socket.AF_UNIX, socket.SOCK_DGRAM)",
        "found = attempt(socket.create_connection, ('127.0.0.1', 9), 1)",
    ],
)
def test_network(sandboxed: Sandboxed, source: str) -> None:
    assert sandboxed.found(source) == "EPERM"


@pytest.mark.parametrize(
    "source",
    [
        "found = attempt(os.kill, os.getppid(), signal.SIGTERM)",
        "found = attempt(os.kill, os.getppid(), 0)",
        "found = attempt(os.killpg, os.getpgid(os.getppid()), 0)",
        "found = attempt(signal.pidfd_send_signal, os.pidfd_open(os.getppid()), signal.SIGTERM)",
        "found = attempt(system, 'ptrace', 16, os.getppid(), 0, 0)",
        "found = attempt(system, 'process_vm_readv', os.getppid(), 0, 0, 0, 0, 0)",
        "found = attempt(resource.prlimit, os.getppid(), resource.RLIMIT_NOFILE, (4, 4))",
        "found = attempt(os.setpriority, os.PRIO_PROCESS, os.getppid(), 19)",
        "found = attempt(os.sched_setaffinity, os.getppid(), {0})",
        "found = attempt(os.sched_setscheduler, os.getppid(), os.SCHED_IDLE, os.sched_param(0))",
    ],
)
def test_other_process(sandboxed: Sandboxed, source: str) -> None:
    assert sandboxed.found(source) in REFUSED
    assert sandboxed.found("found = 1", "second") == 1


def test_signal_to_another_model(sandboxed: Sandboxed) -> None:
    other = sandboxed.found("found = os.getpid()", "second")
    assert sandboxed.found(f"found = attempt(os.kill, {other}, signal.SIGKILL)") == "EPERM"
    assert sandboxed.found("found = os.getpid()", "second") == other


@pytest.mark.parametrize(
    "source",
    [
        "found = attempt(os.setuid, 0)",
        "found = attempt(os.setuid, os.getuid())",
        "found = attempt(os.setresgid, 0, 0, 0)",
        "found = attempt(os.setgroups, [])",
        "found = attempt(os.setsid)",
        "found = attempt(os.setpgid, 0, 0)",
        "found = attempt(system, 'unshare', 0x10000000)",
        "found = attempt(system, 'mount', b'none', os.environ['HOME'].encode(), b'tmpfs', 0, None)",
        "found = attempt(os.chroot, os.environ['HOME'])",
        "found = attempt(syscall, 425, 8, None)",
        "found = attempt(system, 'shmget', 0, 4096, 0o1600)",
        "found = attempt(fcntl.ioctl, 0, 0x5412, b'x')",
    ],
)
def test_right_of_the_system(sandboxed: Sandboxed, source: str) -> None:
    assert sandboxed.found(source) == "EPERM"


def test_program_with_rights_of_its_own(sandboxed: Sandboxed) -> None:
    """`su` and the like are programs with the set-user-ID bit."""
    source = "found = attempt(lambda: subprocess.run(['su', '-c', 'true'], input='', check=True, capture_output=True))"
    assert sandboxed.found(source) == "CalledProcessError"


def test_fork_without_end(sandboxed: Sandboxed) -> None:
    bomb = """
children, found = [], None
while found is None and len(children) < 500:
    try:
        child = os.fork()
    except OSError as error:
        found = [len(children), errno.errorcode[error.errno]]
    else:
        if not child:
            time.sleep(60)
            os._exit(0)
        children.append(child)
for child in children:
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
"""
    started, error = sandboxed.found(bomb)
    assert 0 < started < PROCESSES
    assert error == "EAGAIN"
    assert sandboxed.found("found = 1") == 1


def test_threads_without_end(sandboxed: Sandboxed) -> None:
    threads = """
over, started = threading.Event(), []
def start():
    while True:
        thread = threading.Thread(target=over.wait)
        thread.start()
        started.append(thread)
found = attempt(start)
over.set()
for thread in started:
    thread.join()
"""
    assert sandboxed.found(threads) == "RuntimeError"


@pytest.mark.parametrize(
    "make", ["np.ones(4 << 20)", "bytearray(32 << 20)", "mmap.mmap(-1, 32 << 20, mmap.MAP_PRIVATE)"]
)
def test_memory_without_limit(sandboxed: Sandboxed, make: str) -> None:
    took = f"""
held = []
def take():
    while len(held) < 100:
        held.append({make})
found = [attempt(take), len(held)]
del held
"""
    error, blocks = sandboxed.found(took)
    assert error in ("MemoryError", "ENOMEM")
    assert 0 < blocks <= MEMORY // (32 << 20)
    assert sandboxed.found("found = 1") == 1


def test_temporary_files_without_limit(sandboxed: Sandboxed) -> None:
    fill = """
def fill():
    with open(os.environ['TMPDIR'] + '/large', 'wb', buffering=0) as file:
        for _ in range(64):
            if file.write(bytes(1 << 20)) < 1 << 20:
                file.write(b'x')
found = [attempt(fill), os.path.getsize(os.environ['TMPDIR'] + '/large')]
os.unlink(os.environ['TMPDIR'] + '/large')
"""
    error, size = sandboxed.found(fill)
    assert error == ("ENOSPC" if sandboxed.has_mounts else "EFBIG")
    assert size <= TEMPORARY


def test_secret_of_the_server(sandboxed: Sandboxed) -> None:
    assert sandboxed.found(f"found = [os.environ.get(name) for name in {list(SECRETS)}]") == [None, None, None, "no"]


def test_limit_cannot_be_raised(sandboxed: Sandboxed) -> None:
    raised = f"found = attempt(resource.setrlimit, resource.RLIMIT_DATA, ({MEMORY * 2}, {MEMORY * 2}))"
    assert sandboxed.found(raised) == "ValueError"


def test_process_that_stays_behind(sandboxed: Sandboxed) -> None:
    """What a model has started ends with it."""
    child = sandboxed.found("found = subprocess.Popen(['sleep', '600']).pid", "second")
    before = sandboxed.found("found = os.getpid()", "second")
    with pytest.raises(InferenceServerException, match="is not healthy"):
        sandboxed.found("os._exit(3)", "second")
    assert sandboxed.found("found = os.getpid()", "second") != before
    sandboxed.serving.until(lambda: not Path(f"/proc/{child}").exists(), f"left process {child} of a model behind")


def test_log_of_the_server(sandboxed: Sandboxed) -> None:
    """Standard output is a file in these tests."""
    size = sandboxed.serving.log.stat().st_size
    assert sandboxed.found("found = [attempt(os.ftruncate, 1, 0), attempt(os.ftruncate, 2, 0)]") == ["EINVAL"] * 2
    assert sandboxed.found("found = attempt(os.lseek, 1, 0, 0)") == "ESPIPE"
    assert sandboxed.serving.log.stat().st_size >= size


# ---- what must go on to work


def test_what_the_machine_does_not_allow_is_said(sandboxed: Sandboxed) -> None:
    log = sandboxed.serving.log_text()
    said = {
        Rights.ROOT: ("as users 60706 to 61183, one for each process; files by Landlock",),
        Rights.CONTAINER: ("as users 60706 to 61183", "models have no /dev/shm", "must be readable by all"),
        Rights.NOBODY: ("each process in a user namespace",),
        Rights.NOBODY_IN_CONTAINER: ("as the server's own user", "neither another user nor a user namespace"),
    }
    for text in (*said[sandboxed.rights], "sandbox-cgroup"):
        assert text in log
    assert ("read-only mounts" in log) == sandboxed.has_mounts


def test_own_files(sandboxed: Sandboxed) -> None:
    source = """
with tempfile.NamedTemporaryFile('w+') as file:
    file.write('kept')
    file.seek(0)
    text, line = file.read(), open(self.folder + '/1/model.py').readline()
    found = [text, line, getpass.getuser() != '', os.path.expanduser('~')]
os.makedirs(os.path.expanduser('~/.cache/a/b'))
os.rename(os.path.expanduser('~/.cache/a/b'), os.path.expanduser('~/c'))
"""
    text, line, has_name, home = sandboxed.found(source)
    assert (text, line, has_name) == ("kept", "\n", True)
    assert Path(home).is_relative_to(sandboxed.temporary)


def test_programs_and_locks_of_multiprocessing(sandboxed: Sandboxed) -> None:
    assert sandboxed.found("found = subprocess.run(['echo', 'a'], capture_output=True, text=True).stdout") == "a\n"
    if sandboxed.has_mounts:
        fork = "context = multiprocessing.get_context('fork')\n"
        assert sandboxed.found(f"{fork}with context.Pool(2) as pool: found = pool.map(abs, [-1, -2])") == [1, 2]


def test_call_of_another_model(sandboxed: Sandboxed) -> None:
    call = """
source = pb_utils.Tensor("SOURCE", np.array(["found = os.getpid()"], object))
request = pb_utils.InferenceRequest(model_name="second", requested_output_names=["FOUND"], inputs=[source])
found = [json.loads(request.exec().output_tensors()[0].as_numpy()[0]), os.getpid()]
"""
    other, own = sandboxed.found(call)
    assert other != own


def test_metrics_log_and_standard_output(sandboxed: Sandboxed) -> None:
    source = """
self.family = pb_utils.MetricFamily(name='confined', description='d', kind=pb_utils.MetricFamily.COUNTER)
self.metric = self.family.Metric(labels={'a': 'b'})
self.metric.increment(3)
pb_utils.Logger.log_info('said by the logger')
print('said by print')
found = 1
"""
    assert sandboxed.found(source) == 1
    sandboxed.serving.until_logged("said by the logger")
    sandboxed.serving.until_logged("said by print")
    assert 'confined{a="b"} 3' in sandboxed.serving.metrics()


def test_large_tensors(sandboxed: Sandboxed) -> None:
    data = np.arange(3 << 20, dtype=np.float32)
    given = httpclient.InferInput("INPUT0", [data.size], "FP32")
    given.set_data_from_numpy(data)
    with httpclient.InferenceServerClient(sandboxed.serving.http_url) as client:
        for _ in range(3):
            answer = client.infer("identity", [given]).as_numpy("OUTPUT0")
            np.testing.assert_array_equal(answer, data)


def test_model_of_another_backend(sandboxed: Sandboxed) -> None:
    """Its process imports the server's package, compiled if the server is."""
    given = httpclient.InferInput("x", [3], "FP32")
    given.set_data_from_numpy(np.arange(3, dtype=np.float32))
    with httpclient.InferenceServerClient(sandboxed.serving.http_url) as client:
        answer = client.infer("hosted", [given]).as_numpy("y")
    np.testing.assert_array_equal(answer, np.arange(3, dtype=np.float32))


def test_readiness_that_the_model_tells(sandboxed: Sandboxed) -> None:
    assert sandboxed.serving.status("/v2/models/first/ready") == 200


@pytest.mark.parametrize("model", ["folder", "archive"])
def test_environment_of_a_model(sandboxed: Sandboxed, model: str) -> None:
    """Its scripts run in a sandbox, too."""
    source = "found = [os.environ['FROM'], os.path.exists(os.environ['CONDA_PREFIX'] + '/moved'), os.environ['HOME']]"
    name, is_moved, home = sandboxed.found(source, model)
    assert (name, is_moved) == ("env", model == "archive")
    assert home == sandboxed.found("found = tempfile.gettempdir()", model)


def test_requests_at_the_same_time(sandboxed: Sandboxed) -> None:
    found: list[Any] = []
    ask: Callable[[], None] = lambda: found.append(sandboxed.found("time.sleep(0.1); found = 1"))  # noqa: E731
    threads = [threading.Thread(target=ask) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert found == [1] * 4

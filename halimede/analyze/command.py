"""`halimede analyze`: one run, from the options to the exit status. Main thread."""

import os
import re
import shutil
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path

from halimede.analyze import processes
from halimede.analyze.answer import Answer, answer_of, lines, setup_texts, texts
from halimede.analyze.changes import text_of, with_changes
from halimede.analyze.checkpoint import Checkpoints, Record
from halimede.analyze.command_line import Order
from halimede.analyze.control import Control, GrpcControl, HttpControl
from halimede.analyze.group import ONE_PROCESS, Group, grouped
from halimede.analyze.interrupt import Interrupt
from halimede.analyze.launch import LocalServer, Ports, flags_of, free_ports, is_used
from halimede.analyze.meter import Meter, Place
from halimede.analyze.session import Session
from halimede.analyze.settings import ModelSettings, Settings
from halimede.analyze.tables import Row, check_fields, csv_text, models_of
from halimede.errors import Error, Invalid, Unavailable
from halimede.perf.options import Options
from halimede.perf.server import split_url, target_of
from halimede.perf.watch import Interrupted, Watch, live_stream
from halimede.platform.limits import allow_many_files

FAILED = 1
"""The exit status after an error."""
_CODE = re.compile(r"^\[StatusCode\.\w+\] ")
"""What precedes the text of an error over gRPC."""
LOCAL_HOSTS = ("localhost", "127.0.0.1", "::1")


def run(order: Order) -> int:
    """Returns the exit status: 0, 1 for an error, 130 after Ctrl-C, 143 after SIGTERM."""
    settings = order.settings
    for warning in settings.warnings:
        print(f"warning: {warning}", file=sys.stderr)
    if settings.command == "report":
        from halimede.analyze.reports import report

        return report(settings)
    with ExitStack() as stack:
        allow_many_files()  # each client has a connection
        return _Profile(settings, order.is_quiet, stack).all()


class _Profile:
    """`profile`: all models, one after the other."""

    def __init__(self, settings: Settings, is_quiet: bool, stack: ExitStack) -> None:
        self._settings, self._is_quiet, self._stack = settings, is_quiet, stack
        self._interrupt = Interrupt(self._complain)
        self._watch = Watch(self._interrupt.is_set, live_stream(None), shutil.get_terminal_size().columns)
        self._server: LocalServer | None = None
        self._answers: list[Answer] = []
        self._status = 0
        self._is_restoring = False
        """Whether the server becomes as it was: that is not interrupted."""

    def all(self) -> int:
        settings = self._settings
        self._check()
        profiles = settings.models
        if settings.is_on("run_config_profile_models_concurrently_enable") and len(profiles) > 1:
            profiles = (grouped(profiles),)
        checkpoints = Checkpoints(Path(settings.text("checkpoint_directory")))
        checkpoints.check()
        checkpoints.start()
        place = self._place()
        control = self._control(place)
        self._stack.callback(control.close)
        self._interrupt.install()
        self._stack.callback(self._interrupt.remove)
        for own in profiles:
            if self._interrupt.count:
                break
            try:
                self._profile(own, place, control, checkpoints)
            except Interrupted:
                pass  # its results are kept
            except Error as error:
                self._complain(f"error: {own.name}: {self._explained(error)}")
                self._status = FAILED
        self._write(checkpoints, [own.name for own in profiles])
        return self._interrupt.status or self._status

    def _explained(self, error: Error) -> str:
        if self._server is not None and self._server.has_ended():
            return f"the server has ended {self._server.ending}: {self._server.last_words()}"
        return _CODE.sub("", " ".join(str(error).split()))

    def _say(self, text: str) -> None:
        if not self._is_quiet:
            print(text, flush=True)

    def _complain(self, text: str) -> None:
        self._watch.clear()
        print(text, file=sys.stderr, flush=True)

    def _check(self) -> None:
        """Finds out what is wrong before anything is measured. Raises Invalid."""
        settings = self._settings
        if settings.text("triton_launch_mode") == "docker":
            raise Invalid(
                "triton_launch_mode docker is not supported: use local, or remote with a server in a container"
            )
        repository = settings.text("model_repository")
        if not settings.models:
            names = _models_in(Path(repository)) if repository else []
            there = f": {', '.join(names)}" if names else ""
            raise Invalid(f"no model is named. Name one or more of the repository's{there}")
        if settings.is_on("apply") and not repository:
            raise Invalid("--apply needs --model-repository, the folder with the configurations")
        if self._is_local and not repository:
            raise Invalid("triton_launch_mode local needs --model-repository")
        for name in ("inference_output_fields", "gpu_output_fields", "server_output_fields"):
            check_fields(settings.words(name))
        _make_folder(Path(settings.text("export_path")) / "results")
        output = settings.text("output_model_repository_path")
        if output and Path(output).exists() and not settings.is_on("override_output_model_repository"):
            raise Invalid(f"the folder '{output}' exists already; --override-output-model-repository replaces it")

    @property
    def _is_local(self) -> bool:
        mode = self._settings.text("triton_launch_mode")
        return mode in ("local", "c_api") or (not mode and bool(self._settings.text("model_repository")))

    # ---- the server

    def _place(self) -> Place:
        settings = self._settings
        protocol = settings.text("client_protocol")
        if not self._is_local:
            http, grpc = settings.text("triton_http_endpoint"), settings.text("triton_grpc_endpoint")
            url = (http or "localhost:8000") if protocol == "http" else (grpc or "localhost:8001")
            host, port, _ = split_url(url, 0)
            pid = processes.listener(port) if host in LOCAL_HOSTS else None
            return Place(url, protocol, pid, settings.text("triton_metrics_url") or f"http://{host}:8002/metrics")
        ports = self._ports()
        server = self._server = LocalServer(
            settings.text("triton_server_path"),
            Path(settings.text("model_repository")),
            ports,
            flags_of(settings.values["triton_server_flags"]),
            {str(name): str(value) for name, value in (settings.values["triton_server_environment"] or {}).items()},
            settings.text("triton_output_path"),
        )
        self._stack.callback(server.stop)
        self._interrupt.at_once = server.kill
        server.wait()
        url = ports.http if protocol == "http" else ports.grpc
        return Place(url, protocol, server.pid, f"http://{ports.metrics}/metrics")

    def _ports(self) -> Ports:
        """Those that the user chose, which must be free, or free ones."""
        settings = self._settings
        given = [settings.text("triton_http_endpoint"), settings.text("triton_grpc_endpoint")]
        metrics = settings.text("triton_metrics_url")
        given.append(metrics.removeprefix("http://").partition("/")[0])
        for address in filter(None, given):
            if is_used(address):
                raise Invalid(
                    f"something listens at {address} already; --triton-launch-mode remote uses a running server"
                )
        chosen = [address or f"127.0.0.1:{port}" for address, port in zip(given, free_ports(3), strict=True)]
        return Ports(*chosen)

    def _control(self, place: Place) -> Control:
        target = target_of(Options(url=place.url, protocol=place.protocol))
        kind = HttpControl if place.protocol == "http" else GrpcControl
        return kind(target, lambda: self._interrupt.is_set() and not self._is_restoring)

    # ---- one model

    def _profile(self, own: ModelSettings, place: Place, control: Control, checkpoints: Checkpoints) -> None:
        settings = self._settings
        meter = self._meter(own, place, control)
        try:
            session = Session(settings, own, meter, checkpoints, self._interrupt, self._say, self._watch.clear)
            meter.check()
            try:
                session.run()
            finally:
                self._conclude(session)
        finally:
            self._end(meter)

    def _meter(self, own: ModelSettings, place: Place, control: Control) -> Meter | Group:
        settings = self._settings
        may_load = not settings.is_on("reload_model_disable") or self._is_local
        called = settings.words("bls_composing_models")
        seconds = float(settings.values["monitoring_interval"])
        if not own.members:
            return Meter(own.name, called, own.perf_words, place, control, self._watch, may_load, seconds)
        quiet = Watch(self._interrupt.is_set, None)  # there is one live line
        meters: list[Meter] = []
        with ExitStack() as undo:
            for each in own.members:
                words = (*ONE_PROCESS, *each.perf_words)
                asks = self._control(place)  # each is measured in a thread of its own
                self._stack.callback(asks.close)
                meter = Meter(each.name, called, words, place, asks, quiet, may_load, seconds)
                undo.callback(self._end, meter)
                meters.append(meter)
            undo.pop_all()
        return Group(own.name, meters, bool(own.loads))

    def _end(self, meter: Meter | Group) -> None:
        meter.close()
        self._is_restoring = True
        try:
            with suppress(Unavailable):  # the server may be gone
                meter.restore()
        finally:
            self._is_restoring = False

    def _conclude(self, session: Session) -> None:
        """Prints the answer, whatever ended the search."""
        answer = answer_of(session.record, os.cpu_count() or 1)
        if answer is None:
            reasons = list(dict.fromkeys(session.dropped.values()))
            why = f"nothing could be measured: {'; '.join(reasons)}" if reasons else "nothing was measured"
            self._complain(f"error: {session.record.names.model}: {why}")
            self._status = FAILED
            return
        self._answers.append(answer)
        count = len({each.candidate.setup for each in session.record.measurements})
        measured = f"{len(session.record.measurements)} measurements of {count} configurations"
        print(f"\n{measured} in {session.seconds:.0f} seconds")
        print("\n".join(lines(answer)))
        files = self._files(session.record)
        new = texts(answer, files)
        for model, text in new.items():
            print(f"\nconfig.pbtxt of {model}:\n\n{text.rstrip()}")
        sys.stdout.flush()
        if self._settings.is_on("apply") and not self._interrupt.count:
            self._apply(answer, new)

    def _files(self, record: Record) -> dict[str, str]:
        """The texts of the configurations in the repository, by model."""
        repository, found = self._settings.text("model_repository"), {}
        for model in record.configs if repository else ():
            with suppress(OSError, UnicodeDecodeError):  # the server completes configurations that are not there
                found[model] = (Path(repository) / model / "config.pbtxt").read_text()
        return found

    def _apply(self, answer: Answer, new: Mapping[str, str]) -> None:
        """Writes the best configuration into the repository."""
        name = answer.record.names.model
        if not answer.record.goal.satisfies(answer.best):
            self._complain(f"warning: {name}: nothing is written, because no configuration meets the constraints")
            return
        for model, text in new.items():
            path = Path(self._settings.text("model_repository")) / model / "config.pbtxt"
            draft = path.with_name("config.pbtxt.new")
            try:
                draft.write_text(text)
                draft.rename(path)
            except OSError as error:
                raise Invalid(f"cannot write '{path}': {error.strerror}") from None
            print(f"\nWritten: {path}")
        if not new:
            print(f"\n{name} stays as it is.")

    # ---- files

    def _write(self, checkpoints: Checkpoints, models: Sequence[str]) -> None:
        settings = self._settings
        records = [checkpoints.records[name] for name in models if name in checkpoints.records]
        rows = [Row(record, found) for record in records for found in record.goal.sorted(record.measurements)]
        folder = Path(settings.text("export_path")) / "results"
        on_gpus = [row for row in rows if "gpu_used_memory" in row.found.figures]
        for name, fields, which in (
            ("filename_model_inference", "inference_output_fields", rows),
            ("filename_model_gpu", "gpu_output_fields", on_gpus),
        ):
            text = csv_text(which, settings.words(fields))
            if text:
                path = folder / settings.text(name)
                with self._saving(path):
                    path.write_text(text)
                    self._say(f"\nWritten: {path}, {checkpoints.path}")
        output = settings.text("output_model_repository_path")
        for record in records if output else ():
            with self._saving(output):
                _write_variants(Path(output), Path(settings.text("model_repository")), record, self._files(record))
        if rows and not settings.is_on("skip_summary_reports"):
            with suppress(ImportError), self._saving("reports"):  # the libraries are those of an extra
                from halimede.analyze.reports import write_summaries

                for path in write_summaries(settings, self._answers):
                    self._say(f"Written: {path}")

    @contextmanager
    def _saving(self, what: object) -> Iterator[None]:
        """Says if a file cannot be written, and goes on with the others."""
        try:
            yield
        except OSError as error:
            self._complain(f"error: cannot write '{error.filename or what}': {error.strerror}")
            self._status = FAILED


def _make_folder(folder: Path) -> None:
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise Invalid(f"cannot write to '{folder}': {error.strerror}") from None
    if not os.access(folder, os.W_OK):
        raise Invalid(f"cannot write to '{folder}': Permission denied")


def _models_in(repository: Path) -> list[str]:
    try:
        return sorted(each.name for each in repository.iterdir() if each.is_dir() and not each.name.startswith("."))
    except OSError:
        return []


def _write_variants(output: Path, repository: Path, record: Record, files: Mapping[str, str]) -> None:
    """Writes each measured configuration of the model into a folder of its name, with links to the model's files, so
    that a server can load it (X39). For models that get load together each of these folders is a repository."""
    model = record.names.model
    shown = {each.candidate.setup: each for each in record.measurements}
    for name, setup in record.names.all():
        if setup not in shown:
            continue
        texts = {**files, **setup_texts(record, shown[setup], files)}
        shutil.rmtree(output / name, ignore_errors=True)
        if record.is_group:
            for each in models_of(record):
                text = texts.get(each) or text_of(record.configs[each])
                _write_variant(output / name / each, text, repository / each)
        else:
            text = texts.get(model) or text_of(record.configs[model])
            _write_variant(output / name, with_changes(text, {"name": name}), repository / model)


def _write_variant(folder: Path, text: str, model: Path) -> None:
    folder.mkdir(parents=True)
    (folder / "config.pbtxt").write_text(text)
    for each in model.iterdir() if model.is_dir() else ():
        if each.name != "config.pbtxt" and not each.name.startswith("."):
            (folder / each.name).symlink_to(each.resolve())

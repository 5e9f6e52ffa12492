"""The choice of the process that a backend's models run in: this one, or child processes.

The operator chooses by `--backend-config=NAME,home=child` and by the parameter HOME of a model. The backend of a home
is created when the first model that runs there is loaded: a server whose models all run in child processes never
imports the runtime. Load threads.
"""

from collections.abc import Callable, Mapping, Sequence
from functools import partial
from threading import Lock
from typing import TYPE_CHECKING, Any

from halimede.backends.api import Backend, BackendContext, BackendModel, Fault, Inspecting, ModelFolder
from halimede.backends.child.settings import HOME_SETTING, chosen_home
from halimede.backends.inspection import not_inspected
from halimede.backends.registry import resolve
from halimede.backends.traits import Home, Traits
from halimede.config.model_config import Description, Incomplete, ModelConfig
from halimede.errors import Invalid
from halimede.workers.host.sandbox_settings import SANDBOX, parse_sandbox

if TYPE_CHECKING:
    from halimede.backends.child.backend import ChildBackend


class BackendOfTwoHomes:
    """A backend that may run in the server and in child processes.

    `of_model` returns the backend of a model's home. With a sandbox the server is no home. A load calls it once
    (`models.loader.find_backend`) and uses the result; the methods of `Backend` here call it each time. `create` makes
    the backend in the server and may raise Error. Raises Invalid for a setting that is no home.
    """

    def __init__(self, traits: Traits, context: BackendContext, create: Callable[[], Backend]) -> None:
        self.traits = traits
        self._context = context
        self._create = create
        self._making = Lock()
        self._in_server: Backend | None = None
        self._in_children: ChildBackend | None = None
        self._setting = context.settings.get(HOME_SETTING)
        self._default = chosen_home(traits, self._setting, {})
        self._sandboxed = parse_sandbox(context.settings) is not None

    def _server(self) -> Backend:
        with self._making:
            if self._in_server is None:
                self._in_server = self._create()
            return self._in_server

    def _children(self) -> "ChildBackend":
        from halimede.backends.child.backend import ChildBackend  # subprocess and more: most servers need none

        with self._making:
            if self._in_children is None:
                self._in_children = ChildBackend(self.traits, self._context)
            return self._in_children

    def of_model(
        self,
        parameters: Mapping[str, str],
        model: str,
        folder: ModelFolder | None = None,
        filename: str = "",
        runtime: str = "",
    ) -> Backend:
        """The backend of a model's home. Blocks while the backend is created. Raises Error if it cannot be."""
        usual = None
        if self.traits.usual_home and folder is not None:
            usual = partial(resolve(self.traits.usual_home), folder, filename, runtime)
        home = chosen_home(self.traits, self._setting, parameters, model, usual)
        if self._sandboxed and home is not Home.CHILD:
            raise Invalid(
                f"model '{model}' would run in the server's process, and backend '{self.traits.name}' has "
                f"{SANDBOX}=on, which needs child processes: --backend-config={self.traits.name},{HOME_SETTING}=child"
            )
        return self._of_home(home)

    def _of_home(self, home: Home) -> Backend:
        return self._children() if home is Home.CHILD else self._server()

    def usable_gpus(self, gpus: Sequence[int]) -> Sequence[int]:
        """For models that do not choose a home."""
        return self._of_home(self._default).usable_gpus(gpus)

    def describe(self, asked: Incomplete, folder: ModelFolder, filename: str) -> Description | Mapping[str, Any] | None:
        backend = self.of_model(asked.parameters, asked.name, folder, filename, asked.value("runtime"))
        return backend.describe(asked, folder, filename)

    def runs_code(self, asked: Incomplete) -> bool:
        backend = self.of_model(asked.parameters, asked.name)
        return isinstance(backend, Inspecting) and backend.runs_code(asked)

    def faults(self, asked: Incomplete, config: ModelConfig | None, folder: ModelFolder, filename: str) -> list[Fault]:
        backend = self.of_model(asked.parameters, asked.name, folder, filename, asked.value("runtime"))
        if not isinstance(backend, Inspecting):
            return [not_inspected(self.traits)]
        return backend.faults(asked, config, folder, filename)

    def open(self, config: ModelConfig, folder: ModelFolder) -> BackendModel:
        home = self.of_model(config.parameters, config.name, folder, config.model_filename, config.runtime)
        return home.open(config, folder)

    def close(self) -> None:
        with self._making:
            for backend in (self._in_server, self._in_children):
                if backend is not None:
                    backend.close()

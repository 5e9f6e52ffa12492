"""What the user wants, as values: read from a YAML file and a command line, which goes first (X47). Reads files."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from halimede.analyze import tags
from halimede.analyze.fields import FIELDS, MODEL_FIELDS, PARAMETER_FIELDS, UNUSED_OF_MODELS, Field
from halimede.analyze.ranking import DEFAULT_WEIGHT, Goal, Limits
from halimede.analyze.space import Bounds
from halimede.errors import Invalid
from halimede.options import suggestion

Values = Mapping[str, Any]
ADAPTIVE_DELAYS = (0, 200, 1000)


@dataclass(frozen=True, slots=True)
class ModelSettings:
    """How one model is profiled."""

    name: str
    goal: Goal = field(default_factory=Goal)
    bounds: Bounds = field(default_factory=Bounds)
    batch_sizes: tuple[int, ...] = (1,)
    loads: tuple[float, ...] = ()
    is_rate: bool = False
    changes: Mapping[str, Any] = field(default_factory=dict)
    """`model_config_parameters`: values of fields of the configuration to be tried."""
    cpu_only: bool = False
    perf_words: tuple[str, ...] = ()
    weighting: int = 1
    members: tuple["ModelSettings", ...] = ()
    """The models that get load together, if this is a group of them."""


@dataclass(frozen=True, slots=True)
class Settings:
    """All options. `values` has all by name; `given` has the names of those that the user gave."""

    command: str
    values: Values
    models: tuple[ModelSettings, ...] = ()
    given: frozenset[str] = frozenset()
    warnings: tuple[str, ...] = ()

    def text(self, name: str) -> str:
        return str(self.values[name])

    def number(self, name: str) -> int:
        return int(self.values[name])

    def is_on(self, name: str) -> bool:
        return bool(self.values[name])

    def words(self, name: str) -> tuple[str, ...]:
        return tuple(self.values[name])

    @property
    def delays(self) -> tuple[int, ...]:
        given = self.values["run_config_search_queue_delays"]
        if given is None:
            return ADAPTIVE_DELAYS if self.text("run_config_search_mode") == "adaptive" else ()
        found = tuple(int(each) for each in given)
        return found if found != (0,) else ()


def read(command: str, given: Values, perf_words: Sequence[str] = ()) -> Settings:
    """The settings of a command line, whose values are texts, and of the YAML file that it names. `perf_words` are
    options for the load. Raises Invalid."""
    path = given.get("config_file")
    raw: dict[str, Any] = dict(_yaml(Path(str(path)))) if path else {}
    _refuse_unknown(raw)
    models = raw.pop("profile_models", None) if "profile_models" not in given else None
    raw.update(given)
    if models is None:
        models = raw.pop("profile_models", ())
    values = {name: each.default for name, each in FIELDS.items()}
    for name, value in raw.items():
        values[name] = value_of(FIELDS[name], value)
    warnings = [f"{name} has no effect: {FIELDS[name].note}" for name in raw if FIELDS[name].note]
    unused = {**UNUSED_OF_MODELS}
    if values["run_config_profile_models_concurrently_enable"]:
        del unused["weighting"]
    warnings += [
        f"{key} of the model '{name}' has no effect: {unused[key]}"
        for name, own in _models(models).items()
        for key in own
        if key in unused
    ]
    profiles = tuple(_model(name, own, values, perf_words) for name, own in _models(models).items())
    if command == "report" and raw.get("report_model_configs"):
        values["report_model_configs"] = tuple(_models(raw["report_model_configs"]))
    return Settings(command, values, profiles, frozenset(raw), tuple(warnings))


def _yaml(path: Path) -> Mapping[str, Any]:
    try:
        import yaml
    except ImportError:
        raise Invalid("YAML files need a library: pip install 'halimede[analyze]'") from None
    try:
        found = yaml.safe_load(path.read_text())
    except OSError as error:
        raise Invalid(f"'{path}' cannot be read: {error.strerror}") from None
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise Invalid(f"'{path}' is no YAML: {' '.join(str(error).split())}") from None
    if found is None:
        return {}
    if not isinstance(found, dict):
        raise Invalid(f"'{path}' must have names with values")
    return {str(name): value for name, value in found.items()}


def _refuse_unknown(raw: Values) -> None:
    for name in raw:
        if name not in FIELDS:
            near = suggestion(name, tuple(FIELDS), "{}")
            raise Invalid(f"unknown key '{name}' in the YAML file{near}")


# ---- values


def value_of(row: Field, value: Any) -> Any:
    """The value of an option, from YAML or from a text. Raises Invalid."""
    readers: dict[str, Callable[[Any], Any]] = {
        "text": _text,
        "int": int,
        "float": float,
        "bool": _bool,
        "words": words_of,
        "numbers": numbers_of,
        "map": _map,
    }
    try:
        found = readers[row.kind](value)
    except (TypeError, ValueError):
        raise Invalid(f"{row.name} must be {_KINDS[row.kind]}, and is '{value}'") from None
    if row.choices and found not in row.choices:
        raise Invalid(f"{row.name} must be one of {', '.join(row.choices)}, and is '{value}'")
    return found


_KINDS = {
    "text": "a text",
    "int": "a whole number",
    "float": "a number",
    "bool": "true or false",
    "words": "a list of words",
    "numbers": "numbers: a list, a range with start, stop and step, or a text such as 1,2,4",
    "map": "names with values",
}


def _text(value: Any) -> str:
    if isinstance(value, list | dict):
        raise TypeError
    return str(value)


def _bool(value: Any) -> bool:
    return ("false", "true").index(str(value).lower()) == 1


def _map(value: Any) -> Any:
    if not isinstance(value, dict | list | str):
        raise TypeError
    return value


def words_of(value: Any) -> tuple[str, ...]:
    """Words in a list, or in a text with commas between them."""
    if isinstance(value, str):
        return tuple(word.strip() for word in value.split(",") if word.strip())
    if isinstance(value, dict):
        raise TypeError
    return tuple(map(str, value))


def numbers_of(value: Any) -> tuple[float, ...]:
    """Numbers in a list, a range (with its end), or a text: `1,2,4` or `start:stop:step`."""
    if isinstance(value, dict):
        if set(value) - {"start", "stop", "step"}:
            raise ValueError
        return _range(int(value["start"]), int(value["stop"]), int(value.get("step", 1)))
    if isinstance(value, str):
        if ":" in value:
            parts = [int(part) for part in value.split(":")]
            return _range(*parts[:2], *(parts[2:] or [1]))
        return tuple(_number(part) for part in value.split(",") if part.strip())
    if isinstance(value, Iterable):
        return tuple(map(_number, value))
    return (_number(value),)


def _number(value: Any) -> float:
    found = float(value)
    if found < 0 or isinstance(value, bool):
        raise ValueError
    return int(found) if found.is_integer() else found


def _range(start: int, stop: int, step: int) -> tuple[float, ...]:
    if step <= 0 or stop < start:
        raise ValueError
    return tuple(range(start, stop + 1, step))


# ---- models


def _models(value: Any) -> dict[str, Mapping[str, Any]]:
    """Names of models with what they have of their own: a text, a list of names or maps, or a map."""
    if isinstance(value, str):
        return {name: {} for name in words_of(value)}
    found: dict[str, Mapping[str, Any]] = {}
    for each in [value] if isinstance(value, dict) else value:
        if isinstance(each, dict):
            for name, own in each.items():
                if own is not None and not isinstance(own, dict):
                    raise Invalid(f"what the model '{name}' has must be names with values")
                found[str(name)] = own or {}
        else:
            found[str(each)] = {}
    return found


def _model(name: str, own: Mapping[str, Any], values: Values, perf_words: Sequence[str]) -> ModelSettings:
    for key in own:
        if key not in MODEL_FIELDS:
            raise Invalid(f"unknown key '{key}' of the model '{name}'{suggestion(str(key), MODEL_FIELDS, '{}')}")
    parameters = own.get("parameters") or {}
    for key in parameters:
        if key not in PARAMETER_FIELDS:
            raise Invalid(
                f"unknown parameter '{key}' of the model '{name}'{suggestion(str(key), PARAMETER_FIELDS, '{}')}"
            )

    def chosen(key: str) -> Any:
        return value_of(FIELDS[key], own[key]) if own.get(key) is not None else values[key]

    def numbers(key: str) -> tuple[float, ...]:
        found = parameters.get(key)
        return value_of(FIELDS[key], found) if found is not None else (values[key] or ())

    rates, clients = numbers("request_rate"), numbers("concurrency")
    if rates and clients:
        raise Invalid(f"the model '{name}' has both request_rate and concurrency")
    flags = {**(values["perf_analyzer_flags"] or {}), **(own.get("perf_analyzer_flags") or {})}
    changes = own.get("model_config_parameters") or {}
    if not isinstance(changes, dict):
        raise Invalid(f"model_config_parameters of the model '{name}' must be names with values")
    return ModelSettings(
        name,
        Goal(objectives_of(own.get("objectives") or values["objectives"]), _constraints(own, values)),
        _bounds(chosen),
        tuple(int(each) for each in numbers("batch_sizes")) or (1,),
        rates or clients,
        bool(rates) or bool(values["request_rate_search_enable"]),
        changes,
        bool(own.get("cpu_only", values["cpu_only"])),
        (*flag_words(flags), *perf_words),
        int(own.get("weighting", values["weighting"])),
    )


def _bounds(chosen: Callable[[str], Any]) -> Bounds:
    names = {
        "min_concurrency": "min_concurrency",
        "max_concurrency": "max_concurrency",
        "min_rate": "min_request_rate",
        "max_rate": "max_request_rate",
        "min_instances": "min_instance_count",
        "max_instances": "max_instance_count",
        "min_batch": "min_model_batch_size",
        "max_batch": "max_model_batch_size",
        "binary_steps": "max_binary_search_steps",
    }
    found = {field: int(chosen(f"run_config_search_{name}")) for field, name in names.items()}
    for kind in ("concurrency", "rate", "instances", "batch"):
        least, most = found[f"min_{kind}"], found[f"max_{kind}"]
        if not 1 <= least <= most:
            raise Invalid(f"the bounds of {kind} must be 1 <= min <= max, and are {least} and {most}")
    return Bounds(**found)


def flag_words(flags: Mapping[str, Any]) -> list[str]:
    """Flags of perf_analyzer as words: `{percentile: 95}` -> `--percentile=95`; a list repeats its flag (X41)."""
    found = []
    for name, value in flags.items():
        for each in value if isinstance(value, list) else [value]:
            if each is True or each is None:
                found.append(f"--{name}")
            elif each is not False:
                found += [f"--{name}", str(each)]
    return found


def objectives_of(value: Any) -> Mapping[str, float]:
    """Objectives with weights: a map, a list or a text (X40). Raises Invalid for unknown tags."""
    if not value:
        return {"perf_throughput": DEFAULT_WEIGHT}
    pairs = value if isinstance(value, dict) else dict.fromkeys(words_of(value), DEFAULT_WEIGHT)
    return {_tag(name, "objectives"): float(weight) for name, weight in pairs.items()}


def _tag(name: str, where: str) -> str:
    found = tags.known(str(name))
    if found is None:
        raise Invalid(f"unknown tag '{name}' in {where}{suggestion(str(name), tuple(tags.TAGS), '{}')}")
    return found


def _constraints(own: Values, values: Values) -> dict[str, Limits]:
    found: dict[str, Limits] = {}
    given = own.get("constraints") or values["constraints"] or {}
    if not isinstance(given, dict):
        raise Invalid("constraints must be names with min or max")
    for name, bounds in given.items():
        if not isinstance(bounds, dict) or set(bounds) - {"min", "max"}:
            raise Invalid(f"the constraint '{name}' must have min or max")
        limits = {"least" if key == "min" else "most": float(value) for key, value in bounds.items()}
        found[_tag(name, "constraints")] = Limits(**limits)
    if values["latency_budget"]:
        found["perf_latency_p99"] = Limits(most=float(values["latency_budget"]))
    if values["min_throughput"]:
        found["perf_throughput"] = Limits(least=float(values["min_throughput"]))
    return found

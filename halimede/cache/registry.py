"""Opens the cache that `--cache-config` names (C47, C48)."""

from collections.abc import Mapping
from typing import Final

from halimede.cache.api import Cache, EventLoop
from halimede.cache.local import open_local
from halimede.errors import Invalid

LOCAL: Final = "local"
REDIS: Final = "redis"

_SWITCH: Final = ("false", "true")


def open_cache(configs: Mapping[str, Mapping[str, str]], directory: str, loop: EventLoop) -> tuple[Cache, bool] | None:
    """The cache, and whether equal requests wait for the first of them (`single_flight`); None if `configs` is empty.

    `configs` has the settings by the name of the cache. `directory` only appears in an error text. Raises Error with
    Triton's texts.
    """
    if not configs:
        return None
    if len(configs) > 1:
        raise Invalid("found multiple cache configurations, but only a single cache is currently supported")
    ((name, settings),) = configs.items()
    if name not in (LOCAL, REDIS):
        error = Invalid(f"unable to find 'libtritoncache_{name}.so' for cache. Searched: {directory}")
        error.advice = f"the caches of this server are '{LOCAL}' and '{REDIS}', and it loads no libraries"
        raise error
    text = settings.get("single_flight", "false")
    if text not in _SWITCH:
        raise Invalid(f"Failed to initialize the response cache: 'single_flight' must be true or false, got '{text}'")
    single_flight = text == "true"
    if name == LOCAL:
        return open_local(settings), single_flight
    # Imported here: most servers start without it.
    from halimede.cache.redis import open_redis

    return open_redis(settings, loop), single_flight

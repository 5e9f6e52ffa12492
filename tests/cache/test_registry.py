from pathlib import Path

import pytest

from halimede.cache.local import LocalCache
from halimede.cache.registry import open_cache
from halimede.errors import Invalid
from tests.fakes import ManualLoop
from tests.transport.certificates import Authority, encrypted

DIRECTORY = "/opt/tritonserver/caches"
LOCAL = {"size": "4096"}
REDIS = {"host": "h", "port": "1"}


def test_no_name_opens_no_cache() -> None:
    assert open_cache({}, DIRECTORY, ManualLoop()) is None


@pytest.mark.parametrize(("setting", "flight"), [({}, False), ({"single_flight": "true"}, True)])
def test_local_cache_and_its_single_flight_setting(setting: dict[str, str], flight: bool) -> None:
    opened = open_cache({"local": {**LOCAL, **setting}}, DIRECTORY, ManualLoop())
    assert opened is not None
    cache, single_flight = opened
    assert isinstance(cache, LocalCache)
    assert single_flight == flight


@pytest.mark.parametrize(
    ("configs", "text"),
    [
        (
            {"local": LOCAL, "redis": {}},
            "found multiple cache configurations, but only a single cache is currently supported",
        ),
        ({"foo": {}}, f"unable to find 'libtritoncache_foo.so' for cache. Searched: {DIRECTORY}"),
        (
            {"local": {**LOCAL, "single_flight": "yes"}},
            "Failed to initialize the response cache: 'single_flight' must be true or false, got 'yes'",
        ),
        (
            {"redis": {"host": "h"}},
            "Failed to initialize RedisCache, didn't specify address. Must at a minimum specify 'host' and 'port' in "
            "the configuration - e.g. tritonserver --cache-config redis,host=redis --cache-config redis,port=6379 "
            "--model-repository=/models ...",
        ),
        (
            {"redis": {"host": "h", "port": "x"}},
            "Failed to initialize RedisCache: 'port' must be a number, got 'x'",
        ),
        (
            {"redis": {**REDIS, "tls_enabled": "on"}},
            "Failed to initialize RedisCache: 'tls_enabled' must be true or false, got 'on'",
        ),
        (
            {"redis": {**REDIS, "cert": "/nowhere/cert.pem"}},
            "Failed to initialize RedisCache: 'cert' and 'key' must be specified together",
        ),
        (
            {"redis": {**REDIS, "cacert": "/nowhere/ca.pem"}},
            "Failed to initialize RedisCache: cannot use 'cacert' /nowhere/ca.pem: [Errno 2] No such file or directory",
        ),
        (
            {"redis": {**REDIS, "cert": "/nowhere/cert.pem", "key": "/nowhere/key.pem"}},
            "Failed to initialize RedisCache: cannot use 'cert' /nowhere/cert.pem, 'key' /nowhere/key.pem: "
            "[Errno 2] No such file or directory",
        ),
    ],
)
def test_bad_settings_are_refused(configs: dict[str, dict[str, str]], text: str) -> None:
    with pytest.raises(Invalid) as caught:
        open_cache(configs, DIRECTORY, ManualLoop())
    assert str(caught.value) == text


def test_key_file_with_a_password_is_refused_without_a_prompt(tmp_path: Path) -> None:
    identity = Authority.made(tmp_path, "authority").signs("client")
    files = {"cert": str(identity.certificate), "key": str(encrypted(identity.key))}
    with pytest.raises(Invalid, match="the key is encrypted, and its password cannot be given"):
        open_cache({"redis": {**REDIS, **files}}, DIRECTORY, ManualLoop())

"""`--cache-config`, `--response-cache-byte-size` and what the environment adds (contract C47, C49, K8)."""

from collections.abc import Mapping

import pytest

from halimede.errors import Invalid
from halimede.options import ServerOptions, parse


def read(*words: str, environment: Mapping[str, str] | None = None) -> ServerOptions:
    return parse(words, environment or {})


def configs(options: ServerOptions) -> dict[str, dict[str, str]]:
    return {name: dict(settings) for name, settings in options.cache_config.items()}


def test_cache_is_off_by_default() -> None:
    assert configs(read()) == {}
    assert configs(read(environment={"TRITON_REDIS_HOST": "h"})) == {}


@pytest.mark.rows("C47")
def test_last_value_of_each_cache_setting_counts() -> None:
    words = [f"--cache-config={text}" for text in ("local,size=5", "local,other=a=b", "local,size=7", "redis,host=h")]
    assert configs(read(*words)) == {"local": {"size": "7", "other": "a=b"}, "redis": {"host": "h"}}


FORM = "--cache-config option format is"


@pytest.mark.rows("C47")
@pytest.mark.parametrize(
    ("text", "problem"),
    [
        *((text, f"No cache specified. {FORM} <cache name>,<setting>=<value>.") for text in ("local", ",a=5", "a=5")),
        *(
            (text, f"{FORM} '<cache name>,<setting>=<value>'.")
            for text in ("local,", "local,a", "local,a=", "local,=5")
        ),
    ],
)
def test_malformed_cache_setting_is_refused(text: str, problem: str) -> None:
    with pytest.raises(Invalid) as caught:
        read(f"--cache-config={text}")
    assert str(caught.value) == f'Bad option: "--cache-config".\n{problem} Got {text}'


@pytest.mark.rows("C49")
def test_old_size_flag_is_a_local_cache_and_warns() -> None:
    options = read("--response-cache-byte-size=4096", "--response-cache-byte-size=8192")
    assert configs(options) == {"local": {"size": "8192"}}
    assert len(options.warnings) == 2
    assert options.warnings[0].startswith("'--response-cache-byte-size' has been deprecated!")
    assert [warning.rpartition(" ")[2] for warning in options.warnings] == [
        "'--cache-config=local,size=4096'", "'--cache-config=local,size=8192'",
    ]  # fmt: skip


@pytest.mark.rows("C49")
def test_old_and_new_cache_flags_exclude_each_other() -> None:
    with pytest.raises(Invalid) as caught:
        read("--response-cache-byte-size=4096", "--cache-config=local,size=4096")
    assert str(caught.value) == (
        "Error: Incompatible flags --response-cache-byte-size and --cache-config both provided. "
        "Please provide one or the other."
    )


def test_environment_completes_the_settings_of_redis() -> None:
    environment = {
        "TRITON_REDIS_HOST": "eh",
        "TRITON_REDIS_PORT": "1",
        "TRITONCACHE_REDIS_USERNAME": "eu",
        "TRITONCACHE_REDIS_PASSWORD": "ep",
    }
    options = read("--cache-config=redis,host=h", "--cache-config=redis,db=1", environment=environment)
    assert configs(options) == {"redis": {"host": "h", "db": "1", "port": "1", "user": "eu", "password": "ep"}}

"""Keys: made once, stored as hashes, found in headers."""

from base64 import b64encode
from hashlib import sha256

import pytest

from halimede.errors import Invalid, Unauthenticated
from halimede.identities.keys import MAX_KEY_CHARACTERS, PREFIX, id_of, key_in, new_key, read_stored


def test_key_is_stored_as_a_hash_that_only_it_matches() -> None:
    key, stored = new_key()
    text = str(stored)
    assert key.startswith(PREFIX)
    assert id_of(key) == stored.id
    assert key.removeprefix(f"{PREFIX}{stored.id}_") not in text
    assert text == f"{stored.id}:sha256:{sha256(key.encode()).hexdigest()}"
    assert read_stored(text) == stored
    assert stored.matches(key)
    assert not stored.matches(key[:-1])
    assert not stored.matches(key + "é\ud800")


def test_keys_differ_and_have_256_random_bits() -> None:
    keys = {new_key()[0] for _ in range(100)}
    assert len(keys) == 100
    # 32 bytes as base64 have 43 characters.
    assert {len(key.split("_", 2)[2]) for key in keys} == {43}


@pytest.mark.parametrize(
    "text", ["", "a", "a:md5:00", "a:sha256:00", "a:sha256:zz", ":sha256:" + "0" * 64, "a_b:sha256:" + "0" * 64]
)
def test_stored_key_of_a_wrong_form(text: str) -> None:
    with pytest.raises(Invalid, match="a key must be 'ID:sha256:HEX'"):
        read_stored(text)


def test_key_in_the_place_of_a_hash_is_not_repeated() -> None:
    key, _ = new_key()
    with pytest.raises(Invalid) as caught:
        read_stored(key)
    assert key not in str(caught.value)


def basic(text: str) -> str:
    return "Basic " + b64encode(text.encode()).decode()


@pytest.mark.parametrize(
    ("header", "key"),
    [
        ("Bearer k", "k"),
        ("bearer  k ", "k"),
        ("BEARER k", "k"),
        (basic("alice:k"), "k"),
        (basic(":k:l"), "k:l"),
        (basic("alice"), ""),
        ("Bearer", ""),
    ],
)
def test_key_in_a_header(header: str, key: str) -> None:
    assert key_in(header) == key


@pytest.mark.parametrize("header", ["", "k", "Digest k", "Basic ?", "Basic " + b64encode(b"\xff").decode(), "Basic é"])
def test_header_of_an_unknown_form(header: str) -> None:
    with pytest.raises(Unauthenticated, match="must be 'Bearer KEY'"):
        key_in(header)


@pytest.mark.parametrize("key", ["", "k", "halimede", "other_1_2", PREFIX + "1" * MAX_KEY_CHARACTERS + "_2"])
def test_text_without_an_id(key: str) -> None:
    assert id_of(key) == ""

"""The storage library with storage servers on this machine."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from halimede.errors import NotFound, Unavailable
from halimede.storage.credentials import credentials_of
from halimede.storage.locations import location_of
from halimede.storage.stores import Store
from tests.storage.emulators import CREDENTIALS, XmlStorage, moto_s3, xml_storage

FILES = {"models/m/1/data": b"0123456789", "models/m/config.pbtxt": b"x", "models/other/1/y": b"", "else": b"?"}


@pytest.fixture
def storage() -> Iterator[XmlStorage]:
    with xml_storage() as storage:
        storage.objects.update(FILES)
        yield storage


def s3(port: int, path: str = "bucket/models") -> Store:
    location = location_of(f"s3://127.0.0.1:{port}/{path}")
    return Store(location, credentials_of(location, CREDENTIALS))


def check(store: Store) -> None:
    assert sorted(store.folders("models")) == ["m", "other"]
    assert store.folders("") == ["models"]
    found = {each.path: each for each in store.objects("models/m")}
    assert {path: each.size for path, each in found.items()} == {"1/data": 10, "config.pbtxt": 1}
    assert bytes(store.read(found["1/data"], 2, 5)) == b"234"
    assert found["1/data"].etag != found["config.pbtxt"].etag


def test_stub_of_s3(storage: XmlStorage) -> None:
    check(s3(storage.port))


def test_credentials_of_two_places_are_not_mixed(storage: XmlStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN"):
        monkeypatch.setenv(name, "environment")
    location = location_of(f"s3://127.0.0.1:{storage.port}/bucket/models")
    for settings, token in (({}, None), ({"session_token": "mine"}, "mine")):
        keys = {"access_key_id": "me", "secret_access_key": "secret"}
        Store(location, {**keys, **settings}).folders("models")
        head = storage.heads[-1]
        assert "Credential=me/" in head["authorization"]
        assert head.get("x-amz-security-token") == token


def test_s3_by_moto() -> None:
    import boto3

    with moto_s3() as port:
        client = boto3.client(
            "s3",
            endpoint_url=f"http://127.0.0.1:{port}",
            aws_access_key_id="user",
            aws_secret_access_key="secret",
            region_name="us-east-1",
        )
        client.create_bucket(Bucket="bucket")
        for key, content in FILES.items():
            client.put_object(Bucket="bucket", Key=key, Body=content)
        store = s3(port)
        check(store)
        [old] = [each for each in store.objects("models/m") if each.path == "1/data"]
        client.put_object(Bucket="bucket", Key="models/m/1/data", Body=b"abcdefghij")
        with pytest.raises(Unavailable, match="changed while it was read"):
            store.read(old, 0, 10)


def test_stub_of_google_cloud_storage(storage: XmlStorage, tmp_path: Path) -> None:
    key = {
        "gcs_base_url": f"http://127.0.0.1:{storage.port}",
        "disable_oauth": True,
        "client_email": "",
        "private_key": "",
        "private_key_id": "",
    }
    (tmp_path / "key.json").write_text(json.dumps(key))
    location = location_of("gs://bucket/models")
    check(Store(location, credentials_of(location, {"GOOGLE_APPLICATION_CREDENTIALS": str(tmp_path / "key.json")})))


def test_missing_objects_and_buckets(storage: XmlStorage) -> None:
    store = s3(storage.port)
    [there] = [each for each in store.objects("models/other") if each.path == "1/y"]
    del storage.objects["models/other/1/y"]
    with pytest.raises(NotFound, match=r"failed to read 's3://.*, 1/y': not found"):
        store.read(there, 0, 1)


def test_storage_that_answers_500(storage: XmlStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.storage.stores.RETRIES", 1)
    storage.status = 500
    with pytest.raises(Unavailable) as caught:
        s3(storage.port).folders("models")
    assert "failed to list 's3://127.0.0.1:" in str(caught.value)
    assert "\n" not in str(caught.value)
    assert "500" in str(caught.value)
    assert "secret" not in str(caught.value)


def test_storage_that_times_out(storage: XmlStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.storage.stores.REQUEST_SECONDS", 0.2)
    monkeypatch.setattr("halimede.storage.stores.RETRIES", 0)
    storage.answering.clear()
    try:
        with pytest.raises(Unavailable, match="failed to list"):
            s3(storage.port).objects("models/m")
    finally:
        storage.answering.set()


def test_listing_that_is_too_long(storage: XmlStorage, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.storage.stores.MAX_OBJECTS", 2)
    assert len(s3(storage.port).objects("models/m")) == 2
    with pytest.raises(Unavailable, match="more than 2 objects"):
        s3(storage.port).objects("models")


def test_storage_that_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("halimede.storage.stores.RETRIES", 0)
    with pytest.raises(Unavailable, match="failed to list"):
        s3(1).folders("models")

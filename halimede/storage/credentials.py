"""Credentials for a storage, from the file that `TRITON_CLOUD_CREDENTIAL_PATH` names or from the environment (R24,
R25).

Returns them under the names that the storage library has for them. Reads files; any thread.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from halimede.errors import Internal, Invalid
from halimede.storage.locations import AZURE, GCS, S3, Location

FILE = "TRITON_CLOUD_CREDENTIAL_PATH"
_S3_NAMES = {
    "secret_key": "secret_access_key",
    "key_id": "access_key_id",
    "region": "region",
    "session_token": "session_token",
}
_S3_ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "access_key_id",
    "AWS_SECRET_ACCESS_KEY": "secret_access_key",
    "AWS_SESSION_TOKEN": "session_token",
    "AWS_DEFAULT_REGION": "region",
    "AWS_REGION": "region",
}
_PROFILE = {
    "aws_access_key_id": "access_key_id",
    "aws_secret_access_key": "secret_access_key",
    "aws_session_token": "session_token",
    "region": "region",
}


def credentials_of(location: Location, environment: Mapping[str, str]) -> dict[str, str]:
    """The settings that open the storage. If they are empty the library asks the machine for its identity.

    Raises Invalid if the file of credentials cannot be parsed, Internal if it cannot be read.
    """
    entry = _entry(location, environment)
    if location.scheme == S3:
        return _s3(entry, environment)
    if location.scheme == GCS:
        return _gcs(entry, environment)
    return _azure(entry, environment)


def _entry(location: Location, environment: Mapping[str, str]) -> Any:
    """The entry of the file whose path is the longest prefix of the location, or None."""
    path = environment.get(FILE)
    if not path:
        return None
    try:
        kinds = json.loads(Path(path).read_text(encoding="utf-8"))
    except OSError as error:
        raise Internal(f"failed to open text file for read {path}: {error.strerror}") from error
    except ValueError as error:
        raise Invalid(f"failed to parse the credentials of {FILE} ({path}): {error}") from error
    entries = kinds.get(location.scheme, {}) if isinstance(kinds, dict) else None
    if not isinstance(entries, dict):
        raise Invalid(f"the credentials of {FILE} ({path}) must be objects by 'gs', 's3' and 'as'")
    fitting = [prefix for prefix in entries if location.url.startswith(prefix)]
    return entries[max(fitting, key=len)] if fitting else None


def _s3(entry: Any, environment: Mapping[str, str]) -> dict[str, str]:
    if entry is not None:
        given = _texts(entry)
        found = {_S3_NAMES[name]: value for name, value in given.items() if name in _S3_NAMES and value}
        profile = given.get("profile", "")
    else:
        found = {setting: environment[name] for name, setting in _S3_ENVIRONMENT.items() if environment.get(name)}
        profile = environment.get("AWS_PROFILE", "")
    return {**_of_profile(profile, environment), **found} if profile else found


def _of_profile(profile: str, environment: Mapping[str, str]) -> dict[str, str]:
    """A profile in the files of the AWS tools. Raises Invalid if there is none of that name."""
    import configparser  # imported here: few servers have a profile

    home = Path(environment.get("HOME", "~")).expanduser() / ".aws"
    files = {
        environment.get("AWS_CONFIG_FILE", str(home / "config")): f"profile {profile}",
        environment.get("AWS_SHARED_CREDENTIALS_FILE", str(home / "credentials")): profile,
    }
    found: dict[str, str] = {}
    # The second file wins, as in the AWS tools.
    for file, section in files.items():
        parser = configparser.ConfigParser(interpolation=None)
        try:
            parser.read(file, encoding="utf-8")
        except configparser.Error as error:
            raise Invalid(f"failed to parse {file}: {error}") from error
        for name in (section, profile):
            if parser.has_section(name):
                found.update({_PROFILE[key]: value for key, value in parser.items(name) if key in _PROFILE})
    if not found:
        raise Invalid(f"there is no profile '{profile}' in {' or '.join(files)}")
    return found


def _gcs(entry: Any, environment: Mapping[str, str]) -> dict[str, str]:
    """The path of a service account's key file."""
    path = entry if isinstance(entry, str) else environment.get("GOOGLE_APPLICATION_CREDENTIALS", "")
    return {"service_account": path} if path else {}


def _azure(entry: Any, environment: Mapping[str, str]) -> dict[str, str]:
    if entry is not None:
        found = {"account_key": _texts(entry).get("account_key", "")}
    elif environment.get("AZURE_STORAGE_AUTH_TYPE") in ("managed_identity", "default"):
        found = {"client_id": environment.get("AZURE_STORAGE_CLIENT_ID", "")}
    else:
        found = {"account_key": environment.get("AZURE_STORAGE_KEY", "")}
    found["endpoint"] = environment.get("AZURE_STORAGE_ENDPOINT", "")
    return {name: value for name, value in found.items() if value}


def _texts(entry: Any) -> dict[str, str]:
    if not isinstance(entry, dict):
        raise Invalid(f"an entry of {FILE} must be an object")
    return {str(key): str(value) for key, value in entry.items()}


MOUNTS = {S3: "TRITON_AWS_MOUNT_DIRECTORY", GCS: "TRITON_GCS_MOUNT_DIRECTORY", AZURE: "TRITON_AZURE_MOUNT_DIRECTORY"}
"""Environment variables with the folder of the copy, by scheme. The default is the folder for temporary files."""

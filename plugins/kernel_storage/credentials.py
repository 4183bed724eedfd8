"""With what a store is asked: settings out of the environment and of credential files, as the providers' own tools take them.

The environment's own variables obstore reads itself; here stands what it does not: profiles of AWS, the names that Azure's tools
and Triton use, and Triton's file for several credentials. Nothing here is ever told in a message but names.
"""

from __future__ import annotations

import configparser
import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from kernel import Code, ServingError
from kernel_storage.location import Location

__all__ = ["settings_of"]

#: Triton's file: provider -> beginning of a location, the longest counts -> credentials.
SEVERAL = "TRITON_CLOUD_CREDENTIAL_PATH"

#: Where these are set, keys come from elsewhere than from a profile.
_NO_PROFILE = (
    "AWS_ACCESS_KEY_ID",
    "AWS_WEB_IDENTITY_TOKEN_FILE",
    "AWS_CONTAINER_CREDENTIALS_RELATIVE_URI",
    "AWS_CONTAINER_CREDENTIALS_FULL_URI",
    "AWS_SKIP_SIGNATURE",
)


def settings_of(place: Location, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return the settings of the store at a location, besides what obstore reads of the environment. Raises ServingError."""
    given = _of_several(place, environ)
    if place.scheme == "s3":
        return _s3(place, environ, given or {})
    if place.scheme == "gs":
        return {"application_credentials": given} if given else {}
    return _azure(place, environ, given or {})


def _s3(place: Location, environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, Any]:
    endpoint = place.endpoint or environ.get("AWS_ENDPOINT_URL_S3", "")
    settings: dict[str, Any] = {"endpoint": endpoint} if endpoint else {}
    names = {
        "key_id": "access_key_id",
        "secret_key": "secret_access_key",
        "session_token": "session_token",
        "region": "region",
    }
    settings |= {ours: given[theirs] for theirs, ours in names.items() if given.get(theirs)}
    profile = given.get("profile") or environ.get("AWS_PROFILE", "")
    if "access_key_id" not in settings and (given.get("profile") or not any(environ.get(name) for name in _NO_PROFILE)):
        settings = _profile(profile, environ) | settings
    if not any(environ.get(name) for name in ("AWS_REGION", "AWS_DEFAULT_REGION")):
        settings.setdefault("region", "us-east-1")
    return settings


def _profile(name: str, environ: Mapping[str, str]) -> dict[str, Any]:
    """Return what AWS's files say of a profile, "" for the default one. Raises ServingError where one was named without keys."""
    home = Path(environ.get("HOME") or "/")
    files = [
        environ.get("AWS_CONFIG_FILE") or home / ".aws" / "config",
        environ.get("AWS_SHARED_CREDENTIALS_FILE") or home / ".aws" / "credentials",
    ]
    found: dict[str, str] = {}
    for file in files:
        parser = configparser.RawConfigParser()
        try:
            parser.read(file)
        except (configparser.Error, OSError, UnicodeError) as error:
            reason = str(error).splitlines()[0]
            raise ServingError(Code.INVALID_ARG, f"the credentials of AWS in {file} can't be read: {reason}") from None
        for section in (name or "default", f"profile {name}"):
            if parser.has_section(section):
                found |= dict(parser.items(section))
    names = {
        "aws_access_key_id": "access_key_id",
        "aws_secret_access_key": "secret_access_key",
        "aws_session_token": "session_token",
    }
    if not any(environ.get(one) for one in ("AWS_REGION", "AWS_DEFAULT_REGION")):
        names["region"] = "region"
    if name and "aws_access_key_id" not in found:
        words = (
            f"the profile '{name}' of AWS has no aws_access_key_id in {files[1]} or {files[0]}; profiles that get theirs by a "
            "role, a process or a sign-on are not read: export the keys (`aws configure export-credentials --format env`)"
        )
        raise ServingError(Code.INVALID_ARG, words)
    return {ours: found[theirs] for theirs, ours in names.items() if theirs in found}


def _azure(place: Location, environ: Mapping[str, str], given: Mapping[str, str]) -> dict[str, Any]:
    named = environ.get("AZURE_STORAGE_ACCOUNT") or environ.get("AZURE_STORAGE_ACCOUNT_NAME", "")
    account = place.account or given.get("account_str") or named
    if not account:
        words = f"the repository '{place.given}' names no account: set AZURE_STORAGE_ACCOUNT, or say as://account/container/path"
        raise ServingError(Code.INVALID_ARG, words)
    settings = {"account_name": account}
    kind = given.get("auth_type") or environ.get("AZURE_STORAGE_AUTH_TYPE", "")
    key = given.get("account_key") or environ.get("AZURE_STORAGE_KEY", "")
    client = given.get("client_id") or environ.get("AZURE_STORAGE_CLIENT_ID", "")
    if key and kind not in ("managed_identity", "default"):
        settings["account_key"] = key
    elif client:
        settings["client_id"] = client
    return settings


def _of_several(place: Location, environ: Mapping[str, str]) -> Any:
    """Return what Triton's credential file has for a location; None where there is none. Raises ServingError."""
    path = environ.get(SEVERAL, "")
    if not path:
        return None
    try:
        content = json.loads(Path(path).read_bytes())
        several = content.get("as" if place.scheme == "az" else place.scheme, {})
        begins = [begin for begin in several if place.given.startswith(begin)]
        found = several[max(begins, key=len)] if begins else None
    except (OSError, ValueError, AttributeError, TypeError) as error:
        reason = error.strerror if isinstance(error, OSError) else "it is no JSON of the form that Triton documents"
        raise ServingError(Code.INVALID_ARG, f"{SEVERAL}={path} can't be read: {reason}") from None
    wanted = str if place.scheme == "gs" else dict
    if found is not None and not isinstance(found, wanted):
        kind = "the path of a file" if wanted is str else "an object"
        raise ServingError(Code.INVALID_ARG, f"{SEVERAL}={path}: the entry for '{place.given}' is of another kind, wanted {kind}")
    return found

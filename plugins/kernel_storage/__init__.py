"""kernel_storage: model repositories in object stores, S3, Google Cloud Storage and Azure Blob Storage, by the library obstore.

Registers without obstore, which comes with the extra `storage`; only a server that is to read such a repository can't start then.
"""

from __future__ import annotations

import os

from kernel import Code, Repository, ServingError, StorageOptions, hookimpl, how_to_install
from kernel_storage.location import Location

__all__ = ["open_repository"]


@hookimpl
def open_repository(location: str, options: StorageOptions) -> Repository | None:
    place = Location.parse(location)
    if place is None:
        return None
    try:
        from kernel_storage.repository import StoredRepository
        from kernel_storage.stores import open_store
    except ImportError as error:
        raise ServingError(
            Code.UNAVAILABLE,
            f"the repository '{location}' needs a package that is not installed ({error}): {how_to_install('storage')}",
        ) from error
    return StoredRepository(place, open_store(place, os.environ), options)

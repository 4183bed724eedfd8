"""What lies on the disk or is listed elsewhere: models, versions, what has changed, where mistakes are. Nothing here runs."""

from __future__ import annotations

from kernel.repository.causes import cause_lines
from kernel.repository.fingerprint import Fingerprint
from kernel.repository.listed import models_of
from kernel.repository.overrides import OverrideFolder, check_model_name, remove_left_behind
from kernel.repository.places import SourcePlace, place_at, place_of
from kernel.repository.plans import (
    Listing,
    LoadFailed,
    LoadPlan,
    NotRead,
    Origin,
    Problem,
    Sighting,
    StartFailed,
    behind,
)
from kernel.repository.repository import (
    FetchedFiles,
    FileRepository,
    FilesChanged,
    ModelFolder,
    Repositories,
    Repository,
    bare_name,
    may_be_model,
    missing_versions,
    not_unique,
    select_versions,
    shown,
)
from kernel.repository.versions import version_number

__all__ = [
    "FetchedFiles",
    "FileRepository",
    "FilesChanged",
    "Fingerprint",
    "Listing",
    "LoadFailed",
    "LoadPlan",
    "ModelFolder",
    "NotRead",
    "Origin",
    "OverrideFolder",
    "Problem",
    "Repositories",
    "Repository",
    "Sighting",
    "SourcePlace",
    "StartFailed",
    "bare_name",
    "behind",
    "cause_lines",
    "check_model_name",
    "may_be_model",
    "missing_versions",
    "models_of",
    "not_unique",
    "place_at",
    "place_of",
    "remove_left_behind",
    "select_versions",
    "shown",
    "version_number",
]

"""Where the files are that a config names: inside of the model's folder, whatever the config says.

A config may come with a load request. What it names is read, and comes back as labels, as answers, as state: so no name may lead
out of the folder, by its own words, or by a link in the case of data. The model's own file is code that whoever keeps the
repository vouches for: links to it are followed, as those to version folders are. (Contract: model_config, sections 2 and 9.)
"""

from __future__ import annotations

import posixpath
import stat
from pathlib import Path as FilePath

from kernel.config.positions import Path
from kernel.config.report import Report
from kernel.errors import clipped

__all__ = ["check_paths", "data_file", "is_inside"]


def check_paths(report: Report) -> None:
    """Look at the names of the model's file and of the labels of outputs."""
    message = report.message
    _check_name(report, ("default_model_filename",), "1", message.default_model_filename)
    for index, output in enumerate(message.output):
        if output.label_filename:
            data_file(report, "", output.label_filename, ("output", index, "label_filename"))


def data_file(report: Report, folder: str, name: str, at: Path) -> FilePath | None:
    """Return the path of a file that the config names, in a `folder` of the model's; None where it is out of reach, or can't be
    allowed, which is noted.
    """
    if not _check_name(report, at, folder, name) or report.model_folder is None:
        return None
    path = report.model_folder / folder / name
    if not is_inside(report.model_folder, path):
        report.fail("B", at, _words(report, at, name), "a link leads out of it, or to something that is no file")
        return None
    return path


def is_inside(folder: FilePath, path: FilePath) -> bool:
    """Whether a path lies in a folder once all links are followed. What is neither file nor folder is not; nothing at all is."""
    try:
        real = path.resolve()
        if not real.is_relative_to(folder.resolve()):
            return False
        mode = real.stat().st_mode
    except FileNotFoundError:
        return True
    except (OSError, ValueError, RuntimeError):  # a circle of links
        return False
    return stat.S_ISREG(mode) or stat.S_ISDIR(mode)


def _check_name(report: Report, at: Path, folder: str, name: str) -> bool:
    """Whether a name leads out of the model's folder by its own words; noted where it does."""
    normal = posixpath.normpath(posixpath.join(folder, name)) if name else ""
    if not (name.startswith("/") or "\0" in name or normal == ".." or normal.startswith("../")):
        return True
    report.fail("B", at, _words(report, at, name), f"write a path inside of {'it' if not folder else 'its folder'}")
    return False


def _words(report: Report, at: Path, name: str) -> str:
    return f"'{at[-1]}' of model '{report.name}' is '{clipped(name)}', which must stay within model directory"

"""What mkdocs is told beyond mkdocs.yml: the navigation, and what pages link to outside of docs/.

The navigation is that of docs/README.md: its headings, and the pages that their tables link to; what stands in none of them goes
into the last part. Documents and files outside of docs/ that a page links to are part of the site, below `project/`.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File, Files

ROOT = Path(__file__).resolve().parents[1]
DOCS = ROOT / "docs"
HOME = "README.md"
OUTSIDE = "project"
LINK = re.compile(r"(\]\()([^)\s#]+)((?:#[^)\s]*)?\))")


def links(document: Path) -> Iterator[Path]:
    """Yield the files here that a document links to."""
    for found in LINK.finditer(document.read_text()):
        if "://" not in found[2]:
            target = (document.parent / found[2]).resolve()
            yield target / HOME if target.is_dir() else target


def place(path: Path) -> str:
    """Return where a file is in the site's sources."""
    return path.relative_to(DOCS).as_posix() if path.is_relative_to(DOCS) else f"{OUTSIDE}/{path.relative_to(ROOT).as_posix()}"


def origin(uri: str) -> Path:
    """Return the file that stands at a place of the site's sources."""
    return ROOT / uri.removeprefix(f"{OUTSIDE}/") if uri.startswith(f"{OUTSIDE}/") else DOCS / uri


def on_config(config: Any) -> Any:
    parts: list[dict[str, Any]] = []
    told = {HOME}
    for section in re.split(r"^## ", (DOCS / HOME).read_text(), flags=re.M)[1:]:
        title = section.partition("\n")[0]
        pages = {}
        for name, target in re.findall(r"\[([^\]]+)\]\(([^)#\s]+)", section):
            uri = place((DOCS / target).resolve())
            if uri.endswith(".md") and uri not in told:
                told.add(uri)
                pages[name.strip("`")] = uri
        parts.append({title: [{name[0].upper() + name[1:]: uri} for name, uri in pages.items()]})
    rest = sorted(place(path) for path in DOCS.rglob("*.md") if place(path) not in told)
    (last,) = parts[-1].values()
    for folder in sorted({uri.rpartition("/")[0] for uri in rest}, key=len):
        inside = [uri for uri in rest if uri.rpartition("/")[0] == folder]
        last.extend([{folder.capitalize(): inside}] if folder else inside)
    config.nav = [{"Documentation": HOME}, *parts]
    return config


def on_files(files: Files, config: Any) -> Files:
    """Add what lies outside, and what that links to."""
    waiting = sorted(DOCS.rglob("*.md"))
    known = set(waiting)
    while waiting:
        for target in links(waiting.pop()):
            if target in known or not target.is_file():
                continue
            known.add(target)
            if not target.is_relative_to(DOCS):
                files.append(File.generated(config, place(target), abs_src_path=str(target)))
            if target.suffix == ".md":
                waiting.append(target)
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Files) -> str:
    """Have links between what lies in docs/ and what lies outside lead to where the site has it."""
    here = origin(page.file.src_uri)

    def there(found: re.Match[str]) -> str:
        if "://" in found[2]:
            return found[0]
        target = (here.parent / found[2]).resolve()
        uri = place(target / HOME if target.is_dir() else target)
        return found[1] + os.path.relpath(uri, os.path.dirname(page.file.src_uri) or ".") + found[3]

    parts = re.split(r"(^ *```.*?^ *```$)", markdown, flags=re.M | re.S)
    return "".join(part if k % 2 else LINK.sub(there, part) for k, part in enumerate(parts))

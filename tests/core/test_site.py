"""The documentation builds as a web site: each link leads somewhere, and nothing is asked of other servers."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).parents[2]


class Seen(HTMLParser):
    """What a page asks for, what it links to, and the anchors that it has."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.asked: list[str] = []
        self.links: list[str] = []
        self.anchors: set[str] = {""}
        self.feed(text)

    def handle_starttag(self, tag: str, attributes: list[tuple[str, str | None]]) -> None:
        given = dict(attributes)
        self.anchors.add(given.get("id") or "")
        target = given.get("src") or given.get("href") or ""
        passive = tag == "a" or (tag == "link" and given.get("rel") in ("canonical", "next", "prev"))
        (self.links if passive else self.asked).append(target)


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("site")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--site-dir", str(folder)]
    environment = os.environ | {"NO_MKDOCS_2_WARNING": "1"}
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=120, env=environment)
    assert done.returncode == 0, done.stderr
    return folder


def test_all_pages_are_there_and_all_links_lead_somewhere(site: Path) -> None:
    pages = {path: Seen(path.read_text()) for path in site.rglob("*.html") if path.name != "404.html"}
    for document in (ROOT / "docs").rglob("*.md"):
        name = document.relative_to(ROOT / "docs").with_suffix(".html")
        assert site / (name.with_name("index.html") if name.stem == "README" else name) in pages
    lost = []
    for path, page in pages.items():
        for link in page.asked + page.links:
            file, _, anchor = unquote(link).partition("#")
            if "://" not in link and not link.startswith(("mailto:", "data:", "javascript:")):
                target = (path.parent / file.partition("?")[0]).resolve() if file else path
                there = target.exists() and (target not in pages or anchor.startswith("__") or anchor in pages[target].anchors)
                lost += [] if there else [f"{path.relative_to(site)}: {link}"]
    assert not lost


def test_nothing_is_asked_of_other_servers(site: Path) -> None:
    for path in site.rglob("*.html"):
        assert not [one for one in Seen(path.read_text()).asked if re.match(r"(https?:)?//", one)], path
    for path in site.rglob("*.css"):
        assert not re.search(r"url\([\"']?(https?:)?//|@import", path.read_text()), path

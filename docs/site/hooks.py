"""What mkdocs adds to docs/: README as the first page, one page a rule, and links that lead out of docs/."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

from mkdocs.structure.files import File

from attncheck.doctor.engine import all_rules

ROOT = Path(__file__).parents[2]
SOURCE = "https://github.com/attncheck/attncheck/blob/main/"
FIRST_RELEASE = "0.1.0"
LINK = re.compile(r"\]\(([^)]+)\)")
SINCE: dict[str, str] = {}  # rules that came after the first release: code -> version


def on_files(files: Any, config: Any) -> Any:
    """Add the pages that are written elsewhere."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    files.append(File.generated(config, "index.md", content=readme.replace("](docs/", "](")))
    for rule in all_rules()[0]:
        title, _, body = rule.page.partition("\n")
        since = SINCE.get(rule.code, FIRST_RELEASE)
        page = f"# {rule.code}: {title}\n\n`{rule.name}` · {rule.severity} · since attncheck {since}\n{_escape(body)}"
        files.append(File.generated(config, f"rules/{rule.code}.md", content=page))
    return files


def on_page_markdown(markdown: str, page: Any, config: Any, files: Any) -> str:
    """Link codes in the list of rules to their pages, and files outside docs/ to the repository."""
    if page.file.src_uri == "rules.md":
        markdown = re.sub(r"^\| (ATN\d{3}) \|", r"| [\1](rules/\1.md) |", markdown, flags=re.MULTILINE)
    if page.file.src_uri == "index.md":
        markdown = LINK.sub(lambda link: link[0] if _is_page(link[1]) else f"]({SOURCE}{link[1]})", markdown)
        return markdown.replace('src="docs/', 'src="')
    return markdown.replace("](../README.md", "](index.md").replace("](../", f"]({SOURCE}")


def _is_page(target: str) -> bool:
    """Return whether a link leads to a page or a file of docs/, or out of the repository."""
    return "://" in target or target.startswith("#") or (ROOT / "docs" / target.partition("#")[0]).exists()


def _escape(text: str) -> str:
    """Return a rule's page as Markdown that shows `<`, `*` and `_` as they are."""
    return re.sub(r"([<*_])", r"\\\1", text)

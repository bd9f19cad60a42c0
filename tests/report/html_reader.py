"""Reads the page of `--format html` strictly: every element closed, and what it holds, by kind."""

from __future__ import annotations

from dataclasses import dataclass, field
from html.parser import HTMLParser

VOID = {"meta", "link", "input", "wbr"}
LOADING = {
    "src",
    "srcset",
    "href",
    "action",
    "formaction",
    "data",
    "poster",
    "xlink:href",
    "background",
    "cite",
    "ping",
}


@dataclass
class Element:
    """One element: its name, attributes, the names of those around it, and all its text."""

    name: str
    attributes: dict[str, str]
    around: tuple[str, ...]
    text: str = ""


@dataclass
class Page(HTMLParser):
    """A page that was read whole. An element that is not closed, or closed twice, raises AssertionError."""

    elements: list[Element] = field(default_factory=list)
    opened: list[Element] = field(default_factory=list)

    def __post_init__(self) -> None:
        super().__init__()

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        names = [name for name, _ in attrs]
        assert len(names) == len(set(names)), f"{tag} has an attribute twice: {names}"
        values = {name: value or "" for name, value in attrs}
        element = Element(tag, values, tuple(parent.name for parent in self.opened))
        self.elements.append(element)
        if tag not in VOID:
            self.opened.append(element)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        assert self.opened and any(parent.name == "svg" for parent in self.opened), f"{tag} closes itself outside SVG"
        self.handle_starttag(tag, attrs)
        self.opened.pop()

    def handle_endtag(self, tag: str) -> None:
        assert self.opened and self.opened[-1].name == tag, f"</{tag}> closes {[e.name for e in self.opened]}"
        self.opened.pop()

    def handle_data(self, data: str) -> None:
        for element in self.opened:
            element.text += data

    def handle_comment(self, data: str) -> None:
        raise AssertionError(f"a comment: {data}")

    def named(self, name: str) -> list[Element]:
        """Return the elements of a name, in order."""
        return [element for element in self.elements if element.name == name]

    def with_class(self, name: str) -> list[Element]:
        """Return the elements of a class, in order."""
        return [element for element in self.elements if name in element.attributes.get("class", "").split()]


def read_page(text: str) -> Page:
    """Return a page. Raises AssertionError if it is not well formed."""
    page = Page()
    page.feed(text)
    page.close()
    assert page.opened == [], f"not closed: {[element.name for element in page.opened]}"
    return page

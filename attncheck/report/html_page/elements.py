"""Writes HTML elements. Anything that is not `Markup`, made here, is text and is escaped."""

import html
import re
from collections.abc import Iterable

# https://html.spec.whatwg.org/multipage/syntax.html#void-elements; those that the page uses.
VOID_ELEMENTS = ("input", "link", "meta", "wbr")
EMPTY_SHAPES = ("line", "path", "polyline", "rect")  # SVG elements that close themselves if they are empty
KEEPS_FIRST_LINE_END = ("pre", "textarea")  # a parser drops a line end right after these start tags
Attribute = str | int | bool | None
MAX_WORD = 18  # characters; a longer word may break between its parts
# an option, which does not break after its hyphens; between the parts of a name, where a long one may break
OPTION = re.compile(r"(?<![\w-])--?[A-Za-z][\w-]{,30}(?![\w-])")
MARKED = re.compile("(⟦[^⟧]*⟧)")  # learned tokens
PART = re.compile(r"(?<=[_./-])(?=\w)")


class Markup(str):
    """HTML that this module wrote."""

    __slots__ = ()


def escape(text: str) -> Markup:
    """Return `text` as HTML that shows it unchanged, in an element or in a quoted attribute."""
    # an HTML parser also treats "\r
    # " as one line end; a lone "\r" was made visible before (`core.io.visible`).
    return text if isinstance(text, Markup) else Markup(html.escape(text.replace("\r\n", "\n"), quote=True))


def flow(text: str) -> Markup:
    """Return a text to read, whose lines break between the parts of long names, and not within an option."""
    if isinstance(text, Markup):
        return text
    written, end = [], 0
    for option in OPTION.finditer(text):
        written += [_break_names(text[end : option.start()]), element("span", option.group(), class_="whole")]
        end = option.end()
    return join([*written, _break_names(text[end:])])


def _break_names(text: str) -> Markup:
    parts = (PART.split(word) if len(word) > MAX_WORD else [word] for word in re.split(r"(\s+)", text))
    return join(join(part, element("wbr")) for part in parts)


def join(parts: Iterable[str], separator: str = "") -> Markup:
    """Return markup and texts one after another."""
    return Markup(escape(separator).join(escape(part) for part in parts))


def element(name: str, /, *children: str, **attributes: Attribute) -> Markup:
    """Return an element. Attribute names use "_" for "-", and a trailing "_" after a Python keyword.

    True is an attribute without a value; False and None omit the attribute.
    """
    start = name + "".join(_write_attribute(key, value) for key, value in attributes.items())
    if name in VOID_ELEMENTS:
        return Markup(f"<{start}>")
    if name in EMPTY_SHAPES:
        return Markup(f"<{start}/>")
    line_end = "\n" if name in KEEPS_FIRST_LINE_END else ""
    return Markup(f"<{start}>{line_end}{join(children)}</{name}>")


def _write_attribute(key: str, value: Attribute) -> str:
    name = {"viewBox": "viewBox", "preserveAspectRatio": "preserveAspectRatio"}.get(key, key.rstrip("_"))
    if value is None or value is False:
        return ""
    return f" {name.replace('_', '-')}" + ("" if value is True else f'="{escape(str(value))}"')


def bullet_list(items: Iterable[str]) -> Markup:
    """Return a list with an item for each text, "" if there are none."""
    written = [element("li", flow(item)) for item in items]
    return element("ul", *written) if written else Markup()


def fold(summary: str, *children: str) -> Markup:
    """Return content that is shown when its summary is opened."""
    return element("details", element("summary", summary), *children)


def badge(mark: str, style: str = "") -> Markup:
    """Return a word on a coloured background; the word has the same meaning as the colour."""
    return element("span", mark, class_=f"badge {style or mark_style(mark)}")


def mark_style(mark: str) -> str:
    """Return the class of a severity, a verdict's answer, or a style of the terminal."""
    return STYLE_CLASSES.get(mark, "dim" if mark else "")


DIFF_CLASSES = {"+": "added", "-": "removed", "@": "place"}
STYLE_CLASSES = {
    "right": "ok",
    "passed": "ok",
    "wrong": "bad",
    "failed": "bad",
    "no answer": "warn",
    "over budget": "warn",
    "ok": "ok",
    "pass": "ok",
    "green": "ok",
    "warn": "warn",
    "warning": "warn",
    "open": "warn",
    "yellow": "warn",
    "fail": "bad",
    "lost": "bad",
    "error": "bad",
    "red": "bad",
    "bold red": "bad",
    "note": "info",
    "cyan": "info",
}


def code_block(text: str, purpose: str, language: str = "") -> Markup:
    """Return text to paste, with a button that copies it; `purpose` describes it to screen readers.

    Text between ⟦ and ⟧ is highlighted.
    """
    marked = join(element("mark", part) if MARKED.match(part) else part for part in MARKED.split(text))
    lines = [_color_line(line) for line in text.split("\n")] if language == "diff" else [marked]
    return element(
        "figure",
        element("pre", element("code", join(lines, "\n")), tabindex=0, class_=language or None),
        copy_button("Copy", f"Copy: {purpose}"),
        class_="code",
    )


def _color_line(line: str) -> Markup:
    """Return a line of a diff in the class of its kind."""
    style = DIFF_CLASSES.get(line[:1])
    return element("span", line, class_=style) if style else escape(line)


def copy_button(label: str, name: str = "") -> Markup:
    """Return the button that copies the code or text field of the enclosing figure; the page's script shows it."""
    return element("button", label, type="button", class_="copy", aria_label=name or None, hidden=True)

"""Writes the blocks of a section as HTML."""

from collections.abc import Iterable, Iterator, Sequence

from attncheck.report.blocks import (
    SHADE_STYLE,
    Bar,
    Block,
    Bullets,
    Code,
    Curve,
    Heading,
    Items,
    Marks,
    Paragraph,
    Table,
)
from attncheck.report.html_page.charts import draw_bar, draw_curve, draw_strip
from attncheck.report.html_page.elements import (
    Markup,
    badge,
    bullet_list,
    code_block,
    element,
    flow,
    fold,
    join,
    mark_style,
)
from attncheck.report.html_page.room import clip
from attncheck.report.html_page.tables import cell, make_table, row_head
from attncheck.report.scoreboard import HEAT_MARKS

MAX_COLUMNS = 32  # maximum columns of a matrix
MAX_LINE = 400  # characters of a line in a list
HEAT_STEPS = 4  # number of shades up to the budget
HEAT_CLASSES = {"": "pass-1", "yellow": "warn", "bold red": "bad"}
LEGEND = (("pass-0", "far below the budget"), ("pass-3", "near it"), ("warn", "over it"), ("bad", "wrong or lost"))
MARK_CLASSES = {" ": "", "?": "none", "!": "warn", "X": "bad"}


def write_blocks(blocks: Iterable[Block]) -> Iterator[Markup]:
    """Yield each block as HTML; any of them can be omitted without affecting the others."""
    for block in blocks:
        yield from _write_block(block)


def _write_block(block: Block) -> Iterator[Markup]:
    if isinstance(block, Paragraph):
        yield element("p", flow(clip(block.text)), class_="message" if block.strong else None)
    elif isinstance(block, Heading):
        yield element("h3", clip(block.text))
    elif isinstance(block, Bullets):
        if block.lines:
            yield bullet_list(clip(line, MAX_LINE) for line in block.lines)
    elif isinstance(block, Items):
        yield _write_items(block)
    elif isinstance(block, Table):
        yield from _write_table(block)
    elif isinstance(block, Code):
        heading = element("h3", clip(block.title)) if block.title else Markup()
        yield element("div", heading, code_block(block.text, block.title or "setting", block.language), class_="fix")
    elif isinstance(block, Curve):
        key = "; dashed: the loss should fall below this; dotted: the lowest possible loss" * bool(block.levels)
        curve = draw_curve(block.values, block.levels, clip(block.caption, MAX_LINE))
        yield element("figure", curve, element("figcaption", clip(block.caption) + key))
    elif isinstance(block, Marks):
        yield _write_marks(block)
    elif block.opened:
        yield from (element("h3", clip(block.title)), *write_blocks(block.blocks))
    else:
        content = list(write_blocks(block.blocks))
        if content:
            yield fold(clip(block.title), *content)


def _write_items(block: Items) -> Markup:
    has_marks = any(mark.strip("-") for mark, _, _ in block.rows)  # "-" marks a row that has no state
    rows = (
        [row_head(title), *([cell(badge(mark) if mark.strip("-") else "")] * has_marks), cell(text, "text")]
        for mark, title, text in block.rows
    )
    mark_title, title, text = block.head
    return make_table(None, (title, *([mark_title or "state"] * has_marks), text), rows, class_="items")


def _write_table(block: Table) -> Iterator[Markup]:
    if block.matrix and len(block.columns) > MAX_COLUMNS:
        yield from write_blocks(block.otherwise)
        return
    titles = [block.head, *(column.title for column in block.columns)]
    numbers = [column.title for column in block.columns if not column.left]

    def write_row(number: int) -> list[Markup]:
        row = block.rows[number]
        if not row.cells:
            note = element(
                "td", clip(row.note[0]), colspan=len(block.columns) or None, class_=mark_style(row.note[1]) or None
            )
            return [row_head(row.name), note]
        cells = [row_head(row.name)]
        for column, (text, style) in zip(block.columns, row.cells):
            if block.heat:
                cells.append(cell(text, f"heat {_heat_class(text, style)}"))
                continue
            bar: Sequence[Bar | None] = block.bars.get(column.title, ())
            drawn = draw_bar(shape) if bar and (shape := bar[number]) else Markup()
            classes = " ".join(filter(None, ("" if column.left else "number", mark_style(style))))
            cells.append(cell(text, classes, drawn))
        return cells

    rows = (write_row(number) for number in range(min(len(block.rows), block.page_rows)))
    omitted = max(0, len(block.rows) - block.page_rows)
    yield make_table(block.caption or None, titles, rows, omitted, numbers, "matrix" if block.matrix else None)


def _heat_class(text: str, style: str) -> str:
    """Return the class of a heat map's cell; a passing cell is darker the closer it is to its budget."""
    if style != SHADE_STYLE:
        return HEAT_CLASSES.get(style, "none")
    try:
        return f"pass-{min(HEAT_STEPS - 1, int(float(text) * HEAT_STEPS))}"
    except ValueError:  # "exact"
        return "pass-0"


def _write_marks(block: Marks) -> Markup:
    def write_row(name: str, summary: str, marks: tuple[tuple[str, str], ...]) -> list[Markup]:
        strip = draw_strip([_mark_class(mark) for mark, _ in marks], f"{name}: {summary}")
        return [row_head(name), cell(summary), cell(strip, "marks")]

    caption = block.caption.partition(":")[0]  # the key is below the table, in colours
    table = make_table(caption, ("backend", "answers", "cases"), (write_row(*row) for row in block.rows))
    keys = [join([element("span", class_=f"key ground-{style}"), f" {text}"]) for style, text in LEGEND]
    return element("div", table, element("p", join(keys, " · "), " · a gap: refused, or not run", class_="dim"))


def _mark_class(mark: str) -> str:
    """Return the class of one case's mark, "" if the case was refused."""
    if mark in MARK_CLASSES:
        return MARK_CLASSES[mark]
    return f"pass-{max(0, HEAT_MARKS.find(mark)) * HEAT_STEPS // len(HEAT_MARKS)}"

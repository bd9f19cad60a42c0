"""Draws numbers in SVG: a bar, the marks of all cases, a loss curve.

The text next to a chart says everything that the chart shows. Colours are classes of `page.css`, because the page's
policy forbids inline styles in a shape.
"""

from collections.abc import Iterable, Sequence

from attncheck.report.blocks import Bar
from attncheck.report.html_page.elements import Markup, element

CASE_WIDTH = 3  # width of one mark, in the drawing's units
STRIP_HEIGHT = 14
CURVE_WIDTH, CURVE_HEIGHT, MARGIN = 320, 120, 8
LEFT, BOTTOM = 34, 16  # room for the numbers of the axes
MAX_POINTS = 200  # maximum points of a curve


def draw_bar(bar: Bar) -> Markup:
    """Return a bar to show under its number."""
    shapes = [element("rect", width=_number(100 * _bounded(bar.share)), height=6, class_=f"fill-{bar.style}")]
    if bar.mark:
        x = _number(min(99.0, 100 * _bounded(bar.mark)))
        shapes.append(element("rect", x=x, width=1, height=6, class_="fill-mark"))
    return element("svg", *shapes, class_="bar", viewBox="0 0 100 6", preserveAspectRatio="none", aria_hidden="true")


def draw_strip(styles: Sequence[str], name: str) -> Markup:
    """Return a mark for each case, in order, by its class; "" leaves a gap. Adjacent equal marks are one shape."""
    paths: dict[str, list[str]] = {}
    start = 0
    for index in range(1, len(styles) + 1):
        if index == len(styles) or styles[index] != styles[start]:
            if styles[start]:
                width = (index - start) * CASE_WIDTH
                path = f"M{start * CASE_WIDTH} 0h{width}v{STRIP_HEIGHT}h-{width}z"
                paths.setdefault(styles[start], []).append(path)
            start = index
    shapes = (element("path", d="".join(steps), class_=f"fill-{style}") for style, steps in paths.items())
    width = max(1, len(styles) * CASE_WIDTH)
    return element(
        "svg",
        *shapes,
        class_="strip",
        viewBox=f"0 0 {width} {STRIP_HEIGHT}",
        preserveAspectRatio="none",
        role="img",
        aria_label=name,
    )


def draw_curve(values: Iterable[float], levels: Sequence[tuple[float, str]], name: str) -> Markup:
    """Return a curve through finite values, with numbers on its axes, and a line at each level, by its class.

    With fewer than two values it is empty. Steps are numbered from 1.
    """
    finite = [value for value in values if value == value and abs(value) < 1e30]
    points = finite[:: -(-len(finite) // MAX_POINTS) or 1]
    if len(points) < 2:
        return Markup()
    low = min(*points, *(value for value, _ in levels))
    high = max(*points, *(value for value, _ in levels))

    def height(value: float) -> str:
        return _number(MARGIN + (CURVE_HEIGHT - BOTTOM - MARGIN) * (1 - (value - low) / ((high - low) or 1.0)))

    step = (CURVE_WIDTH - LEFT - MARGIN) / (len(points) - 1)
    steps = " ".join(f"{_number(LEFT + index * step)},{height(value)}" for index, value in enumerate(points))
    lines = [
        element("line", x1=LEFT, x2=CURVE_WIDTH, y1=height(value), y2=height(value), class_=f"stroke-{style}")
        for value, style in levels
    ]
    marks = [(LEFT - 3, height(value), "end", f"{value:.3g}") for value in dict.fromkeys((high, low))]
    foot = str(CURVE_HEIGHT - 2)
    marks += [(LEFT, foot, "start", "step 1"), (CURVE_WIDTH, foot, "end", f"{len(finite)}")]
    texts = [element("text", text, x=x, y=y, text_anchor=anchor, class_="axis") for x, y, anchor, text in marks]
    return element(
        "svg",
        *lines,
        element("polyline", points=steps, class_="curve-line"),
        *texts,
        class_="curve",
        viewBox=f"0 0 {CURVE_WIDTH} {CURVE_HEIGHT}",
        role="img",
        aria_label=name,
    )


def _bounded(share: float) -> float:
    return min(1.0, max(0.0, share)) if share == share else 0.0


def _number(value: float) -> str:
    return f"{value:.1f}".removesuffix(".0")

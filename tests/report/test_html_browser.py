"""The page in a real browser, from disk: buttons copy, filters hide, nothing is refused by its own policy."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.node_ranges import format_nodes
from attncheck.core.report import Report
from attncheck.core.results.cluster import ClusterSection, NodeFact, NodeGroup, SilentNode
from attncheck.report.formats import load_format
from tests.report import reports
from tests.report.browser import Browser, find_browser, open_browser
from tests.report.test_html import REPORTS, SCRIPT, make_parity_report, make_training_report, plant
from tests.ring.links import make_cluster
from tests.ring.links import make_report as make_ring_report

pytestmark = pytest.mark.skipif(find_browser() is None, reason="chromium and chromedriver are not installed")
SHOWN = "return Array.from(document.querySelectorAll('.finding')).filter(e => !e.hidden).map(e => e.dataset.code)"
# What is wider than the page, but for what is in a region that scrolls on its own.
TOO_WIDE = """
return Array.from(document.querySelectorAll('body *')).filter(
  e => !e.closest('.scroll, pre, .unseen, .skip') && e.getBoundingClientRect().right > innerWidth + 1
).map(e => e.tagName)
"""
# Texts whose contrast with the ground below them is less than 4.5 : 1 (WCAG 2.2, 1.4.3), large ones less than 3 : 1.
FAINT = """
const channel = v => v <= 0.04045 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4;
const numbers = color => color.match(/[\\d.]+/g).map(Number);
const luminance = c => [0.2126, 0.7152, 0.0722].reduce((sum, weight, i) => sum + weight * channel(c[i] / 255), 0);
const ground = e => {
  for (; e; e = e.parentElement) {
    const color = numbers(getComputedStyle(e).backgroundColor);
    if (color.length < 4 || color[3] > 0) return color;
  }
  return [255, 255, 255];
};
const seen = new Set();
for (const e of document.querySelectorAll('body *')) {
  const hasText = Array.from(e.childNodes).some(node => node.nodeType === 3 && node.data.trim());
  if (!hasText || !e.checkVisibility() || e.closest('.unseen, .skip, svg, script')) continue;
  const style = getComputedStyle(e);
  const levels = [luminance(numbers(style.color)), luminance(ground(e))].sort((a, b) => b - a);
  const isLarge = parseFloat(style.fontSize) >= 24;
  if ((levels[0] + 0.05) / (levels[1] + 0.05) < (isLarge ? 3 : 4.5)) seen.add(e.tagName + '.' + e.className);
}
return Array.from(seen);
"""
ILLEGIBLE = Path(__file__).with_name("illegible.js").read_text(encoding="utf-8")
ENTER, RIGHT = "\ue007", "\ue014"  # keys, by WebDriver's standard


def make_bandwidth_report() -> Report:
    """Return doctor's report on four nodes of eight ranks, of which node 2 is slow with all others."""
    return make_ring_report(make_cluster(4, 8, lambda a, b: 8.0 if (a // 8 == 2) != (b // 8 == 2) else 1.0))


def make_wide_bandwidth() -> Report:
    """Return doctor's report on sixteen nodes, whose matrix is wider than a telephone."""
    return make_ring_report(make_cluster(16, 1))


def make_large_cluster() -> Report:
    """Return doctor's report on 4,096 nodes, which differ in 24 facts, hardly two of them alike; two are silent."""
    nodes = [node for node in range(4096) if node not in (7, 4000)]

    def make_fact(bit: int) -> NodeFact:
        others = [node for node in nodes if node * 2654435761 >> bit & 3 == 0]
        most = NodeGroup("5.17.0", len(nodes) - len(others), format_nodes(set(nodes) - set(others)))
        return NodeFact(
            "package", f"package-{bit}", "stack", (most, NodeGroup("4.57.1", len(others), format_nodes(others)))
        )

    silent = tuple(SilentNode(node, "it connected, but did not answer within 180 s") for node in (7, 4000))
    section = ClusterSection(launcher="torchrun", size=4096, silent=silent, facts=tuple(map(make_fact, range(24))))
    return reports.make_doctor_report(sections={"cluster": section})


MORE_REPORTS: dict[str, Callable[[], Report]] = {
    "bandwidth": make_bandwidth_report,
    "wide bandwidth": make_wide_bandwidth,
    "bandwidth of many": lambda: make_ring_report(make_cluster(100, 8)),
    "large cluster": make_large_cluster,
}


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    with open_browser() as opened:
        yield opened


def show(browser: Browser, folder: Path, report: Report) -> None:
    path = folder / "page.html"
    path.write_text(load_format("html").render(report, True), encoding="utf-8")
    browser.open(path)


def wait_for(browser: Browser, expression: str) -> bool:
    """Return whether an expression becomes true within seconds."""
    script = """
    const end = Date.now() + 5000;
    return new Promise(resolve => {
      const check = () => (%s) ? resolve(true) : Date.now() > end ? resolve(false) : setTimeout(check, 20);
      check();
    });
    """
    return bool(browser.run(script % expression))


def test_buttons_copy_and_say_so(browser: Browser, tmp_path: Path) -> None:
    report = reports.make_gate_report()
    show(browser, tmp_path, report)
    texts = {".fix .copy": report.findings[0].fixes[0].text, "#bug-report ~ .code .copy": "# attncheck gate"}
    for selector, text in texts.items():
        browser.run("document.getElementById('announced').textContent = ''")  # what the button before has announced
        browser.click(selector)
        assert wait_for(browser, "document.getElementById('announced').textContent === 'copied'")
        assert browser.run("return document.activeElement.className") == "copy", "the focus stays where it was"
        browser.run("const a = document.createElement('textarea'); document.body.append(a); a.id = 'pasted'; a.focus()")
        browser.command("Input.dispatchKeyEvent", {"type": "keyDown", "key": "v", "commands": ["paste"]})
        assert wait_for(browser, "document.getElementById('pasted').value !== ''")
        pasted = browser.run("const a = document.getElementById('pasted'), t = a.value; a.remove(); return t")
        assert pasted.startswith(text)
    assert browser.read_errors() == []


def test_filters_hide_by_severity_and_by_code(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, reports.make_gate_report())
    codes = browser.run(SHOWN)
    assert codes == ["ATN140", "ATN201", "ATN401", "ATN110"]
    browser.click("input[value=error]")
    assert browser.run(SHOWN) == ["ATN201", "ATN110"]
    assert browser.run("return document.getElementById('shown').textContent") == "2 of 4 shown"
    browser.click("input[value=error]")
    browser.run("document.getElementById('code-filter').focus()")
    browser.press(*"ATN4")  # as one chooses from a list by its letters
    assert browser.run(SHOWN) == ["ATN401"]
    assert browser.read_errors() == []


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_it_fits_and_changes_with_the_scheme(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    browser.resize(width, 800)
    browser.emulate(scheme=scheme)
    report = reports.make_gate_report()
    long_finding = replace(report.findings[0], message="x" * 300, evidence=("y" * 300,))
    for page in (make_parity_report(), make_training_report(), replace(report, findings=(long_finding,) * 2)):
        show(browser, tmp_path, page)
        assert browser.run(TOO_WIDE) == []
        ground = browser.run("return getComputedStyle(document.body).backgroundColor")
        assert (ground == "rgb(255, 255, 255)") == (scheme == "light")
    assert browser.read_errors() == []


def test_the_keyboard_reaches_the_findings_first_and_then_the_controls(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, reports.make_gate_report())
    browser.press("\ue004")
    assert browser.run("return document.activeElement.className") == "skip"
    order = []
    for _ in range(40):
        browser.press("\ue004")
        order.append(browser.run("return document.activeElement.tagName"))
    assert {"A", "INPUT", "SELECT", "PRE", "BUTTON"} <= set(order)


@pytest.mark.parametrize("width", [360, 1200])
def test_learned_tokens_are_marked_above_the_findings(browser: Browser, tmp_path: Path, width: int) -> None:
    """They are on the first screen, below the verdict alone; another report's page begins with its findings."""
    browser.resize(width, 800)
    browser.emulate()
    show(browser, tmp_path, reports.make_labels_report())
    top = "return document.querySelector(arguments[0]).getBoundingClientRect().top"
    verdict, marked, findings = (browser.run(top, name) for name in (".verdict", "main mark", "#findings"))
    assert verdict < marked < 800 - 30 and marked < findings
    assert "Which is it?" in browser.run("return document.querySelector('main mark').textContent")
    assert browser.run("return document.querySelector('main h2').textContent") == "Learned tokens"
    show(browser, tmp_path, reports.make_gate_report())
    assert browser.run("return document.querySelector('main h2').textContent") == "Findings"


def test_on_paper_controls_are_gone_and_nothing_is_hidden(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, make_training_report())
    browser.emulate("print")
    browser.run("dispatchEvent(new Event('beforeprint'))")
    assert browser.run("return getComputedStyle(document.querySelector('.copy')).display") == "none"
    assert browser.run("return document.querySelectorAll('details:not([open])').length") == 0
    browser.run("dispatchEvent(new Event('afterprint'))")
    assert browser.run("return document.querySelectorAll('details[open]').length") == 0
    browser.emulate()


def test_planted_scripts_do_not_run(browser: Browser, tmp_path: Path) -> None:
    for report in (make_parity_report(), reports.make_gate_report()):
        show(browser, tmp_path, plant(report, SCRIPT.replace("alert(1)", "document.title='ran'")))
        assert browser.run("return document.title") != "ran"
        assert browser.run("return [document.scripts.length, document.images.length]") == [1, 0]
        assert browser.read_errors() == []


def test_a_script_that_were_in_the_page_would_be_refused_by_its_policy(browser: Browser, tmp_path: Path) -> None:
    text = load_format("html").render(make_parity_report(), True)
    path = tmp_path / "altered.html"
    path.write_text(text.replace("<main>", "<main><script>document.title='ran'</script>"), encoding="utf-8")
    browser.open(path)
    assert browser.run("return document.title") != "ran"
    assert any("Content Security Policy" in error for error in browser.read_errors())


@pytest.mark.parametrize("width", [360, 1200])
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_every_section_fits_and_can_be_read(browser: Browser, tmp_path: Path, width: int, scheme: str) -> None:
    """Nothing is wider than the page, opened or closed, and every text is out from its ground."""
    browser.resize(width, 800)
    browser.emulate(scheme=scheme)
    for name, make in {**REPORTS, **MORE_REPORTS}.items():
        show(browser, tmp_path, make())
        browser.run("document.querySelectorAll('details').forEach(e => { e.open = true; })")
        assert browser.run(TOO_WIDE) == [], name
        assert browser.run(FAINT) == [], name
        assert browser.run(ILLEGIBLE) == [], name
        assert browser.read_errors() == [], name


def test_faint_and_wide_text_would_be_seen(browser: Browser, tmp_path: Path) -> None:
    browser.resize(360, 800)
    browser.emulate()
    show(browser, tmp_path, reports.make_gate_report())
    browser.run("const e = document.querySelector('h1'); e.style.color = '#bbb'; e.style.width = '900px'")
    assert browser.run(FAINT) == ["H1.", "SPAN.sign"] and browser.run(TOO_WIDE) == ["H1"]


def test_illegible_text_would_be_seen(browser: Browser, tmp_path: Path) -> None:
    browser.resize(360, 800)
    browser.emulate()
    show(browser, tmp_path, reports.make_gate_report())
    browser.run("document.querySelector('h1').style.cssText = 'width: 3rem; overflow-wrap: anywhere'")
    browser.run("document.querySelector('.items').style.minWidth = '40rem'")
    browser.run("document.querySelector('.finding .badge').style.position = 'absolute'")
    browser.run("document.querySelector('#rest').parentElement.replaceChildren(document.querySelector('#rest'))")
    browser.run("document.querySelector('thead th').textContent = ''")
    browser.run("document.querySelector('td .badge').textContent = ''")
    kinds = {line.split(":")[0] for line in browser.run(ILLEGIBLE)}
    expected = {"broken", "cut", "under a badge", "empty", "a column without a title", "colour alone"}
    assert kinds >= expected


def test_four_thousand_nodes_open_as_one_matrix(browser: Browser, tmp_path: Path) -> None:
    browser.resize(1200, 800)
    show(browser, tmp_path, make_large_cluster())
    assert wait_for(browser, "document.readyState === 'complete'")
    rows = browser.run(
        "return document.querySelectorAll('[aria-label=\"Nodes by facts that differ\"] tbody tr').length"
    )
    assert rows > 20
    assert "4094 of 4096 answered" in browser.run("return document.querySelector('main').innerText")
    assert (tmp_path / "page.html").stat().st_size < 500_000
    assert browser.run(TOO_WIDE) == [] and browser.read_errors() == []


def test_the_map_of_ranks_opens_below_that_of_nodes(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, MORE_REPORTS["bandwidth"]())
    visible = "return Array.from(document.querySelectorAll('.matrix')).map(e => e.checkVisibility())"
    assert browser.run(visible) == [True, False]
    browser.click("details:has(.matrix) summary")
    assert browser.run(visible) == [True, True]
    marked = "return Array.from(document.querySelectorAll('.matrix')[0].querySelectorAll('.bad')).map(e => e.innerText)"
    assert len(browser.run(marked)) == 6


def test_the_launch_that_trains_right_is_copied(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, reports.make_rehearsal_report())
    fixes = "Array.from(document.querySelectorAll('#section-rehearsal ~ .fix pre'))"
    texts = browser.run(f"return {fixes}.map(e => e.innerText)")
    assert texts[-1].strip() == "trl sft --packing_strategy bfd"
    browser.run("Array.from(document.querySelectorAll('#section-rehearsal ~ .fix .copy')).at(-1).id = 'last'")
    browser.click("#last")
    assert wait_for(browser, "document.getElementById('announced').textContent === 'copied'")
    browser.run("const a = document.createElement('textarea'); document.body.append(a); a.id = 'pasted'; a.focus()")
    browser.command("Input.dispatchKeyEvent", {"type": "keyDown", "key": "v", "commands": ["paste"]})
    assert browser.run("return document.getElementById('pasted').value").strip() == texts[-1].strip()


def test_controls_work_by_keyboard_alone(browser: Browser, tmp_path: Path) -> None:
    show(browser, tmp_path, reports.make_gate_report())
    browser.run("document.querySelector('input[value=error]').focus()")
    browser.press(" ")
    assert browser.run(SHOWN) == ["ATN201", "ATN110"]
    browser.run("document.querySelector('.finding:not([hidden]) .copy').focus()")
    browser.press(ENTER)
    assert wait_for(browser, "document.getElementById('announced').textContent === 'copied'")
    browser.run("document.querySelector('summary').focus()")
    browser.press(ENTER)
    assert browser.run("return document.querySelector('details').open")
    show(browser, tmp_path, make_wide_bandwidth())
    browser.resize(360, 800)
    browser.run("document.querySelector('.scroll:has(.matrix)').focus()")
    browser.press(RIGHT, RIGHT, RIGHT)
    assert wait_for(browser, "document.activeElement.scrollLeft > 0"), "what is cut off can be reached by arrow keys"

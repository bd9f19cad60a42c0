"""The page in a real browser, from disk: buttons copy, filters hide, nothing is refused by its own policy."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.report import Report
from attncheck.report.formats import load_format
from tests.report import reports
from tests.report.browser import Browser, find_browser, open_browser
from tests.report.test_html import SCRIPT, make_parity_report, make_training_report, plant

pytestmark = pytest.mark.skipif(find_browser() is None, reason="chromium and chromedriver are not installed")
SHOWN = "return Array.from(document.querySelectorAll('.finding')).filter(e => !e.hidden).map(e => e.dataset.code)"
# What is wider than the page, but for what stands in a region that scrolls by itself.
TOO_WIDE = """
return Array.from(document.querySelectorAll('body *')).filter(
  e => !e.closest('.scroll, pre, .unseen, .skip') && e.getBoundingClientRect().right > innerWidth + 1
).map(e => e.tagName)
"""


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
        browser.click(selector)
        assert wait_for(browser, "document.getElementById('announced').textContent === 'copied'")
        assert browser.run("return document.activeElement.className") == "copy", "the focus stays where it was"
        browser.run("const a = document.createElement('textarea'); document.body.append(a); a.id = 'pasted'; a.focus()")
        browser.command("Input.dispatchKeyEvent", {"type": "keyDown", "key": "v", "commands": ["paste"]})
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

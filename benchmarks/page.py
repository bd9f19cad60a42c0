"""Measures how long a headless Chromium takes to open the HTML page of large reports, and how many bytes the page is.

    python -m benchmarks.page [REPORT.json …] [--rounds 5] [--nodes 4096]

chromium and chromedriver must be on PATH. Beside the reports given: doctor's report on so many nodes, all of which
differ in something (`benchmarks.nodes --varied`), and on the bandwidth between 32 nodes of 8 ranks. "loaded" and
"painted" are the page's own clock, from the start of its navigation to the end of its load event, and to the second
frame after it, when all of it is laid out and drawn; "wall" is from WebDriver's request to then.
"""

from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path

from attncheck.cluster.merge import GatheredNodes, merge_nodes
from attncheck.cluster.packing import pack_snapshot
from attncheck.core.report import Report
from attncheck.report import document
from attncheck.report.formats import load_format
from benchmarks.nodes import make_node
from tests.report.browser import Browser, find_browser, open_browser
from tests.ring.links import make_cluster
from tests.ring.links import make_report as make_ring_report

TIMINGS = """
return new Promise(resolve => requestAnimationFrame(() => requestAnimationFrame(() => {
  const navigation = performance.getEntriesByType('navigation')[0];
  resolve([navigation.loadEventEnd, performance.now(), document.documentElement.scrollHeight]);
})));
"""


def iter_reports(paths: list[str], nodes: int) -> Iterator[tuple[str, Report]]:
    """Yield each report with its name in the table."""
    for path in paths:
        yield Path(path).stem, document.loads(Path(path).read_text(encoding="utf-8"))
    documents = {node: pack_snapshot(make_node(node, True)) for node in range(nodes) if node % 100 != 42}
    silent = {node: "it began, and did not answer within 180 s" for node in range(nodes) if node % 100 == 42}
    yield f"{nodes} nodes", merge_nodes(GatheredNodes("torchrun", nodes, documents, silent), profile="all")
    yield "32 nodes of 8 ranks", make_ring_report(make_cluster(32, 8))


def measure_page(browser: Browser, path: Path) -> tuple[float, float, float]:
    """Return seconds until the page was loaded and painted, and those that WebDriver took."""
    began = time.perf_counter()
    browser.open(path)
    loaded, painted, _ = browser.run(TIMINGS)
    return loaded / 1e3, painted / 1e3, time.perf_counter() - began


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser()
    parser.add_argument("reports", nargs="*")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--nodes", type=int, default=4096)
    options = parser.parse_args()
    if find_browser() is None:
        raise SystemExit("chromium and chromedriver are not on PATH")
    print("| report | page KiB | loaded s | painted s | wall s |\n|---|---|---|---|---|")
    with tempfile.TemporaryDirectory() as folder, open_browser() as browser:
        browser.resize(1200, 900)
        for name, report in iter_reports(options.reports, options.nodes):
            path = Path(folder) / "page.html"
            path.write_text(load_format("html").render(report, True), encoding="utf-8")
            rounds = [measure_page(browser, path) for _ in range(options.rounds)]
            medians = " | ".join(f"{statistics.median(values):.2f}" for values in zip(*rounds))
            print(f"| {name} | {path.stat().st_size / 1024:.0f} | {medians} |", flush=True)


if __name__ == "__main__":
    main()

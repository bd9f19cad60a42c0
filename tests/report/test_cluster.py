"""How a cluster is shown in text, Markdown, JUnit, SARIF and the schema."""

from __future__ import annotations

import json
import xml.etree.ElementTree as ET
from dataclasses import replace

import jsonschema
import pytest

from attncheck.core.node_ranges import parse_nodes
from attncheck.core.report import Report
from attncheck.core.results.cluster import ClusterSection, NodeFact, NodeGroup
from attncheck.report.formats import load_format
from attncheck.report.schema import make_report_schema
from tests.report.reports import make_cluster_report


def render(name: str, report: Report | None = None, verbose: bool = False) -> str:
    return load_format(name).render(report or make_cluster_report(), verbose)


def section_of(report: Report) -> ClusterSection:
    section = report.section(ClusterSection)
    assert section is not None
    return section


def test_text_says_who_answered_what_differs_and_where() -> None:
    text = render("text")
    for line in (
        "        nodes      under Ray · 11 of 12 answered · 2 facts differ · node 0 is shown above",
        "                   node 2 is Ray's 00000002",
        "        gpus       11 on 11 nodes: 1 × NVIDIA H200 (sm_90) on 11 nodes: 0-4, 6-11",
        "lost    no answer  node 5: it connected, but did not answer within 180 s",
        "transformers          5.17.0 on 9 nodes: 0-1, 4, 6-11 · 4.57.1 on 2 nodes: 2-3",
        "CUDA_LAUNCH_BLOCKING  not set on 10 nodes: 0-4, 6, 8-11 · 1 on node 7",
        "       because on 1 of 11 nodes: node 7",
    ):
        assert line + "\n" in text
    assert "unanswered: cluster" in text.splitlines()[-1]


def test_markdown_has_the_matrix_of_what_differs() -> None:
    text = render("markdown")
    assert "| transformers | 5.17.0 on 9 nodes: 0-1, 4, 6-11 · 4.57.1 on 2 nodes: 2-3 |" in text
    assert "| lost | no answer | node 5: it connected, but did not answer within 180 s" in text


def test_junit_counts_a_silent_node_as_an_error() -> None:
    root = ET.fromstring(render("junit"))
    (suite,) = [suite for suite in root if suite.get("name") == "cluster"]
    assert (suite.get("errors"), suite.get("tests")) == ("1", "3")
    assert (
        ET.fromstring(render("junit", without_silent())).find(".//testcase[@name='all nodes answered']/error") is None
    )


def without_silent() -> Report:
    report = make_cluster_report()
    return report.with_section(replace(section_of(report), size=11, silent=()))


def test_sarif_and_json_are_valid_and_hold_the_finding() -> None:
    results = json.loads(render("sarif"))["runs"][0]["results"]
    assert "ATN580" in [result["ruleId"] for result in results]
    document = json.loads(render("json"))
    jsonschema.validate(document, make_report_schema())
    assert document["cluster"]["facts"][0]["groups"][1] == {"value": "4.57.1", "count": 2, "nodes": "2-3"}


@pytest.mark.parametrize("name", ["text", "markdown", "junit", "html", "github"])
def test_ranges_that_nobody_wrote_so_break_nothing(name: str) -> None:
    """A report is read back from a file, which may hold anything."""
    report = make_cluster_report()
    groups = (NodeGroup("a", 3, "0-99999999999"), NodeGroup("b", -1, "x-y, -3, 5-1, ٣, 0-999999999"))
    facts = (NodeFact("kind", "subject", "stack", groups), NodeFact("package", "empty", "stack", ()))
    section = replace(section_of(report), facts=facts, size=10**15)
    assert render(name, report.with_section(section), True)


def test_ranges_are_bounded() -> None:
    assert parse_nodes("x-y, -3, 5-1, ٣, , 2-") == []
    assert len(parse_nodes("0-999999999, 0-999999999")) <= 1 << 18

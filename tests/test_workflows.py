"""Workflows: actions pinned by commit, the fewest permissions, no credential left in a checkout, one run at a time."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from ruamel.yaml import YAML

ROOT = Path(__file__).resolve().parents[1]
WORKFLOWS = sorted((ROOT / ".github" / "workflows").glob("*.yml"))
PINNED = re.compile(r"uses: [\w.-]+/[\w./-]+@[0-9a-f]{40} # v\d+\.\d+\.\d+$|uses: \./$")


def find_faults(text: str) -> list[str]:
    """Return what of a workflow breaks this repository's rules."""
    faults = [line.strip() for line in text.splitlines() if "uses:" in line.split("#")[0] and not PINNED.search(line)]
    workflow = YAML(typ="safe").load(text)
    if workflow.get("permissions") != {}:
        faults.append("permissions")
    if "cancel-in-progress" not in workflow.get("concurrency", {}):
        faults.append("concurrency")
    for name, job in workflow["jobs"].items():
        faults += [f"{name}: {fault}" for fault in iter_job_faults(job)]
    return faults


def iter_job_faults(job: dict[str, Any]) -> Iterator[str]:
    if "permissions" not in job or "timeout-minutes" not in job:
        yield "permissions, timeout"
    holds_credential = any(value == "write" for value in job["permissions"].values())
    for step in job["steps"]:
        keeps_credential = step.get("with", {}).get("persist-credentials") is not False
        if step.get("uses", "").startswith("actions/checkout@") and keeps_credential:
            yield "persist-credentials"
        if "${{" in step.get("run", ""):
            yield "an expression in a script"
        if holds_credential and re.search(r"\b(pip|make|python)\b", step.get("run", "")):
            yield "runs code with a credential"


@pytest.mark.parametrize("path", WORKFLOWS, ids=lambda path: path.name)
def test_a_workflow_keeps_the_rules(path: Path) -> None:
    assert find_faults(path.read_text(encoding="utf-8")) == []


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (r"@[0-9a-f]{40} # v7.0.1", "@v7"),
        (r"(checkout@[0-9a-f]{40}) # v7.0.1", r"\1"),
        ("permissions: {}", "permissions: write-all"),
        ("persist-credentials: false", "fetch-depth: 0"),
        ("concurrency:", "env:"),
        ("make names", "echo ${{ github.event.head_commit.message }}"),
        ("contents: read # checkout", "contents: write"),
        ("    timeout-minutes: 120\n", ""),
    ],
)
def test_a_planted_fault_is_noticed(old: str, new: str) -> None:
    text = (ROOT / ".github" / "workflows" / "names.yml").read_text(encoding="utf-8")
    changed = re.sub(old, new, text)
    assert changed != text and find_faults(changed)


def test_a_version_is_one_commit_everywhere() -> None:
    text = "\n".join(path.read_text(encoding="utf-8") for path in WORKFLOWS)
    pins = set(re.findall(r"uses: ([\w./-]+)@([0-9a-f]{40}) # (v[\d.]+)", text))
    names = [name for name, _, _ in pins]
    assert len(pins) >= 7 and len(names) == len(set(names)), pins


def test_dependabot_renews_what_is_pinned() -> None:
    settings = YAML(typ="safe").load((ROOT / ".github" / "dependabot.yml").read_text(encoding="utf-8"))
    places = {(update["package-ecosystem"], update["directory"]) for update in settings["updates"]}
    assert places == {("github-actions", "/"), ("pip", "/.github"), ("docker", "/")}

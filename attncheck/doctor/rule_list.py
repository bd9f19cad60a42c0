"""The list of rules, as text and JSON."""

import json
from collections.abc import Sequence

from attncheck.doctor.rules import Rule


def rule_title(rule: Rule) -> str:
    """Return the defect that a rule finds, in one line."""
    return rule.page.partition("\n")[0].rstrip(".")


def render_text(rules: Sequence[Rule]) -> str:
    """Return one line per rule: code, severity, name, defect."""
    width = max(len(rule.name) for rule in rules)
    return "".join(f"{rule.code} {rule.severity:<7} {rule.name:<{width}}  {rule_title(rule)}\n" for rule in rules)


def render_json(rules: Sequence[Rule]) -> str:
    """Return the rules with their pages as a JSON array."""
    records = [
        {
            "code": rule.code,
            "name": rule.name,
            "severity": rule.severity,
            "needs": sorted(rule.needs),
            "title": rule_title(rule),
            "page": rule.page,
        }
        for rule in rules
    ]
    return json.dumps(records, indent=2, ensure_ascii=False) + "\n"

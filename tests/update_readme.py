"""Rewrites the generated parts of the README: python -m tests.update_readme."""

from __future__ import annotations

from attncheck.doctor import rule_list
from attncheck.doctor.engine import all_rules
from tests.test_readme import README, ROOT, block

if __name__ == "__main__":
    old = f"<!-- rules -->\n{block('rules')}<!-- /rules -->"
    new = f"<!-- rules -->\n{rule_list.as_markdown(all_rules()[0])}<!-- /rules -->"
    (ROOT / "README.md").write_text(README.replace(old, new), encoding="utf-8")

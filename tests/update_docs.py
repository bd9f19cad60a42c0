"""Rewrites what is generated: the table of rules in docs/rules.md, and the surface of the command line.

Run `python -m tests.update_docs`.
"""

from __future__ import annotations

from tests.cli.test_surface import SURFACE, describe_surface
from tests.test_readme import RULES, generated_block, render_rule_table

if __name__ == "__main__":
    old = f"<!-- rules -->\n{generated_block(RULES, 'rules')}<!-- /rules -->"
    new = f"<!-- rules -->\n{render_rule_table()}<!-- /rules -->"
    RULES.write_text(RULES.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    SURFACE.write_text(describe_surface(), encoding="utf-8")

"""Rewrites what is generated: docs/rules.md's table, the surface of the command line, and the counts of words to avoid.

Run `python -m tests.update_docs`.
"""

from __future__ import annotations

import json

from tests.cli.test_surface import SURFACE, describe_surface
from tests.test_readme import RULES, generated_block, render_rule_table
from tests.test_words import COUNTS, count_words

if __name__ == "__main__":
    old = f"<!-- rules -->\n{generated_block(RULES, 'rules')}<!-- /rules -->"
    new = f"<!-- rules -->\n{render_rule_table()}<!-- /rules -->"
    RULES.write_text(RULES.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    SURFACE.write_text(describe_surface(), encoding="utf-8")
    allowed = json.loads(COUNTS.read_text(encoding="utf-8"))
    lower = {path: min(count, allowed[path]) for path, count in count_words().items() if path in allowed}
    COUNTS.write_text(json.dumps(lower, indent=1) + "\n", encoding="utf-8")

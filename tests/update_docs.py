"""Rewrites what is generated: tables of docs/, the surface of the command line, and the counts of words to avoid.

Run `python -m tests.update_docs`.
"""

from __future__ import annotations

import json

from tests.cli.test_surface import SURFACE, describe_surface
from tests.test_readme import CLASHES, RULES, generated_block, render_clash_table, render_rule_table
from tests.test_words import COUNTS, count_words

if __name__ == "__main__":
    for page, name, table in (RULES, "rules", render_rule_table()), (CLASHES, "clashes", render_clash_table()):
        old, new = (f"<!-- {name} -->\n{text}<!-- /{name} -->" for text in (generated_block(page, name), table))
        page.write_text(page.read_text(encoding="utf-8").replace(old, new), encoding="utf-8")
    SURFACE.write_text(describe_surface(), encoding="utf-8")
    allowed = json.loads(COUNTS.read_text(encoding="utf-8"))
    lower = {path: min(count, allowed[path]) for path, count in count_words().items() if path in allowed}
    COUNTS.write_text(json.dumps(lower, indent=1) + "\n", encoding="utf-8")

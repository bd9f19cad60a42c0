"""The linker on damaged sources: whatever a file holds, it answers, and other files are read anyway."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from attncheck.doctor.probes.payload.links.linker import link_distributions
from tests.doctor.links.test_linker import TRANSFORMERS, lay

SOURCE = '''
import transformers
from transformers import Trainer, cache_utils as c
from transformers.utils import (is_flash,  # a comment (with brackets)
    gone as other)
try:
    from transformers.cache_utils import Cache
    HAS = True
except (ImportError, AttributeError):
    HAS = False
class Mine(Trainer):
    """from transformers.utils import not_a_statement"""
    def forward(self, cache: "Cache" = None, *args, **kwargs):
        if HAS and hasattr(cache, "seen"):
            return cache.seen, c.DynamicCache().crop(1), Trainer(1, tokenizer=2)
        with open("x") as f, suppress(ImportError):
            from transformers.utils import gone
'''
STRANGE = {
    "nothing": b"",
    "not UTF-8": b"\xff\xfe\x00from transformers.utils import gone",
    "zeros": b"\0" * 100,
    "one long line": b"from transformers.utils import " + b", ".join(b"a%d" % n for n in range(5000)),
    "an open bracket": b"from transformers.utils import (" + b"a, " * 5000,
    "deep": b"x = " + b"(" * 3000 + b")" * 3000,
    "a tower of conditions": b"".join(b"%sif x:\n" % (b" " * n) for n in range(90)) + b" " * 90 + b"pass\n",
    "imports itself": b"from trl.strange import gone\nfrom . import strange\nfrom .strange import *\n",
    "dots beyond the top": b"from ........ import gone\nfrom ...transformers import gone\n",
}


def link(site: Path, content: bytes) -> list[str]:
    lay(site, {"transformers": TRANSFORMERS, "trl": {"__init__": "", "plain": "from transformers.utils import gone\n"}})
    (site / "trl" / "strange.py").write_bytes(content)
    installed = [{"name": name, "version": "5.0.0"} for name in ("transformers", "trl")]
    records = link_distributions(installed, [str(site)], {"trl": ("trl",)})["trl"]
    return [record["module"] for record in records]


@pytest.mark.parametrize("content", STRANGE.values(), ids=STRANGE)
def test_a_strange_file_costs_no_other(content: bytes, tmp_path: Path) -> None:
    assert "trl.plain" in link(tmp_path, content)


def test_damaged_sources_are_answered(tmp_path: Path) -> None:
    assert link(tmp_path, SOURCE.encode()).count("trl.strange") == 3
    generator = random.Random(15)
    for _ in range(150):
        text = list(SOURCE)
        for _ in range(generator.randint(1, 6)):
            start = generator.randrange(len(text))
            cut = generator.choice((1, 3, 20))
            text[start : start + cut] = generator.choice(("", "(", "\n", "    ", '"', "\\", "\0", "import ", "é" * 3))
        assert "trl.plain" in link(tmp_path, "".join(text).encode())

"""Labels of stock templates have no other problem than true ones.

axolotl, OpenRLHF and verl make them with the chat templates of TRL and axolotl, LLaMA-Factory with its templates.

It runs in the environments of test_frameworks.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.rehearsal.test_frameworks import FOLDER, REPOSITORY

SCRIPT = Path(__file__).parent / "scripts" / "stock_templates.py"
# Templates with a true problem, by framework: what its report contains.
KNOWN: dict[str, dict[str, str]] = {
    "axolotl": {
        # 0.19.0 prompt_strategies/chat_template.py finds no turn in a message without content, and takes all of them.
        **dict.fromkeys(("axolotl command_a_rag", "axolotl command_a_tool_use"), "tool result turns are learned"),
        # The results of tools are in the assistant's turn.
        **dict.fromkeys(("axolotl gemma4", "axolotl gemma4_unified"), "tool result turns are learned"),
        # These templates write no token after an answer.
        "axolotl llava": "to stop",
        "trl glm4moe": "to stop",
    },
    "openrlhf": {
        # 0.11.2 datasets/sft_dataset.py takes what follows a prompt by its length, but these templates write another
        # prompt with an answer than without: of a thought, or of a system turn in the last question.
        **dict.fromkeys(("trl deepseekv3", "axolotl gemma4", "axolotl gemma4_unified"), "are dropped or changed"),
        **dict.fromkeys(
            ("axolotl mistral_v2v3", "axolotl mistral_v3_tekken", "axolotl pixtral"), "assistant turns are not learned"
        ),
    },
    "verl": {
        # 0.9.1 multiturn_sft_dataset.py masks as much of an answer as a prompt for one is long, with an empty thought.
        **dict.fromkeys(("axolotl gemma4", "axolotl gemma4_unified"), "tokens of assistant turns are not learned"),
        "axolotl llava": "to stop",
    },
    # 0.9.5 data/template.py:889: its answers are their content alone.
    "llamafactory": {"empty": "to stop"},
}
UNREAD = {"no turn was found"}  # of messages as text alone, which a template of images leaves out


@pytest.mark.nightly
@pytest.mark.parametrize(
    ("framework", "least"), [("axolotl", 50), ("openrlhf", 50), ("verl", 20), ("llamafactory", 121)]
)
def test_labels_of_stock_templates_have_no_other_problem(framework: str, least: int) -> None:
    """verl refuses templates that do not render one turn at a time."""
    python = Path(FOLDER) / framework / "bin" / "python"
    if not FOLDER or not python.exists():
        pytest.skip(f"ATTNCHECK_REHEARSAL_PYTHONS has no environment {framework}")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    done = subprocess.run(
        [str(python), "-W", "ignore", str(SCRIPT), framework], env=environment, capture_output=True, text=True
    )
    assert done.returncode == 0, done.stderr[-2000:]
    answers = {name: problems for name, problems in json.loads(done.stdout).items() if problems is not None}
    found = {name: problems for name, problems in answers.items() if problems and not UNREAD & {*problems}}
    assert len(answers) >= least
    assert found.keys() == KNOWN[framework].keys(), found
    assert all(KNOWN[framework][name] in "; ".join(problems) for name, problems in found.items()), found

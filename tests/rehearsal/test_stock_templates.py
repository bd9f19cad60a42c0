"""Problems of labels that frameworks make with stock chat templates are those that the rows' text shows, and no others.

axolotl, OpenRLHF, TRL and verl make them with the chat templates of TRL and axolotl, LLaMA-Factory and ms-swift with
their own. The script compares roles with text: a turn that should not be learned is part of the text that is not
learned, one that should be is part of the learned text. It runs in the environments of test_frameworks.py.
"""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path

import pytest

from tests.rehearsal.test_frameworks import FOLDER, REPOSITORY

SCRIPT = Path(__file__).parent / "scripts" / "stock_templates.py"
# The least number of judged templates, and where labels are wrong. Templates without an end token are axolotl's
# `llava` and TRL's `glm4moe`, whose variant for training has one.
CAUSES: dict[str, tuple[int, set[str]]] = {
    # 0.19.0 prompt_strategies/chat_template.py:790 takes the text that changes if a turn is replaced as that turn, and
    # :882 replaces it without its tool calls. With Command A and Gemma 4, the results of tools change too.
    "axolotl": (50, {"given", "no end"}),
    # 0.11.2 datasets/sft_dataset.py:26 takes what follows a prompt by the prompt's length, but some templates write
    # another prompt with an answer than without: a thought, or a system turn in the last question.
    "openrlhf": (50, {"dropped"}),
    # :102 does so for each turn of a conversation. The row is written once, without the thoughts of earlier answers, so
    # that the mask reaches into the next question. :175 strips a line end that the mask counts: it ends on padding.
    "openrlhf-turns": (50, {"given", "dropped", "unlearned", "padding", "no end"}),
    "trl": (30, {"no end"}),
    "trl-pairs": (60, {"no end"}),
    # 0.9.1 multiturn_sft_dataset.py:237 masks as much of an answer as a prompt for one is long, with an empty thought.
    # It refuses templates that do not render one turn at a time.
    "verl": (20, {"unlearned", "no end"}),
    # 0.9.5 data/template.py:889: the answers of `empty` are their content.
    "llamafactory": (121, {"no end"}),
    # 4.6.0 template/templates/dots.py:113: the suffix of `monkeyocrv2` is empty.
    "ms_swift": (240, {"no end"}),
}


@pytest.mark.nightly
@pytest.mark.parametrize("name", CAUSES)
def test_labels_of_stock_templates_have_no_other_problem(name: str) -> None:
    python = Path(FOLDER) / name.partition("-")[0] / "bin" / "python"
    folders = [
        str(path)
        for pattern in ("trl/lib/*/*/trl/chat_templates", "axolotl/lib/*/*/axolotl/utils/chat_templates/templates")
        for path in (Path(FOLDER).glob(pattern) if FOLDER else ())
    ]
    if not folders or not python.exists():
        pytest.skip(f"ATTNCHECK_REHEARSAL_PYTHONS has no environment {python.parts[-3]}, or none with templates")
    environment = {**os.environ, "PYTHONPATH": str(REPOSITORY), "HF_HUB_OFFLINE": "1"}
    command = [str(python), "-W", "ignore", str(SCRIPT), name, *folders]
    done = subprocess.run(command, env=environment, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr[-2000:]
    answers = {template: answer for template, answer in json.loads(done.stdout).items() if answer is not None}
    least, causes = CAUSES[name]
    assert len(answers) >= least, done.stderr[-2000:]
    assert {template for template, (problems, facts) in answers.items() if bool(problems) != bool(facts)} == set()
    assert {fact for _, facts in answers.values() for fact in facts} == causes, answers

"""What lint says of rollouts: truncated sampling, uncorrected mismatch; and the corrected launch is without it."""

from __future__ import annotations

import pytest

from attncheck.core.findings import Finding
from attncheck.core.launch import Source
from attncheck.lint import run
from attncheck.lint.context import Request
from tests import snapshots as s
from tests.lint import launches

GRPO = "accelerate launch --num_processes 8 -m trl.scripts.grpo --model_name_or_path m --dataset_name d --use_vllm true"
VERL = "python3 -m verl.trainer.main_ppo trainer.n_gpus_per_node=8 actor_rollout_ref.rollout.name=vllm "
WEIGHED = "algorithm.rollout_correction.rollout_is=token"
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --vllm.num_engines 4 "
VERSIONS = {"trl": "1.16.0", "verl": "0.9.1", "openrlhf": "0.11.2"}


def lint(text: str, code: str) -> list[Finding]:
    snapshot = s.h200()
    for name, version in VERSIONS.items():
        snapshot = s.with_package(snapshot, name, version)
    request = Request((Source("run.sh", text, "shell"),))
    report = run.run(snapshot, request, launches.read_model, launches.read_no_file)
    return [finding for finding in report.findings if finding.code == code]


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (f"{GRPO} --top_p 0.9", "--top_p 1.0"),
        (f"{GRPO} --top_k 50", "--top_k 0"),
        (f"{VERL} {WEIGHED} actor_rollout_ref.rollout.top_p=0.95", "actor_rollout_ref.rollout.top_p=1.0"),
        (f"{VERL} {WEIGHED} actor_rollout_ref.rollout.top_k=20", "actor_rollout_ref.rollout.top_k=-1"),
    ],
)
def test_truncated_rollouts_are_named_and_the_correction_holds(text: str, fix: str) -> None:
    [finding] = lint(text, "ATN424")
    assert fix in finding.fixes[0].text
    written = text.rpartition(" ")[0].removesuffix(" --top_p").removesuffix(" --top_k")
    assert lint(f"{written} {fix}", "ATN424") == []


@pytest.mark.parametrize(
    "text",
    [
        GRPO,
        f"{GRPO} --top_p 1.0 --top_k 0",
        f"{VERL} {WEIGHED} actor_rollout_ref.rollout.val_kwargs.top_p=0.7",
        f"{VERL} actor_rollout_ref.rollout.top_p=0.95",  # nothing is weighed by the rollouts' probabilities
        f"{GRPO.replace('--use_vllm true', '')} --top_p 0.9",
    ],
)
def test_whole_distributions_and_evaluation_are_let_be(text: str) -> None:
    assert lint(text, "ATN424") == []


@pytest.mark.parametrize(
    ("text", "fix"),
    [
        (VERL, "algorithm.rollout_correction.rollout_is=token"),
        (f"{GRPO} --vllm_importance_sampling_correction false", "--vllm_importance_sampling_correction"),
        (OPENRLHF, "--algo.advantage.is_correction_level token"),
    ],
)
def test_an_uncorrected_mismatch_is_a_note_whose_settings_the_release_knows(text: str, fix: str) -> None:
    [finding] = lint(text, "ATN425")
    assert finding.severity == "note" and fix in finding.fixes[0].text
    corrected = f"{text.replace('--vllm_importance_sampling_correction false', '')} "
    corrected += " ".join(finding.fixes[0].text.splitlines())
    assert lint(corrected, "ATN425") == []
    assert not [finding for finding in lint(corrected, "ATN440") if "correction" in finding.message]

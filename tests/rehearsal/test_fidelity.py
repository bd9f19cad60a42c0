"""What was replaced is not answered: how a cut launch differs from what was written, and the questions that go."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from attncheck.core.facts import Absent, Known
from attncheck.core.job import DROP
from attncheck.core.launch import Source
from attncheck.core.rehearsal import JobCut, Objective, PolicyGradient
from attncheck.core.report import Outcome
from attncheck.core.results.rehearsal import Difference
from attncheck.core.results.smoke import CheckResult
from attncheck.lint.rewriting import ReadLaunch, read_launches
from attncheck.rehearsal import cutting, execution, judged_run
from attncheck.rehearsal.fidelity import leave_unasked, list_differences, list_unasked, shares_rows
from attncheck.rehearsal.options import add_options
from tests.snapshots import laptop, with_model

TRL = "trl sft --model_name_or_path m --dataset_name d --output_dir o --per_device_train_batch_size 4"
SCRIPT = """from trl import SFTConfig, SFTTrainer
trainer = SFTTrainer("m", args=SFTConfig(output_dir="o"))
trainer.train()
trainer.evaluate()
"""
CHECKS = ("run", "batch", "documents", "update", "loss", "gradients", "learning")


def read(options: str) -> ReadLaunch:
    text = f"{TRL} {options}\n"
    (launch,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
    return launch


def compare(launch: ReadLaunch, folder: Path, ranks: int = 1) -> dict[str, Difference]:
    materials = cutting.make_materials(launch, str(folder), 30, False, 2)
    differences = list_differences(launch, cutting.cut_job(launch, materials), materials, ranks)
    return {difference.dimension: difference for difference in differences}


@pytest.mark.parametrize(
    ("options", "dimensions"),
    [
        ("", set()),
        ("--attn_implementation sdpa --packing", set()),
        ("--attn_implementation flash_attention_2 --packing", set()),  # emulated under its own name
        ("--attn_implementation flash_attention_3 --packing", set()),
        ("--attn_implementation kernels-community/vllm-flash-attn3 --packing", set()),
        ("--attn_implementation kernels-community/flash-attn2@v1 --packing", set()),
        ("--attn_implementation kernels-community/flash-mla --packing", {"attn_implementation"}),
        ("--gradient_accumulation_steps 8", set()),
        ("--load_in_4bit --use_peft", {"quantisation"}),
        ("--load_in_4bit false", set()),
    ],
)
def test_how_a_cut_launch_differs(options: str, dimensions: set[str], tmp_path: Path) -> None:
    assert set(compare(read(options), tmp_path)) == dimensions


@pytest.mark.parametrize(("size", "dimensions"), [("8", {"ranks that share a row"}), ("2", set()), ("1", set())])
def test_rows_that_a_fork_splits_across_more_ranks_are_whole(size: str, dimensions: set[str], tmp_path: Path) -> None:
    """360-LLaMA-Factory refuses fewer ranks than that."""
    options = "--stage sft --do_train --model_name_or_path m --dataset d --template qwen --output_dir o"
    text = f"torchrun --nproc_per_node 8 src/train.py {options} --sequence_parallel_size {size}\n"
    (launch,) = read_launches(laptop(), Source("run.sh", text, "shell"), lambda name: Absent("no"), lambda path: None)
    assert launch.job.framework == "llamafactory" and set(compare(launch, tmp_path, 2)) - {"ranks"} == dimensions


@pytest.mark.parametrize(
    ("trainer", "options", "differs"), [("gold", "--lmbda 1", True), ("gkd", "", True), ("gkd", "--lmbda 0", False)]
)
def test_answers_that_the_model_generates_are_a_difference(
    trainer: str, options: str, differs: bool, tmp_path: Path
) -> None:
    """On-policy distillation trains on them, so no document of the data is in its batches."""
    launch = read(options)
    assert (
        "source of the rollouts" in compare(replace(launch, job=replace(launch.job, trainer=trainer)), tmp_path)
    ) == differs


def test_another_class_is_a_difference(tmp_path: Path) -> None:
    launch = read("")
    (tmp_path / "model").mkdir()
    config = {"architectures": ["Gemma3ForCausalLM"]}
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    snapshot = with_model(laptop(), architectures=("Gemma3ForConditionalGeneration",))
    assert isinstance(snapshot.model, Known)
    differences = compare(replace(launch, snapshot=snapshot), tmp_path)
    assert differences["model class"].ran == "Gemma3ForCausalLM"


@pytest.mark.parametrize(
    ("dimension", "unasked"),
    [
        ("model class", {"run", "batch", "documents", "loss", "gradients"}),
        ("class of the model", {"documents", "loss", "gradients", "learning"}),
        ("attn_implementation", {"batch", "documents", "gradients"}),
        ("max_length", {"run", "batch"}),
        ("accumulation", {"loss", "gradients"}),
        ("quantisation", {"loss", "gradients", "learning"}),
        ("precision", {"documents", "loss", "gradients", "learning"}),
        ("ranks that share a row", {"documents", "loss", "gradients"}),
        ("ranks", {"loss", "gradients"}),
        ("field that the script reads", set()),
        ("divisor of the loss", set()),
        ("images", set()),
        ("source of the rollouts", set()),
    ],
)
def test_what_rests_on_a_difference_is_not_asked(dimension: str, unasked: set[str]) -> None:
    results = leave_unasked([CheckResult(name) for name in CHECKS], [Difference(dimension, "a", "b")])
    assert {result.check for result in results if result.reason.startswith("not asked: ")} == unasked


def test_words_that_are_missing_may_be_in_an_empty_field() -> None:
    empty = [Difference("field that the script reads", "response_b", "made up")]
    passed, wrong = CheckResult("batch"), CheckResult("batch", violations=("words are never used",))
    assert leave_unasked([passed], empty) == [passed]
    assert leave_unasked([wrong], empty)[0].reason.startswith(
        "not asked: it depends on the field that the script reads"
    )


def test_what_follows_from_an_unasked_failure_is_not_asked_either() -> None:
    unknown = [Difference("source of the rollouts", "the script's own trainer", "made up")]
    after = CheckResult("loss", "skipped", "not judged: a consequence of the failed batch check")
    assert leave_unasked([after], unknown)[0].reason.startswith("not asked: it depends on the source of the rollouts")
    assert leave_unasked([after], [Difference("ranks", "8", "1")]) == [after]


def test_a_failure_under_fewer_ranks_is_one() -> None:
    wrong = CheckResult("loss", violations=("the loss is wrong",))
    assert leave_unasked([wrong], [Difference("ranks", "8", "1")]) == [wrong]
    assert leave_unasked([wrong], [Difference("class of the model", "not known", "llama")]) == [wrong]
    assert leave_unasked([wrong], [Difference("model class", "a", "b")])[0].outcome == "skipped"


OF_ACCUMULATION = ("an epoch's short last step", "the same rows in other micro-batches")


def test_settings_that_need_a_gpu_are_not_asked(tmp_path: Path) -> None:
    (tmp_path / "watch").mkdir()
    for name in ("absent-gpu-use_liger_kernel", "absent-gpu-load_in_4bit", "absent-network-wandb"):
        (tmp_path / "watch" / name).touch()
    assert execution.list_left_out(str(tmp_path)) == ("use_liger_kernel",)


def test_a_model_that_nothing_trains_is_named(tmp_path: Path) -> None:
    """As an adapter that is loaded without is_trainable."""
    (tmp_path / "watch").mkdir()
    assert not execution.list_noted(str(tmp_path), "untrained")
    (tmp_path / "watch" / "absent-untrained-Qwen2ForCausalLM").touch()
    assert execution.list_noted(str(tmp_path), "untrained") == ["Qwen2ForCausalLM"]


@pytest.mark.parametrize(
    ("options", "has_text_only", "unasked"),
    [
        ("", False, ["truncated rows", "what is saved", "later epochs"]),
        ("--eval_strategy steps", True, ["images", "truncated rows", "what is saved", "evaluation", "later epochs"]),
        (
            "--resume_from_checkpoint out/9",
            False,
            ["truncated rows", "what is saved", "a resumed training", "resuming from out/9", "later epochs"],
        ),
        (
            "--resume_from_checkpoint true",
            False,
            ["truncated rows", "what is saved", "a resumed training", "later epochs"],
        ),
        (
            "--eval_strategy no --gradient_accumulation_steps 8",
            False,
            ["truncated rows", "what is saved", "later epochs", *OF_ACCUMULATION],
        ),
    ],
)
def test_what_a_rehearsal_leaves_out(options: str, has_text_only: bool, unasked: list[str]) -> None:
    assert list(list_unasked(read(options), Objective(), has_text_only)) == unasked


def test_a_setting_of_the_rows_that_the_cut_removes_is_left_out(tmp_path: Path) -> None:
    launch = read("--dataset_streaming true --dataset_num_proc 4 --packing")
    cut = JobCut(dict.fromkeys(("dataset_streaming", "dataset_num_proc", "truncation_mode"), DROP), "text", Objective())
    stage: Any = SimpleNamespace(folder=str(tmp_path), read=launch, is_guessed=False)
    assert judged_run._list_left_out(stage, cut, "") == ("dataset_streaming",)


def test_what_the_first_step_of_a_policy_leaves_out() -> None:
    objective = Objective(policy=PolicyGradient())
    of_rollouts, last = ["the rewards", "how completions are sampled"], ["what is saved", "later epochs"]
    left_out = [*of_rollouts, "the KL term, which is 0 at the first step", *last]
    assert list(list_unasked(read("--beta 0.04"), objective, False)) == left_out
    assert list(list_unasked(read("--beta 0.0"), objective, False)) == [*of_rollouts, *last]
    assert "the contents of the launch's own rows" in list_unasked(read(""), objective, False, has_made_up=True)


def test_what_an_interruption_answers_is_asked() -> None:
    def unasked(*notes: str) -> set[str]:
        results = [CheckResult("repeat", notes=notes)]
        return {*list_unasked(read("--resume_from_checkpoint out/9"), Objective(), False, results)}

    own = {"a resumed training", "later epochs", "what is saved"}
    assert unasked("resumed after step 2: the same rows") & own == {"later epochs"}
    assert unasked("two epochs have 8 batches each") & own == {"a resumed training", "what is saved"}


def test_what_a_twin_answers_is_asked() -> None:
    def unasked(text: str, outcome: Outcome = "ok") -> set[str]:
        results = [CheckResult("twin", outcome, text, notes=(text,))]
        return {
            *list_unasked(read("--gradient_accumulation_steps 8"), Objective(), False, results, ["use_liger_kernel"])
        }

    halves, liger = "two micro-batches: the same rows", "use_liger_kernel: the same rows"
    both = {"the same rows in other micro-batches", "use_liger_kernel"}
    assert unasked(halves) & both == {"use_liger_kernel"} and unasked(liger) & both == both - {"use_liger_kernel"}
    assert unasked(halves, "skipped") >= both


def test_a_script_that_evaluates_and_saves() -> None:
    source = Source("train.py", f"{SCRIPT}\ntrainer.save_model('final')\n", "python")
    (launch,) = read_launches(laptop(), source, lambda name: Absent("no"), lambda path: None)
    both = {"evaluation", "what is saved"}
    assert both <= {*list_unasked(launch, Objective(), False)}
    notes = "an evaluation of 8 rows gives eval_loss", "what train.py:9 saves: loaded again, it computes the same"
    assert both.isdisjoint(list_unasked(launch, Objective(), False, [CheckResult("update", notes=notes)]))


@pytest.mark.parametrize(
    ("options", "shares"), [("", False), ("--packing", True), ("--padding_free true", True), ("--packing false", False)]
)
def test_whether_documents_share_rows(options: str, shares: bool) -> None:
    assert shares_rows(read(options).job) == shares


@pytest.mark.parametrize(
    ("options", "smoothing", "by_probability", "is_documented"),
    [
        ("", 0.0, False, True),
        ("--label_smoothing_factor 0.1", 0.1, False, True),
        ("--loss_type dft", 0.0, True, True),
        ("--loss_type focal", 0.0, False, False),
        ("--loss_type sft_loss", 0.0, False, True),  # slime's name of it
    ],
)
def test_options_make_another_loss_of_a_token(
    options: str, smoothing: float, by_probability: bool, is_documented: bool, tmp_path: Path
) -> None:
    launch = read(options)
    cut = cutting.cut_job(launch, cutting.make_materials(launch, str(tmp_path), 30, False, 2))
    objective = add_options(cut.objective, launch.job)
    assert (objective.token_loss.smoothing, objective.token_loss.by_probability) == (smoothing, by_probability)
    assert objective.is_documented == is_documented

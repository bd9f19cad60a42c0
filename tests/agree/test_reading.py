"""What `agree` reads from launches: the engine's sampling and the trainer's scoring, in each framework's names."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.agree.launching import change, cut_scoring
from attncheck.agree.reading import ReadJob, read_job
from attncheck.core.agreement import Rollout
from attncheck.core.io.errors import Unanswered
from attncheck.lint import inputs
from attncheck.lint.rewriting import ReadLaunch, read_launches
from attncheck.rehearsal import corrections
from attncheck.rehearsal.corrections import Correction
from attncheck.rehearsal.cutting import NothingToRehearse
from attncheck.workers.execution import ExecutionTarget
from tests import snapshots as s
from tests.conftest import Run

VERL = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=Qwen/Qwen2-7B "
OPENRLHF = "python3 -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path Qwen/Qwen3-4B --vllm.num_engines 4 "
TRL = "trl grpo --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name d/x --reward_funcs accuracy_reward "


def read_launch(folder: Path, text: str) -> ReadLaunch:
    path = folder / "train.sh"
    path.write_text(f"{text}\n")
    given = inputs.read_inputs((str(path),), None)
    source = given.sources[0]
    reader = inputs.make_readers(given)(source)
    (launch,) = read_launches(s.h200(), source, inputs.make_model_reader(False), reader, False)
    return launch


def read(folder: Path, text: str) -> ReadJob:
    return read_job(read_launch(folder, text).job)


def test_verl(tmp_path: Path) -> None:
    rollout = "actor_rollout_ref.rollout"
    job = read(
        tmp_path,
        f"{VERL}{rollout}.name=vllm {rollout}.temperature=0.8 {rollout}.top_k=-1 {rollout}.top_p=0.9 "
        f"{rollout}.dtype=float16 {rollout}.logprobs_mode=raw_logprobs actor_rollout_ref.actor.clip_ratio_high=0.28 "
        f"+{rollout}.engine_kwargs.vllm.hf_overrides.rope_scaling.factor=2.0 "
        f"+{rollout}.engine_kwargs.vllm.kv_cache_dtype=fp8 +{rollout}.engine_kwargs.vllm.max_num_seqs=64 "
        "+actor_rollout_ref.model.override_config.sliding_window=512",
    )
    assert job.engine == "vllm"
    assert job.rollout == Rollout(
        precision="fp16",
        temperature=0.8,
        top_p=0.9,
        log_probabilities="raw",
        overrides=(("rope_scaling", '{"factor": 2.0}'),),
        options=(("kv_cache_dtype", '"fp8"'),),
    )
    assert (job.scoring.layout, job.scoring.precision, job.scoring.temperature) == ("packed", "autocast", 0.8)
    assert job.scoring.clip == (0.2, 0.28)
    assert job.scoring.overrides == (("sliding_window", "512"),)
    assert not job.scoring.divides_float32


def test_openrlhf(tmp_path: Path) -> None:
    packed = read(
        tmp_path, f"{OPENRLHF}--rollout.temperature 0.7 --ds.packing_samples --actor.eps_clip_low_high 0.2 0.3"
    )
    assert (packed.engine, packed.rollout.precision, packed.rollout.temperature) == ("vllm", "bf16", 0.7)
    assert (packed.scoring.layout, packed.scoring.precision, packed.scoring.clip) == ("packed", "bf16", (0.2, 0.3))
    padded = read(tmp_path, f"{OPENRLHF}--rollout.top_p 0.95")
    assert (padded.scoring.layout, padded.scoring.passes_positions) == ("left", True)
    assert padded.rollout.top_p == 0.95


def test_trl(tmp_path: Path) -> None:
    job = read(tmp_path, f"{TRL}--use_vllm --temperature 0.9 --top_k 20 --epsilon_high 0.28 --bf16")
    assert (job.engine, job.rollout.top_k, job.rollout.temperature) == ("vllm", 20, 0.9)
    assert (job.scoring.layout, job.scoring.passes_positions, job.scoring.clip) == ("left", False, (0.2, 0.28))
    own = read(tmp_path, f"{TRL}--bf16 --attn_implementation eager")
    assert own.rollout.attn_implementation == "eager"  # it generates with the model that it trains
    assert (own.engine, own.rollout.precision, own.scoring.precision) == ("transformers", "autocast", "autocast")


def test_a_launch_without_rollouts_is_not_compared(tmp_path: Path) -> None:
    with pytest.raises(Unanswered, match="without rollouts"):
        read(tmp_path, "trl sft --model_name_or_path Qwen/Qwen2.5-0.5B --dataset_name d/x")


def test_a_temperature_that_only_running_tells(tmp_path: Path) -> None:
    with pytest.raises(Unanswered, match="temperature"):
        read(tmp_path, f"{VERL}actor_rollout_ref.rollout.temperature=$(cat t)")


OWN = "actor_rollout_ref.rollout"
FP8 = f"+{OWN}.engine_kwargs.vllm.kv_cache_dtype=fp8"
OVERRIDE = f"+{OWN}.engine_kwargs.vllm.hf_overrides.rope_theta=500"


@pytest.mark.parametrize(
    ("text", "cause", "says"),
    [
        (f"{TRL}--top_p 0.9 --min_p 0.1", "truncated-distribution", "--top_p 1.0 --min_p 0.0"),
        (f"{OPENRLHF}--rollout.top_p 0.95", "truncated-distribution", "--rollout.top_p 1.0"),
        (f"{VERL}{OWN}.top_p=0.9", "truncated-distribution", f"{OWN}.top_p=1.0"),
        (f"{VERL}{OWN}.logprobs_mode=raw_logprobs", "raw-log-probabilities", f"{OWN}.logprobs_mode=processed_logprobs"),
        (f"{VERL}{FP8}", "fp8-cache:e4m3", f"no {FP8.split('=')[0]}"),
        (f"{VERL}{OVERRIDE}", "engine-overrides", f"no {OVERRIDE.split('=')[0]}"),
    ],
)
def test_settings_that_close_a_cause(text: str, cause: str, says: str, tmp_path: Path) -> None:
    """They are written in the launch's own words, and the launch that is run again has them."""
    launch = read_launch(tmp_path, text)
    sets = read_job(launch.job).remedies[cause]
    assert corrections.describe(launch, Correction(sets)) == says
    rollout = read_job(change(launch, sets).job).rollout
    assert not rollout.truncates
    assert rollout.log_probabilities == "processed"
    assert rollout.overrides == rollout.options == ()


@pytest.mark.parametrize(("text", "name", "rows"), [(TRL, "trl", 8), (OPENRLHF, "openrlhf", 3), (VERL, "verl", 3)])
def test_a_launch_is_cut_to_its_scoring(text: str, name: str, rows: int, tmp_path: Path) -> None:
    """A rehearsal hands a rank of OpenRLHF and verl six rollouts: a larger batch of them is refused."""
    launch = read_launch(tmp_path, text)
    target = ExecutionTarget("python", "cpu")
    with pytest.raises(NothingToRehearse, match=f"{name} is not installed"):
        cut_scoring(launch, str(tmp_path), target)
    installed = replace(launch, snapshot=s.with_package(launch.snapshot, name, launch.job.version))
    scorer = cut_scoring(installed, str(tmp_path), target)
    assert (scorer.cut.driver, scorer.materials.batch, scorer.materials.steps) == (name, rows, 1)


def test_bad_usage(attncheck: Run) -> None:
    assert attncheck("agree", "llama", "--engine", "tgi").returncode == 2
    assert attncheck("agree").returncode == 2


@pytest.mark.nightly
def test_an_engine_in_the_place_of_another_has_every_feature(attncheck: Run, tmp_path: Path) -> None:
    """transformers' sdpa drops gemma2's soft-cap, which vLLM applies: that would be no fault of the launch."""
    pytest.importorskip("transformers")
    options = "--use_vllm --attn_implementation eager --bf16 true"
    (tmp_path / "train.sh").write_text(TRL.replace("Qwen/Qwen2.5-0.5B", "google/gemma-2-2b") + f"{options}\n")
    done = attncheck("agree", str(tmp_path / "train.sh"), "--engine", "transformers")
    assert done.returncode == 0, done.stdout + done.stderr
    assert "is not installed" in done.stdout  # trl: its source is reproduced
    own = TRL.replace("Qwen/Qwen2.5-0.5B", "google/gemma-2-2b") + "--attn_implementation eager --bf16 true\n"
    (tmp_path / "train.sh").write_text(own)
    assert attncheck("agree", str(tmp_path / "train.sh")).returncode == 0


GEMMA2 = VERL.replace("Qwen/Qwen2-7B", "google/gemma-2-9b")
EAGER = (
    "actor_rollout_ref.model.use_remove_padding=False "
    "+actor_rollout_ref.model.override_config.attn_implementation=eager "
)
MISTRAL = VERL.replace("Qwen/Qwen2-7B", "mistralai/Mistral-7B-v0.1")
HF = f"+{OWN}.engine_kwargs.vllm.hf_overrides"
TRAINED = "+actor_rollout_ref.model.override_config"
# A launch whose sides differ by a setting -> the words of the cause, and the setting that removes it.
CLOSED = {
    f"{TRL}--bf16 true --top_p 0.8": ("top_p 0.8", "--top_p 1.0"),
    f"{TRL}--bf16 true --top_k 5": ("top_k 5", "--top_k 0"),
    f"{TRL}--bf16 true --min_p 0.2": ("min_p 0.2", "--min_p 0.0"),
    f"{OPENRLHF}--rollout.top_p 0.8": ("top_p 0.8", "--rollout.top_p 1.0"),
    f"{VERL}{OWN}.top_p=0.8": ("top_p 0.8", f"{OWN}.top_p=1.0"),
    f"{VERL}{OWN}.top_k=5": ("top_k 5", f"{OWN}.top_k=-1"),
    f"{VERL}{OWN}.temperature=0.7 {OWN}.logprobs_mode=raw_logprobs": (
        "the temperature 0.7 is not applied",
        f"{OWN}.logprobs_mode=processed_logprobs",
    ),
    f"{VERL}{OWN}.temperature=0.7 +{OWN}.engine_kwargs.vllm.logprobs_mode=raw_logprobs": (
        "the temperature 0.7 is not applied",
        f"+{OWN}.engine_kwargs.vllm.logprobs_mode=processed_logprobs",
    ),
    f"{VERL}{HF}.rms_norm_eps=0.5": ("rms_norm_eps=0.5", f"no {HF}.rms_norm_eps"),
    f"{VERL}{HF}.hidden_act=relu": ('hidden_act="relu"', f"no {HF}.hidden_act"),
    f"{MISTRAL}{HF}.sliding_window=3": ("sliding_window=3", f"no {HF}.sliding_window"),
    f"{GEMMA2}{EAGER}{HF}.query_pre_attn_scalar=4": ("query_pre_attn_scalar=4", f"no {HF}.query_pre_attn_scalar"),
    f"{GEMMA2}{EAGER}{HF}.attn_logit_softcapping=0.5": (
        "attn_logit_softcapping=0.5",
        f"no {HF}.attn_logit_softcapping",
    ),
    f"{GEMMA2}{EAGER}{HF}.final_logit_softcapping=2.5": (
        "final_logit_softcapping=2.5",
        f"no {HF}.final_logit_softcapping",
    ),
    f"{VERL}{TRAINED}.rms_norm_eps=0.5": ("rms_norm_eps=0.5", f"no {TRAINED}.rms_norm_eps"),
    f"{VERL}{TRAINED}.hidden_act=relu": ('hidden_act="relu"', f"no {TRAINED}.hidden_act"),
}


@pytest.mark.nightly
@pytest.mark.parametrize("launch", CLOSED)
def test_a_setting_that_divides_the_sides_is_named_and_its_removal_proven(
    launch: str, attncheck: Run, tmp_path: Path
) -> None:
    """The launch is run as written and again without the setting: the second run agrees."""
    pytest.importorskip("transformers")
    cause, fix = CLOSED[launch]
    (tmp_path / "train.sh").write_text(f"{launch}\n")
    done = attncheck("agree", str(tmp_path / "train.sh"), "--engine", "transformers", "--format", "json", timeout=300)
    assert done.returncode == 1, done.stderr
    (finding,) = json.loads(done.stdout)["findings"]
    assert finding["code"] == "ATN463" and cause in finding["message"]
    assert [own["text"] for own in finding["fixes"]] == [fix]
    assert finding["fixes"][0]["proven"].startswith("run again: ")


@pytest.mark.nightly
def test_a_setting_that_does_not_fix_a_cause_is_no_fix(attncheck: Run, tmp_path: Path) -> None:
    """TRL's disable_dropout leaves the rate of qwen2's attention: run again, both sides still differ."""
    pytest.importorskip("transformers")
    config = {"model_type": "qwen2", "architectures": ["Qwen2ForCausalLM"], "attention_dropout": 0.1}
    (tmp_path / "model").mkdir()
    (tmp_path / "model" / "config.json").write_text(json.dumps(config))
    launch = TRL.replace("Qwen/Qwen2.5-0.5B", str(tmp_path / "model"))
    (tmp_path / "train.sh").write_text(f"{launch}--bf16 true\n")
    done = attncheck("agree", str(tmp_path / "train.sh"), timeout=300)
    assert done.returncode == 1, done.stderr
    assert "dropout is on while the trainer scores: attention_dropout 0.1" in done.stdout
    assert "with --disable_dropout they still differ" in done.stdout
    assert "set these rates in config.json to 0" in done.stdout

"""OpenRLHF's launches, against its own command lines out of its wheels."""

from __future__ import annotations

import json
import random
import re
import subprocess
import sys
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import cache
from pathlib import Path
from typing import Any

import pytest

from attncheck.core.job import DROP, Job, SettingProblem
from attncheck.core.launch import COMMAND, Launch, Source
from attncheck.core.model import Tower
from attncheck.core.snapshot import Snapshot
from attncheck.lint import launches
from attncheck.lint.files import editing
from attncheck.lint.frameworks import openrlhf
from attncheck.lint.frameworks.openrlhf import names, tables
from tests import snapshots as s
from tests.lint.frameworks.ranges import check_range
from tests.wheels import CACHE
from tools.names.openrlhf import parser_rows

CORPUS = sorted((Path(__file__).parents[2] / "data" / "launch" / "openrlhf").glob("*.sh"))
FLAT, NEWEST = "0.9.9", "0.11.2"
NO_SETTINGS: Mapping[str, str] = {}
PPO = (
    "python -m openrlhf.cli.train_ppo_ray --actor.model_name_or_path m --reward.model_name_or_path r "
    "--vllm.num_engines 8 --train.micro_batch_size 2 --ds.packing_samples"
)
SFT = "deepspeed --num_gpus 4 --module openrlhf.cli.train_sft --model.model_name_or_path m --train.micro_batch_size 2"
GRPO = f"{PPO} --algo.advantage.estimator group_norm --rollout.n_samples_per_prompt 4"
PADDED = GRPO.replace(" --ds.packing_samples", "")


def command_source(text: str) -> Source:
    return Source(COMMAND, text)


def parse_launch(source: Source) -> Launch:
    matches = [launch for launch in launches.find_launches(source, lambda _: None) if openrlhf.find_trainer(launch)]
    assert len(matches) == 1
    return matches[0]


def read_job(text: str | Source, version: str = NEWEST, snapshot: Snapshot | None = None) -> Job:
    source = command_source(text) if isinstance(text, str) else text
    return openrlhf.read_job(parse_launch(source), version, snapshot or s.without_packages(s.h200(), "transformers"))


def correct_source(
    source: Source, version: str, sets: Mapping[str, str] = NO_SETTINGS, snapshot: Snapshot | None = None
) -> Source:
    job = read_job(source, version, snapshot)
    return replace(source, text=editing.apply_edits(source, openrlhf.write_settings(parse_launch(source), job, sets)))


def write_to_command(text: str, version: str, **sets: str) -> str:
    return correct_source(command_source(text), version, sets).text


def read_script(path: Path) -> Source:
    return Source(path.name, path.read_text(), "shell")


@cache
def unpack_wheel(version: str) -> Path:
    """Return the folder with a release's command lines, out of its wheel; skips if there is no index to ask."""
    folder = CACHE / f"openrlhf-{version}"
    if not (folder / "openrlhf" / "cli").is_dir():
        CACHE.mkdir(parents=True, exist_ok=True)
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary", ":all:"]
        tags = ["--python-version", "3.11", "--platform", "manylinux1_x86_64", "--dest", str(CACHE)]
        try:
            subprocess.run([*command, *tags, f"openrlhf=={version}"], check=True, timeout=120, capture_output=True)
        except (subprocess.SubprocessError, OSError) as error:
            pytest.skip(f"openrlhf {version} cannot be had from an index: {type(error).__name__}")
        _extract_command_lines(next(CACHE.glob(f"openrlhf-{version}-*.whl")), folder)
    return folder


def _extract_command_lines(path: Path, folder: Path) -> None:
    with zipfile.ZipFile(path) as archive:
        for name in archive.namelist():
            match = re.search(r"(openrlhf/(?:cli/train_\w+|utils/config)\.py)$", name)
            if match:
                (folder / match[1]).parent.mkdir(parents=True, exist_ok=True)
                (folder / match[1]).write_bytes(archive.read(name))


def run_real_parsers(version: str, launches: Sequence[Launch]) -> list[dict[str, Any]]:
    """Return how the release's own command lines answer launches: what they refuse, and the final settings."""
    commands = []
    for launch in launches:
        trainer = openrlhf.find_trainer(launch)
        commands.append([names.TRAINER_FILES.get(trainer, trainer), [word.text for word in launch.words[1:]]])
    request = json.dumps({"directory": str(unpack_wheel(version)), "commands": commands})
    child = [sys.executable, str(Path(__file__).parents[1] / "openrlhf_parsers.py")]
    completed = subprocess.run(child, input=request, capture_output=True, text=True, timeout=120, check=False)
    assert completed.returncode == 0, completed.stderr
    answers: list[dict[str, Any]] = json.loads(completed.stdout)
    return answers


# Name, command, consequence, a part of the message; and a command that has not the problem.
PROBLEM_CASES: list[tuple[str, str, str, str, str]] = [
    ("ring", f"{SFT} --ds.ring_attn_size 2", "refuses", "without --ds.packing_samples", f"{SFT} --ds.ring_attn_size 1"),
    ("packing", f"{SFT} --ds.packing_samples --ds.attn_implementation sdpa", "replaces", "sdpa by flash_attention_2",
     f"{SFT} --ds.packing_samples --ds.attn_implementation flash_attention_3"),
    ("hub", f"{SFT} --ds.packing_samples --ds.attn_implementation kernels-community/vllm-flash-attn3", "replaces",
     "vllm-flash-attn3 by flash_attention_2", f"{SFT} --ds.attn_implementation kernels-community/vllm-flash-attn3"),
    ("4 bits", f"{SFT} --ds.load_in_4bit --ds.param_dtype fp16", "refuses", "without bf16", f"{SFT} --ds.load_in_4bit"),
    ("tensor parallel", f"{SFT} --ds.tensor_parallel_size 2 --ds.param_dtype fp16", "refuses", "2 without bf16",
     f"{SFT} --ds.tensor_parallel_size 2"),
    ("batch", f"{SFT} --train.batch_size 100 --train.micro_batch_size 3", "refuses", "is not a multiple of",
     f"{SFT} --train.batch_size 96 --train.micro_batch_size 3"),
    ("small batch", f"{SFT} --train.batch_size 4 --train.micro_batch_size 2", "refuses", "4 is not a multiple",
     f"{SFT} --train.batch_size 8 --train.micro_batch_size 2"),
    ("ring's batch", f"{SFT} --ds.packing_samples --ds.ring_attn_size 2 --train.batch_size 2", "refuses",
     "× 2 ranks that share a row", f"{SFT} --ds.packing_samples --ds.ring_attn_size 2 --train.batch_size 4"),
    ("no step", f"{SFT} --data.max_samples 60", "refuses", "less than one step", f"{SFT} --data.max_samples 64"),
    ("choice", f"{SFT} --ds.param_dtype fp32", "refuses", "takes bf16 or fp16, not 'fp32'",
     f"{SFT} --ds.param_dtype fp16"),
    ("number", f"{SFT} --data.max_len 8k", "refuses", "takes a whole number", f"{SFT} --data.max_len 8000"),
    ("value", f"{SFT} --data.max_len --ds.packing_samples", "refuses", "has no value: it needs a value", SFT),
    ("switch", f"{SFT} --ds.packing_samples=true", "refuses", "takes no value", f"{SFT} --ds.packing_samples"),
    ("zero", f"{SFT} --train.micro_batch_size 0", "refuses", "--train.micro_batch_size 0", SFT),
    ("turns", f"{SFT} --data.multiturn", "refuses", "without --data.apply_chat_template",
     f"{SFT} --data.multiturn --data.apply_chat_template"),
    ("determinism", f"{SFT} --train.full_determinism_enable", "ignores", "deterministic_g", SFT),
    ("ppo ring", f"{PADDED} --ds.ring_attn_size 2", "replaces", "turns --ds.packing_samples on",
     f"{GRPO} --ds.ring_attn_size 2"),
    ("dynamic", f"{PADDED} --train.dynamic_batch_enable", "replaces", "turns --ds.packing_samples on",
     f"{GRPO} --train.dynamic_batch_enable"),
    ("budget", f"{GRPO} --train.dynamic_batch_enable --data.max_len 40000", "ignores", "a row may have 40000 tokens",
     f"{GRPO} --train.dynamic_batch_enable --data.max_len 40000 --train.max_tokens_per_gpu 40000"),
    ("dynamic step", f"{GRPO} --train.dynamic_batch_enable --rollout.batch_size 16", "no_step", "16 × 4 answers",
     f"{GRPO} --train.dynamic_batch_enable --rollout.batch_size 32"),
    ("engines", GRPO.replace("--vllm.num_engines 8", "--vllm.num_engines 0"), "refuses", "packing without", GRPO),
    ("no engines", PADDED.replace("--vllm.num_engines 8", ""), "refuses", "nothing generates", PADDED),
    ("images", f"{GRPO} --data.max_images_per_prompt 1", "refuses", "1 with --ds.packing_samples",
     f"{PADDED} --data.max_images_per_prompt 1"),
    ("images' order", f"{PADDED} --data.max_images_per_prompt 1 --ds.ring_attn_size 2", "wrong",
     "after the check that refuses", f"{PADDED} --data.max_images_per_prompt 1 --ds.ring_attn_size 1"),
    ("images' critic", f"{PPO} --data.max_images_per_prompt 1", "refuses", "with a critic",
     f"{GRPO} --data.max_images_per_prompt 1"),
    ("colocation", f"{GRPO} --train.colocate_all --vllm.num_engines 4", "refuses", "the actor has 8 GPUs, vLLM 4",
     f"{GRPO} --train.colocate_all --vllm.num_engines 4 --vllm.tensor_parallel_size 2"),
    ("reference", f"{GRPO} --train.colocate_actor_ref --ref.num_gpus_per_node 4", "refuses", "actor and ref share",
     f"{GRPO} --train.colocate_actor_ref --ref.num_gpus_per_node 4 --algo.kl.init_coef 0"),
    ("critic", f"{PPO} --train.colocate_critic_reward --critic.num_gpus_per_node 4", "refuses", "critic and reward",
     f"{GRPO} --train.colocate_critic_reward --critic.num_gpus_per_node 4"),
    ("one answer", f"{GRPO} --rollout.n_samples_per_prompt 1", "refuses", "group_norm with", GRPO),
    ("sample batches", f"{GRPO} --rollout.batch_size 4 --rollout.micro_batch_size 4", "refuses", "fewer than 8 groups",
     f"{GRPO} --rollout.batch_size 8 --rollout.micro_batch_size 4"),
    ("async sleep", f"{GRPO} --vllm.enable_sleep --train.colocate_all --train.async_enable", "refuses",
     "--vllm.enable_sleep with --train.async_enable", f"{GRPO} --vllm.enable_sleep --train.colocate_all"),
    ("async colocation", f"{GRPO} --train.colocate_all --train.async_enable", "replaces", "separate GPUs",
     f"{GRPO} --train.colocate_all"),
    ("partial", f"{GRPO} --train.partial_rollout_enable", "refuses", "without --train.async_enable",
     f"{GRPO} --train.partial_rollout_enable --train.async_enable"),
    ("half", f"{GRPO} --ds.param_dtype fp16", "refuses", "always bfloat16", GRPO),
    ("clip", f"{GRPO} --algo.advantage.is_correction_mode clip --algo.advantage.is_correction_level seq", "refuses",
     "clip with level seq",
     f"{GRPO} --algo.advantage.is_correction_mode clip --algo.advantage.is_correction_level token"),
    ("gating", f"{GRPO} --algo.advantage.is_correction_gating tv --algo.advantage.is_correction_level seq", "refuses",
     "lower bound of 0.5", f"{GRPO} --algo.advantage.is_correction_gating tv --algo.advantage.is_correction_level seq "
     "--algo.advantage.is_correction_threshold 0.1"),
    ("no reward", PPO.replace("--reward.model_name_or_path r", ""), "refuses", "and a critic", PPO),
    ("evaluation", f"{GRPO} --eval.dataset d", "refuses", "without a remote reward",
     f"{GRPO} --eval.dataset d --reward.remote_url u"),
    ("filtering", f"{GRPO} --algo.dynamic_filtering_enable", "refuses", "without a remote reward",
     f"{GRPO} --algo.dynamic_filtering_enable --reward.remote_url u"),
    ("oversampling", f"{GRPO} --rollout.vllm_generate_batch_size 2048", "refuses", "2048 over",
     f"{GRPO} --rollout.vllm_generate_batch_size 2048 --train.async_enable"),
]  # fmt: skip


def find_problems(job: Job, consequence: str, part: str) -> list[SettingProblem]:
    return [problem for problem in job.problems if problem.consequence == consequence and part in problem.message]


@pytest.mark.parametrize(
    ("name", "text", "consequence", "part", "silent"), PROBLEM_CASES, ids=[row[0] for row in PROBLEM_CASES]
)
def test_what_the_framework_does_with_settings(name: str, text: str, consequence: str, part: str, silent: str) -> None:
    problems = find_problems(read_job(text, snapshot=s.h200()), consequence, part)
    assert len(problems) == 1, [problem.message for problem in read_job(text).problems]
    assert "openrlhf" in problems[0].evidence[0]
    assert not find_problems(read_job(silent, snapshot=s.h200()), consequence, part)
    if problems[0].sets:
        corrected = correct_source(command_source(text), NEWEST, problems[0].sets, s.h200())
        assert not find_problems(read_job(corrected, snapshot=s.h200()), consequence, part), corrected.text


# Name of a case above, a part of the message in every release's names, and the releases with the problem.
PROBLEM_RANGES = [
    ("ring", " without --", "0.5.4", ""),
    ("packing", "sdpa by flash_attention_2", "", ""),
    ("4 bits", "without bf16", "", ""),
    ("tensor parallel", "2 without bf16", "0.7.4", ""),
    ("batch", "is not a multiple of", "", ""),
    ("no step", "less than one step", "0.11.2", ""),
    ("turns", "apply_chat_template", "0.5.7", ""),
    ("determinism", "deterministic_g", "0.6.2", ""),
    ("ppo ring", "packing_samples on", "0.8.4", ""),
    ("dynamic", "packing_samples on", "0.8.6", ""),
    ("dynamic step", "16 × 4 answers", "0.8.6", ""),
    ("engines", "packing without", "", ""),
    ("no engines", "nothing generates", "0.8.0", ""),
    ("images", "packing_samples", "0.10.0", ""),
    ("images' order", "after the check that refuses", "0.10.0", ""),
    ("images' critic", "with a critic", "0.10.0", ""),
    ("colocation", "the actor has 8 GPUs, vLLM 4", "0.5.9", ""),
    ("reference", "actor and ref share", "", ""),
    ("critic", "critic and reward", "", ""),
    ("one answer", "group_norm with", "0.6.0", ""),
    ("sample batches", "fewer than 8 groups", "0.7.2", ""),
    ("async sleep", "enable_sleep with", "0.8.0", ""),
    ("async colocation", "separate GPUs", "0.8.0", ""),
    ("partial", "partial_rollout", "0.9.7", ""),
    ("clip", "clip with level seq", "0.11.2", ""),
    ("gating", "lower bound of 0.5", "0.11.2", ""),
    ("no reward", "and a critic", "", ""),
    ("evaluation", "without a remote reward", "0.7.0", ""),
    ("filtering", "without a remote reward", "0.8.1", ""),
    ("oversampling", "2048 over", "0.10.0", ""),
]


@pytest.mark.parametrize(("name", "part", "since", "until"), PROBLEM_RANGES)
def test_problems_hold_in_their_releases_alone(name: str, part: str, since: str, until: str) -> None:
    [(text, consequence)] = [row[1:3] for row in PROBLEM_CASES if row[0] == name]

    def fires(version: str) -> bool:
        return bool(find_problems(read_job(text, version, s.h200()), consequence, part))

    check_range(fires, names.list_releases(), since, until)


def test_what_a_release_does_instead() -> None:
    def consequences(text: str, version: str) -> list[str]:
        return [problem.consequence for problem in read_job(text, version, s.h200()).problems]

    ring = f"{PADDED} --ds.ring_attn_size 2"
    assert [consequences(ring, version) for version in ("0.6.0", "0.8.3", "0.8.4")] == [
        ["refuses"], ["refuses"], ["replaces"]
    ]  # fmt: skip
    few = f"{SFT} --data.max_samples 60"
    assert [consequences(few, version) for version in ("0.5.0", "0.11.1", "0.11.2")] == [
        ["no_step"], ["no_step"], ["refuses"]
    ]  # fmt: skip
    baseline = f"{GRPO} --rollout.n_samples_per_prompt 1".replace("group_norm", "dr_grpo")
    versions = ("0.6.3.post2", "0.10.4", "0.11.0")
    assert [["wrong" in consequences(baseline, version), "refuses" in consequences(baseline, version)]
            for version in versions] == [[True, False], [True, False], [False, True]]  # fmt: skip


def test_the_command_line_itself_refuses_what_is_said_to_be_refused() -> None:
    """Every row that names a check of the command line is run through that release's own block of checks."""
    inside_train = ("cli/train_ppo_ray.py:41", "cli/train_ppo_ray.py:56", "cli/train_ppo_ray.py:105")
    jobs = [read_job(text, snapshot=s.h200()) for row in PROBLEM_CASES for text in (row[1], row[4])]
    launches = [parse_launch(command_source(text)) for row in PROBLEM_CASES for text in (row[1], row[4])]
    for launch, job, answer in zip(launches, jobs, run_real_parsers(NEWEST, launches)):
        refusals = [
            problem.message
            for problem in job.problems
            if problem.consequence == "refuses"
            and (problem.evidence[0].startswith("openrlhf 0.11.2 cli/") or "argparse" in problem.evidence[0])
            and not problem.evidence[0].startswith(tuple(f"openrlhf 0.11.2 {location}" for location in inside_train))
        ]
        assert bool(refusals) == bool(answer["refused"]), (launch.source.text, refusals, answer["refused"])
        if not answer["refused"]:
            assert answer["settings"]["ds.packing_samples"] == job.plan.packed
            assert answer["settings"]["ds.attn_implementation"] == job.plan.attn_implementation


def test_models_that_cannot_be_packed_or_fused() -> None:
    hybrid = s.with_model(s.h200(), model_type="qwen3_next", layer_types=("linear_attention", "full_attention"))
    assert find_problems(
        read_job(f"{SFT} --ds.packing_samples", snapshot=hybrid), "wrong", "linear_attention layers carry state"
    )
    ring_job = read_job(f"{GRPO} --ds.ring_attn_size 2 --train.dynamic_batch_enable", snapshot=hybrid)
    sets = find_problems(ring_job, "wrong", "carry state")[0].sets
    assert sets == {"packing": "off", "ring_size": "1", "--train.dynamic_batch_enable": DROP}
    assert not find_problems(read_job(SFT, snapshot=hybrid), "wrong", "carry state")
    vision = s.with_model(s.h200(), towers=(Tower("vision_config", 16, 64),))
    fused = f"{SFT} --ds.use_liger_kernel"
    assert find_problems(read_job(fused, snapshot=vision), "refuses", "vision_config")
    assert not find_problems(read_job(fused, snapshot=s.with_model(s.h200(), towers=())), "refuses", "vision_config")
    assert not find_problems(read_job(f"{SFT} --use_liger_kernel", "0.9.9", vision), "refuses", "vision_config")


def test_what_is_installed_decides() -> None:
    old = s.with_package(s.with_package(s.h200(), "deepspeed", "0.16.3"), "vllm", "0.10.0")
    new = s.with_package(s.with_package(s.h200(), "deepspeed", "0.19.6"), "vllm", "0.29.0")
    corrected = f"{GRPO} --algo.advantage.is_correction_level token"
    sleeping = f"{GRPO} --train.colocate_all --ds.enable_sleep --actor.optim muon"
    for text, part in (
        (f"{SFT} --ds.tensor_parallel_size 2", "2 with deepspeed 0.16.3"),
        (corrected, "importance-sampling correction with vllm 0.10.0"),
        (sleeping, "with ZeRO stage 2 and deepspeed 0.16.3"),
        (sleeping, "--actor.optim muon with deepspeed 0.16.3"),
    ):
        assert find_problems(read_job(text, snapshot=old), "refuses", part)
        assert not find_problems(read_job(text, snapshot=new), "refuses", part.rpartition(" ")[0])
    reads_it = s.with_package(s.h200(), "transformers", "4.53.3")
    job = read_job(f"{SFT} --train.full_determinism_enable", snapshot=reads_it)
    assert not find_problems(job, "ignores", "deterministic_g")


@pytest.mark.parametrize(
    ("version", "text", "consequence", "part"),
    [
        ("0.8.3", "--ring_attn_size 2 --vllm_num_engines 2", "refuses", "the ring does not know"),
        ("0.8.4", "--ring_attn_size 2 --vllm_num_engines 2", "replaces", "turns --packing_samples on"),
        ("0.10.4", "--algo.advantage.estimator dr_grpo --vllm.num_engines 2", "wrong", "every advantage is 0"),
        ("0.11.0", "--algo.advantage.estimator dr_grpo --vllm.num_engines 2", "refuses", "dr_grpo with"),
        (
            "0.8.4",
            "--packing_samples --attn_implementation eager --vllm_num_engines 2",
            "replaces",
            "eager by flash_attention_2",
        ),
    ],
)
def test_releases_differ(version: str, text: str, consequence: str, part: str) -> None:
    assert find_problems(read_job(f"python -m openrlhf.cli.train_ppo_ray {text}", version), consequence, part)


def test_trainers_are_recognised() -> None:
    for text, trainer in {
        "python -m openrlhf.cli.train_sft": "sft",
        "python -m openrlhf.cli.train_ppo_ray --x": "ppo",
        "deepspeed src/openrlhf/cli/train_dpo.py": "dpo",
        "python3 /opt/OpenRLHF/openrlhf/cli/train_rm.py": "rm",
        "ray job submit -- python3 -m openrlhf.cli.train_ppo_ray": "ppo",
    }.items():
        assert openrlhf.find_trainer(parse_launch(command_source(text))) == trainer
    for text in ("python train_sft.py", "python -m openrlhf.cli.serve_rm", "torchrun train.py", ""):
        candidates = launches.find_launches(command_source(text), lambda _: None)
        assert [launch for launch in candidates if openrlhf.find_trainer(launch)] == []
    kto = read_job("deepspeed --module openrlhf.cli.train_kto --bf16")
    assert "0.9.5 is the last release" in kto.problems[0].message
    assert kto.unknown_settings == ()


def test_options_are_read_as_argparse_reads_them() -> None:
    job = read_job(f"{SFT} --ds.attn eager --data.max_l=4096 --eval.steps -1 stray $MORE --ds.r 2 --ds.zpg $N --lr 3")
    assert job.plan.attn_implementation == "eager"
    assert job.plan.max_length == 4096
    unknown = [(setting.name, setting.now) for setting in job.unknown_settings]
    assert unknown == [("stray", ()), ("--ds.r", ()), ("--lr", ())]
    assert [remark.split(":")[0] for remark in job.remarks] == ["$MORE", "--ds.zpg $N"]
    commands = (f"{SFT} --ds.attn eager", f"{SFT} --ds.r 2")
    answers = run_real_parsers(NEWEST, [parse_launch(command_source(text)) for text in commands])
    assert [bool(answer["refused"]) for answer in answers] == [False, True]


@pytest.mark.parametrize("path", CORPUS, ids=lambda path: path.stem)
def test_the_corpus_is_rewritten_and_stays_what_it_was(path: Path) -> None:
    source = read_script(path)
    own_version = path.name.split("_")[0]
    assert read_job(source, own_version).unknown_settings == (), "the script's own release knows all of it"
    for version in (FLAT, NEWEST):
        job = read_job(source, version)
        corrected = correct_source(source, version)
        after = read_job(corrected, version)
        assert after.unknown_settings == ()
        assert (after.plan, after.gpus, after.model, after.world_size) == (
            job.plan,
            job.gpus,
            job.model,
            job.world_size,
        )
        assert correct_source(corrected, version).text == corrected.text
        if not job.unknown_settings:
            assert corrected.text == source.text
        untouched = [line for line in source.text.splitlines() if "--" not in line]
        assert [line for line in corrected.text.splitlines() if "--" not in line] == untouched


@pytest.mark.parametrize("version", [FLAT, NEWEST])
def test_the_real_command_line_accepts_what_was_corrected_and_refused_it_before(version: str) -> None:
    scripts = [read_script(path) for path in CORPUS]
    trainers = [openrlhf.find_trainer(parse_launch(source)) for source in scripts]
    sources = [source for source, trainer in zip(scripts, trainers) if names.has_trainer(trainer, version)]
    before = run_real_parsers(version, [parse_launch(source) for source in sources])
    after = run_real_parsers(version, [parse_launch(correct_source(source, version)) for source in sources])
    refused = 0
    for source, before_answer, after_answer in zip(sources, before, after):
        job = read_job(source, version)
        refusal = before_answer["refused"]
        assert refusal.startswith("argparse") == bool(job.unknown_settings), (source.name, refusal)
        assert after_answer["refused"] == "", (source.name, after_answer["refused"])
        unknown_names = {setting.name for setting in job.unknown_settings}
        assert all(name in refusal for name in unknown_names), (source.name, unknown_names)
        refused += bool(unknown_names)
    assert len(sources) >= 20
    assert refused >= 12


def test_every_name_of_the_last_flat_release_leads_to_the_first_dotted_one() -> None:
    added = set()
    for trainer in ("sft", "dpo", "rm", "ppo"):
        new = set(names.parser_options(trainer, "0.10.2"))
        reached = set()
        for name in names.parser_options(trainer, "0.10.1.post2"):
            dotted = tables.dotted_names(trainer).get(name, (name,))
            assert name in tables.REMOVED or new.issuperset(dotted), (trainer, name)
            reached |= set(dotted)
        added |= {re.sub(r"^(actor|critic)\.", "", name) for name in new - reached}
    muon = {f"muon.{name}" for name in ("lr", "momentum", "nesterov", "no_nesterov", "ns_steps")}
    assert added == {"adam.eps", "optim", "min_lr_ratio", "ds.experts_implementation", *muon}


def test_the_table_is_what_the_wheels_say() -> None:
    for version in (FLAT, NEWEST):
        for file in sorted((unpack_wheel(version) / "openrlhf" / "cli").glob("train_*.py")):
            trainer = {"train_ppo_ray": "ppo"}.get(file.stem, file.stem.removeprefix("train_"))
            rows = {name[2:]: row[0] for name, row in parser_rows(file.read_text()).items()}
            assert rows == {name: option.nargs for name, option in names.parser_options(trainer, version).items()}


def names_now(text: str, version: str) -> dict[str, tuple[str, ...]]:
    return {setting.name: setting.now for setting in read_job(text, version).unknown_settings}


def test_what_settings_are_called_now() -> None:
    old = (
        "python -m openrlhf.cli.train_ppo_ray --flash_attn --bf16 --prompt_max_len 1000 --generate_max_len 24 --l2 0.1"
    )
    assert names_now(f"{old} --ptx_coef 0.5 --ref_reward_offload --use_wandb $KEY", NEWEST) == {
        "--flash_attn": ("--ds.attn_implementation flash_attention_2",),
        "--bf16": ("--ds.param_dtype bf16",),
        "--prompt_max_len": ("--data.max_len 1024",),
        "--generate_max_len": ("--data.max_len 1024", "--rollout.max_new_tokens"),
        "--l2": ("--actor.adam.weight_decay", "--critic.adam.weight_decay"),
        "--ptx_coef": (),
        "--ref_reward_offload": ("--ref.offload", "--reward.offload"),
        "--use_wandb": ("--logger.wandb.key",),
    }
    enable, type_option = "--algo.advantage.is_correction_enable", "--algo.advantage.is_correction_type"
    level, mode = "--algo.advantage.is_correction_level", "--algo.advantage.is_correction_mode"
    for types, now in {"": (f"{level} token", f"{mode} clip"), f"{type_option} icepop": (f"{level} token",),
                       f"{type_option} seq-mask-tis": (f"{level} seq",)}.items():  # fmt: skip
        assert names_now(f"{GRPO} {enable} {types}", NEWEST)[enable] == now
    flat_names = {
        setting.name: (setting.now, setting.since)
        for setting in read_job(f"{GRPO} {level} token {mode} clip", "0.11.1").unknown_settings
    }
    assert flat_names == {level: ((enable,), "0.11.2"), mode: ((enable,), "0.11.2")}
    unknown = read_job(f"{SFT} --ds.packing_sample --ds.ring_size 2 --max_len 5").unknown_settings
    assert [(setting.name, setting.near, setting.since) for setting in unknown] == [
        ("--ds.ring_size", "--ds.ring_attn_size", ""),
        ("--max_len", "", "0.10.2"),
    ]


def test_settings_are_set_and_nothing_else_changes() -> None:
    text = f"{SFT} --ds.ring_attn_size=4 --ds.packing_samples --adam.lr '1e-5' --ds.attn_implementation sdpa"
    sets = {"ring_size": "1", "packing": "off", "attn_implementation": "eager", "liger": "on", "max_length": "512"}
    assert write_to_command(text, NEWEST, **sets) == (
        f"{SFT} --ds.ring_attn_size=1 --adam.lr '1e-5' --ds.attn_implementation eager"
        " --ds.use_liger_kernel --data.max_len 512"
    )
    flat = "deepspeed --module openrlhf.cli.train_sft --flash_attn --bf16 --max_len $L"
    assert write_to_command(flat, "0.8.5", attn_implementation="eager", precision="fp16") == flat.replace(
        " --flash_attn", ""
    )
    assert write_to_command(flat, NEWEST, ring_size="2") == (
        "deepspeed --module openrlhf.cli.train_sft --ds.attn_implementation flash_attention_2 --ds.param_dtype bf16 "
        "--data.max_len $L --ds.ring_attn_size 2"
    )
    assert write_to_command(SFT, "0.8.5", tensor_parallel="2").endswith(" --ds_tensor_parallel_size 2")
    assert (
        correct_source(command_source(f"{GRPO} --vllm.enable_sleep"), NEWEST, {"--vllm.enable_sleep": DROP}).text
        == GRPO
    )


def test_switches_at_the_end_of_a_script_go_and_come() -> None:
    lines = [
        "deepspeed --num_gpus 2 --module openrlhf.cli.train_sft \\",
        "  --pretrain m \\",
        "  --bf16 \\",
        "  --flash_attn",
    ]
    source = Source("run.sh", "\n".join([*lines, "echo done", ""]), "shell")
    assert correct_source(source, "0.8.5", {"packing": "on", "attn_implementation": "eager"}).text.splitlines() == [
        *lines[:3],
        "  --packing_samples",
        "echo done",
    ]
    second = Source("run.sh", "\n".join([*lines, "echo done", ""]), "shell")
    removed = correct_source(second, "0.8.5", {"precision": DROP, "attn_implementation": "eager"})
    assert removed.text.splitlines() == [lines[0], "  --pretrain m", "echo done"]
    text = 'X="--bf16 --flash_attn"\ndeepspeed --module openrlhf.cli.train_sft $X\n'
    assert (
        "--ds.param_dtype bf16 --ds.attn_implementation flash_attention_2"
        in correct_source(Source("run.sh", text, "shell"), NEWEST).text
    )


@pytest.mark.parametrize(
    ("text", "gpus"),
    [
        (PPO, 8 + 8 + 8 + 8 + 8),
        (GRPO, 8 + 8 + 8 + 8),
        (f"{GRPO} --algo.kl.init_coef 0 --reward.remote_url u", 8 + 8),
        (f"{GRPO} --train.colocate_all", 8),
        (f"{GRPO} --train.colocate_all --train.async_enable", 8 + 8),
        (f"{PPO} --train.colocate_actor_ref --train.colocate_critic_reward", 8 + 8 + 8),
        (f"{PPO} --train.colocate_all --train.colocate_critic_reward", 8 + 8),
        (f"{PPO} --train.colocate_all --actor.num_nodes 2 --ref.num_nodes 2 --vllm.num_engines 16", 16),
    ],
)
def test_gpus_are_those_of_all_roles(text: str, gpus: int) -> None:
    assert read_job(text).gpus == s.Known(gpus)
    assert isinstance(read_job(f"{text} --actor.num_gpus_per_node $N").gpus, s.Absent)


def test_the_plan_is_what_will_run() -> None:
    plan = read_job(f"{SFT} --ds.packing_samples --ds.attn_implementation sdpa --train.batch_size 64").plan
    assert (plan.attn_implementation, plan.packing, plan.padding_side) == ("flash_attention_2", "position_ids", "right")
    assert (plan.batch, plan.accumulation, plan.precision, plan.cross_entropy) == (2, 8, "bf16", "flash_attn")
    ppo = read_job(f"{PADDED} --ds.ring_attn_size 2 --ds.ring_attn_head_stride 4 --train.batch_size 64")
    assert (ppo.plan.packed, ppo.plan.ring_size, ppo.plan.heads_k_stride, ppo.scheme) == (True, 2, 4, "llama3")
    assert (ppo.plan.padding_side, ppo.plan.accumulation, ppo.world_size) == ("left", 8, s.Known(8))
    old = read_job("deepspeed --module openrlhf.cli.train_rm --pretrain m", "0.8.5", s.h200())
    assert (old.plan.attn_implementation, old.plan.packing, old.plan.cross_entropy) == ("eager", "padding", "torch")
    assert "transformers==4.52.4" in old.requires
    lengths = read_job("python -m openrlhf.cli.train_ppo_ray --prompt_max_len 100 --generate_max_len 28", "0.9.7")
    assert lengths.plan.max_length == 128


def test_nothing_that_is_written_makes_it_fail() -> None:
    draw = random.Random(6)
    words = [word for path in CORPUS for word in path.read_text().split()]
    odd = [
        "--",
        "=",
        "--=",
        "-",
        "--ds.ring_attn_size=",
        "${X",
        "'",
        '"',
        "--ds.ring_attn_size",
        "nan",
        "1e999",
        "\u0000",
    ]
    jobs = 0
    for _ in range(250):
        line = " ".join(draw.choice(words if draw.random() < 0.8 else odd) for _ in range(draw.randint(0, 12)))
        source = command_source(f"python -m openrlhf.cli.train_{draw.choice(['sft', 'ppo_ray', 'rm', 'kto'])} {line}")
        for launch in launches.find_launches(source, lambda _: None):
            if openrlhf.find_trainer(launch):
                version = draw.choice([FLAT, NEWEST, "0.5.0", "0.4.0", "main", "99"])
                job = openrlhf.read_job(launch, version, s.h200())
                edits = openrlhf.write_settings(
                    launch, job, {"packing": "off", "ring_size": "1", "liger": "on", "precision": "fp16"}
                )
                editing.apply_edits(source, edits)
                jobs += 1
    assert jobs > 150


# After ZetangForward/MyRLHF scripts/dev_train.sh, sjelassi/ebft_openrlhf scripts/run_ebft_example.sh
@pytest.mark.parametrize(
    ("module", "trainer"),
    [
        ("openrlhf.cli.train_sft_dev", "sft"),
        ("openrlhf/cli/train_sft_dev.py", "sft"),
        ("openrlhf.cli.train_dpo_long", "dpo"),
        ("openrlhf.cli.train_ppo_ray_box", "ppo"),
        ("openrlhf.cli.train_ebft_ray", "ebft_ray"),
        ("openrlhf.cli.train_sft_dpo", "sft_dpo"),  # either
        ("openrlhf.cli.train_long_sft", "long_sft"),
    ],
)
def test_a_module_of_a_fork_is_openrlhf(module: str, trainer: str) -> None:
    job = read_job(f"deepspeed --module {module} --pretrain m --flash_attn --ring_attn_size 2 --clue_len 3", "0.7.0")
    assert (job.trainer, job.model, job.plan.attn_implementation) == (trainer, "m", "flash_attention_2")
    assert "no release of openrlhf has cli/train_" in job.remarks[0]
    assert (job.requires, job.imports, job.hooked, job.packs_with, job.scheme) == ((), (), (), (), "")
    assert not any(unknown.proof for unknown in job.unknown_settings)
    assert "openrlhf." not in openrlhf.FRAMEWORK.own_programs and module not in openrlhf.FRAMEWORK.own_programs
    launch = parse_launch(command_source(f"python -m {module} --pretrain m"))
    if trainer not in ("sft", "dpo", "ppo"):
        assert openrlhf.FRAMEWORK.write(launch, job, {"attn_implementation": "sdpa"}) == ()


@pytest.mark.parametrize("module", ["openrlhf.cli.serve_rm", "openrlhf.cli.batch_inference", "my.cli.train_sft_dev"])
def test_what_trains_nothing_or_is_another_package_is_no_fork(module: str) -> None:
    candidates = launches.find_launches(command_source(f"python -m {module} --pretrain m"), lambda _: None)
    assert [launch for launch in candidates if openrlhf.find_trainer(launch)] == []


def test_a_release_answers_for_its_own_modules() -> None:
    job = read_job("deepspeed --module openrlhf.cli.train_sft --pretrain m --flash_attn", "0.7.0")
    assert job.requires and job.imports and not any("no release" in remark for remark in job.remarks)
    assert {"openrlhf.cli.train_sft", "openrlhf.cli.train_ppo_ray"} <= set(openrlhf.FRAMEWORK.own_programs)


@pytest.mark.parametrize(
    ("options", "count"),
    [
        # packing turns flash attention on, even of one row; sleep without colocation changes nothing
        ("--ds.packing_samples --train.micro_batch_size 1 --rollout.micro_batch_size 1", 0),
        ("--vllm.enable_sleep", 0),
        ("--train.dynamic_batch_enable --ds.packing_samples --train.max_tokens_per_gpu 128 --data.max_len 4096", 1),
    ],
)
def test_a_setting_with_another_effect_or_without_consequence_is_not_without_effect(options: str, count: int) -> None:
    assert sum(item.consequence == "ignores" for item in read_job(f"{GRPO} {options}", "0.11.2").problems) == count

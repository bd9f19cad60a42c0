"""LLaMA-Factory: how launches are read and judged; corrected ones are given to the real parser."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from attncheck.core.facts import Known
from attncheck.core.job import Job
from attncheck.core.launch import Source
from attncheck.core.snapshot import Snapshot
from attncheck.lint import launches
from attncheck.lint.fields.names import ParserOptions
from attncheck.lint.fields.releases import list_releases, parse_release
from attncheck.lint.frameworks.llamafactory import FRAMEWORK, tables
from attncheck.lint.frameworks.llamafactory.tables import CONTEMPORARY_TRANSFORMERS, load_parser_options
from tests import wheels
from tests.lint.frameworks.ranges import check_range
from tests.lint.frameworks.test_trl import correct, parse_launch, summarize_problems
from tests.lint.test_trees import lint_text
from tests.snapshots import h200, h200x2, with_model, with_package, without_packages

LAUNCHES = Path(__file__).parents[2] / "data" / "launch" / "llamafactory"
YAML_HEAD = "model_name_or_path: a/b\nstage: sft\ndo_train: true\nfinetuning_type: full\n"


def make_snapshot(version: str = "5.5.4") -> Snapshot:
    """Return one H200 with flash-attn and a transformers that LLaMA-Factory 0.9.5 takes."""
    return with_package(h200(), "transformers", version)


def read_job(text: str, version: str = "0.9.5", snapshot: Snapshot | None = None) -> Job:
    """Return the job of a file that begins with `HEAD`."""
    return FRAMEWORK.read(parse_launch(YAML_HEAD + text, name="a.yaml"), version, snapshot or make_snapshot())


def test_a_script_that_is_not_here_is_read_with_the_options_of_the_newest_release(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    assert list(CONTEMPORARY_TRANSFORMERS) == sorted(CONTEMPORARY_TRANSFORMERS, key=parse_release)
    loaded: list[tuple[str, str]] = []

    def load_options(version: str, transformers: str) -> ParserOptions:
        loaded.append((version, transformers))
        return load_parser_options(version, transformers)

    monkeypatch.setattr(tables, "CONTEMPORARY_TRANSFORMERS", {**CONTEMPORARY_TRANSFORMERS, "0.9.10": "5.6.0"})
    monkeypatch.setattr(tables, "load_parser_options", load_options)
    assert tables.is_own_launch(parse_launch("torchrun src/train.py --stage pt --do_train"))
    assert loaded == [("0.9.10", "5.6.0")], "as text, 0.9.5 is greater than 0.9.10"


def test_recognised() -> None:
    assert FRAMEWORK.trainer(parse_launch(YAML_HEAD, name="a.yaml")) == "sft"
    assert FRAMEWORK.trainer(parse_launch("llamafactory-cli train x.yaml stage=dpo")) == "dpo"
    assert FRAMEWORK.trainer(parse_launch("torchrun src/train.py --stage pt --do_train")) == "pt"
    own = "torchrun src/train.py --stage sft --template t --bf16 --optim adamw_torch --learning_rate 1e-4"
    assert FRAMEWORK.trainer(parse_launch(f"{own} --hop 1")) == "sft", "a fork's option"
    foreign = f"{own} --hop 1 --kge_model_path k --num_query_tokens 4"  # vaijsc/keallm
    for other in ("llamafactory-cli chat x.yaml", "python train.py --output_dir o --stage_3 4", foreign):
        assert not FRAMEWORK.trainer(parse_launch(other))
    assert not FRAMEWORK.trainer(parse_launch("base_model: a/b\nflash_attn: fa2\ntemplate: x\n", name="a.yaml"))


def test_attention() -> None:
    assert read_job("flash_attn: fa2").plan.attn_implementation == "flash_attention_2"
    assert read_job("flash_attn: disabled").plan.attn_implementation == "eager"
    assert read_job("").plan.attn_implementation == "" and not read_job("").problems
    assert summarize_problems(read_job("flash_attn: fa3")) == [("refuses", "attn_implementation")]
    assert summarize_problems(read_job("flash_attn: fa3", "0.9.3")) == [("refuses", "flash_attn")], (
        "no choice of that release"
    )
    missing = read_job("flash_attn: fa2", snapshot=without_packages(make_snapshot(), "flash-attn"))
    assert missing.plan.attn_implementation == "" and [problem.consequence for problem in missing.problems] == [
        "replaces"
    ]
    gemma = with_model(without_packages(make_snapshot(), "flash-attn"), model_type="gemma2")
    assert read_job("", snapshot=gemma).plan.attn_implementation == "eager"
    assert (
        read_job("", snapshot=with_model(make_snapshot(), model_type="gemma2")).plan.attn_implementation
        == "flash_attention_2"
    )


def test_gpt_oss() -> None:
    oss = with_model(make_snapshot(), model_type="gpt_oss")
    assert [problem.consequence for problem in read_job("flash_attn: fa3", snapshot=oss).problems] == ["refuses"]
    old = with_package(oss, "transformers", "4.57.1")
    assert not read_job("", snapshot=old).problems
    assert read_job("", snapshot=old).plan.attn_implementation == "kernels-community/vllm-flash-attn3"
    assert [
        problem.consequence for problem in read_job("", snapshot=with_package(oss, "transformers", "4.55.4")).problems
    ] == ["refuses"]


def test_packing() -> None:
    plain = read_job("packing: true\nflash_attn: sdpa")
    assert summarize_problems(plain) == [("wrong", "neat_packing")] and plain.plan.packing == "mask_2d"
    alone = read_job("packing: true\nflash_attn: fa2\nper_device_train_batch_size: 1")
    assert not summarize_problems(alone) and alone.plan.packing == "position_ids", (
        "flash attention minds the positions of one row"
    )
    assert summarize_problems(read_job("packing: true\nflash_attn: fa2\nper_device_train_batch_size: 2")) == [
        ("wrong", "neat_packing")
    ]
    neat = read_job("neat_packing: true\nflash_attn: fa2\nper_device_train_batch_size: 1")
    assert not summarize_problems(neat) and neat.plan.packing == "position_ids" and neat.plan.max_length == 2048
    dense = read_job("neat_packing: true\nper_device_train_batch_size: 1")
    assert dense.plan.packing == "mask_4d" and [problem.mild for problem in dense.problems] == [True]
    rows = read_job(
        "neat_packing: true\nflash_attn: fa2\nper_device_train_batch_size: 4\ngradient_accumulation_steps: 2"
    )
    assert rows.problems[0].sets == {"per_device_train_batch_size": "1", "gradient_accumulation_steps": "8"}
    text = YAML_HEAD.replace("sft", "dpo") + "neat_packing: true\n"
    dpo = FRAMEWORK.read(parse_launch(text, name="a.yaml"), "0.9.5", make_snapshot())
    assert summarize_problems(dpo) == [("refuses", "neat_packing")] and dpo.plan.packing == "padding"
    pretraining = FRAMEWORK.read(parse_launch(YAML_HEAD.replace("sft", "pt"), name="a.yaml"), "0.9.5", make_snapshot())
    assert pretraining.plan.packing == "mask_2d" and not pretraining.problems, "joined rows are what it trains on"


def test_neat_packing_by_version() -> None:
    text = "neat_packing: true\nflash_attn: fa2\nper_device_train_batch_size: 1"
    assert summarize_problems(read_job(text, "0.9.4", make_snapshot("4.53.3")))[0][0] == "refuses"
    assert summarize_problems(read_job(text, "0.9.3", make_snapshot("4.53.3")))[0][0] == "wrong"
    assert not summarize_problems(read_job(text, "0.9.3", make_snapshot("4.52.4"))) and not summarize_problems(
        read_job(text, "0.9.4", make_snapshot("4.52.4"))
    )
    refused = with_model(make_snapshot(), model_type="gemma4")
    assert summarize_problems(read_job(text, snapshot=refused)) == [("refuses", "neat_packing,packing")]


NEAT = "packing: true\nneat_packing: true\nflash_attn: "
FLASH = make_snapshot("4.52.4")
NO_FLASH = without_packages(FLASH, "flash-attn")


@pytest.mark.parametrize(
    ("text", "snapshot", "part", "since", "until"),
    [
        ("flash_attn: fa3", FLASH, "fa3 raises", "0.9.4", ""),
        ("flash_attn: fa2", NO_FLASH, "without flash-attn", "", ""),
        ("", with_model(FLASH, model_type="gpt_oss"), "load_and_register_kernel", "0.9.4", ""),
        ("packing: true", FLASH, "uses a mask of ones", "", ""),
        # Positions alongside the mask of ones, which flash attention reads, came with 0.9.3.
        ("packing: true\nflash_attn: fa2\nper_device_train_batch_size: 1", FLASH, "uses a mask of ones", "", "0.9.3"),
        ("stage: dpo\nneat_packing: true", FLASH, "neat_packing in stage dpo", "", ""),
        (f"{NEAT}fa2\nper_device_train_batch_size: 4", FLASH, "with 4 rows", "0.9.5", ""),
        (f"{NEAT}fa2", with_model(FLASH, model_type="gemma4"), "is refused for gemma4", "0.9.5", ""),
        (f"{NEAT}fa2", make_snapshot("4.53.3"), "lets documents attend", "", "0.9.4"),
        (f"{NEAT}sdpa", make_snapshot("4.53.3"), "raises ValueError", "0.9.4", "0.9.5"),
        (f"{NEAT}sdpa", FLASH, "a dense mask", "", ""),
        ("enable_liger_kernel: true", with_model(FLASH, model_type="gpt2"), "does nothing for gpt2", "0.9.5", ""),
        ("pure_bf16: true\ndeepspeed: z3.json", FLASH, "with DeepSpeed ZeRO-3", "", ""),
        ("do_train: false", FLASH, "but not trained", "", ""),
    ],
)
def test_problems_hold_in_their_releases_alone(
    text: str, snapshot: Snapshot, part: str, since: str, until: str
) -> None:
    def fires(version: str) -> bool:
        return any(part in problem.message for problem in read_job(text, version, snapshot).problems)

    check_range(fires, list_releases("llamafactory"), since, until)


@pytest.mark.parametrize(
    ("command", "snapshot", "part"),
    [
        ("python src/train.py --stage sft --do_train --finetuning_type full", h200x2(), "one process with 2 GPUs"),
        ("llamafactory-cli train --stage sft --do_train --deepspeed z2.json", h200(), "deepspeed with one GPU"),
    ],
)
def test_launchers_are_asked_for_in_every_release(command: str, snapshot: Snapshot, part: str) -> None:
    def fires(version: str) -> bool:
        problems = FRAMEWORK.read(parse_launch(command), version, snapshot).problems
        return any(part in problem.message for problem in problems)

    check_range(fires, list_releases("llamafactory"))
    kt = FRAMEWORK.read(parse_launch(f"{command} --use_kt true"), "0.9.5", snapshot).problems
    assert any(part in problem.message for problem in kt) == ("deepspeed" in command)


def test_recurrent_layers() -> None:
    hybrid = with_model(make_snapshot(), model_type="qwen3_5", layer_types=("linear_attention", "full_attention"))
    neat = "neat_packing: true\nper_device_train_batch_size: 1\nflash_attn: "
    assert ("wrong", "packing") in summarize_problems(read_job(neat + "sdpa", snapshot=hybrid))
    assert [problem.consequence for problem in read_job(neat + "fa2", snapshot=hybrid).problems] == ["refuses"]
    assert not summarize_problems(
        read_job(neat + "fa2", snapshot=with_package(hybrid, "flash-linear-attention", "0.4.1"))
    )
    next_ = with_model(make_snapshot(), model_type="qwen3_next", layer_types=("linear_attention",))
    assert ("wrong", "packing") in summarize_problems(
        read_job(neat + "fa2", snapshot=next_)
    ) and not summarize_problems(read_job("", snapshot=next_))


def test_the_rest() -> None:
    assert summarize_problems(
        read_job("enable_liger_kernel: true", snapshot=with_model(make_snapshot(), model_type="deepseek_v3"))
    ) == [("ignores", "liger")]
    assert not summarize_problems(
        read_job("enable_liger_kernel: true", snapshot=with_model(make_snapshot(), model_type="qwen3"))
    )
    assert summarize_problems(read_job("pure_bf16: true\ndeepspeed: ds_z3_config.json")) == [
        ("refuses", "pure_bf16,bf16")
    ]
    assert not summarize_problems(read_job("pure_bf16: true\ndeepspeed: ds_z2_config.json"))
    head = YAML_HEAD.replace("do_train: true\n", "")
    for more, problems in {"": [("no_step", "do_train")], "predict_with_generate: true\n": []}.items():
        idle = FRAMEWORK.read(parse_launch(head + more, name="a.yaml"), "0.9.5", make_snapshot())
        assert summarize_problems(idle) == problems
    plans = {text: read_job(text).plan.precision for text in ("pure_bf16: true", "bf16: true", "fp16: true", "")}
    assert list(plans.values()) == ["bf16", "autocast", "fp16", "fp32"]
    assert read_job("disable_gradient_checkpointing: true").plan.gradient_checkpointing is False


def test_processes() -> None:
    files = {"a.yaml": YAML_HEAD + "deepspeed: ds_z2_config.json\n"}
    command = "llamafactory-cli train a.yaml"
    one_gpu = FRAMEWORK.read(parse_launch(command, files), "0.9.5", make_snapshot())
    assert [problem.consequence for problem in one_gpu.problems] == ["refuses"] and one_gpu.world_size == Known(1)
    two_gpus = with_package(h200x2(), "transformers", "5.5.4")
    assert not FRAMEWORK.read(parse_launch("FORCE_TORCHRUN=1 " + command, files), "0.9.5", make_snapshot()).problems
    assert FRAMEWORK.read(parse_launch(command, files), "0.9.5", two_gpus).world_size == Known(2)
    many = FRAMEWORK.read(
        parse_launch("FORCE_TORCHRUN=1 NNODES=2 NPROC_PER_NODE=4 " + command, files), "0.9.5", two_gpus
    )
    assert many.world_size == Known(8) and many.nodes == 2
    script = FRAMEWORK.read(parse_launch("python src/train.py --stage sft --do_train --dataset d"), "0.9.5", two_gpus)
    assert [problem.consequence for problem in script.problems] == ["refuses"]


def test_written() -> None:
    files = {"a.yaml": YAML_HEAD + "flash_attn: auto  # ours\nimage_dir: x\n"}
    launch = parse_launch("llamafactory-cli train a.yaml packing=true cutoff_len=9", files)
    sets = {
        "attn_implementation": "flash_attention_2",
        "packing": "off",
        "max_length": "10",
        "gradient_checkpointing": "off",
    }
    job = FRAMEWORK.read(launch, "0.9.5", make_snapshot())
    edits = FRAMEWORK.write(launch, job, sets)
    assert {edit.source for edit in edits} == {"run.sh", "a.yaml"}
    assert correct(FRAMEWORK, launch, "0.9.5", sets, make_snapshot()) == (
        YAML_HEAD + "flash_attn: fa2  # ours\nmedia_dir: x\ndisable_gradient_checkpointing: true\n"
    )
    flag_launch = parse_launch("torchrun src/train.py --stage sft --do_train --packing --bf16 --evaluation_strategy no")
    text = correct(FRAMEWORK, flag_launch, "0.9.5", {"packing": "true", "precision": "fp16"}, make_snapshot())
    assert text == "torchrun src/train.py --stage sft --do_train --packing false --bf16 false --eval_strategy no --fp16"


@pytest.mark.parametrize("path", sorted(LAUNCHES.iterdir()), ids=lambda path: str(path.name))
def test_the_corpus_is_read(path: Path) -> None:
    def read_beside(name: str) -> Source | None:
        return launches.read_source(str(LAUNCHES / name)) if (LAUNCHES / name).exists() else None

    [launch] = launches.find_launches(launches.read_source(str(path)), read_beside)
    assert FRAMEWORK.trainer(launch) and FRAMEWORK.model(launch)
    for version in ("0.9.0", "0.9.5"):
        job = FRAMEWORK.read(launch, version, without_packages(h200(), "transformers"))
        text = correct(FRAMEWORK, launch, version, {}, without_packages(h200(), "transformers"))
        source = launch.file or launch.source
        again = launches.find_launches(Source(source.name, text, source.kind), read_beside)[0]
        unknown_settings = FRAMEWORK.read(again, version, without_packages(h200(), "transformers")).unknown_settings
        assert not unknown_settings and job.plan.max_length in (1024, 2048)


# The real dataclasses out of the wheel and transformers' own parser, without what else LLaMA-Factory imports.
PARSER_SCRIPT = """
import importlib, json, sys, types
for name in ("llamafactory", "llamafactory.hparams", "llamafactory.extras"):
    sys.modules[name] = types.ModuleType(name)
    sys.modules[name].__path__ = [sys.argv[1] + "/" + name.replace(".", "/")]
class Stub(types.ModuleType):
    def __getattr__(self, name):
        if name.startswith("__"):
            raise AttributeError(name)
        return lambda *words, **more: False
from transformers import HfArgumentParser
import transformers.training_args_seq2seq
for name in ("omegaconf", "peft", "peft.utils", "llamafactory.extras.misc", "llamafactory.extras.packages"):
    sys.modules[name] = Stub(name)
classes = {"model_args": "ModelArguments", "data_args": "DataArguments", "training_args": "TrainingArguments",
         "finetuning_args": "FinetuningArguments", "generating_args": "GeneratingArguments"}
modules = {module: importlib.import_module("llamafactory.hparams." + module) for module in classes}
parser = HfArgumentParser([getattr(modules[module], name) for module, name in classes.items()])
leftovers = []
for argv in json.load(sys.stdin):
    try:
        leftovers.append(parser.parse_known_args(argv)[1])
    except SystemExit:
        leftovers.append(None)
json.dump({"leftovers": leftovers, "options": sorted(parser._option_string_actions)}, sys.stdout)
"""


def test_the_real_parser_agrees() -> None:
    pytest.importorskip("torch")
    transformers = pytest.importorskip("transformers")
    try:
        wheel = wheels.fetch_wheel("llamafactory", "0.9.5")
    except (subprocess.SubprocessError, OSError, IndexError):
        pytest.skip("the wheel of llamafactory cannot be had")
    snapshot = make_snapshot(transformers.__version__)
    texts = [path.read_text() for path in sorted(LAUNCHES.glob("*.sh")) if "--stage" in path.read_text()]
    texts += ["torchrun src/train.py --model_name_or_path a --stage sft --do_train --packing --bf16",
              "torchrun src/train.py --model_name_or_path a --stage sft --do_train --image_dir x --flash_attn fa9",
              "torchrun src/train.py --model_name_or_path a --stage sft --do_train --bf16"]  # fmt: skip
    before = [parse_launch(text) for text in texts]
    after = []
    for launch in before:
        job = FRAMEWORK.read(launch, "0.9.5", snapshot)
        sets = {name: value for problem in job.problems if not problem.mild for name, value in problem.sets.items()}
        after.append(parse_launch(correct(FRAMEWORK, launch, "0.9.5", sets, snapshot)))
    leading_words = [2 if launch.words[0].text == "llamafactory-cli" else 1 for launch in (*before, *after)]
    argvs = [[word.text for word in launch.words[n:]] for launch, n in zip((*before, *after), leading_words)]
    argvs = [[*argv, *([] if "--output_dir" in argv else ["--output_dir", "o"])] for argv in argvs]
    process = subprocess.run(
        [sys.executable, "-c", PARSER_SCRIPT, str(wheel.path)], input=json.dumps(argvs), capture_output=True, text=True
    )
    assert process.returncode == 0, process.stderr
    answer = json.loads(process.stdout)
    assert answer["leftovers"][len(before) :] == [[]] * len(after)
    assert [leftover == [] for leftover in answer["leftovers"][: len(before)]] == [False] * (len(before) - 1) + [True]
    options = set(load_parser_options("0.9.5", transformers.__version__).current)
    parser_options = {name[2:] for name in answer["options"] if "-" not in name[2:] and not name.startswith("--no_")}
    assert parser_options - {"help", ""} == options


@pytest.mark.parametrize(
    ("more", "trainer"), [("", "sft"), ("export_dir: o\n", ""), ("export_dir: o\ndo_train: true", "sft")]
)
def test_a_configuration_of_an_export_trains_nothing(more: str, trainer: str) -> None:
    text = f"model_name_or_path: m\nadapter_name_or_path: a\ntemplate: llama3\nfinetuning_type: lora\n{more}"
    [launch] = launches.find_launches(Source("merge.yaml", text, "yaml"), lambda _: None)
    assert FRAMEWORK.trainer(launch) == trainer


@pytest.mark.parametrize(
    ("text", "version", "consequences"),
    [
        ("template: sharegpt", "0.9.5", ["refuses"]),
        ("template: qwen3", "0.9.2", ["refuses"]),  # 0.9.3 is the first release with it
        ("template: qwen3", "0.9.3", []),
        ("template: default", "0.9.0", []),
        ("enable_thinking: None", "0.9.5", ["replaces"]),
        ("enable_thinking: null", "0.9.5", []),
        ("enable_thinking: ~", "0.9.5", []),
    ],
)
def test_values_that_a_release_does_not_have(text: str, version: str, consequences: list[str]) -> None:
    problems = read_job(text, version).problems
    assert [problem.consequence for problem in problems] == consequences
    assert all(len(problem.message) < 400 for problem in problems)


def test_a_misspelled_optimizer_is_none_of_another_release(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text(f"{YAML_HEAD}optim: adamw_tocrh\n")
    report = lint_text(tmp_path, "", "llamafactory-cli train a.yaml", "h100x8")
    assert len([finding for finding in report.findings if "adamw_tocrh" in finding.message]) == 1


@pytest.mark.parametrize(("target", "count"), [("h100x8,llamafactory=0.9.5", 1), ("h100x8", 0)])
def test_a_template_that_no_release_has_may_be_a_newer_one_s(tmp_path: Path, target: str, count: int) -> None:
    (tmp_path / "a.yaml").write_text(f"{YAML_HEAD}template: qwen9\nenable_thinking: true\n")  # which dates it
    report = lint_text(tmp_path, "", "llamafactory-cli train a.yaml", target)
    assert len([finding for finding in report.findings if "qwen9" in finding.message]) == count


@pytest.mark.parametrize(
    ("text", "is_said"),
    [
        ("stage: dpo\nfinetuning_type: lora\nadapter_name_or_path: sft", True),
        ("stage: kto\nfinetuning_type: lora\nadapter_name_or_path: sft", True),
        ("stage: dpo\nfinetuning_type: lora\nadapter_name_or_path: sft\nref_model: a/b", False),
        ("stage: dpo\nfinetuning_type: lora\nadapter_name_or_path: sft\ncreate_new_adapter: true", False),
        ("stage: dpo\nfinetuning_type: lora\nadapter_name_or_path: sft\npref_loss: orpo", False),
        ("stage: dpo\nfinetuning_type: lora", False),
        ("stage: sft\nfinetuning_type: lora\nadapter_name_or_path: sft", False),
    ],
)
def test_the_reference_of_a_trained_adapter(text: str, is_said: bool) -> None:
    messages = [problem.message for problem in read_job(text).problems]
    assert any("the model without it" in message for message in messages) is is_said

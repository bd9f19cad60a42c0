"""Launches alongside the code that they start: the names that its parser takes decide, not a table of releases.

Each tree is a small fork as they are published: the framework's package in the repository, with names of its own. What
the fork takes is no finding; what its parser refuses is an error, with the file that says so; where it cannot be read
to its end, a name that nobody knows is a warning.
"""

from __future__ import annotations

import textwrap
from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.findings import Finding
from attncheck.core.report import Report
from attncheck.core.results.lint import launches_of
from attncheck.doctor.target import apply_target, parse_target
from attncheck.lint import run
from attncheck.lint.context import Request
from attncheck.lint.inputs import Inputs, make_file_reader, make_readers
from attncheck.lint.programs.paths import may_contain
from attncheck.lint.sources import read_source
from tests.lint import launches

NEWEST = "openrlhf=0.11.2"
ENVIRONMENT = launches.make_environments()["h200"]

ARGPARSE = {
    "openrlhf/__init__.py": "",
    "openrlhf/cli/__init__.py": "",
    "openrlhf/cli/train_sft.py": """
        import argparse
        from openrlhf.options import add_common

        if __name__ == "__main__":
            parser = argparse.ArgumentParser()
            parser.add_argument("--pretrain", type=str)
            parser.add_argument("--dataset")
            for name in ("alpha", "beta"):
                parser.add_argument(f"--loss_{name}", type=float, default=0.5)
            add_common(parser)
            args = parser.parse_args()
        """,
    "openrlhf/options.py": """
        def add_common(parser):
            group = parser.add_argument_group("ring")
            group.add_argument("--ring_attn_size", type=int, default=1)
            group.add_argument("--own_option", action="store_true")
        """,
    "run.sh": "deepspeed --module openrlhf.cli.train_sft --pretrain m --dataset d --loss_beta 1 --own_option {}\n",
}
DATACLASSES = {
    "src/llamafactory/__init__.py": "",
    "src/llamafactory/hparams/__init__.py": "",
    "src/llamafactory/hparams/parser.py": """
        from transformers import HfArgumentParser, Seq2SeqTrainingArguments
        from .own import FinetuningArguments, ModelArguments

        _TRAIN_ARGS = [ModelArguments, Seq2SeqTrainingArguments, FinetuningArguments]

        def get_train_args(args=None):
            parser = HfArgumentParser(_TRAIN_ARGS)
            return parser.parse_args_into_dataclasses()
        """,
    "src/llamafactory/hparams/own.py": """
        from dataclasses import dataclass, field
        from typing import Optional

        @dataclass
        class ModelArguments:
            model_name_or_path: Optional[str] = None
            sequence_parallel_size: int = field(default=1)

        @dataclass
        class FinetuningArguments:
            stage: str = "sft"
            finetuning_type: str = "full"
            dataset: str = ""
            template: str = ""
        """,
    "train.yaml": "model_name_or_path: m\nstage: sft\ndataset: d\nfinetuning_type: full\ntemplate: qwen\n"
    "sequence_parallel_size: 8\n{}\n",
    "run.sh": "llamafactory-cli train train.yaml\n",
}
RUN_EXP = {  # `run_exp` parses the words twice: for Ray's options, and with `get_train_args`
    **DATACLASSES,
    "src/train.py": "from llamafactory.train.tuner import run_exp\nrun_exp()\n",
    "src/llamafactory/train/__init__.py": "",
    "src/llamafactory/train/tuner.py": """
        from ..hparams.parser import get_ray_args, get_train_args

        def run_exp(args=None):
            get_ray_args(args)
            get_train_args(args)
        """,
    "src/llamafactory/hparams/parser.py": DATACLASSES["src/llamafactory/hparams/parser.py"]
    + """
        from .own import RayArguments

        def get_ray_args(args=None):
            parser = HfArgumentParser(RayArguments)
            return parser.parse_args_into_dataclasses(return_remaining_strings=True)
        """,
    "src/llamafactory/hparams/own.py": DATACLASSES["src/llamafactory/hparams/own.py"]
    + """
        @dataclass
        class RayArguments:
            ray_run_name: str = ""
        """,
    "run.sh": "torchrun src/train.py --model_name_or_path m --stage sft --dataset d --finetuning_type full "
    "--template qwen --sequence_parallel_size 8 {}\n",
}
HYDRA = {
    "verl/__init__.py": "",
    "verl/trainer/__init__.py": "",
    "verl/trainer/main_ppo.py": """
        import hydra

        @hydra.main(config_path="config", config_name="ppo_trainer", version_base=None)
        def main(config):
            pass

        if __name__ == "__main__":
            main()
        """,
    "verl/trainer/config/ppo_trainer.yaml": """
        defaults:
          - actor@actor_rollout_ref.actor: own_actor
          - _self_
        data:
          max_prompt_length: 512
          own_key: 3
        trainer:
          n_gpus_per_node: 4
          nnodes: 2
        """,
    "verl/trainer/config/actor/own_actor.yaml": "ppo_mini_batch_size: 256\nretriever: {url: null}\n",
    "run.sh": "python3 -m verl.trainer.main_ppo data.own_key=4 actor_rollout_ref.actor.retriever.url=x {}\n",
}


def write_tree(folder: Path, files: dict[str, str], more: str = "") -> Path:
    for name, text in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        text = textwrap.dedent(text)
        path.write_text(text.replace("{}", more) if path.suffix in (".sh", ".yaml") else text)
    (folder / ".git").mkdir(exist_ok=True)
    return folder / "run.sh"


def lint(script: Path, version: str = "") -> tuple[list[Finding], Report]:
    source = read_source(str(script))
    request = Request((source,), version=version)
    report = run.run(ENVIRONMENT, request, launches.read_model, make_file_reader((source,)))
    return [finding for finding in report.findings if finding.code == "ATN440"], report


@pytest.mark.parametrize(
    "tree", [ARGPARSE, DATACLASSES, RUN_EXP, HYDRA], ids=["argparse", "dataclasses", "run_exp", "hydra"]
)
def test_what_the_fork_takes_is_known(tmp_path: Path, tree: dict[str, str]) -> None:
    findings, report = lint(write_tree(tmp_path, tree))
    [launch] = launches_of(report)
    assert findings == [] and launch.diff == ""
    assert any("names were read from" in remark for remark in launch.job.remarks)


def test_a_script_that_takes_options_before_run_exp_decides(tmp_path: Path) -> None:
    lines = ("p = argparse.ArgumentParser()", "p.add_argument('--mine')", "_, sys.argv[1:] = p.parse_known_args()")
    script = "\n".join(("import argparse, sys", *lines, RUN_EXP["src/train.py"]))
    assert lint(write_tree(tmp_path, {**RUN_EXP, "src/train.py": script}, "--mine 1"))[0] == []


@pytest.mark.parametrize(
    ("tree", "more", "place"),
    [
        (ARGPARSE, "--los_beta 1", "openrlhf/cli/train_sft.py"),
        (ARGPARSE, "--max_epochs 1", "openrlhf/cli/train_sft.py"),  # of every release, but not of this fork
        (DATACLASSES, "sequence_parallel: 8", "src/llamafactory/hparams/parser.py"),
        (RUN_EXP, "--disable_sdpa", "src/llamafactory/hparams/parser.py"),
        (HYDRA, "data.own_kay=4", "verl/trainer/main_ppo.py"),
        (HYDRA, "algorithm.adv_estimator=grpo", "verl/trainer/main_ppo.py"),
    ],
)
def test_what_its_parser_refuses_is_an_error_that_names_the_file(
    tmp_path: Path, tree: dict[str, str], more: str, place: str
) -> None:
    findings, report = lint(write_tree(tmp_path, tree, more))
    [finding] = findings
    name = more.replace(":", "=").replace(" ", "=").split("=")[0]
    assert finding.severity == "error" and name in finding.message
    [launch] = launches_of(report)
    assert any(place in unknown.proof for unknown in launch.job.unknown_settings)
    assert "- " not in launch.diff, "nothing is taken out"


OPEN_PARSERS = {
    "parse_known_args": ("parser.parse_args()", "parser.parse_known_args()[0]"),
    "a name made at run time": ("add_common(parser)", "parser.add_argument('--' + read_name())"),
    "a parser of another package": ("add_common(parser)", "import elsewhere; elsewhere.add_options(parser)"),
}


@pytest.mark.parametrize("change", OPEN_PARSERS)
def test_what_is_not_read_to_its_end_proves_nothing(tmp_path: Path, change: str) -> None:
    text = ARGPARSE["openrlhf/cli/train_sft.py"].replace(*OPEN_PARSERS[change])
    findings, report = lint(write_tree(tmp_path, {**ARGPARSE, "openrlhf/cli/train_sft.py": text}, "--los_beta 1"))
    [finding] = findings
    assert finding.severity == "warning" and "--los_beta" in finding.message and not finding.fixes
    assert launches_of(report)[0].diff == "", "a name that nobody knows stays unchanged"


def test_source_that_does_not_parse_proves_nothing(tmp_path: Path) -> None:
    tree = {**ARGPARSE, "openrlhf/options.py": "def add_common(parser:\n"}
    findings, report = lint(write_tree(tmp_path, tree, "--x 1"))
    assert not findings
    assert any("not judged" in remark and "--x" in remark for remark in launches_of(report)[0].job.remarks)


def test_the_tree_is_found_where_the_script_changes_to(tmp_path: Path) -> None:
    write_tree(tmp_path / "third_party" / "fork", ARGPARSE, "--los_beta 1")
    (tmp_path / "scripts").mkdir()
    (tmp_path / ".git").mkdir()
    script = tmp_path / "scripts" / "go.sh"
    script.write_text("cd third_party/fork\n" + ARGPARSE["run.sh"].format(""))
    assert lint(script)[0] == []
    script.write_text(f"export PYTHONPATH={tmp_path}/third_party/fork\n" + ARGPARSE["run.sh"].format("--los_beta 1"))
    assert [finding.severity for finding in lint(script)[0]] == ["error"]


def test_defaults_are_those_of_the_tree(tmp_path: Path) -> None:
    _, report = lint(write_tree(tmp_path, HYDRA))
    [launch] = launches_of(report)
    assert launch.job.world_size.value == 8  # type: ignore[union-attr]
    (tmp_path / "verl/trainer/config/ppo_trainer.yaml").write_text("trainer: {n_gpus_per_node: 2, nnodes: 1}\n")
    assert launches_of(lint(tmp_path / "run.sh")[1])[0].job.world_size.value == 2  # type: ignore[union-attr]


def test_nothing_of_the_tree_is_run(tmp_path: Path) -> None:
    trap = "open('ran', 'w').close()\nraise SystemExit('it ran')\n"
    files = {name: trap + textwrap.dedent(text) if name.endswith(".py") else text for name, text in ARGPARSE.items()}
    assert lint(write_tree(tmp_path, files))[0] == []
    assert not list(tmp_path.rglob("ran")) and not Path("ran").exists()


OWN_ARGUMENTS = {
    "train.py": """
        import transformers

        class TrainingArguments(transformers.TrainingArguments):
            pass

        parser = transformers.HfArgumentParser((TrainingArguments,))
        parser.parse_args_into_dataclasses()
        transformers.Trainer()
        """,
    "run.sh": "torchrun train.py --output_dir o --per_device_train_batch_size 2 --overwrite_output_dir "
    "--warmup_ratio 0.03 {}\n",
}


@pytest.mark.parametrize(("target", "unknown"), [("transformers=4.45.2", 0), ("transformers=5.17.0", 2)])
def test_argument_classes_are_those_of_the_target(tmp_path: Path, target: str, unknown: int) -> None:
    """The environment has another transformers in its folders, whose classes are not those of the job."""
    script = write_tree(tmp_path, OWN_ARGUMENTS)
    folder = tmp_path / "lib" / "site-packages"
    write_tree(folder, {"transformers/__init__.py": "class TrainingArguments:\n    pass\n"})
    there = replace(
        ENVIRONMENT, distributions=tuple(replace(item, location=str(folder)) for item in ENVIRONMENT.distributions)
    )
    snapshot = apply_target(there, parse_target(f"h100x8,{target}"))
    source = read_source(str(script))
    report = run.run(snapshot, Request((source,)), launches.read_model, make_file_reader((source,)))
    errors = [finding for finding in report.findings if finding.code == "ATN440" and finding.severity == "error"]
    assert len(errors) == unknown


@pytest.mark.parametrize(("package", "errors"), [("other", 1), ("trl", 0)])
def test_a_copy_of_the_library_next_to_the_program_decides(tmp_path: Path, package: str, errors: int) -> None:
    """Python imports the copy, whichever release is installed."""
    program = "from trl import GRPOConfig, GRPOTrainer\nGRPOTrainer(args=GRPOConfig('o', use_liger_loss=True))\n"
    files = {"work/train.py": program, f"work/{package}/__init__.py": "", "run.sh": "cd work; python train.py\n"}
    source = read_source(str(write_tree(tmp_path, files)))
    snapshot = apply_target(ENVIRONMENT, parse_target("h100x8,trl=1.0.0,transformers=4.57.6"))
    report = run.run(snapshot, Request((source,)), launches.read_model, make_file_reader((source,)))
    assert len([finding for finding in report.findings if finding.code == "ATN440"]) == errors


@pytest.mark.parametrize(("version", "errors"), [("4.20.0", 0), ("4.35.2", 0), ("4.36.2", 1)])
def test_a_class_of_a_release_older_than_the_tables_refuses_no_prefix(
    tmp_path: Path, version: str, errors: int
) -> None:
    """lr_scheduler_kwargs came with transformers 4.36: before, --lr_scheduler was a prefix of one option only."""
    program = OWN_ARGUMENTS["train.py"].replace("transformers.Trainer()", "from trl import SFTTrainer; SFTTrainer()")
    files = {"train.py": program, "run.sh": "torchrun train.py --output_dir o --lr_scheduler cosine\n"}
    source = read_source(str(write_tree(tmp_path, files)))
    snapshot = apply_target(ENVIRONMENT, parse_target(f"h100x8,trl=0.9.6,transformers={version}"))
    report = run.run(snapshot, Request((source,)), launches.read_model, make_file_reader((source,)))
    assert len([finding for finding in report.findings if finding.code == "ATN440"]) == errors


def lint_text(folder: Path, program: str, command: str, target: str = "h100x8,transformers=4.57.6") -> Report:
    """Return the report on one command alongside a program."""
    write_tree(folder, {"train.py": program, "run.sh": command + "\n"})
    snapshot = apply_target(ENVIRONMENT, parse_target(target))
    source = read_source(str(folder / "run.sh"))
    return run.run(snapshot, Request((source,)), launches.read_model, make_file_reader((source,)))


GRPO = """
from trl import GRPOConfig, GRPOTrainer, TrlParser
TrlParser((GRPOConfig,)).parse_args_and_config()
GRPOTrainer()
"""


@pytest.mark.parametrize(("target", "count"), [("h100x8", 0), ("h100x8,trl=0.26.2,transformers=4.57.6", 1)])
def test_the_class_of_a_guessed_release_refuses_no_switch(tmp_path: Path, target: str, count: int) -> None:
    command = "python train.py --output_dir o --max_prompt_length 8 --bf16 --logging_steps 1"
    report = lint_text(tmp_path, GRPO, command, target)
    assert len([finding for finding in report.findings if finding.code == "ATN441"]) == count


def test_the_choices_of_a_fork_are_its_own(tmp_path: Path) -> None:
    program = (
        "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--pretrain')\n"
        "parser.add_argument('--policy_loss_type', choices=['ppo', 'mine'])\nparser.parse_args()\n"
    )
    write_tree(tmp_path, {"openrlhf/__init__.py": "", "openrlhf/cli/__init__.py": ""})
    (tmp_path / "openrlhf/cli/train_ppo_ray.py").write_text(program)
    for value, count in (("mine", 0), ("other", 1), ("", 1)):  # without a value, both parsers say the same
        command = f"python -m openrlhf.cli.train_ppo_ray --pretrain m --policy_loss_type {value}"
        report = lint_text(tmp_path, program, command, "h100x8,openrlhf=0.9.1")
        messages = [finding.message for finding in report.findings if finding.code == "ATN441"]
        assert len([message for message in messages if "policy_loss_type" in message]) == count


OWN_FILE = """
import argparse
import yaml
from trl import SFTConfig, SFTTrainer

parser = argparse.ArgumentParser()
parser.add_argument("--config")
settings = yaml.safe_load(open(parser.parse_args().config))
SFTTrainer(args=SFTConfig(output_dir=settings["output_dir"], max_length=settings.get("evaluation_strategy")))
"""


def test_keys_of_a_file_that_the_program_reads_itself_are_its_own(tmp_path: Path) -> None:
    (tmp_path / "c.yaml").write_text("output_dir: o\nevaluation_strategy: 'no'\nmax_seq_length: 8\n")
    target = "h100x8,trl=1.16.0,transformers=5.17.0"
    report = lint_text(tmp_path, OWN_FILE, "accelerate launch train.py --config c.yaml", target)
    assert [launch.job.framework for launch in launches_of(report)] == ["trl"]
    assert not [finding for finding in report.findings if finding.code == "ATN440"]
    report = lint_text(
        tmp_path, OWN_FILE, "accelerate launch train.py --config c.yaml --evaluation_strategy no", target
    )
    assert [finding.severity for finding in report.findings if finding.code == "ATN440"] == ["error"]


TRAINER = """
import transformers
from dataclasses import dataclass

@dataclass
class Arguments:
    use_bf16: {annotation} = {default}

transformers.HfArgumentParser((Arguments, transformers.TrainingArguments)).parse_args_into_dataclasses()
transformers.Trainer()
"""
ARGPARSE_TRAINER = """
import argparse
import transformers

parser = argparse.ArgumentParser()
parser.add_argument("--output_dir")
parser.add_argument("--per_device_train_batch_size")
parser.add_argument("--bf16", {keywords})
parser.parse_args()
transformers.Trainer()
"""
COMMAND = "torchrun train.py --output_dir o --per_device_train_batch_size 1"


@pytest.mark.parametrize(
    ("keywords", "severity"),
    [("action='store_true'", ""), ("nargs='?'", ""), ("type=bool", "error"), ("default=None", "error")],
)
def test_an_option_without_its_value_is_as_the_parser_of_the_program_takes_it(
    tmp_path: Path, keywords: str, severity: str
) -> None:
    report = lint_text(tmp_path, ARGPARSE_TRAINER.format(keywords=keywords), f"{COMMAND} --bf16")
    assert [f.severity for f in report.findings if f.code == "ATN441"] == ([severity] if severity else [])


@pytest.mark.parametrize(
    ("launcher", "more", "count"),
    [
        ("deepspeed", "", 1),
        ("deepspeed --no_local_rank", "", 0),
        ("deepspeed", "'--local_rank'", 0),
        ("deepspeed", "'--local-rank'", 1),
        ("python -m torch.distributed.launch", "", 1),
        ("python -m torch.distributed.launch --use-env", "", 0),
        ("python -m torch.distributed.launch", "'--local-rank'", 0),
        ("torchrun", "", 0),
    ],
)
def test_the_rank_that_a_launcher_appends_is_an_option(tmp_path: Path, launcher: str, more: str, count: int) -> None:
    program = ARGPARSE_TRAINER.format(keywords="action='store_true'")
    program = program.replace("parser.parse", f"parser.add_argument({more})\nparser.parse") if more else program
    report = lint_text(tmp_path, program, COMMAND.replace("torchrun", launcher))
    assert len([finding for finding in report.findings if "appends" in finding.message]) == count


@pytest.mark.parametrize(("name", "count"), [("--train", 0), ("--train_sampling_strategy", 1)])
def test_an_abbreviation_may_be_an_option_of_a_program_that_is_not_here(tmp_path: Path, name: str, count: int) -> None:
    keys = '{"output_dir": "o", "per_device_train_batch_size": 1, "learning_rate": 0.1, "num_train_epochs": 1}'
    (tmp_path / "c.json").write_text(keys)
    report = lint_text(tmp_path, "", f"python -m lm_tuner {name} --config c.json", "h100x8,transformers=5.17.0")
    assert find_jobs(report) and len([f for f in report.findings if "has no value" in f.message]) == count


@pytest.mark.parametrize(("value", "count"), [("None", 1), ("none", 0), ("wandb", 0)])
@pytest.mark.parametrize("release", ["4.31.0", "4.57.6"])
def test_none_in_capitals_is_the_name_of_a_tracker(tmp_path: Path, release: str, value: str, count: int) -> None:
    program = TRAINER.format(annotation="bool", default="False")
    for text, expected in [
        (program, count),
        (ARGPARSE_TRAINER.format(keywords="").replace("--bf16", "--report_to"), 0),  # it may replace the text
    ]:
        command = f"{COMMAND} --report_to {value}"
        report = lint_text(tmp_path, text, command, f"h100x8,transformers={release}")
        assert len([f for f in report.findings if "name of a tracker" in f.message]) == expected


HALVES = """
from transformers import Trainer, TrainingArguments
Trainer(args=TrainingArguments(output_dir="o", bf16={}, fp16={})).train()
"""

OWN_HALVES = ARGPARSE_TRAINER.format(keywords="action='store_true'").replace(
    "parser.parse_args()",
    """parser.add_argument("--fp16", action='store_true')
options = parser.parse_args()
""",
)
OWN_HALVES = OWN_HALVES.replace(
    "transformers.Trainer()",
    "transformers.Trainer(args=transformers.TrainingArguments('o', bf16=options.bf16, fp16=not options.bf16))",
)


@pytest.mark.parametrize(
    ("program", "options", "count"),
    [
        (TRAINER.format(annotation="bool", default="False"), "--bf16 --fp16 True", 1),
        (TRAINER.format(annotation="bool", default="False"), "--bf16 True --fp16 False", 0),
        (TRAINER.format(annotation="bool", default="False"), "--bf16 --fp16 $HALF", 0),
        (HALVES.format("True", "True"), "", 1),
        (HALVES.format("has_bf16()", "not has_bf16()"), "", 0),
        (OWN_HALVES, "--bf16 --fp16", 0),  # the script decides between them
    ],
)
def test_both_halves_are_refused(tmp_path: Path, program: str, options: str, count: int) -> None:
    command = f"{COMMAND} {options}" if options else "torchrun train.py"
    report = lint_text(tmp_path, program, command)
    assert len([f for f in report.findings if "bf16 and fp16 are both on" in f.message]) == count


@pytest.mark.parametrize(
    ("options", "count"),
    [
        ("--deepspeed z3.json --save_only_model True --load_best_model_at_end True", 1),
        ("--fsdp full_shard --save_only_model True --load_best_model_at_end True", 1),
        ("--save_only_model True --load_best_model_at_end True", 0),
        ("--deepspeed '' --save_only_model True --load_best_model_at_end True", 0),
        ("--deepspeed $ZERO --save_only_model True --load_best_model_at_end True", 0),
        ("--deepspeed z3.json --save_only_model True --load_best_model_at_end False", 0),
        ("--deepspeed z3.json --load_best_model_at_end True", 0),
    ],
)
def test_the_best_of_sharded_weights_alone_cannot_be_loaded(tmp_path: Path, options: str, count: int) -> None:
    report = lint_text(tmp_path, TRAINER.format(annotation="bool", default="False"), f"{COMMAND} {options}")
    assert len([f for f in report.findings if "load_best_model_at_end are both on" in f.message]) == count


NAMES_IN_A_TABLE = """\
declare -A A=([bf16]=True)
A[fp16]=False
A["weight_decay"]="0."
declare -a W=()
for key in "${!A[@]}"; do
    W+=("--${key}")
    W+=("${A[$key]}")
done
"""


@pytest.mark.parametrize(
    ("before", "words", "count"),
    [
        (NAMES_IN_A_TABLE, '"${W[@]}"', 0),
        ('W=""\nif [ -n "$A" ]; then W="$W --bf16"; fi\nif [ -n "$B" ]; then W="$W --no_such"; fi\n', "$W", 0),
        ('W="$W --no_such"\n', "$W", 1),
    ],
    ids=["the name is a variable", "a condition adds to an unknown value", "always passed"],
)
def test_an_option_that_may_not_be_passed_is_not_refused(tmp_path: Path, before: str, words: str, count: int) -> None:
    program = TRAINER.format(annotation="bool", default="False")
    text = f"{before}torchrun --nproc_per_node=8 train.py --output_dir o --per_device_train_batch_size 1 {words}"
    report = lint_text(tmp_path, program, text, "h100x8,transformers=5.17.0")
    assert find_jobs(report) and len([f for f in report.findings if f.code == "ATN440"]) == count


@pytest.mark.parametrize(("value", "count"), [('=""', 0), (' ""', 0), ("", 1)])
def test_an_empty_value_is_a_value(tmp_path: Path, value: str, count: int) -> None:
    program = TRAINER.format(annotation="bool", default="False")
    report = lint_text(tmp_path, program, f"torchrun train.py --per_device_train_batch_size 1 --output_dir{value}")
    assert len([finding for finding in report.findings if finding.code == "ATN441"]) == count


@pytest.mark.parametrize("how", ["option", "file", "variable"])
def test_precision_of_accelerate(tmp_path: Path, how: str) -> None:
    launcher = {
        "option": "accelerate launch --mixed_precision bf16",
        "file": f"accelerate launch --config_file {tmp_path}/accelerate.yaml",
        "variable": "ACCELERATE_MIXED_PRECISION=bf16 torchrun",
    }[how]
    (tmp_path / "accelerate.yaml").write_text("mixed_precision: bf16\n")
    command = f"{launcher} train.py --output_dir o --per_device_train_batch_size 1"
    report = lint_text(tmp_path, TRAINER.format(annotation="bool", default="False"), command)
    assert [launch.job.plan.precision for launch in launches_of(report)] == ["autocast"]


@pytest.mark.parametrize(
    ("files", "option", "said"),
    [
        ({}, "--template qwen2", {"template qwen2": "error"}),
        ({}, "--template qwen", {}),
        ({"src/llamafactory/data/template.py": "for name in own: register_template(name)\n" * 9}, "--template a", {}),
        ({"data/dataset_info.json": '{"d": {}}'}, "--eval_dataset d,e", {"eval_dataset e": "warning"}),
        ({"data/dataset_info.json": '{"d": {}, "e": {}}'}, "--eval_dataset d,e", {}),
        ({"data/dataset_info.json": '{"d": {}}'}, "--eval_dataset e --dataset_dir own", {}),
        ({"data/dataset_info.json": '{"d": {}}'}, "--eval_dataset $E", {}),
        ({"data/dataset_info.json": '{"d": {}}', "src/llamafactory/data/parser.py": ""}, "--eval_dataset e", {}),
    ],
)
def test_data_sets_and_templates_that_a_tree_registers(
    tmp_path: Path, files: dict[str, str], option: str, said: dict[str, str]
) -> None:
    name = option.split()[0]
    run = RUN_EXP["run.sh"].format(option).replace("--template qwen " * (name == "--template"), "")
    own = RUN_EXP["src/llamafactory/hparams/own.py"]
    fields = "".join(f'    {field}: str = ""\n' for field in ("eval_dataset", "dataset_dir"))
    source = "def register_template(name):\n    pass\nregister_template(\n    name='qwen',\n)\n"
    registry = {"template.py": source, "parser.py": 'raise ValueError("Undefined dataset")\n'}
    sources = {f"src/llamafactory/data/{file}": text for file, text in registry.items()}
    tree = {**RUN_EXP, "run.sh": run, **sources, ".git/HEAD": "", **files}
    tree["src/llamafactory/hparams/own.py"] = textwrap.dedent(own) + fields
    report = lint(write_tree(tmp_path, tree), "0.9.4")[1]
    found = {item.message.partition(":")[0]: item.severity for item in report.findings if "ValueError" in item.message}
    assert found == said


def test_a_template_that_a_tree_does_not_register_is_one_finding(tmp_path: Path) -> None:
    """The release's own templates say nothing of the tree's."""
    words = "--stage sft --do_train --model_name_or_path m --dataset d --template gec --finetuning_type full"
    tree = {
        **dict.fromkeys(("src/llamafactory/__init__.py", "src/llamafactory/data/__init__.py", ".git/HEAD"), ""),
        "src/llamafactory/data/template.py": "def register_template(name):\n    pass\nregister_template(name='qwen')\n",
        "run.sh": f"deepspeed --num_gpus 2 src/train_bash.py {words} --output_dir o\n",
    }
    report = lint(write_tree(tmp_path, tree), "0.9.4")[1]
    assert [item.severity for item in report.findings if "gec" in item.message] == ["error"]


@pytest.mark.parametrize(("code", "count"), [('    if args.stage == "ttl":\n        own(args)\n', 0), ("", 1)])
def test_a_value_that_the_tree_s_own_code_compares_is_taken(tmp_path: Path, code: str, count: int) -> None:
    """Nothing checks the values of a file's keys before that code."""
    tuner = textwrap.dedent(RUN_EXP["src/llamafactory/train/tuner.py"])
    words = "model_name_or_path: m\nstage: ttl\nfinetuning_type: full\ndataset: d\ntemplate: qwen\ndo_train: true\n"
    own = RUN_EXP["src/llamafactory/hparams/own.py"].replace(
        'stage: str = "sft"', 'stage: Literal["pt", "sft"] = "sft"'
    )
    own = own.replace("import Optional", "import Literal, Optional")
    files = {"run.sh": "python src/train.py x.yaml\n", "x.yaml": words, "src/llamafactory/hparams/own.py": own}
    tree = {**RUN_EXP, **files, "src/llamafactory/train/tuner.py": tuner + code}
    report = lint(write_tree(tmp_path, tree), "0.9.4")[1]
    assert len([finding for finding in report.findings if "'ttl'" in finding.message]) == count


def test_no_fix_changes_what_is_trained(tmp_path: Path) -> None:
    """A stage that the release does not have is an error, and no other stage is its fix; a misspelling has one."""
    text = "model_name_or_path: m\nstage: {}\nfinetuning_type: full\ndataset: d\ntemplate: qwen\n"
    fixes = []
    for stage in ("grpo", "sfft"):
        (tmp_path / "x.yaml").write_text(text.format(stage))
        source = read_source(str(tmp_path / "x.yaml"))
        report = run.run(
            apply_target(ENVIRONMENT, parse_target("h100x8,llamafactory=0.9.4,transformers=4.57.1")),
            Request((source,)),
            launches.read_model,
            make_file_reader((source,)),
        )
        [finding] = [f for f in report.findings if f.code == "ATN441" and "stage" in f.message]
        fixes.append([fix.sets for fix in finding.fixes if fix.sets])
    assert fixes == [[], [{"stage": "sft"}]]


def find_jobs(report: Report) -> list[str]:
    return [f"{launch.job.framework} {launch.job.trainer}" for launch in launches_of(report)]


STARTER = """
import argparse, subprocess
parser = argparse.ArgumentParser()
parser.add_argument("--per_device_train_batch_size"), parser.add_argument("--output_dir")
subprocess.run("accelerate launch grpo.py", shell=True)
"""


def test_a_program_that_trains_nothing_itself_is_no_trainer(tmp_path: Path) -> None:
    report = lint_text(tmp_path, STARTER, "python train.py --per_device_train_batch_size 1 --output_dir o")
    assert find_jobs(report) == [] and {finding.severity for finding in report.findings} == {"note"}


def test_a_program_below_a_folder_that_the_user_sets_is_the_tree_s(tmp_path: Path) -> None:
    report = lint_text(tmp_path, GRPO, "python $BASE_PATH/train.py --output_dir o")
    assert find_jobs(report) == ["trl grpo"]


CHOICE = """
import transformers
from trl import GRPOConfig, GRPOTrainer, TrlParser

class OwnTrainer(transformers.Trainer):
    pass

TrlParser((GRPOConfig,)).parse_args_and_config()
(GRPOTrainer if True else OwnTrainer)()
"""


OTHER_LOSS = """
import transformers
from trl import GRPOConfig, TrlParser

class OwnTrainer(transformers.Trainer):
    pass

OwnTrainer(TrlParser((GRPOConfig,)).parse_args_and_config())
"""


@pytest.mark.parametrize(("program", "count"), [(GRPO, 1), (CHOICE, 0), (OTHER_LOSS, 0)])
def test_what_holds_for_one_of_several_trainers_is_left_out(tmp_path: Path, program: str, count: int) -> None:
    command = "accelerate launch --num_processes 4 train.py --output_dir o --per_device_train_batch_size 1 "
    report = lint_text(tmp_path, program, f"{command}--num_generations 16", "h100x8,trl=0.16.0,transformers=4.50.0")
    findings = [finding for finding in report.findings if "num_generations" in finding.message]
    assert len(findings) == count


LOADING_TRAINER = """
import transformers
parser = transformers.HfArgumentParser((transformers.TrainingArguments,))
parser.parse_args_into_dataclasses()
transformers.Trainer(transformers.AutoModel.from_pretrained("m"%s))
"""


@pytest.mark.parametrize(
    ("more", "before", "count"),
    [
        ("", "", 1),
        (", device_map='auto'", "", 0),
        ("))\nimport unsloth\nprint((0", "", 0),
        ("", "#SBATCH --gres=gpu:1\n", 0),
        ("", "#SBATCH --gres=gpu:a100:2\n", 1),
    ],
)
def test_one_process_for_all_gpus(tmp_path: Path, more: str, before: str, count: int) -> None:
    command = f"{before}python train.py --output_dir o --per_device_train_batch_size 1"
    report = lint_text(tmp_path, LOADING_TRAINER % more, command, "h100x8,transformers=4.50.0")
    findings = [finding for finding in report.findings if "nn.DataParallel" in finding.message]
    assert [finding.severity for finding in findings] == ["warning"] * count, "the model may take no count of tokens"
    report = lint_text(
        tmp_path,
        LOADING_TRAINER % more,
        f"if [ $1 ]; then python train.py {command.rpartition('.py ')[2]}; fi",
        "h100x8,transformers=4.50.0",
    )
    assert not [finding for finding in report.findings if "nn.DataParallel" in finding.message]


def test_a_value_that_the_tree_s_own_class_takes_is_no_finding(tmp_path: Path) -> None:
    report = lint(write_tree(tmp_path, DATACLASSES, "finetuning_type: prefix-tuning"))[1]
    assert not [finding for finding in report.findings if finding.code == "ATN441"]


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("torchrun /a/verl/verl/trainer/fsdp_sft_trainer.py model.partial_pretrain=m data.train_batch_size=32", 0),
        ("python -m verl.trainer.main_ppo trainer.nnodes=4 trainer.n_gpus_per_node=16", 1),
        ("python -m verl.trainer.main_ppo trainer.nnodes=4 trainer.n_gpus_per_node=16 trainer.device=npu", 0),
        ("HCCL_EXEC_TIMEOUT=9 python -m verl.trainer.main_ppo trainer.nnodes=4 trainer.n_gpus_per_node=16", 0),
        ("ASCEND_RT_VISIBLE_DEVICES=0 python -m verl.trainer.main_ppo trainer.nnodes=4 trainer.n_gpus_per_node=16", 0),
    ],
)
def test_what_a_launch_of_verl_needs(tmp_path: Path, command: str, count: int) -> None:
    report = lint_text(tmp_path, "", command, "h100x8,verl=0.5.0")
    assert len([finding for finding in report.findings if finding.code == "ATN447"]) == count
    if "sft" in command:
        assert not [finding for finding in report.findings if "ppo" in finding.message]


@pytest.mark.parametrize(
    ("program", "options", "parts"),
    [
        ("from verl.trainer.ppo.ray_trainer import RayPPOTrainer\n", "", set()),
        ("from verl.utils.config import validate_config\nvalidate_config(c, use_critic=False)\n", "", {"actor"}),
        (
            "from verl.utils.config import validate_config\nvalidate_config(c, use_critic=True)\n",
            "",
            {"actor", "critic"},
        ),
        (None, "", {"actor", "critic"}),
        (None, '--config-name "$CONFIG_NAME"', set()),
    ],
    ids=["no check", "no critic", "both", "verl's own program", "an unknown configuration"],
)
def test_only_a_program_that_checks_sizes_refuses_them(
    tmp_path: Path, program: str | None, options: str, parts: set[str]
) -> None:
    name = "verl.trainer.main_ppo" if program is None else "recipe.mine.main_mine"
    files = {"recipe/mine/main_mine.py": program} if program is not None else {}
    text = f"python3 -m {name} {options} actor_rollout_ref.model.path=m data.train_batch_size=8"
    report = lint(write_tree(tmp_path, {**files, "run.sh": text}), "0.9.1")[1]
    unset = [finding.message for finding in report.findings if "are both unset" in finding.message]
    assert {name for name in ("actor", "critic") if any(f"{name}.ppo_micro" in text for text in unset)} == parts


FOUR = "python -m verl.trainer.main_ppo trainer.n_gpus_per_node=4 trainer.nnodes={}"


@pytest.mark.parametrize(
    ("before", "nodes", "words"),
    [
        ("CUDA_VISIBLE_DEVICES=2,3,7,8 ", 1, "leaves 3; ranks without a GPU fail"),
        ("CUDA_VISIBLE_DEVICES=0,1 ", 1, "leaves 2; verl raises a ValueError"),
        ("CUDA_VISIBLE_DEVICES=4,5,6,7 ", 1, ""),
        ("CUDA_VISIBLE_DEVICES=$1 ", 1, ""),
        ("CUDA_VISIBLE_DEVICES=0,1 ", 2, ""),  # the cluster's GPUs
        ("ray start --head\nCUDA_VISIBLE_DEVICES=0,1 ", 1, ""),
        ("export RAY_ADDRESS=auto\nCUDA_VISIBLE_DEVICES=0,1 ", 1, ""),
        ("CUDA_VISIBLE_DEVICES=0,1 ray job submit -- ", 1, ""),
    ],
)
def test_the_ray_that_verl_starts_has_the_visible_gpus(tmp_path: Path, before: str, nodes: int, words: str) -> None:
    report = lint_text(tmp_path, "", before + FOUR.format(nodes), "h100x8,verl=0.5.0")
    found = [finding for finding in report.findings if finding.code == "ATN447"]
    assert [finding.severity for finding in found] == ["warning"] * bool(words)
    assert all(words in finding.message for finding in found)


def test_a_launch_that_hides_all_gpus_is_one_finding(tmp_path: Path) -> None:
    report = lint_text(tmp_path, "", "CUDA_VISIBLE_DEVICES= " + FOUR.format(1), "h100x8,verl=0.5.0")
    [finding] = [finding for finding in report.findings if finding.code in ("ATN447", "ATN449")]
    assert finding.code == "ATN449" and "hides all" in finding.evidence[0]


def test_a_configuration_that_a_program_completes_is_no_launch(tmp_path: Path) -> None:
    (tmp_path / "verl/trainer/config").mkdir(parents=True)
    keys = "actor_rollout_ref:\n  model: {path: m}\n"
    for name, text in [
        ("verl/trainer/config/ppo_trainer.yaml", keys),
        ("own.yaml", "model: m\nper_device_train_batch_size: 2\nsave_steps: 5\n"),
    ]:
        (tmp_path / name).write_text(text)
        source = read_source(str(tmp_path / name))
        report = run.run(ENVIRONMENT, Request((source,)), launches.read_model, launches.read_no_file)
        assert find_jobs(report) == []


def test_a_project_in_a_folder_of_its_name_is_imported(tmp_path: Path) -> None:
    (tmp_path / "tools/tools").mkdir(parents=True)
    (tmp_path / "tools/tools/own.py").write_text("import transformers\nclass Own(transformers.Trainer): pass\n")
    report = lint_text(tmp_path, "from tools.own import Own\nOwn(None)\n", "python train.py --output_dir o")
    assert find_jobs(report) == ["transformers trainer"]


@pytest.mark.parametrize(("more", "count"), [("--optimizer own", 0), ("", 1)])
def test_a_value_is_not_judged_by_a_pin_if_a_name_of_no_release_shows_a_fork(
    tmp_path: Path, more: str, count: int
) -> None:
    (tmp_path / "requirements.txt").write_text("openrlhf==0.8.9\n")
    command = f"deepspeed --module openrlhf.cli.train_sft --pretrain m --zero_stage 2moe {more}\n"
    (tmp_path / "train.sh").write_text(command)
    request = Request((read_source(str(tmp_path / "train.sh")),), stated="missing")
    report = run.run(ENVIRONMENT, request, launches.read_model, launches.read_no_file)
    assert sum("2moe" in finding.message for finding in report.findings) == count


@pytest.mark.parametrize("name", ["--no_such_name", "--flash_atn"], ids=["of no release", "similar to one"])
@pytest.mark.parametrize(("listed", "is_known"), [("openrlhf==0.5.0\n", True), ("openrlhf\n", False), ("", False)])
def test_a_name_of_no_release_is_a_remark_unless_it_is_misspelt(
    tmp_path: Path, name: str, listed: str, is_known: bool
) -> None:
    (tmp_path / "requirements.txt").write_text(listed)
    (tmp_path / "train.sh").write_text(f"deepspeed --module openrlhf.cli.train_sft --pretrain m {name} x\n")
    request = Request((read_source(str(tmp_path / "train.sh")),), stated="missing")
    report = run.run(ENVIRONMENT, request, launches.read_model, launches.read_no_file)
    is_said = any(finding.code == "ATN440" for finding in report.findings)
    assert is_said == (is_known and name == "--flash_atn")
    remarks = launches_of(report)[0].job.remarks
    assert is_said or any(name in remark and "not judged" in remark for remark in remarks)


def test_a_configuration_that_a_command_completes_lacks_nothing(tmp_path: Path) -> None:
    text = "actor_rollout_ref:\n  actor:\n    ppo_micro_batch_size: null\n    ppo_micro_batch_size_per_gpu: null\n"
    (tmp_path / "own.yaml").write_text(text + "data:\n  filter_overlong_prompts: true\n")
    for name, command in [("own.yaml", ""), ("run.sh", "python -m verl.trainer.main_ppo data.max_response_length=1\n")]:
        if command:
            (tmp_path / name).write_text(command)
        source = read_source(str(tmp_path / name))
        request = Request((source,), version="0.2.0.post2")
        report = run.run(ENVIRONMENT, request, launches.read_model, launches.read_no_file)
        assert find_jobs(report) and bool([item for item in report.findings if item.code == "ATN441"]) is bool(command)
        assert not [finding for finding in report.findings if finding.code == "ATN440"]


def test_the_rest_of_a_broken_command_is_no_launch(tmp_path: Path) -> None:
    command = "python -m verl.trainer.main_ppo data.shuffle=True \\ \n  data.seed=1 actor_rollout_ref.model.path=m"
    assert len(find_jobs(lint_text(tmp_path, "", command, "h100x8,verl=0.5.0"))) == 1


@pytest.mark.parametrize(("name", "count"), [("RayPPOTrainer", 1), ("ResourcePoolManager", 0)])
def test_a_program_that_evaluates_with_verl_is_no_launch(tmp_path: Path, name: str, count: int) -> None:
    program = f"from verl.trainer.ppo.ray_trainer import {name}\n{name}()\n"
    report = lint_text(tmp_path, program, "python train.py actor_rollout_ref.model.path=m")
    assert len(find_jobs(report)) == count


OWN_LOOP = """
import accelerate, own
accelerator = accelerate.Accelerator()
own.ArgumentParserPlus((own.Arguments,)).parse()
"""


@pytest.mark.parametrize(
    ("wrapper", "program", "claimed"),
    [
        ("accelerate launch", OWN_LOOP + "accelerator.backward(loss)\n", False),
        ("python mason.py --gpus 1 -- accelerate launch", OWN_LOOP + "accelerator.backward(loss)\n", False),
        ("python mason.py --gpus 1 -- accelerate launch", OWN_LOOP + "own.train()\n", False),
        ("python mason.py -- source a.sh \\&\\& python", OWN_LOOP + "accelerator.backward(loss)\n", False),
        ("python mason.py -- source a.sh \\&\\& python", "import trl\ntrl.DPOTrainer().train()\n", True),
        ("python mason.py --gpus 1 -- accelerate launch", OWN_LOOP + "import trl\ntrl.DPOTrainer().train()\n", True),
    ],
    ids=["its loop", "its loop behind a wrapper", "another trainer", "its loop behind &&", "TRL behind &&", "TRL"],
)
def test_the_program_behind_a_wrapper_decides_what_trains(
    tmp_path: Path, wrapper: str, program: str, claimed: bool
) -> None:
    own = "from dataclasses import dataclass\n@dataclass\nclass Arguments:\n    gradient_accumulation_steps: int = 1\n"
    write_tree(
        tmp_path,
        {
            "own.py": own + "class ArgumentParserPlus:\n    pass\n",
            "mason.py": "import argparse\nparser = argparse.ArgumentParser()\nparser.add_argument('--gpus')\n",
        },
    )
    options = "--per_device_train_batch_size 1 --gradient_accumulation_steps 4 --beta 5 --output_dir o"
    report = lint_text(tmp_path, program, f"{wrapper} train.py {options}", "h100x8,transformers=5.4.0,trl=0.29.0")
    assert bool(find_jobs(report)) == claimed


@pytest.mark.parametrize(
    ("program", "count"),
    [("from own import main\nmain.run()\n", 0), ("from own import main, on_verl\nmain.run()\n", 1), (None, 1)],
    ids=["its package", "its package imports verl", "not read"],
)
def test_a_program_with_keys_of_verl_and_without_verl_is_another_one(
    tmp_path: Path, program: str | None, count: int
) -> None:
    text = "python3 -m mine.main_dag actor_rollout_ref.model.path=m algorithm.adv_estimator=grpo"
    files = {"own/__init__.py": "", "own/main.py": "# as https://github.com/volcengine/verl\n", "run.sh": text}
    files |= {"own/on_verl.py": "def run():\n    from verl.trainer.ppo.core_algos import kl_penalty\n"}
    files |= {"mine/__init__.py": "", "mine/main_dag.py": program} if program is not None else {}
    assert len(find_jobs(lint(write_tree(tmp_path, files))[1])) == count


@pytest.mark.parametrize(
    ("before", "is_said"),
    [("", True), ("# ", False), ("pass  # ", False)],
    ids=["as in the release", "commented out", "removed"],
)
def test_an_assertion_that_the_tree_lacks_refuses_nothing(tmp_path: Path, before: str, is_said: bool) -> None:
    check = "assert config.data.train_batch_size >= config.actor_rollout_ref.actor.ppo_mini_batch_size"
    files = {
        "verl/__init__.py": "",
        "verl/trainer/__init__.py": "",
        "verl/trainer/main_ppo.py": "import verl\n",
        "verl/trainer/ppo/__init__.py": "",
        "verl/trainer/ppo/ray_trainer.py": f"def validate(config):\n    {before}{check}\n    return\n",
    }
    sizes = "data.train_batch_size=16 actor_rollout_ref.actor.ppo_mini_batch_size=64 actor_rollout_ref.rollout.n=8"
    text = f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=m {sizes}"
    report = lint(write_tree(tmp_path, {**files, "run.sh": text}), "0.5.0")[1]
    assert any("is less than" in finding.message for finding in report.findings) == is_said


@pytest.mark.parametrize(("loss", "count"), [("agg_loss(loss_mat=losses)", 1), ("losses.sum() / self.tokens", 0)])
def test_a_loss_that_the_tree_computes_otherwise_has_no_fault_of_the_release(
    tmp_path: Path, loss: str, count: int
) -> None:
    files = {
        "verl/__init__.py": "",
        "verl/trainer/__init__.py": "",
        "verl/trainer/main_ppo.py": "import verl\n",
        "verl/workers/actor/dp_actor.py": f"def update_policy(self, losses):\n    return {loss}\n",
    }
    sizes = "actor_rollout_ref.actor.ulysses_sequence_parallel_size=2 actor_rollout_ref.model.use_remove_padding=True"
    text = f"python3 -m verl.trainer.main_ppo actor_rollout_ref.model.path=m {sizes}"
    report = lint(write_tree(tmp_path, {**files, "run.sh": text}), "0.5.0")[1]
    assert len([finding for finding in report.findings if "Ulysses over 2 ranks" in finding.message]) == count


@pytest.mark.parametrize(
    ("check", "is_said"),
    [
        ("    assert args.save is not None, 'needed'\n", True),
        ("    if args.config is None:\n            assert args.save is not None, 'needed'\n", False),
        ("    pass\n", False),
    ],
    ids=["as in the release", "under another condition", "removed"],
)
def test_a_fork_of_slime_asserts_what_its_source_asserts(tmp_path: Path, check: str, is_said: bool) -> None:
    lines = f"def validate(args):\n    if args.save_interval is not None:  # checkpoints\n    {check}"
    files = {"slime/__init__.py": "", "slime/utils/__init__.py": "", "slime/utils/arguments.py": lines}
    sizes = "--actor-num-nodes 1 --hf-checkpoint m --rollout-batch-size 8 --num-rollout 10"
    text = f"python3 train.py {sizes} --save-interval 5 --config policies.yaml\n"
    report = lint(write_tree(tmp_path, {**files, "train.py": "import slime.utils.arguments\n", "run.sh": text}))[1]
    assert any("--save-interval without --save" in finding.message for finding in report.findings) == is_said


@pytest.mark.parametrize(("version", "count"), [("0.1", 0), ("0.3.0.post1", 1)])
def test_what_later_releases_refuse_is_not_said_of_an_older_tree(tmp_path: Path, version: str, count: int) -> None:
    sizes = "data.train_batch_size=2 actor_rollout_ref.rollout.n=1 trainer.n_gpus_per_node=4 trainer.nnodes=1"
    config = "data: {train_batch_size: 8}\nactor_rollout_ref: {model: {path: m}, rollout: {n: 1}}\n"
    config += "trainer: {n_gpus_per_node: 1, nnodes: 1}\n"
    files = {**HYDRA, "verl/trainer/config/ppo_trainer.yaml": config}
    text = f"python3 -m verl.trainer.main_ppo {sizes} actor_rollout_ref.rollout.nn=1"
    findings, report = lint(write_tree(tmp_path, {**files, "run.sh": text}), version)
    assert len(findings) == 1, "what the tree's own configuration refuses is reported"
    assert len([finding for finding in report.findings if "is not divisible by 4" in finding.message]) == count


@pytest.mark.parametrize(("version", "severity"), [("0.18.2", "warning"), ("0.19.1", "error")])
def test_keys_that_trl_s_parser_drops_are_no_error(tmp_path: Path, version: str, severity: str) -> None:
    files = {"c.yaml": "output_dir: o\nuse_liger: true\n", "run.sh": "trl grpo --config c.yaml --model_name_or_path m"}
    found, report = lint(write_tree(tmp_path, files), version)
    assert [finding.severity for finding in found] == [severity]
    [launch] = launches_of(report)
    assert not any("no such file" in remark for remark in launch.job.remarks)


def test_an_argument_in_code_is_not_dropped(tmp_path: Path) -> None:
    program = 'from trl import SFTConfig, SFTTrainer\nSFTTrainer("m", args=SFTConfig("o", max_length=8)).train()\n'
    report = lint_text(tmp_path, program, "python train.py", "h100x1,trl=0.10.1,transformers=4.44.0")
    assert [finding.severity for finding in report.findings if "max_length" in finding.message] == ["error"]


@pytest.mark.parametrize(("version", "count"), [("0.18.2", 1), ("", 0)], ids=["known", "guessed"])
def test_keys_are_dropped_only_by_a_known_release(tmp_path: Path, version: str, count: int) -> None:
    keys = "model_name_or_path: m\noutput_dir: o\nreward_funcs: [x]\nuse_liger: true\nmax_completion_length: 8\n"
    files = {"grpo.yaml": keys, "run.sh": "trl grpo --config grpo.yaml\n"}
    assert len(lint(write_tree(tmp_path, files), version)[0]) == count
    source = read_source(str(tmp_path / "grpo.yaml"))  # alone: its program is not known
    request = Request((source,), version=version)
    report = run.run(ENVIRONMENT, request, launches.read_model, launches.read_no_file)
    assert launches_of(report) and not [item for item in report.findings if "drops" in item.message]


@pytest.mark.parametrize(("group", "severities"), [("own_actor", ["error"]), ("of_a_package", [])])
def test_names_of_a_group_that_is_not_here_are_not_judged(tmp_path: Path, group: str, severities: list[str]) -> None:
    key = "actor_rollout_ref.actor.ppo_mini_batch_sizes=1"
    script = write_tree(tmp_path, HYDRA, f"actor@actor_rollout_ref.actor={group} {key}")
    text = script.read_text().replace("actor_rollout_ref.actor.retriever.url=x ", "")
    script.write_text(text)
    assert [finding.severity for finding in lint(script, "0.9.0")[0]] == severities


@pytest.mark.parametrize(
    ("chosen", "message", "fix"),
    [
        ("engine=sharded", "", ""),
        ("", "does not know 3 names of actor.*", "set engine=sharded"),
        ("engine=plain", "does not know 3 names of actor.*", "set engine=sharded"),
        ("actor.engine=sharded", "does not know actor.engine; it is engine=sharded", "engine=sharded"),
    ],
)
def test_keys_of_another_choice_of_a_group_are_one_finding_with_that_choice(
    tmp_path: Path, chosen: str, message: str, fix: str
) -> None:
    config = "defaults:\n  - engine: plain\n  - actor: ${engine}_actor\n  - _self_\ndata: {n: 1}\n"
    names = {"engine/plain": "engine: plain", "engine/sharded": "engine: sharded", "actor/plain_actor": "lr: 1"}
    names["actor/sharded_actor"] = "lr: 1\nsharded: {tp: 1, pp: 1, offload: false}"
    files = {f"verl/trainer/config/{name}.yaml": f"{text}\n" for name, text in names.items()}
    text = f"python3 -m verl.trainer.main_ppo {chosen} actor.sharded.tp=2 actor.sharded.pp=2 actor.sharded.offload=true"
    tree = {**HYDRA, **files, "verl/trainer/config/ppo_trainer.yaml": config, "run.sh": text}
    findings = lint(write_tree(tmp_path, tree))[0]
    assert [message in finding.message for finding in findings] == [True] * bool(message)
    assert [item.text for finding in findings for item in finding.fixes] == [fix] * bool(message)


@pytest.mark.parametrize(("more", "count"), [("", 1), ('arguments.dataset_kwargs = {"skip_prepare_dataset": True}', 0)])
def test_a_program_that_prepares_its_rows_does_not_pack_them(tmp_path: Path, more: str, count: int) -> None:
    program = (
        f"from trl import SFTConfig, SFTTrainer, TrlParser\narguments = TrlParser((SFTConfig,))\n{more}\nSFTTrainer()"
    )
    command = "accelerate launch train.py --packing true --output_dir o --per_device_train_batch_size 1"
    report = lint_text(tmp_path, program, command, "h100x8,trl=0.17.0,transformers=4.51.0")
    assert len([finding for finding in report.findings if "attend to each other" in finding.message]) == count


@pytest.mark.parametrize(
    ("path", "text", "count"),
    [
        ("src/sft.py", "", 1),
        ("src/sft.py", 'args.dataset_kwargs = {"skip_prepare_dataset": True}', 0),
        ("trl/trainer/sft_trainer.py", 'kwargs.get("skip_prepare_dataset")', 1),
    ],
    ids=["no script", "a script that prepares its rows", "the library"],
)
def test_a_script_of_the_tree_may_read_a_configuration(tmp_path: Path, path: str, text: str, count: int) -> None:
    keys = "model_name_or_path: m\npacking: true\nmax_seq_length: 9\ndataset_text_field: text\n"
    write_tree(tmp_path, {path: text, "configs/sft.yaml": keys})
    source = read_source(str(tmp_path / "configs/sft.yaml"))
    snapshot = apply_target(ENVIRONMENT, parse_target("h100x8,trl=0.17.0,transformers=4.51.0"))
    report = run.run(snapshot, Request((source,)), launches.read_model, launches.read_no_file)
    assert len([finding for finding in report.findings if "attend to each other" in finding.message]) == count


@pytest.mark.parametrize(
    ("more", "program", "claimed"),
    [
        ("", "import accelerate\n", True),
        ("with_tracking: true\n", "import accelerate\n", False),
        ("with_tracking: true\n", "import accelerate\nfrom trl import SFTTrainer\n", True),
        ("with_tracking: true\n", "", True),
    ],
    ids=["TRL's keys", "no program imports TRL", "a program imports TRL", "no program"],
)
def test_a_file_with_other_keys_may_be_that_of_a_program_of_the_tree(
    tmp_path: Path, more: str, program: str, claimed: bool
) -> None:
    keys = "model_name_or_path: m\nmax_seq_length: 9\nuse_peft: true\nper_device_train_batch_size: 1\n"
    write_tree(tmp_path, {"configs/sft.yaml": keys + more, **({"finetune.py": program} if program else {})})
    source = read_source(str(tmp_path / "configs/sft.yaml"))
    report = run.run(ENVIRONMENT, Request((source,)), launches.read_model, launches.read_no_file)
    assert bool(find_jobs(report)) == claimed


def test_a_program_that_does_not_exist_is_said(tmp_path: Path) -> None:
    text = "accelerate launch train_it.py --model_name_or_path m --output_dir o --per_device_train_batch_size 1"
    [launch] = launches_of(lint(write_tree(tmp_path, {"run.sh": text}))[1])
    assert "train_it.py: no such file here, so its options were read by their names" in launch.job.remarks


@pytest.mark.parametrize(
    ("program", "options", "claimed"),
    [
        ("dpo_mine.py", "--beta 0.1 --max_new_tokens 5 --sft_model_path m", False),
        ("mine_dpo.py", "--beta 0.1 --num_generations 4 --temperature 0.8 --learning_rate 1", False),
        ("mine.py", "--num_generations 4 --max_prompt_length 9 --learning_rate 1", False),
        ("dpo_mine.py", "--beta 0.1 --precompute_ref_log_probs", True),
        ("mine_dpo.py", "--beta 0.1 --precompute_ref_log_probs", True),
        ("mine_dpo.py", "--beta 0.1 --model_name_or_path m", True),
        ("mine.py", "--num_generations 4 --max_completion_length 9 --learning_rate 1", True),
    ],
)
def test_common_names_of_options_do_not_make_a_missing_program_trl(
    tmp_path: Path, program: str, options: str, claimed: bool
) -> None:
    report = lint(write_tree(tmp_path, {"run.sh": f"accelerate launch {program} {options}\n"}))[1]
    assert bool(launches_of(report)) is claimed


TRAINS = "from transformers import HfArgumentParser, Trainer, TrainingArguments\nTrainer(args=HfArgumentParser(A))\n"
LOOPS = "import torch\nloss = torch.ones(1, requires_grad=True)\nloss.backward()\n"


@pytest.mark.parametrize(
    ("name", "text", "remarks"),
    [
        ("train_online_dpo.py", TRAINS, ["was read instead"]),
        ("src/train_online_dpo.py", TRAINS, []),
        ("train.py", TRAINS, ["no such file"]),  # it may be another one
        ("train_online_dpo.py", LOOPS, None),
        ("train.py", LOOPS, ["no such file"]),
    ],
)
def test_a_script_of_another_folder_is_read_at_the_root(
    tmp_path: Path, name: str, text: str, remarks: list[str] | None
) -> None:
    options = "--output_dir o --per_device_train_batch_size 1 --model_name_or_path m"
    files = {"run.sh": f"accelerate launch src/{Path(name).name} {options}\n", name: text, ".git/HEAD": ""}
    linted = launches_of(lint(write_tree(tmp_path, files))[1])
    text = " ".join(remark for launch in linted for remark in launch.job.remarks)
    written = [mark for mark in ("was read instead", "no such file") if mark in text]
    assert (written if linted else None) == remarks


def test_a_module_that_deepspeed_starts_must_exist(tmp_path: Path) -> None:
    command = "deepspeed --module openrlhf.cli.{} --pretrain m --dataset d --loss_beta 1\n"
    tree = {name: text for name, text in ARGPARSE.items() if name != "run.sh"}
    for name, count in (("train_sft", 0), ("train_dpo", 1), ("train_rm", 1)):
        files = {**tree, "openrlhf/cli/train_dpo_mine.py": "", "run.sh": command.format(name)}
        report = lint(write_tree(tmp_path / name, files))[1]
        assert len([item for item in report.findings if "no such module" in item.message]) == count, name


def test_nothing_else_is_said_of_a_module_that_does_not_exist(tmp_path: Path) -> None:
    command = "python3 -m verl.trainer.main_grpo trainer.n_gpus_per_node=1 actor_rollout_ref.actor.epochs=1\n"
    files = {"verl/__init__.py": "", "verl/trainer/__init__.py": "", "verl/trainer/main_ppo.py": "", "run.sh": command}
    report = lint(write_tree(tmp_path, files), "0.6.1")[1]
    [launch] = launches_of(report)
    [finding] = [item for item in report.findings if item.severity != "note"]
    assert (launch.job.framework, finding.severity) == ("verl", "error") and "no such module" in finding.message


@pytest.mark.parametrize(
    ("module", "more", "expected"),
    [
        ("llamafactory.cli.train", {"llamafactory/__init__.py": "", "llamafactory/cli.py": ""}, ["error"]),
        ("llamafactory.cli.train", {"llamafactory/__init__.py": "", "llamafactory/cli/train_ray.py": ""}, ["error"]),
        ("llamafactory.cli.train", {}, []),  # the package is not found, so nothing is proven
        ("llamafactory.cli.train", {"llamafactory/__init__.py": "__path__ += p\n"}, []),
        ("llamafactory.cli.train", {"llamafactory/__init__.py": "", "llamafactory/cli/train.so": ""}, []),
        ("llamafactory.launcher", {"llamafactory/__init__.py": "", "llamafactory/launcher.py": ""}, []),
        ("llamafactory.cli.train", {"llamafactory/__init__.py": "", "before": "cd $HERE\n"}, []),
        ("llamafactory.cli.train", {"llamafactory/__init__.py": "", "before": "cd elsewhere\n"}, []),
        ("llamafactory.cli.train", {"llamafactory/__init__.py": "", "before": "export PYTHONPATH=$HERE\n"}, []),
        ("llamafactory.launcher", {"src/llamafactory/__init__.py": "", "src/llamafactory/cli.py": ""}, ["error"]),
    ],
)
def test_a_module_that_its_package_does_not_have(
    tmp_path: Path, module: str, more: dict[str, str], expected: list[str]
) -> None:
    options = "--model_name_or_path m --stage sft --output_dir o --dataset d --template default --flashattn x"
    before = more.get("before", "")
    files = {"run.sh": f"{before}torchrun --nproc_per_node 2 -m {module} {options}\n", ".git/HEAD": "", **more}
    report = lint(write_tree(tmp_path, files))[1]
    [launch] = launches_of(report)
    assert launch.job.framework == "llamafactory"
    assert [item.severity for item in report.findings or () if "no such module" in item.message] == expected
    is_missing = any("no such file" in remark for remark in launch.job.remarks)
    assert is_missing is (not any(name.endswith("launcher.py") for name in more))
    assert not launch.job.unknown_settings or "error" not in expected


FROM_FILE = """
from argparse import ArgumentParser
from transformers import HfArgumentParser, Trainer, TrainingArguments
parser = ArgumentParser()
parser.add_argument("--train_args_file")
parser.add_argument("--other_file")
args = parser.parse_args()
file = args.train_args_file
HfArgumentParser(TrainingArguments).{0}(file)
Trainer().train()
"""


@pytest.mark.parametrize(
    ("parse", "file"), [("parse_json_file", "a.json"), ("parse_yaml_file", "a.yaml"), ("parse_dict", "a.json")]
)
def test_a_file_that_the_program_parses_has_its_arguments(tmp_path: Path, parse: str, file: str) -> None:
    (tmp_path / file).write_text('{"output_dir": "o", "bf16": true, "gradient_accumulation_steps": 4}')
    for option, expected in (("train_args_file", 4), ("other_file", 1)):
        command = f"torchrun --nproc_per_node 8 train.py --{option} {file}"
        report = lint_text(tmp_path, FROM_FILE.replace("{0}", parse), command, "h100x8,transformers=4.40.2")
        assert [launch.job.plan.accumulation for launch in launches_of(report)] == [expected]
        assert ("ATN429" in {finding.code for finding in report.findings}) == (expected > 1)


@pytest.mark.parametrize(
    ("files", "severity"),
    [
        ({"train.py": "import trl, SFTTrainer"}, "note"),
        ({"train.py": "import trl, SFTTrainer", "b.sh": "python train.py --config a/a.yaml"}, "warning"),
        ({"train.py": "import trl, SFTTrainer", "b.sh": "python train.py --config a/$1/b_$NAME.yaml"}, "warning"),
        ({"README.md": "trl sft --config b.yaml"}, "warning"),  # no program is here
    ],
)
def test_a_file_that_nothing_in_its_tree_names_is_only_noted(
    tmp_path: Path, files: dict[str, str], severity: str
) -> None:
    keys = "packing: true\nmax_seq_length: 4096\nmodel_name_or_path: m\nlearning_rate: 1.0e-05\noutput_dir: o\n"
    source = read_source(
        str(write_tree(tmp_path, {**files, "run.sh": "", "a.yaml": keys, ".git/HEAD": ""}).parent / "a.yaml")
    )
    snapshot = apply_target(ENVIRONMENT, parse_target("h100x8,trl=0.16.0,transformers=4.49.0"))
    report = run.run(snapshot, Request((source,)), launches.read_model, make_file_reader((source,)))
    assert [finding.severity for finding in report.findings if finding.code == "ATN444"] == [severity]


CHANGES = """
from trl import GRPOConfig, GRPOTrainer, TrlParser
(training_args,) = TrlParser((GRPOConfig,)).parse_args_and_config()
{0}
GRPOTrainer(model="m", args=training_args).train()
"""


@pytest.mark.parametrize(
    ("line", "count"),
    [
        ("training_args.per_device_train_batch_size *= 32", 0),
        ("training_args.per_device_train_batch_size = training_args.per_device_train_batch_size * n", 0),
        ("n = training_args.per_device_train_batch_size * 2", 1),
        ("training_args.seed += 1", 1),
    ],
)
@pytest.mark.parametrize("written", ["--per_device_train_batch_size 1", "--per_device_train_batch_size=1", "a.yaml"])
def test_an_option_that_the_program_changes_has_no_known_value(
    tmp_path: Path, line: str, count: int, written: str
) -> None:
    (tmp_path / "a.yaml").write_text("per_device_train_batch_size: 1\n")
    option = f"--config {written}" if written == "a.yaml" else written
    command = f"torchrun --nproc_per_node 2 train.py {option} --num_generations 4"
    report = lint_text(tmp_path, CHANGES.replace("{0}", line), command, "h100x8,trl=0.16.0,transformers=4.49.0")
    assert sum("is not a multiple of" in finding.message for finding in report.findings) == count


@pytest.mark.parametrize(("path", "batch"), [("$BASE/conf/a.yaml", 4), ("$BASE/conf/b.yaml", 8), ("$BASE/a.yaml", 8)])
def test_a_file_below_an_unknown_folder_is_the_tree_s(tmp_path: Path, path: str, batch: int) -> None:
    write_tree(tmp_path, {"conf/a.yaml": "per_device_train_batch_size: 4\n", "run.sh": "", ".git/HEAD": ""})
    report = lint_text(tmp_path, CHANGES.replace("{0}", ""), f"python train.py --config {path}")
    assert [launch.job.plan.batch for launch in launches_of(report)] == [batch]


def test_a_file_of_a_trainer_that_no_program_of_its_tree_uses_is_no_launch(tmp_path: Path) -> None:
    keys = "packing: true\nmax_seq_length: 4096\nmodel_name_or_path: m\nlearning_rate: 1.0e-05\noutput_dir: o\n"
    for name, counted in (("GRPO", 0), ("SFT", 1)):
        write_tree(tmp_path, {"train.py": f"from trl import {name}Trainer\n", "a.yaml": keys, ".git/HEAD": ""})
        may_contain.cache_clear()
        source = read_source(str(tmp_path / "a.yaml"))
        report = run.run(ENVIRONMENT, Request((source,)), launches.read_model, make_file_reader((source,)))
        assert len(launches_of(report)) == counted


def test_a_program_that_was_not_read_and_cuts_rows_into_blocks_is_not_said_to_average(tmp_path: Path) -> None:
    command = "torchrun run_clm.py --output_dir o --per_device_train_batch_size 2 --gradient_accumulation_steps 4"
    for option, is_said in (("--block_size 512", False), ("--max_seq_length 512", True)):
        report = lint_text(tmp_path, "", f"{command} {option}", "h100x8,transformers=4.40.2")
        assert ("ATN429" in {finding.code for finding in report.findings}) == is_said


TITAN = "from transformers import AutoModelForCausalLM\nimport torchtitan.parts\ntorchtitan.parts.make()\n{0}"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("AutoModelForCausalLM.from_pretrained(name, attn_implementation='eager')", "eager"),
        ("AutoModelForCausalLM.from_pretrained(name)", "sdpa"),
    ],
)
def test_a_fork_of_torchtitan_may_fix_its_attention(tmp_path: Path, text: str, expected: str) -> None:
    write_tree(tmp_path, {"torchtitan/__init__.py": "", "torchtitan/parts.py": "def make():\n    pass\n"})
    write_tree(tmp_path, {"torchtitan/train.py": TITAN.replace("{0}", text)})
    report = lint_text(tmp_path, "", "torchrun --nproc_per_node 8 -m torchtitan.train --training.seq_len 8")
    assert [launch.job.plan.attn_implementation for launch in launches_of(report)] == [expected]


SWIFT = {
    "swift/__init__.py": "",
    "swift/version.py": "__version__ = '3.12.0.dev0'\n",
    "swift/llm/__init__.py": "",
    "swift/llm/argument/__init__.py": "",
    "swift/llm/argument/train_args.py": """
        from dataclasses import dataclass

        @dataclass
        class TrainArguments:
            model: str = ""
            output_dir: str = ""
            ignore_args_error: bool = False
        """,
    "swift/megatron/__init__.py": "",
    "swift/megatron/argument/__init__.py": "",
    "swift/megatron/argument/train_args.py": """
        from dataclasses import dataclass
        from swift.llm.argument.train_args import TrainArguments

        @dataclass
        class MegatronTrainArguments(TrainArguments):
            micro_batch_size: int = 1
        """,
    "swift/megatron/argument/rlhf_args.py": """
        from dataclasses import dataclass
        from .train_args import MegatronTrainArguments

        @dataclass
        class MegatronRLHFArguments(MegatronTrainArguments):
            rlhf_type: str = "dpo"
        """,
    "run.sh": "{} --model m --output_dir o\n",
}


@pytest.mark.parametrize(
    ("command", "count"),
    [
        ("swift sft --config x.yaml", 0),
        ("swift sft --configs x.yaml", 1),
        ("swift sft --ignore_args_error true --configs x.yaml", 0),  # a warning of ms-swift's
        ("megatron sft --micro_batch_size 1", 0),
        ("megatron sft --micro_batch 1", 0),  # argparse completes it
        ("megatron sft --micro_batch_size 1 --no_initialization true", 1),
        ("megatron sft --ignore_args_error true --no_initialization true", 0),
        ("megatron export --no_initialization true", 0),
        ("megatron rlhf --config x.yaml", 1),
        ("megatron rlhf --use_ray true --config x.yaml", 0),
    ],
)
def test_what_no_argument_class_of_ms_swift_takes_is_refused(tmp_path: Path, command: str, count: int) -> None:
    source = read_source(str(write_tree(tmp_path, SWIFT, command)))
    snapshot = apply_target(ENVIRONMENT, parse_target("h100x8"))
    request = Request((source,), stated="missing")
    report = run.run(snapshot, request, launches.read_model, make_file_reader((source,)))
    assert len([finding for finding in report.findings if finding.code == "ATN440"]) == count


@pytest.mark.parametrize(("option", "errors"), [("--own_option", 0), ("--nested 1", 0), ("--alpha_loss 1", 1)])
def test_a_tree_in_another_tree_has_its_own_program_and_version(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, option: str, errors: int
) -> None:
    inner = "third_party/a/b/other"  # with the script's folders, deeper than the search for a repository goes
    script = {"examples/sft/run.sh": ARGPARSE["run.sh"].format(option), "version.txt": "0.6.0"}
    more = ARGPARSE["openrlhf/options.py"] + '    parser.add_argument("--nested")\n'
    tree = ARGPARSE | script | {"openrlhf/options.py": more}
    write_tree(tmp_path, {**ARGPARSE, "version.txt": "0.9.0", **{f"{inner}/{name}": tree[name] for name in tree}})
    monkeypatch.chdir(tmp_path)
    source = read_source(f"{inner}/examples/sft/run.sh")
    snapshot = apply_target(ENVIRONMENT, parse_target("h100x8"))
    request = Request((source,), stated="missing")
    report = run.run(snapshot, request, launches.read_model, make_file_reader((source,)))
    [launch] = launches_of(report)
    assert launch.job.version == "0.6.0"
    assert len([finding for finding in report.findings if finding.code == "ATN440"]) == errors


def test_a_file_is_found_from_any_folder_up_to_the_repository(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """LLaMA-Factory's own examples name `examples/deepspeed/…`: it is started from its folder."""
    text = "model_name_or_path: m\nstage: sft\ndo_train: true\nfinetuning_type: full\noutput_dir: o\nbf16: true\n"
    write_tree(tmp_path, {"fork/examples/full/a.yaml": text + "deepspeed: examples/ds.json\n"})
    write_tree(tmp_path, {"fork/examples/full/b.yaml": text + "deepspeed: examples/none.json\n"})
    (tmp_path / "fork/examples/ds.json").write_text('{"bf16": {"enabled": "auto"}, "zero_optimization": {"stage": 3}}')
    monkeypatch.chdir(tmp_path)
    for name, expected in (("a", "bf16"), ("b", "autocast")):
        source = read_source(f"fork/examples/full/{name}.yaml")
        request = Request((source,))
        make_reader = make_readers(Inputs((source,)))
        report = run.run(ENVIRONMENT, request, launches.read_model, make_reader(source), make_reader)
        assert [launch.job.plan.precision for launch in launches_of(report)] == [expected]


@pytest.mark.parametrize(("module", "count"), [("train_sft", 1), ("train_mine_ray", 0)])
def test_what_a_trainer_of_no_release_does_with_its_batches_is_not_known(
    tmp_path: Path, module: str, count: int
) -> None:
    command = (
        f"deepspeed --num_gpus 1 --module openrlhf.cli.{module} --zero_stage 2 --adam_offload --pretrain m --dataset d "
        "--micro_train_batch_size 8 --train_batch_size 64"
    )
    report = lint_text(tmp_path, "", command, "h100x8,openrlhf=0.8.9,deepspeed=0.17.4,transformers=4.54.1")
    assert len([finding for finding in report.findings if finding.code == "ATN444"]) == count
    [launch] = launches_of(report)
    assert ("accumulation" in launch.job.unknown) == (not count)


@pytest.mark.parametrize(
    ("base", "engine", "method", "trainer"),
    [
        ("verl.trainer.sft_trainer import SFTTrainer", "engine=megatron", "fit", "sft"),
        ("verl.trainer.sft_trainer import SFTTrainer", "", "fit", "sft"),
        ("verl.trainer.sft_trainer import SFTTrainer", "", "forward", ""),
        ("verl.trainer.ppo.core_algos import kl_penalty as SFTTrainer", "", "fit", ""),
    ],
)
def test_a_program_on_verl_s_fine_tuning_trainer(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, base: str, engine: str, method: str, trainer: str
) -> None:
    program = (
        f"import hydra\nfrom {base}\n\nclass Own(SFTTrainer):\n    pass\n\n"
        "@hydra.main(config_path='config', config_name='own', version_base=None)\n"
        f"def main(config):\n    Own(config).{method}()\n\nmain()\n"
    )
    text = f"torchrun --nproc_per_node 8 -m scripts.own_training data.train_batch_size=32 model.path=m {engine}\n"
    for name, content in {"scripts/own_training.py": program, "scripts/__init__.py": "", "run.sh": text}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(content)
    monkeypatch.chdir(tmp_path)
    source = read_source("run.sh")
    request = Request((source,), skip_unknown=True)
    found = launches_of(run.run(ENVIRONMENT, request, launches.read_model, make_file_reader((source,))))
    assert [launch.job.trainer for launch in found] == ([trainer] if trainer else [])
    if trainer:
        attention = "transformer_engine" if engine else "flash_attention_2"
        assert found[0].job.plan.attn_implementation == attention


@pytest.mark.parametrize(
    ("more", "near"),
    [("data.own_keys=5", "data.own_key"), ("data.max_prompt_lengths=5", "data.max_prompt_length")],
)
def test_a_name_that_the_launch_sets_itself_is_not_the_one_it_meant(tmp_path: Path, more: str, near: str) -> None:
    [finding], _ = lint(write_tree(tmp_path, HYDRA, more), "0.5.0")
    is_set = near == "data.own_key"
    assert finding.severity == "error" and (f"mean {near}?" in finding.message) is not is_set
    (fix,) = finding.fixes
    assert fix.text == near or (is_set and fix.kind == "advice" and fix.title == "leave it out")


@pytest.mark.parametrize(
    ("body", "title"),
    [
        ("config.data.get('own_keys')", "the program reads it (verl/trainer/main_ppo.py:6)"),
        ("print(config.data.own_keys)", "the program reads it (verl/trainer/main_ppo.py:6)"),
        ("print(config.own_keys)", "if the program's own code reads it"),  # perhaps of another table
        ("pass", "leave it out"),
    ],
)
def test_plus_is_a_fix_of_a_key_that_the_program_reads(tmp_path: Path, body: str, title: str) -> None:
    program = HYDRA["verl/trainer/main_ppo.py"].replace("pass", body)
    tree = {**HYDRA, "verl/trainer/main_ppo.py": program}
    [finding], _ = lint(write_tree(tmp_path, tree, "data.own_keys=5"), "0.5.0")
    assert finding.severity == "error" and [fix.title for fix in finding.fixes] == [title]


OWN_VERL = "data:\n  train_batch_size: 128\nalgorithm:\n  adv_estimator: grpo\n"


@pytest.mark.parametrize(
    ("config", "more", "count"),
    [
        (OWN_VERL, "", 1),
        (f"defaults:\n  - ppo_trainer\n  - _self_\n{OWN_VERL}", "", 0),
        (f"{OWN_VERL}critic:\n  strategy: fsdp\n", "", 0),
        (OWN_VERL, " +ray_kwargs.ray_init.num_cpus=8", 0),
    ],
)
def test_a_configuration_without_defaults_lacks_the_tables_that_verl_reads(
    tmp_path: Path, config: str, more: str, count: int
) -> None:
    write_tree(tmp_path, {"configs/own.yaml": config, ".git/HEAD": ""})
    folder = f"{tmp_path}/configs"
    command = f"python3 -m verl.trainer.main_ppo --config-path {folder} --config-name own data.train_batch_size=8{more}"
    report = lint_text(tmp_path, "", command, "h100x8")
    messages = [finding.message for finding in report.findings if finding.severity == "error"]
    assert len([message for message in messages if "configs/own.yaml" in message]) == count


FACTORY_FILE = "model_name_or_path: m\nstage: dpo\nfinetuning_type: lora\ndataset: d\ntemplate: qwen\noutput_dir: o\n"


OWN_CONFIGURATION = """
    import hydra

    @hydra.main(config_path="/home/me/configs", config_name="{}", version_base=None)
    def main(config):
        run_ppo(config)

    if __name__ == "__main__":
        main()
"""


@pytest.mark.parametrize(
    ("name", "file", "is_said"),
    [
        ("ppo_trainer", "", True),
        ("own_ppo", "", False),
        ("own_ppo", "actor_rollout_ref: {actor: {use_dynamic_bsz: true}}", False),
        ("own_ppo", "actor_rollout_ref: {actor: {use_dynamic_bsz: false}}", True),
    ],
)
def test_the_configuration_that_the_tree_s_copy_of_verl_names_decides(
    tmp_path: Path, name: str, file: str, is_said: bool
) -> None:
    command = "python3 -m verl.trainer.main_ppo algorithm.adv_estimator=grpo actor_rollout_ref.model.path=m"
    files = {
        "verl/__init__.py": "",
        "verl/trainer/__init__.py": "",
        "verl/version/version": "0.5.0",
        "verl/trainer/main_ppo.py": OWN_CONFIGURATION.format(name),
        "run.sh": f"{command}\n",
    }
    script = write_tree(tmp_path, {**files, **({f"configs/{name}.yaml": file} if file else {})})
    report = lint(script)[1]
    assert any("are both unset" in finding.message for finding in report.findings) is is_said


@pytest.mark.parametrize(
    ("keys", "count"),
    [
        ("", 1),
        ("my_prompt_length: 512\n", 1),
        ("pref_bet: 0.1\ncutof_len: 512\n", 1),  # misspelled
        ("my_prompt_length: 512\nmy_rows: 3\n", 0),
        ("my_trainer:\n  backend: accelerate\n", 0),
    ],
)
def test_a_file_whose_keys_llamafactory_refuses_is_another_program_s(tmp_path: Path, keys: str, count: int) -> None:
    write_tree(tmp_path, {"a.yaml": FACTORY_FILE + keys, "requirements.txt": "llamafactory==0.9.1\n"})
    source = read_source(str(tmp_path / "a.yaml"))
    request = Request((source,), stated="all")
    report = run.run(ENVIRONMENT, request, launches.read_model, make_file_reader((source,)))
    assert len(launches_of(report)) == count
    assert len([finding for finding in report.findings if finding.code == "ATN445"]) == count


@pytest.mark.parametrize(
    ("key", "parent", "count"), [("", "", 1), ("_base_", "", 0), ("_base_", "do_train: true\n", 0)]
)
def test_what_a_merged_file_may_set_is_not_missing(tmp_path: Path, key: str, parent: str, count: int) -> None:
    named = f"{key}: [./base.yaml]\n" if key else ""
    script = write_tree(
        tmp_path, {"run.sh": "", "a.yaml": named + FACTORY_FILE, **({"base.yaml": parent} if parent else {})}
    )
    report = lint(script.parent / "a.yaml")[1]
    assert len([finding for finding in report.findings if finding.code == "ATN445"]) == count


AXOLOTL = "base_model: m\nsequence_len: 2048\nsample_packing: true\ndatasets:\n  - path: d\n    type: alpaca\n"


@pytest.mark.parametrize(("more", "count"), [("", 1), ("is_llama_derived_model: true\n", 0)])
def test_a_release_before_the_oldest_known_one_may_separate_documents(tmp_path: Path, more: str, count: int) -> None:
    script = write_tree(tmp_path, {"run.sh": "", "a.yaml": AXOLOTL + more})
    report = lint(script.parent / "a.yaml")[1]
    assert len([finding for finding in report.findings if finding.code == "ATN444"]) == count


@pytest.mark.parametrize(
    ("options", "count"),
    [("--zero_stage 2moe", 1), ("--zero_stage 2moe --own_optimizer a", 0)],
)
def test_a_value_is_not_refused_where_a_fork_has_names_of_its_own(tmp_path: Path, options: str, count: int) -> None:
    command = f"deepspeed --module openrlhf.cli.train_sft --pretrain m --dataset d --max_len 8192 {options}\n"
    report = lint_text(tmp_path, "", command, "h100x8")
    assert len([finding for finding in report.findings if "--zero_stage" in finding.message]) == count


@pytest.mark.parametrize(("package", "count"), [("verl", 1), ("other", 0)])
def test_a_copy_of_verl_s_fine_tuning_trainer_is_recognised(tmp_path: Path, package: str, count: int) -> None:
    program = f"from {package}.utils.dataset import SFTDataset\nclass FSDPSFTTrainer:\n    def fit(self): ...\n"
    keys = "model.partial_pretrain=m data.micro_batch_size_per_gpu=4 data.train_batch_size=256"
    report = lint_text(tmp_path, program, f"torchrun --nproc_per_node=8 train.py {keys}\n", "h100x8")
    assert [launch.job.trainer for launch in launches_of(report)] == ["sft"] * count


PADDED_PROGRAM = """
from trl import SFTConfig, SFTTrainer
from transformers import AutoTokenizer
tokenizer = AutoTokenizer.from_pretrained("m")
LINE
trainer = SFTTrainer(model="m", args=SFTConfig(output_dir="o"), tokenizer=tokenizer, train_dataset=rows()MORE)
trainer.train()
"""
PADS = "tokenizer.pad_token = tokenizer.eos_token"


@pytest.mark.parametrize(
    ("line", "more", "version", "count"),
    [
        (PADS, "", "0.12.2", 1),
        (PADS, "", "0.17.0", 0),
        (PADS, ", data_collator=own", "0.12.2", 0),
        (f"if tokenizer.pad_token is None:\n    {PADS}", "", "0.12.2", 0),
        (f'{PADS}\ntokenizer.pad_token = "<pad>"', "", "0.12.2", 0),
    ],
)
def test_an_end_that_pads_has_no_loss(tmp_path: Path, line: str, more: str, version: str, count: int) -> None:
    program = PADDED_PROGRAM.replace("LINE", line).replace("MORE", more)
    report = lint_text(tmp_path, program, "python train.py\n", f"h100x8,trl={version},transformers=4.46.3")
    assert len([finding for finding in report.findings if "eos_token gets no loss" in finding.message]) == count


@pytest.mark.parametrize("prefix", ["debugpy --listen 5678 --wait-for-client", "pdb", "cProfile -o p", "coverage run"])
def test_a_debugger_runs_the_program_behind_it(tmp_path: Path, prefix: str) -> None:
    report = lint_text(tmp_path, "from trl import SFTTrainer\nSFTTrainer()\n", f"python -m {prefix} train.py --bf16 1")
    assert find_jobs(report) == ["trl sft"]


@pytest.mark.parametrize(("last", "count"), [("--vllm_num_engines 2", 0), ("--max_epochs 1", 1)])
def test_a_variable_that_branches_set_is_each_of_its_values(tmp_path: Path, last: str, count: int) -> None:
    branches = f'if [ "$1" = 1 ]; then S="{last}"; elif [ "$1" = 2 ]; then S="{last} --bf16"; else exit 1; fi\n'
    command = "python3 -m openrlhf.cli.train_ppo_ray $S --packing_samples --flash_attn --pretrain m --prompt_data d"
    report = lint_text(tmp_path, "", f"{branches}{command} --remote_rm_url u", "h100x8,openrlhf=0.5.8")
    assert sum("without --vllm_num_engines" in finding.message for finding in report.findings) == count

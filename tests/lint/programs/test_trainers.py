"""Whose launch it is: what the program uses decides, not its name and not one of its options."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest

from attncheck.core.launch import Launch, Setting, SourceLocation
from attncheck.core.results.lint import launches_of
from attncheck.lint import frameworks, launches, run
from attncheck.lint.context import Request
from attncheck.lint.inputs import Inputs, make_file_reader, make_readers
from attncheck.lint.own_attention import add_fixed_arguments
from attncheck.lint.sources import read_source
from attncheck.lint.training_scripts import find_missing_script
from attncheck.lint.unknown_values import find_unknown_parts, list_alternatives
from tests import snapshots as s
from tests.lint.launches import read_model
from tests.lint.programs.trees import write_tree

HF_PARSER = "HfArgumentParser((TrainingArguments,)).parse_args_into_dataclasses()\n"
TWO_TRAINERS = "from trl import GRPOTrainer, SFTTrainer\nGRPOTrainer()\nSFTTrainer()"
OWN_LOSS = "class Mine(Trainer):\n    def compute_loss(self):\n        pass\nMine()"
OPTIONS = "--output_dir o --per_device_train_batch_size 1"
TRL_MAIN = (
    "from trl import ModelConfig, {0}Config, {0}Trainer, TrlParser\n"
    "TrlParser(({0}Config, ModelConfig)).parse_args_and_config()\n"
    "{0}Trainer()\n"
)
FLAGS = (
    "import argparse\nfrom trl import DPOTrainer, SFTTrainer\n"
    "def main():\n"
    "    args = argparse.ArgumentParser()\n"
    "    args.add_argument('--sft-only', action='store_true')\n"
    "    args.add_argument('--stage', default='dpo')\n"
    "    args = args.parse_args()\n"
    "    only = getattr(args, 'sft_only', False)\n"
    "    if {}:\n        SFTTrainer().train()\n        return\n"
    "    DPOTrainer().train()\n"
    "main()\n"
)
HELPERS = (
    "def loop(loss):\n    loss.backward()\ndef read():\n    pass\n"
    "def other():\n    from trl import PPOTrainer\n    PPOTrainer()\n"
)
STARTS = "def run(trainer):\n    trainer.train()\n"
OWN_LOOP = "def train(loss):\n    loss.backward()\n"
TRAINER = "from transformers import HfArgumentParser, Trainer, TrainingArguments\n"
MCORE = TRAINER + "from mcore_adapter.trainer import {0}\n" + HF_PARSER + "{0}().train()\n"


def read_tree(folder: Path, files: dict[str, str], command: str) -> list[Launch]:
    """Return the launches of a script alongside a program."""
    write_tree(folder, {**files, "run.sh": command + "\n", ".git/HEAD": ""})
    source = read_source(str(folder / "run.sh"))
    return launches.find_launches(source, make_file_reader((source,)))


def name_trainers(launch: Launch) -> str:
    """Return the framework that takes a launch first, with its trainer; "" if none does."""
    names = (f"{known.name} {known.trainer(launch)}" for known in frameworks.load() if known.trainer(launch))
    return next(names, "")


COPY = "def get_strategy(args):\n    return DeepspeedStrategy(args)\n"  # openrlhf 0.11.2 utils/utils.py
OTHER = "def get_strategy(args):\n    return Strategy(args)\n"


@pytest.mark.parametrize(
    ("files", "command", "expected"),
    [
        ({"src/sft_train.py": OWN_LOOP}, "python -m src.sft_train --config c.yaml --model_name_or_path m", ""),
        ({"llm_sft.py": TRAINER + HF_PARSER + "Trainer()"}, f"torchrun llm_sft.py {OPTIONS}", "transformers trainer"),
        (
            {"src/train.py": TRAINER + HF_PARSER + "class Mine(Trainer):\n    pass\nMine()"},
            f"torchrun src/train.py --lora_rank 64 --lora_alpha 128 {OPTIONS}",
            "transformers trainer",
        ),
        (
            {
                "train.py": TRAINER
                + HF_PARSER
                + "class Mine(Trainer):\n    def compute_loss(self):\n        pass\nMine()"
            },
            f"torchrun train.py {OPTIONS}",
            "transformers trainer with its own loss",
        ),
        *(
            (
                {"train.py": TRAINER + HF_PARSER + OWN_LOSS.replace("compute_loss", "train").replace("pass", body)},
                f"torchrun train.py {OPTIONS}",
                f"transformers trainer{own}",
            )
            for body, own in (("backward()", " with its own loss"), ("super().train()", ""))
        ),
        (
            {
                "script/rm/rm.py": 'import sys\nsys.path.append("..")\nfrom utils.trainer import Mine\n'
                + TRAINER
                + HF_PARSER
                + "Mine()",
                "script/utils/trainer.py": f"from transformers import Trainer\n{OWN_LOSS}",
            },
            f"cd script/rm && torchrun rm.py {OPTIONS}",
            "transformers trainer with its own loss",
        ),
        ({"train.py": TRL_MAIN.format("SFT")}, f"accelerate launch train.py {OPTIONS} --packing", "trl sft"),
        ({"train.py": TWO_TRAINERS}, f"accelerate launch train.py {OPTIONS} --objective GRPO_BNPO", "trl grpo"),
        ({"train.py": TWO_TRAINERS}, f"accelerate launch train.py {OPTIONS} --objective sft_then_grpo", ""),
        (
            {"train_dpo.py": "from openrlhf.trainer import DPOTrainer\nDPOTrainer()"},
            "deepspeed train_dpo.py",
            "openrlhf dpo",
        ),
        ({"train_dpo.py": "from mine import DPOTrainer\nDPOTrainer()"}, "deepspeed train_dpo.py", ""),
        ({"src/train.py": TRL_MAIN.format("GRPO")}, "torchrun src/train.py --model m", "trl grpo"),
        ({"e.py": TRAINER + HF_PARSER + "Trainer().evaluate()"}, f"torchrun e.py {OPTIONS}", ""),
        (
            {"e.py": TRAINER + HF_PARSER + "t = Trainer()\nt.train()\nt.evaluate()"},
            f"torchrun e.py {OPTIONS}",
            "transformers trainer",
        ),
        (
            {"e.py": "from mine import run\n" + TRAINER + "t = Trainer()\nrun(t)\nt.evaluate()", "mine.py": STARTS},
            f"torchrun e.py {OPTIONS}",
            "transformers trainer",
        ),
        ({"e.py": MCORE.format("McaTrainer")}, f"torchrun e.py {OPTIONS}", ""),
        (
            {"e.py": MCORE.format("McaTrainer"), "mcore_adapter/trainer.py": TRAINER + "class McaTrainer(Trainer): 0"},
            f"torchrun e.py {OPTIONS}",
            "",
        ),
        (
            {"train.py": "from mine import fit\nfit()", "mine.py": TRL_MAIN.format("DPO")},
            f"python train.py {OPTIONS}",
            "trl dpo",
        ),
        (
            {"rlhf_ds.py": "from swift.llm import rlhf_main\nrlhf_main()"},
            "torchrun rlhf_ds.py --rlhf_type grpo --model m",
            "ms-swift grpo",
        ),
        (
            {
                "infer.py": "from swift.llm import PtEngine\nPtEngine().infer()",
                "swift/__init__.py": "",
                "swift/llm/__init__.py": "from swift.llm.train import SwiftSft\nclass PtEngine: 0",
                "swift/llm/train.py": "class SwiftSft: 0\ndef sft_main(): return SwiftSft().main()",
            },
            "python infer.py --model m --question-file q",
            "",  # the package trains, the program does not
        ),
        ({"i.py": "from swift.llm import InferArguments\nInferArguments()"}, "python i.py --model m", ""),
        (
            {"train_async.py": "from slime.utils.arguments import parse_args\nparse_args()"},
            "python train_async.py --tensor-model-parallel-size 2 --num-layers 28 --seq-length 8 --micro-batch-size 1",
            "",
        ),
        (
            {"train.py": "from megatron.training import pretrain\npretrain()"},
            "torchrun train.py --tensor-model-parallel-size 2 --num-layers 28",
            "megatron pretrain",
        ),
        (  # Megatron-Bridge takes its settings from recipes
            {"train.py": "from megatron.bridge.training.pretrain import pretrain\npretrain()"},
            "torchrun train.py",
            "",
        ),
        (
            {"train.py": TRAINER + HF_PARSER + OWN_LOOP},
            f"torchrun train.py {OPTIONS}",
            "transformers loop",  # its options, and none of what the Trainer does
        ),
        ({"train.py": TRAINER + HF_PARSER + OWN_LOOP + "train(model.generate())"}, f"torchrun train.py {OPTIONS}", ""),
        (
            {"train.py": "from unsloth import FastLanguageModel\n" + TRL_MAIN.format("SFT")},
            "python train.py",
            "trl sft",
        ),
        ({"eval.py": TRAINER + HF_PARSER + "model.generate()"}, f"torchrun eval.py {OPTIONS}", ""),
        (
            {
                "eval.py": TRAINER + HF_PARSER + "from mine import Mine\ndef keep(trainer: Trainer): pass\n",
                "mine.py": TRAINER + "class Mine(Trainer):\n    def step(self):\n        super(Mine, self).step()\n",
            },
            f"torchrun eval.py {OPTIONS}",
            "",  # the class is imported and never made
        ),
        (
            {"train.py": TRAINER + HF_PARSER + "from trainers import train\ntrain()"},
            f"torchrun train.py {OPTIONS}",
            "transformers loop",  # what trains is elsewhere
        ),
        (
            {
                "train.py": TRAINER + HF_PARSER + "from mine import Mine\nMine().train()",
                "mine.py": TRAINER + "class Mine(Trainer):\n    pass\n",
            },
            f"torchrun train.py {OPTIONS}",
            "transformers trainer",
        ),
        (  # an evaluation: an annotation, and arguments that no trainer gets
            {
                "eval.py": TRAINER
                + "def save(trainer: Trainer, args: TrainingArguments) -> Trainer:\n    pass\nsave(a)\n"
            },
            "python eval.py --output_dir o --per_device_eval_batch_size 1",
            "",
        ),
        (
            {
                "infer.py": TRAINER
                + "import argparse\nargparse.ArgumentParser().add_argument('--m')\nTrainingArguments()\n"
            },
            f"python infer.py {OPTIONS}",
            "",
        ),
        (
            {"train/train_sft.py": "from openrlhf.utils import get_strategy\nget_strategy()\n" + OWN_LOOP},
            "deepspeed --module train.train_sft --max_len 8",
            "openrlhf sft",
        ),
        (
            {"src/cli/train_ppo_ray.py": "from src.utils import get_strategy\nget_strategy()\n", "src/utils.py": COPY},
            "ray job submit -- python3 -m src.cli.train_ppo_ray --zero_stage 3",
            "openrlhf ppo",
        ),
        (
            {"src/cli/train_sft.py": f"from src.utils import get_strategy\n{OWN_LOOP}", "src/utils.py": OTHER},
            "python3 -m src.cli.train_sft --zero_stage 3",
            "",
        ),
        (
            {
                "train.py": "from torchtitan.config_manager import JobConfig\nJobConfig()\n"
                'print(f"cuda:{x["rank"]} {y} {x["other"]}")\n',  # of Python 3.12
                "torchtitan/config_manager.py": "class JobConfig:\n    pass\n",
            },
            "torchrun ./train.py --job.config_file missing.toml",
            "torchtitan pretrain",
        ),
        ({"train.py": FLAGS.format("only")}, "python train.py --sft-only", "trl sft"),
        ({"train.py": FLAGS.format("only")}, "python train.py", "trl dpo"),
        ({"train.py": FLAGS.format("not only")}, "python train.py --sft-only", "trl dpo"),
        ({"train.py": FLAGS.format("args.stage == 'sft' or only")}, "python train.py --stage sft", "trl sft"),
        ({"train.py": FLAGS.format("args.stage == 'sft' or only")}, "python train.py", "trl dpo"),
        ({"train.py": FLAGS.format("only")}, 'python train.py "$@"', ""),
        (
            {"train.py": FLAGS.format("only").replace("    only =", "    vars(args).update(other())\n    only =")},
            "python train.py",
            "",
        ),
        (  # what is imported decides, not what else is in its module
            {"train.py": "from helpers import loop, read\nread()\nloop()\n", "helpers.py": HELPERS},
            f"python train.py {OPTIONS}",
            "",
        ),
        (
            {"train.py": "from helpers import read, other\nread()\nother()\n", "helpers.py": HELPERS},
            f"python train.py {OPTIONS}",
            "trl ppo",
        ),
        (
            {"train.py": "import helpers\ngetattr(helpers, 'oth' + 'er')()\n", "helpers.py": HELPERS},
            f"python train.py {OPTIONS}",
            "trl ppo",
        ),
        (
            {
                "train.py": "from helpers import make\nmake('a').train()\n",
                "helpers.py": "from trl import SFTTrainer\nclass Mine(SFTTrainer):\n    pass\nclass Other:\n    pass\n"
                "TABLE = {'a': Mine}\ndef make(name):\n    return TABLE[name]()\n",
            },
            f"python train.py {OPTIONS}",
            "trl sft",
        ),
        (
            {
                "train.py": "from transformers import TrainingArguments\nfrom mmengine.runner import Runner\n"
                "def build(config):\n    config.arguments = dict(type=TrainingArguments)\n"
                "Runner.from_cfg(build({})).train()\n"
            },
            "torchrun train.py c.py --launcher pytorch",
            "",  # mmengine's loop
        ),
        (
            {"examples/train_rm.py": "from openllama2.trainer import RewardModelTrainer\nRewardModelTrainer()"},
            "deepspeed examples/train_rm.py --pretrain m --bf16",
            "openrlhf rm",
        ),
    ],
)
def test_what_the_program_uses_decides(tmp_path: Path, files: dict[str, str], command: str, expected: str) -> None:
    [launch] = read_tree(tmp_path, files, command)
    assert name_trainers(launch) == expected


CHOOSES = """
from trl import DPOConfig, DPOTrainer, SFTConfig, SFTTrainer, TrlParser
from mine import Careful
TABLE = {"prefer": DPOTrainer, "imitate": SFTTrainer}
def main(kind):
    if kind == "imitate":
        trainer = SFTTrainer(args=SFTConfig())
    elif "careful" == kind.lower():
        trainer = Careful(args=DPOConfig())
    else:
        raise ValueError(kind)
"""


@pytest.mark.parametrize(
    ("command", "expected"),
    [
        ("KIND=Careful accelerate launch train.py", "trl dpo"),
        ("accelerate launch train.py --kind imitate", "trl sft"),
        ("accelerate launch train.py kind=imitate", "trl sft"),
        ("accelerate launch train.py --config c.yaml", "trl dpo"),
        ("accelerate launch train.py --kind other", ""),
    ],
)
def test_a_word_of_the_launch_chooses_the_trainer(tmp_path: Path, command: str, expected: str) -> None:
    mine = "from trl import DPOTrainer\nclass Careful(DPOTrainer):\n    pass\n"
    files = {"train.py": CHOOSES, "mine/__init__.py": "from .own import Careful", "mine/own.py": mine}
    [launch] = read_tree(tmp_path, {**files, "c.yaml": "kind: careful\n"}, command)
    assert name_trainers(launch) == expected


TABLE = """
from parts.other import Align, Infer, Tune
PARTS = {"infer": Infer, "tune": Tune}
PARTS["align"] = Align
def make(name):
    return PARTS[name]()
"""
OTHERS = """
from transformers import Trainer
from trl import DPOTrainer
class Infer:
    def start(self):
        print()
class Tune:
    def start(self):
        Trainer().train()
class Align:
    def start(self):
        DPOTrainer().train()
"""


@pytest.mark.parametrize(
    ("name", "expected"),
    [("infer", ""), ("tune", "transformers trainer"), ("align", "trl dpo"), ("other", "trl dpo")],
)
def test_the_class_that_a_program_takes_from_a_table_decides(tmp_path: Path, name: str, expected: str) -> None:
    main = f"from parts.table import make\ndef main():\n    name = '{name}'\n    make(name).start()\nmain()\n"
    files = {"train.py": main, "parts/__init__.py": "", "parts/table.py": TABLE, "parts/other.py": OTHERS}
    [launch] = read_tree(tmp_path, files, f"deepspeed train.py {OPTIONS}")
    assert name_trainers(launch) == expected


WRITES = "cat > {0} <<'EOF'\n{1}EOF\n{2} {0}"


@pytest.mark.parametrize(
    ("path", "text", "start", "expected"),
    [
        ("run_vlm_sft.py", "import nemo_rl.algorithms.sft as s\ns.setup()\n", "uv run python", "nemo-rl sft"),
        ("$OUT/t.py", "from trl import GRPOTrainer\nGRPOTrainer()\n", "accelerate launch", "trl grpo"),
        ("t.py", "import torch\nloss.backward()\n", "torchrun", ""),
    ],
)
def test_a_program_that_the_script_writes_is_read(
    tmp_path: Path, path: str, text: str, start: str, expected: str
) -> None:
    launch = read_tree(tmp_path, {"t.py": "not this one"}, WRITES.format(path, text, start))[-1]
    assert launch.trainers is not None and name_trainers(launch) == expected
    assert find_missing_script(launch, lambda path: None) == ""


def test_the_settings_of_a_written_program_are_read_with_lines_of_the_script(tmp_path: Path) -> None:
    text = "from trl import SFTConfig, SFTTrainer\nSFTTrainer('m', args=SFTConfig(packing=True)).train()\n"
    launch = read_tree(tmp_path, {}, WRITES.format("$OUT/t.py", text, "accelerate launch"))[-1]
    [packing] = [entry for entry in launch.entries if entry.name == "packing"]
    assert (packing.value, packing.location.line, launch.file and launch.file.host) == (
        "true", 3, str(tmp_path / "run.sh")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("command", "is_refused"),
    [("train.py --config c.yaml", False), ("train.py --torch_dtype bf16", True), ("-m trl.scripts.sft c.yaml", True)],
)
def test_choices_are_checked_in_options_and_in_files_of_the_frameworks_own_programs(
    tmp_path: Path, command: str, is_refused: bool
) -> None:
    files = {"train.py": TRL_MAIN.format("SFT"), "c.yaml": "torch_dtype: bf16\noutput_dir: o\n"}
    [launch] = read_tree(tmp_path, files, f"accelerate launch {command}")
    [trl] = [framework for framework in frameworks.load() if framework.name == "trl"]
    problems = trl.read(launch, "0.24.0", s.h200()).problems
    assert is_refused is any("torch_dtype is 'bf16'" in problem.message for problem in problems)


@pytest.mark.parametrize(
    "command",
    [
        """torchrun $(python -c "import swift; print(swift.__path__[0])")/cli/sft.py --model m --tuner_type lora""",
        'cmd=("$(which swift)" sft --model m --tuner_type lora)\ntorchrun --nproc_per_node 2 "${cmd[@]}"',
        "$(command -v swift) sft --model m --tuner_type lora",
        """S=$(python -c 'import os, swift; print(os.path.dirname(swift.__file__) + "/cli/sft.py")')\n"""
        "torchrun $S --model_type m --sft_type lora --per_device_train_batch_size 1 --output_dir o",
    ],
)
def test_the_script_of_the_installed_swift_is_its_own(tmp_path: Path, command: str) -> None:
    assert name_trainers(read_tree(tmp_path, {}, command)[-1]) == "ms-swift sft"


def test_options_of_slime_make_no_megatron_launch_without_its_source(tmp_path: Path) -> None:
    command = (
        "python3 train.py --actor-num-nodes 1 --rollout-batch-size 32 --tensor-model-parallel-size 2 --num-layers 28"
    )
    [launch] = read_tree(tmp_path, {}, f"{command} --seq-length 8")
    assert name_trainers(launch) == "slime grpo"


def test_a_configuration_in_the_program_is_read_and_never_written(tmp_path: Path) -> None:
    text = "from trl import SFTConfig, SFTTrainer\nSFTTrainer(args=SFTConfig(bf16=True, packing=True, max_length=n))\n"
    [launch] = read_tree(tmp_path, {"train.py": text}, "python train.py")
    assert [(entry.name, entry.value, entry.known) for entry in launch.entries] == [
        ("bf16", "True", True),
        ("packing", "True", True),
        ("max_length", "n", False),
    ]
    assert launch.file is not None and not launch.file.editable


def test_an_absolute_path_of_another_machine_leads_into_the_tree(tmp_path: Path) -> None:
    files = {"sub/train.py": TRL_MAIN.format("SFT"), "c.yaml": "bf16: true\n", "sub/c.yaml": "fp16: true\n"}
    command = "bash /home/me/job/scripts/go.sh"
    go = "cd /home/me/job; accelerate launch /home/me/job/sub/train.py --config /home/me/job/{}c.yaml"
    for folder in ("", "sub/"):
        write_tree(tmp_path, {**files, "scripts/go.sh": go.format(folder), "run.sh": command, ".git/HEAD": ""})
        source = read_source(str(tmp_path / "run.sh"))
        read_file = make_readers(Inputs((source,)))(source)
        launch = launches.find_launches(source, read_file, lambda launch: bool(launch.trainers))[-1]
        assert name_trainers(launch) == "trl sft" and launch.file is not None
        assert launch.file.name == str(tmp_path / folder / "c.yaml"), "the longest end that exists is read"
        assert sum("does not exist here" in note for note in launch.notes) == 2
    [launch] = read_tree(tmp_path / "other", {}, f"python {tmp_path}/sub/train.py --bf16")
    assert name_trainers(launch) == "trl sft" and launch.notes == (), "a path of this machine is read as it is"


FIXES = """
import sys, torch
from transformers import AutoModelForCausalLM, HfArgumentParser, TrainingArguments
from trl import DPOConfig, DPOTrainer, GRPOConfig, SFTConfig, SFTTrainer, TrlParser
{parse}
{load}
trainer = SFTTrainer(model=model, {passed})
"""
PARSE = "args = HfArgumentParser((Own, TrainingArguments)).parse_yaml_file(sys.argv[1])"
LOAD = 'model = AutoModelForCausalLM.from_pretrained(p, torch_dtype=torch.bfloat16, attn_implementation="sdpa")'


@pytest.mark.parametrize(
    ("parse", "load", "passed", "options", "expected"),
    [
        (PARSE, "", "packing=True, max_seq_length=512", "", ("cu_seqlens", "", 512)),
        (PARSE, "tokenizer(texts, max_length=9)", "packing=True", "", ("cu_seqlens", "", 1024)),
        (PARSE, LOAD, "args=args", "", ("padding", "sdpa", 1024)),
        (PARSE, LOAD, "args=args", " --attn_implementation eager", ("padding", "sdpa", 1024)),
        (PARSE, "", "args=SFTConfig(packing=True, max_length=256, output_dir=args.o)", "", ("cu_seqlens", "", 256)),
        (PARSE, "", "args=SFTConfig(packing=True, **rest)", " --packing false", ("cu_seqlens", "", 1024)),
        # not fixed: another value than a literal, a switch that is off, values that differ, and a parser's own class
        (PARSE, "", "packing=args.packing", "", ("padding", "", 1024)),
        (PARSE, "", "packing=False", " --packing", ("cu_seqlens", "", 1024)),
        (PARSE, "", "packing=True)\nSFTTrainer(packing=own", "", ("padding", "", 1024)),
        ("TrlParser((SFTConfig,)).parse_args_and_config()\nSFTConfig(packing=True)", "", "", "", ("padding", "", 1024)),
        (PARSE, "model.from_pretrained(p, attn_implementation=args.attn)", "", "", ("padding", "", 1024)),
        (PARSE, "", "packing=True", " --packing false", ("cu_seqlens", "", 1024)),
        (PARSE, "DPOConfig(max_length=9)", "args=SFTConfig(packing=True, max_length=7)", "", ("padding", "", 1024)),
        (PARSE, "DPOTrainer(max_length=9)", "packing=True", "", ("padding", "", 1024)),
        (PARSE, "TrlParser((GRPOConfig,))", "args=SFTConfig(packing=True)", "", ("padding", "", 1024)),
    ],
)
def test_what_the_program_passes_decides(
    tmp_path: Path, parse: str, load: str, passed: str, options: str, expected: tuple[str, str, int]
) -> None:
    text = FIXES.format(parse=parse, load=load, passed=passed)
    files = {"train.py": text, "c.yaml": "output_dir: o\nper_device_train_batch_size: 1\n"}
    [launch] = read_tree(tmp_path, files, f"accelerate launch train.py --config c.yaml{options}")
    [trl] = [framework for framework in frameworks.load() if framework.name == "trl"]
    job = trl.read(launch, "1.16.0", s.h200())
    assert (job.plan.packing, job.plan.attn_implementation, job.plan.max_length) == expected
    is_fixed = "packing" in {setting.name for setting in launch.fixed}
    assert bool(trl.write(launch, job, {"packing": "off"})) is not is_fixed, "a file or an option would change nothing"


LOADS = """
from transformers import AutoModelForCausalLM, Trainer
def train(attn_implementation=None):
    {0}
    more.update(dict(load_in_4bit=True))
    model = AutoModelForCausalLM.from_pretrained(p, attn_implementation=attn_implementation, **more)
    other = AutoModelForCausalLM.from_pretrained(p, **more)
    helper = AutoModelForCausalLM.from_pretrained("h", attn_implementation="eager")
    Trainer(model if plain else other)
"""


@pytest.mark.parametrize(
    ("main", "before", "expected"),
    [
        ("train(attn_implementation='sdpa')", "more = {}", "sdpa"),
        ("train(attn_implementation=chosen)", "more = {}", ""),
        ("train()", "more = {}", ""),
        ("train(attn_implementation='sdpa')", "more = dict(attn_implementation=a)", "unknown"),
        ("train(attn_implementation='sdpa')", "more = {'attn_implementation': a}", "unknown"),
        ("train(attn_implementation='sdpa')", "more = {}\n    if fast: more['attn_implementation'] = 'fa'", "unknown"),
        ("train(attn_implementation='sdpa')", "more = {}\n    if fast: more['device_map'] = 'auto'", "sdpa"),
        ("train(attn_implementation='sdpa')\ntrain(attn_implementation='eager')", "more = {}", ""),
    ],
)
def test_an_attention_that_the_program_passes_on(tmp_path: Path, main: str, before: str, expected: str) -> None:
    files = {"train_mem.py": f"from own.train import train\n{main}\n", "own/train.py": LOADS.format(before)}
    [launch] = read_tree(tmp_path, files, f"torchrun train_mem.py {OPTIONS}")
    fixed = {setting.name: setting.value if setting.known else "unknown" for setting in launch.fixed}
    assert fixed.get("attn_implementation", "") == expected


ARGUMENTS_TABLE = """
from transformers import AutoModelForCausalLM
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser
def main(own, args, model_args):
    options = {{"trust_remote_code": True}}
    {0}
    model = AutoModelForCausalLM.from_pretrained(model_args.model_name_or_path, **options)
    SFTTrainer(model=model, args=args).train()
main(*TrlParser((Own, SFTConfig, ModelConfig)).parse_args_and_config())
"""


@pytest.mark.parametrize(
    ("line", "expected"),
    [
        ("if own.use_flash_attn: options['attn_implementation'] = 'flash_attention_2'", True),
        ("options.update({'attn_implementation': 'eager' if own.is_old else 'flash_attention_2'})", True),
        ("options['attn_implementation'] = model_args.attn_implementation", False),
        ("options['device_map'] = 'auto'", False),
    ],
)
def test_an_attention_in_a_table_of_arguments_is_not_the_default(tmp_path: Path, line: str, expected: bool) -> None:
    command = "python train.py --use_flash_attn True --packing True --output_dir o"
    [launch] = read_tree(tmp_path, {"train.py": ARGUMENTS_TABLE.format(line)}, command)
    [trl] = [framework for framework in frameworks.load() if framework.name == "trl"]
    job, *others = [trl.read(one, "0.24.0", s.h200()) for one in (launch, *list_alternatives(launch))]
    unknown = find_unknown_parts(job, others, launch)
    assert ("attn_implementation" in unknown) is expected


WITHOUT = """
from transformers import AutoModelForCausalLM
from trl import ModelConfig, SFTConfig, SFTTrainer, TrlParser
{0}
def main(args, model_args):
    model = AutoModelForCausalLM.from_pretrained({1})
    SFTTrainer(model=model, args=args).train()
main(*TrlParser((SFTConfig, ModelConfig)).parse_args_and_config())
"""


@pytest.mark.parametrize(
    ("before", "load", "ignored"),
    [
        ("", "model_args.model_name_or_path", ["attn_implementation", "dtype"]),
        ("", "model_args.model_name_or_path, torch_dtype=torch.bfloat16", ["attn_implementation"]),
        ("", "model_args.model_name_or_path, **own", []),
        ("", "model_args.model_name_or_path, config=own", []),
        ("print(own.attn_implementation)", "model_args.model_name_or_path", ["dtype"]),
        ("own = dict(torch_dtype=1)", "model_args.model_name_or_path", ["attn_implementation", "dtype"]),
        ("from own import load", "load(model_args)", []),
    ],
)
def test_an_option_that_reaches_no_model_is_ignored(tmp_path: Path, before: str, load: str, ignored: list[str]) -> None:
    text = WITHOUT.format(before, load)
    if "load(" in load:
        text = text.replace("AutoModelForCausalLM.from_pretrained(load(model_args))", "load(model_args)")
    options = "--model_name_or_path m --output_dir o --attn_implementation flash_attention_2 --dtype bfloat16"
    [launch] = read_tree(tmp_path, {"train.py": text}, f"torchrun train.py {options}")
    [trl] = [framework for framework in frameworks.load() if framework.name == "trl"]
    job = add_fixed_arguments(trl.read(launch, "1.16.0", s.h200()), launch)
    named = [problem.message.partition("=")[0] for problem in job.problems if "is ignored" in problem.message]
    assert sorted(named) == ignored
    expected = "" if "attn_implementation" in ignored else "flash_attention_2"
    assert job.plan.attn_implementation == expected


HELPED = """
from transformers import AutoModelForCausalLM, Trainer
from peft import get_peft_model
helper = AutoModelForCausalLM.from_pretrained(p, attn_implementation="eager")
path = p
def load(name):
    loaded = AutoModelForCausalLM.from_pretrained(name, attn_implementation="sdpa")
    return loaded, helper.config
def train(folder: str = "m"):
    {0}
    Trainer(model={1})
"""


@pytest.mark.parametrize(
    ("before", "model", "expected"),
    [
        ("", "path", ""),
        ("", "'m'", ""),
        ("", "folder", ""),
        ("", "args.model", ""),
        ("", "helper", "eager"),
        ("model = get_peft_model(helper, config)", "model", "eager"),
        ("model, _ = load(folder)", "model", "sdpa"),
        ("_, model = load(folder)", "model", ""),
        ("self.model = load(folder)[0]", "self.model", ""),  # it is unknown which of them
    ],
)
def test_only_the_model_that_the_trainer_gets_decides_the_attention(
    tmp_path: Path, before: str, model: str, expected: str
) -> None:
    files = {"train.py": HELPED.format(before, model)}
    [launch] = read_tree(tmp_path, files, f"torchrun train.py {OPTIONS}")
    assert {setting.name: setting.value for setting in launch.fixed}.get("attn_implementation", "") == expected


@pytest.mark.parametrize(
    ("passed", "ignored"),
    [("packing=True", ["packing=false"]), ("packing=True, x=args.packing", []), ("packing=False", [])],
)
def test_a_setting_that_the_program_overrides_is_ignored(tmp_path: Path, passed: str, ignored: list[str]) -> None:
    text = FIXES.format(parse=PARSE, load="", passed=passed)
    [launch] = read_tree(
        tmp_path, {"train.py": text, "c.yaml": "output_dir: o\npacking: false\n"}, "python train.py --config c.yaml"
    )
    [trl] = [framework for framework in frameworks.load() if framework.name == "trl"]
    job = add_fixed_arguments(trl.read(launch, "0.12.2", s.h200()), launch)
    messages = [problem.message for problem in job.problems if " is ignored" in problem.message]
    assert [message.partition(" is")[0] for message in messages] == ignored


@pytest.mark.parametrize(("sections", "ignored"), [(("sft",), ["sft.packing=false"]), (("sft", "dpo"), [])])
def test_a_key_of_several_sections_may_be_another_trainer_s(
    tmp_path: Path, sections: tuple[str, ...], ignored: list[str]
) -> None:
    files = {"train.py": FIXES.format(parse=PARSE, load="", passed="packing=True")}
    [launch] = read_tree(tmp_path, files, "python train.py --output_dir o")
    rows = [Setting(f"{name}.packing", "false", SourceLocation("c.yaml", 2), (0, 0)) for name in sections]
    [trl] = [framework for framework in frameworks.load() if framework.name == "trl"]
    job = add_fixed_arguments(trl.read(launch, "0.12.2", s.h200()), replace(launch, entries=tuple(rows)))
    messages = [problem.message for problem in job.problems if " is ignored" in problem.message]
    assert [message.partition(" is")[0] for message in messages] == ignored


@pytest.mark.parametrize("passed", ["", ", dtype=None", ", attn_implementation='eager'"])
def test_what_a_script_sets_itself_is_not_ignored(tmp_path: Path, passed: str) -> None:
    text = (
        "from transformers import AutoModelForCausalLM\nfrom trl import SFTConfig, SFTTrainer\n"
        f"model = AutoModelForCausalLM.from_pretrained('m'{passed})\n"
        "SFTTrainer(model, args=SFTConfig(output_dir='o')).train()\n"
    )
    [launch] = read_tree(tmp_path, {"train.py": text}, "python train.py")
    [trl] = [framework for framework in frameworks.load() if framework.name == "trl"]
    job = add_fixed_arguments(trl.read(launch, "1.16.0", s.h200()), launch)
    assert not [problem for problem in job.problems if "is ignored" in problem.message]


LAUNCHER = """
import os
from slime.utils.external_utils.command_utils import execute_train
gpus = int(os.environ.get("N", "8"))
sizes = f"--actor-num-gpus-per-node {gpus} --actor-num-nodes 1 "
execute_train(train_args=f"{sizes} --rollout-batch-size 32 --context-parallel-size 2", megatron_model_type="q")
"""
SUBPROCESS = "import subprocess\nsubprocess.run(['trl', 'sft', '--model_name_or_path', 'm', '--packing'])\n"


@pytest.mark.parametrize(
    ("program", "expected", "words"),
    [
        (LAUNCHER, "slime grpo", ["--rollout-batch-size", "32"]),
        (SUBPROCESS, "trl sft", ["--packing"]),
        ("print('no training')\n", "", []),
        ("import subprocess\nsubprocess.run(['python', 'go.py'])\n", "", []),  # it starts itself
    ],
)
def test_a_program_of_the_user_that_starts_the_training_is_followed(
    tmp_path: Path, program: str, expected: str, words: list[str]
) -> None:
    write_tree(tmp_path, {"go.py": program, "run.sh": "python go.py\n", ".git/HEAD": ""})
    source = read_source(str(tmp_path / "run.sh"))
    found = launches.find_launches(
        source, make_readers(Inputs((source,)))(source), lambda item: bool(name_trainers(item))
    )
    assert [name_trainers(launch) for launch in found if name_trainers(launch)] == ([expected] if expected else [])
    texts = [word.text for launch in found if name_trainers(launch) for word in launch.words]
    assert set(words) <= set(texts)


@pytest.mark.parametrize(
    ("options", "model"),
    [
        ("--model_name_or_path ./m/$MODEL", ""),
        ("--model_name_or_path org/m", "org/m"),
        ("--seed 1", "org/default"),
    ],
)
def test_a_default_model_is_not_shown_if_the_command_names_one(tmp_path: Path, options: str, model: str) -> None:
    program = (
        "from dataclasses import dataclass\nfrom transformers import HfArgumentParser, Trainer, TrainingArguments\n"
        "@dataclass\nclass Model:\n    model_name_or_path: str = 'org/default'\n"
        "HfArgumentParser((Model, TrainingArguments)).parse_args_into_dataclasses()\nTrainer()\n"
    )
    write_tree(tmp_path, {"train.py": program, "run.sh": f"python train.py {options}\n", ".git/HEAD": ""})
    source = read_source(str(tmp_path / "run.sh"))
    report = run.run(s.laptop(), Request((source,)), read_model, make_file_reader((source,)))
    assert [launch.job.model for launch in launches_of(report)] == [model]


HYDRA_TREE = {
    "main.py": (
        "import hydra\nfrom pipeline import train\n@hydra.main(config_path='conf/', config_name='sft')\n"
        "def main(config):\n    train(config)\nif __name__ == '__main__':\n    main()\n"
    ),
    "pipeline.py": "from hydra.utils import instantiate\ndef train(config):\n    instantiate(config.trainer).train()\n",
    "conf/grpo.yaml": "defaults:\n- trainer: grpo\n- arguments: grpo\n- _self_\nis_bf16: true\nsize: 4\n",
    "conf/sft.yaml": "size: 4\n",
    "conf/trainer/grpo.yaml": "_target_: trl.GRPOTrainer\n",
    "conf/arguments/grpo.yaml": (
        "_target_: trl.GRPOConfig\nbf16: ${is_bf16}\nper_device_train_batch_size: ${size}\nrun_name: ${oc.env:NAME}\n"
    ),
}


@pytest.mark.parametrize(
    ("options", "trainer", "size"),
    [
        ("--config-name=grpo", "trl grpo", "4"),
        ("--config-name=grpo.yaml size=2", "trl grpo", "2"),
        ("--config-name=grpo size=$SIZE", "trl grpo", ""),
        ("--config-name=sft size=2", "", ""),
        ("", "", ""),
    ],
)
def test_the_trainer_that_a_hydra_program_composes(tmp_path: Path, options: str, trainer: str, size: str) -> None:
    (launch,) = read_tree(tmp_path, HYDRA_TREE, f"accelerate launch main.py {options}")
    assert name_trainers(launch) == trainer
    entries = {entry.name: entry.value for entry in launch.entries if entry.known} if trainer else {}
    assert entries.get("per_device_train_batch_size", "") == size
    assert "run_name" not in entries
    assert not [note for note in launch.notes if "could not be read" in note]


@pytest.mark.parametrize(
    ("name", "framework", "is_open"),
    [("train", "megatron pretrain", True), ("pretrain", "megatron pretrain", False), ("get_args", "", False)],
)
def test_a_loop_of_megatron(tmp_path: Path, name: str, framework: str, is_open: bool) -> None:
    program = f"from megatron.training import {name}\n{name}()\n"
    (launch,) = read_tree(tmp_path, {"run.py": program}, "torchrun run.py --micro-batch-size 1")
    assert name_trainers(launch) == framework
    assert ("its own attention" in (launch.trainers or ())) is is_open

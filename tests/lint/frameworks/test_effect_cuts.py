"""What a cut launch can still write, send, delete or load: nothing, of any setting of any framework."""

from __future__ import annotations

import dataclasses
import shlex
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from types import MappingProxyType

import pytest

from attncheck.core.facts import Absent
from attncheck.core.io.errors import Unanswered
from attncheck.core.launch import Kind, Source
from attncheck.core.rehearsal import JobCut
from attncheck.lint.fields.effect_cuts import CutEffects, cut_effects, is_harmless
from attncheck.lint.fields.effects import Effect, find_effect
from attncheck.lint.fields.rehearsing import edit_options
from attncheck.lint.files.configuration import parse_entries
from attncheck.lint.rewriting import format_with_files, read_launches, rewrite
from attncheck.rehearsal import cutting
from tests import snapshots as s
from tests.lint.frameworks import effect_fields
from tests.lint.frameworks import test_rehearsal_cuts as launches
from tests.lint.frameworks.effect_fields import FRAMEWORKS, Field, list_unclassified, load_harmless, walk_fields

STAGE = "/stage"
SENTINEL = "precious"
OWN_OPTIONS = "--model_name_or_path a/b --data_path d.json --lr 1e-4 --epochs 3"
SCRIPT = f"python train.py {OWN_OPTIONS} --output_dir /precious {{options}}\n"
TRAINER = "python run.py --model_name_or_path a/b --train_file d.json --per_device_train_batch_size 4 --output_dir /x\n"
BASES: Mapping[str, tuple[tuple[str, Kind], ...]] = {
    "transformers": ((TRAINER, "shell"),),
    "trl": ((launches.TRL, "shell"), (launches.TRL_DPO, "shell")),
    "llamafactory": ((launches.LLAMAFACTORY, "yaml"), (launches.LLAMAFACTORY_DPO, "yaml")),
    "ms_swift": ((launches.MS_SWIFT, "shell"),),
    "axolotl": ((launches.AXOLOTL, "yaml"),),
    "openrlhf": ((launches.OPENRLHF, "shell"), (launches.OPENRLHF_DPO, "shell"), (launches.OPENRLHF_PPO, "shell")),
    "verl": ((launches.VERL, "shell"), (launches.VERL_GRPO, "shell")),
}
# Frameworks that other trainers' settings reach too: TrainingArguments.
ON_TRAINER = ("trl", "llamafactory", "ms_swift")
# Defaults that would write or send, and do not in a rehearsal, with what keeps them from it.
IDLE_DEFAULTS = {
    "hub_strategy": "nothing is pushed",
    "wandb_log_unique_prompts": "nothing is reported to a tracker",
    "swanlab_log_completions": "SwanLab is off",
    "swanlab_mode": "SwanLab is off",
    "swanlab_project": "SwanLab is off",
    "swanlab_email_language": "SwanLab is off",
    "use_swanlab": "axolotl's plugin alone reads it, and the cut sets it if that is loaded",
    "otel_metrics_host": "use_otel_metrics is off",
    "logger.wandb.project": "no key of Weights & Biases is given",
    "logger.wandb.run_name": "no key of Weights & Biases is given",
    "dump_dir": "the actor alone is updated: no rollout is made",
    "save_path": "no profiler is on",
    "file": "no rollout engine is started, whose Prometheus it is",
    "served_model_name": "no rollout engine is started",
    "load_contents": "nothing is resumed",
}


def cut_wholly(
    text: str,
    kind: Kind = "shell",
    files: Mapping[str, str] = MappingProxyType({}),
    name: str = "",
    full_model: bool = False,
    trust_remote_code: bool = False,
) -> tuple[JobCut, CutEffects, str]:
    """Return how a launch is cut, what is left of it, and its command with its file as one text."""
    sources = {path: Source(path, content, "yaml") for path, content in files.items()}
    source = Source(name or ("run.sh" if kind == "shell" else "x.yaml"), text, kind)
    (read,) = read_launches(s.laptop(), source, lambda name: Absent("not available here"), sources.get)
    made = cutting.make_materials(read, STAGE, 30, False, 2, full_model)
    made = dataclasses.replace(made, trust_remote_code=trust_remote_code)
    cut = cutting.cut_job(read, made)
    launch = read.recognised.launch
    rewritten = rewrite(read, cut.sets, tuple(edit_options(launch, cut.options)))
    effects = cut_effects(rewritten.launch, {**cut.sets, **cut.options}, made)
    command, written = format_with_files(effects.launch, STAGE)
    texts = written.values() if effects.launch.words else (effects.launch.source.text,)
    return cut, effects, "\n".join((command.text, *texts))


@cache
def list_cut_names(framework: str) -> Mapping[str, str]:
    """Return what the cuts of a framework's launches set or leave out."""
    cuts = [cut_wholly(text, kind)[0] for text, kind in BASES[framework]]
    return {name: value for cut in cuts for name, value in cut.sets.items()}


def list_effects(framework: str) -> dict[str, Field]:
    """Return the settings of a framework that do something, by name."""
    fields = [field for name in _list_parts(framework) for field in walk_fields(name)]
    return {field.name: field for field in fields if field.effect}


def _list_parts(framework: str) -> tuple[str, ...]:
    return (framework, "transformers") if framework in ON_TRAINER else (framework,)


@pytest.mark.parametrize(
    ("effect", "names"),
    [
        ("place", "output_dir out save_dir save_path logging_dir log_file checkpoint_dir ckpt_path work_dir exp_dir"),
        ("place", "hydra.run.dir trainer.default_local_dir cache_dir outputDir logdir offload_folder tensorboard_dir"),
        ("place", "save_to output dump_path profiler_output_dir metrics_file model_output_path results_folder"),
        ("push", "push_to_hub hub_model_id push_dataset_to_hub upload_to_s3_bucket trainer.default_hdfs_dir"),
        ("tracker", "report_to log_with wandb_project use_swanlab mlflow_tracking_uri with_tracking trainer.logger"),
        ("tracker", "use_otel_metrics trackio_space_id comet_mode rollout.trace.backend slack_channel telemetry"),
        ("secret", "hub_token wandb_key logger.wandb.key swanlab_api_key hf-token token swanlab_webhook_url password"),
        ("overwrite", "overwrite overwrite_output_dir clean force exist_ok delete_old_checkpoints rm clean_output"),
        ("resume", "resume resume_from_checkpoint auto_resume load_checkpoint_path init_from_ckpt ckpt.load_enable"),
        ("checkpoint", "adapter_name_or_path lora_model_dir adapters lora_adapter_path peft_path checkpoint"),
        ("remote_code", "trust_remote_code vllm.trust-remote-code"),
        ("", "input_dir train_file model_path log_level logging_steps save_steps output_router_logits out_features"),
        ("", "clean_up_tokenization_spaces resume_download overwrite_cache data_dir dataset_dir image_folder"),
        ("", "remove_unused_columns pad_token max_tokens prompt_key data.output_key no_wandb disable_tracking"),
        ("", "gradient_checkpointing model_name_or_path lora_r adapter config_path source_dir save_strategy"),
        ("", "model.path data.path script_path init_lora_weights learning_rate epochs max_steps"),
    ],
)
def test_a_names_words_say_what_it_does(effect: Effect, names: str) -> None:
    """The same words in every spelling; what is read, counted or switched off is nothing."""
    assert {name: find_effect(name) for name in names.split()} == dict.fromkeys(names.split(), effect)
    spelt = [name.replace("_", "-") for name in names.split()]
    assert {name: find_effect(f"--{name}") for name in spelt} == dict.fromkeys(spelt, effect)


@pytest.mark.parametrize(
    ("name", "kind", "value"),
    [
        ("save_safetensors", "bool", ""),
        ("save", "", "10"),
        ("log", "", "true"),
        ("output", "int", ""),
        ("log", "", "all"),
    ],
)
def test_a_number_or_a_switch_is_no_place(name: str, kind: str, value: str) -> None:
    """The same name with a path is one."""
    assert find_effect(name, kind, value) == ""
    assert name == "save_safetensors" or find_effect(name, "str", "runs/x") == "place"


@pytest.mark.parametrize(
    ("name", "value", "effect"),
    [
        ("pretrain_mm_mlp_adapter", "./checkpoints/projector.bin", "checkpoint"),
        ("pretrain_mm_mlp_adapter", "a/b", ""),
        ("pretrain_mm_mlp_adapter", "", ""),
        ("train_data", "data/train.bin", ""),
    ],
)
def test_a_file_of_an_adapters_weights_fits_only_the_users_model(name: str, value: str, effect: Effect) -> None:
    assert find_effect(name, "str", value) == effect


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_somebody_says_of_every_setting_what_it_does(framework: str) -> None:
    """A setting that can hold a place, or whose name sounds so, has an effect, is cut, or is in the list."""
    assert list_unclassified(list(walk_fields(framework)), list_cut_names(framework)) == [], (
        f"say in {effect_fields.HARMLESS.name} why they write and send nothing, or cut them"
    )


@pytest.mark.parametrize(
    "planted",
    [Field("beacon", "str"), Field("mirror_bucket", "bool"), Field("engine.sink", "none"), Field("share", "choice")],
)
def test_a_new_setting_that_nobody_knows_is_found(planted: Field) -> None:
    """The walk fails for a text, and for a switch or choice with a word of sending; not for what is known."""
    fields = [*walk_fields("llamafactory"), planted, Field("upload_to_s3_bucket", "bool"), Field("new_size", "int")]
    assert list_unclassified(fields, list_cut_names("llamafactory")) == [planted.name]
    text = f"{launches.LLAMAFACTORY}upload_to_s3_bucket: true\n"
    assert "upload_to_s3_bucket: false" in cut_wholly(text, "yaml")[2]


def test_the_list_of_harmless_settings_is_of_settings_that_there_are() -> None:
    """No name is in it that no framework has, or whose words say that it does something."""
    names = {field.listed_name for framework in FRAMEWORKS for field in walk_fields(framework) if not field.effect}
    assert sorted(set(load_harmless("tables")) - names) == []


@pytest.mark.nightly
@pytest.mark.parametrize("framework", effect_fields.SOURCES)
def test_somebody_says_it_of_the_settings_in_the_wheels(framework: str) -> None:
    """The frameworks' own files say the same as our tables of names, and what is nested in a setting too."""
    fields = list(effect_fields.walk_wheel(framework))
    assert len(fields) > 80 and list_unclassified(fields, list_cut_names(framework)) == []


def test_somebody_says_it_of_the_installed_training_arguments() -> None:
    """transformers' own dataclass, if it is installed: a release that attncheck does not know yet too."""
    transformers = pytest.importorskip("transformers")
    fields = [
        Field(field.name, effect_fields.read_kind(str(field.type)))
        for field in dataclasses.fields(transformers.Seq2SeqTrainingArguments)
    ]
    assert len(fields) > 80 and list_unclassified(fields, list_cut_names("transformers")) == []


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_defaults_that_write_or_send_are_set(framework: str) -> None:
    """What a framework would do unasked is in its cut, or known to be idle there."""
    cut = list_cut_names(framework)
    active = {
        name: field.default
        for name, field in list_effects(framework).items()
        if field.kind not in ("int", "float")
        and field.default not in (None, False, "")
        and not is_harmless(str(field.default))
    }
    unset = [name for name in active if name not in cut and name.rsplit(".", 1)[-1] not in IDLE_DEFAULTS]
    assert [name for name in unset if name not in IDLE_DEFAULTS] == []


def write_value(field: Field) -> str:
    """Return a value with which a setting would write or send."""
    if field.kind == "bool":
        return "true"
    return f"/{SENTINEL}/{field.name}" if field.effect in ("place", "checkpoint", "resume") else f"{SENTINEL}-value"


def write_launch(framework: str, base: str, kind: Kind) -> str:
    """Return a launch that sets everything that writes or sends."""
    settings = {name: write_value(field) for name, field in list_effects(framework).items() if field.kind != "int"}
    if kind == "yaml":
        kept = [line for line in base.splitlines() if line.split(":")[0] not in settings]
        return "\n".join([*kept, *(f"{name}: {value}" for name, value in settings.items())]) + "\n"
    if framework == "verl":
        words = [f"++{name}={value}" for name, value in settings.items()]
    elif framework == "openrlhf":
        kinds = {name: field.kind for name, field in list_effects(framework).items()}
        words = [f"--{name}" if kinds[name] == "bool" else f"--{name} {value}" for name, value in settings.items()]
    else:
        words = [f"--{name} {value}" for name, value in settings.items()]
    command = " ".join(base.replace("\\\n", " ").split()).removesuffix("$@")
    return f"{command} {' '.join(words)}\n"


def find_left(framework: str, text: str) -> list[str]:
    """Return the settings in a cut launch's text that still write or send elsewhere."""
    command, _, file = text.partition("\n")
    words = shlex.split(command)
    pairs = [(word, following) for word, following in zip(words, (*words[1:], "")) if word.startswith("-")]
    pairs = [(name, "true" if value.startswith("-") else value) for name, value in pairs]
    pairs += [tuple(word.split("=", 1)) for word in words if "=" in word]  # type: ignore[misc]
    pairs += [(entry.name, entry.value) for entry in parse_entries(Source("x.yaml", file, "yaml"))]
    fields = list_effects(framework)
    return [
        name
        for name, value in pairs
        if (field := fields.get(name.lstrip("-+").replace("-", "_"))) is not None
        and not (value.startswith(f"{STAGE}/") if field.effect == "place" else is_harmless(value))
    ]


LAUNCHES = [
    *((name, text, kind) for name, bases in BASES.items() for text, kind in bases),
    (
        "llamafactory",
        "llamafactory-cli train --stage sft --model_name_or_path a/b --dataset d --template qwen",
        "shell",
    ),
]


@pytest.mark.parametrize(("framework", "base", "kind"), LAUNCHES)
def test_nothing_is_left_of_a_launch_that_sets_everything(framework: str, base: str, kind: Kind) -> None:
    """Every tracker, push, place, overwrite, resume, secret of a framework: only places of our own folder stay."""
    full = write_launch(framework, base, kind)
    assert full.count(SENTINEL) > 3 or framework == "openrlhf"
    _, effects, text = cut_wholly(full, kind)
    assert SENTINEL not in text and find_left(framework, text) == []
    assert find_left(framework, full if kind == "shell" else f"\n{full}")  # the search finds them before the cut
    assert all(SENTINEL not in remark for remark in effects.remarks)


@pytest.mark.parametrize(
    ("command", "base"),
    [
        ("trl sft --config x.yaml", "model_name_or_path: a/b\ndataset_name: own/data\noutput_dir: out\n"),
        ("swift sft --config x.yaml", "model: a/Qwen2.5-7B\ndataset:\n  - own/data\noutput_dir: out\n"),
    ],
)
def test_nothing_is_left_of_a_file_that_sets_everything(command: str, base: str) -> None:
    """The same as keys of the file that a command names."""
    framework = "trl" if command.startswith("trl") else "ms_swift"
    _, _, text = cut_wholly(f"{command}\n", files={"x.yaml": write_launch(framework, base, "yaml")})
    assert SENTINEL not in text and find_left(framework, text) == []


OPTIONS = """--overwrite --clean --log_file /precious/log.txt --exp_dir=/precious --hub_model_id me/x --push_to_hub
--wandb_key abcdef0123 --report_to wandb tensorboard --resume /precious/last.pt --use_wandb True --save-to $OUT/x
--trust_remote_code --adapter_path /precious/lora --metrics-file /precious/m.json"""


def test_a_script_of_ones_own_keeps_its_inputs_and_loses_its_effects() -> None:
    """Places lead into the throwaway folder, each under its own name; no value is in what is said."""
    kept = "--input_dir /in --log_level info --save_steps 5 --pad_token x --no_wandb --resume_download"
    _, effects, text = cut_wholly(SCRIPT.format(options=f"{' '.join(OPTIONS.split())} {kept}"))
    assert SENTINEL not in text and text.rstrip().endswith(
        f"--metrics-file {STAGE}/job/output/metrics_file.json {kept}"
    )
    assert f"--log_file {STAGE}/job/output/log_file.txt --exp_dir={STAGE}/job/output/exp_dir " in text
    assert f"--save-to {STAGE}/job/output/save_to " in text and f"--output_dir {STAGE}/job/output " in text
    left = "--overwrite --clean --hub_model_id --push_to_hub --wandb_key --report_to --resume --use_wandb"
    assert effects.left_out == (*left.split(), "--trust_remote_code", "--adapter_path")
    assert effects.folders == (f"{STAGE}/job/output/exp_dir", f"{STAGE}/job/output/save_to")
    assert "abcdef0123" not in " ".join(effects.remarks)


def test_settings_from_a_shells_variable_are_cut_too() -> None:
    """What is assembled from several places cannot be edited there: the command itself is."""
    text = 'ARGS="--push_to_hub --log_file /precious"\nMORE="$ARGS --clean"\n' + SCRIPT.format(options="$MORE")
    assert (
        cut_wholly(text)[2].rstrip().endswith(f"--output_dir {STAGE}/job/output --log_file {STAGE}/job/output/log_file")
    )


PARSER = """import argparse
parser = argparse.ArgumentParser()
parser.add_argument("--model_name_or_path")
parser.add_argument("--data_path")
parser.add_argument("--lr", type=float)
parser.add_argument("--epochs", type=int)
parser.add_argument("-o", "--output_dir", default="out")
parser.add_argument("--clean", action="store_true")
parser.add_argument("--log-file", default="train.log")
parser.add_argument("--input_dir", default="in")
parser.add_argument("--tracker", default="wandb", choices=["wandb", "none"])
args = parser.parse_args()
"""


def test_what_a_script_does_by_default_is_set(tmp_path: Path) -> None:
    """Its own parser says so; a short option is known by its long one, a switch has no value."""
    (tmp_path / "train.py").write_text(PARSER)
    text = SCRIPT.replace("--output_dir", "--clean -o").replace("train.py", str(tmp_path / "train.py"))
    _, effects, command = cut_wholly(text.format(options=""), name=str(tmp_path / "run.sh"))
    assert f"-o {STAGE}/job/output/output_dir --log-file {STAGE}/job/output/log_file.log" in command
    assert "--tracker none" in command and "input_dir" not in command and effects.left_out == ("--clean",)


def test_a_file_that_is_the_only_argument_stays_so(tmp_path: Path) -> None:
    """`if len(sys.argv) == 2 and sys.argv[1].endswith(".yaml")`: LLaMA-Factory 0.9.2, and transformers' examples."""
    (tmp_path / "train.py").write_text(PARSER)
    files = {"own.yaml": "model_name_or_path: a/b\ndata_path: data.json\nlr: 1e-4\nepochs: 1\noutput_dir: out\n"}
    script = tmp_path / "train.py"
    for options, is_alone in (("", True), (" --lr 1e-5", False)):
        _, _, command = cut_wholly(f"python {script} own.yaml{options}\n", files=files, name=str(tmp_path / "run.sh"))
        assert ("log-file" in command) != is_alone, command


def test_remote_code_and_adapters_stay_where_they_are_allowed() -> None:
    """Of a launch whose model is its own its adapter fits; its code is trusted if the user says so."""
    text = launches.TRL.replace("--packing", "--trust_remote_code --model_init_kwargs '{\"trust_remote_code\": true}'")
    assert "remote" not in cut_wholly(text)[2]
    assert cut_wholly(text, trust_remote_code=True)[2].count("trust_remote_code") == 2
    text = f"{launches.LLAMAFACTORY}adapter_name_or_path: a/b\ntrust_remote_code: true\n"
    assert "adapter_name" not in cut_wholly(text, "yaml")[2] and "code: false" in cut_wholly(text, "yaml")[2]
    kept = cut_wholly(text, "yaml", full_model=True, trust_remote_code=True)[2]
    assert "adapter_name_or_path: a/b" in kept and "trust_remote_code: true" in kept


def test_a_launchers_own_logs_are_kept_in() -> None:
    """torchrun's --log-dir is not an option of the script."""
    text = launches.VERL.replace("--nnodes=2", "--nnodes=2 --log-dir /precious --redirects 3")
    assert f"--log-dir {STAGE}/job/output/log_dir --redirects 3" in cut_wholly(text)[2]


@pytest.mark.parametrize(
    "text",
    [
        "model_kwargs: {trust_remote_code: true, wandb: {project: precious}}\n",
        "extra:\n  output_dir: /precious\n  hub_model_id: precious\n  a: 1\n",
        'extra: [{"save_path": "/precious", "a": {"hub_token": "precious"}}]\n',
    ],
)
def test_tables_of_a_file_are_cut_inside(text: str) -> None:
    """Nested keys, tables in one line, lists of tables."""
    cut = cut_wholly(f"{launches.AXOLOTL}{text}", "yaml")[2]
    assert SENTINEL not in cut and "trust_remote_code: true" not in cut
    parse_entries(Source("x.yaml", cut, "yaml"))


def test_a_key_that_cannot_be_taken_out_is_no_rehearsal() -> None:
    """An alias represents a table somewhere else: what it sets is not left to chance."""
    for text in ("base: &base\n  hub_model_id: mine\nother:\n  <<: *base\n", "a: &x mine\nhub_token: *x\n"):
        with pytest.raises(
            Unanswered, match=r"hub_(model_id|token) may write files or send data, and cannot be removed"
        ):
            cut_wholly(f"{launches.AXOLOTL}{text}", "yaml")


def test_an_option_whose_variable_is_empty_gets_a_value_of_its_own() -> None:
    # bash leaves an empty `${MODEL}` out, so that the next word is an option: those of a launch to be filled in
    options = "--model_name_or_path ${MODEL} --output_dir e --per_device_train_batch_size 1 --learning_rate 1e-5"
    text = f"MODEL=\ntorchrun train.py {options} --data_path\n"
    command = cut_wholly(text)[2]
    assert f"--model_name_or_path {STAGE}/models/model --output_dir" in command
    assert command.rstrip().endswith(f"--data_path {STAGE}/data/train.jsonl")
    named = cut_wholly(text.replace("MODEL=", "MODEL=a/b", 1))[2]
    assert "a/b" not in named and named.count(f"{STAGE}/models/") == 1

"""The job that a launch will run: its settings as one framework version reads them, joined in a `Plan`; plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.launch import Edit, Setting, SourceLocation
from attncheck.core.plan import Plan

# The settings that every framework has under some name. A rule's fix uses these names, and a framework's module
# writes its own. A key of another form ("--train.batch_size", "data.max_length") is the framework's own name.
Key = Literal[
    "attn_implementation",  # "flash_attention_2", "sdpa", …
    "packing",  # "on", "off"
    "precision",  # "bf16", "fp16", "fp32"
    "ring_size",  # processes that share one row of tokens, whatever the scheme
    "heads_k_stride",
    "tensor_parallel",
    "deterministic",  # "on", "off"
    "liger",  # "on", "off"
    "gradient_checkpointing",  # "on", "off"
    "max_length",
    "batch",  # rows on a device
    "global_batch",  # rows to an optimiser's step, over all ranks
    "padding_side",  # "right", "left"
]
KEYS: tuple[Key, ...] = get_args(Key)
DROP = "\0drop"  # as a value: take the setting out

# A framework's reactions to settings that it cannot support. Each is its own rule.
Consequence = Literal[
    "refuses",  # stops with an error, at start or at the first step
    "replaces",  # it continues with a different setting from the written one
    "ignores",  # the setting does nothing
    "wrong",  # it continues and silently computes something else
    "no_step",  # runs and never takes an optimiser's step
    "waits",  # waits forever
]


@dataclass(frozen=True)
class UnknownSetting:
    """A setting that this version of the framework does not know."""

    name: str  # as written
    location: SourceLocation
    now: tuple[str, ...] = ()  # what it is called in this version, with values where they change; (): it is gone
    since: str = ""  # version in which it went or was renamed, or from which on it is known
    near: str = ""  # the nearest known name, for a name that was never known
    dropped: str = ""  # the framework's source shows that it silently continues without the setting
    proof: str = ""  # what shows that the parser which will run refuses it; "": no one knows, and no one may say so


@dataclass(frozen=True)
class SettingProblem:
    """How the framework will treat some of the settings, read in its source."""

    consequence: Consequence
    message: str  # one line: the settings, with their numbers, and what happens
    evidence: tuple[str, ...]  # the framework's own text, and where: "openrlhf 0.11.2 cli/train_sft.py:321"
    location: SourceLocation = SourceLocation()
    sets: Mapping[str, str] = field(default_factory=dict)  # `Key`s (or own names) that repair it
    advice: str = ""  # if no setting repairs it: what to do
    installs: tuple[str, ...] = ()  # requirements that repair it: "transformers==4.55.2"
    mild: bool = False  # costs speed or memory, or is a matter of taste, or is not proven: a warning at most
    universal: bool = False  # every release and every fork does so: an option of argparse without its value


@dataclass(frozen=True)
class Job:
    """A launch as one version of one framework reads it."""

    framework: str
    version: str
    trainer: str  # "sft", "dpo", "rm", "ppo", "grpo", …
    plan: Plan = Plan()  # what will really run, after what the framework makes of the settings
    model: str = ""
    location: SourceLocation = SourceLocation()  # of the command, or of the file's first line
    settings: tuple[Setting, ...] = ()
    unknown_settings: tuple[UnknownSetting, ...] = ()
    problems: tuple[SettingProblem, ...] = ()
    stated_by: tuple[str, ...] = ()  # files of the tree that state the versions: "verl/version/version"
    world_size: Fact[int] = Absent("the launch does not set the number of training processes")
    gpus: Fact[int] = Absent("the launch does not set the number of GPUs")  # over all roles and nodes
    nodes: int = 1
    deepspeed: Fact[bool] = Known(False)  # whether transformers' Trainer passes its gradients to DeepSpeed
    tensor_parallel: int = 1
    scheme: str = ""  # of sequence parallelism: "llama3", "ulysses", "torch", "megatron"; "" if there is none
    hooked: tuple[str, ...] = ()  # implementations in which that scheme really takes place; (): all
    packs_with: tuple[str, ...] = ()  # implementations with which the framework packs; (): all
    requires: tuple[str, ...] = ()  # what this release of the framework requires: "transformers==5.15.0"
    reinforcement: bool = False  # rollouts by another engine: vLLM, SGLang
    imports: tuple[str, ...] = ()  # modules that are imported with any settings: "flash_attn"
    locations: Mapping[str, SourceLocation] = field(default_factory=dict)  # of each `Key` that is written
    variables: tuple[Setting, ...] = ()  # of its environment, those that may be shown, with where each is set
    remarks: tuple[str, ...] = ()  # what could not be known and was taken as its default


@dataclass(frozen=True)
class LintedLaunch:
    """One launch as read, and as corrected."""

    job: Job
    diff: str = ""  # of the source, unified; "" if nothing is to be changed
    command: str = ""  # corrected, with its environment and folder, to paste; "" for a file, and without changes
    edits: tuple[Edit, ...] = ()
    # Of these, the changes that leave the job unchanged: new names, the same settings otherwise.
    safe: tuple[Edit, ...] = ()
    # Variables that the shell must define for `command`, because their values are known only at run time.
    shell_variables: tuple[str, ...] = ()

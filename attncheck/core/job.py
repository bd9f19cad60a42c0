"""What a launch will do: its settings as one framework version reads them, joined in a `Plan`; plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.launch import Edit, Setting, SourceLocation
from attncheck.core.plan import Plan

# The settings that every framework has under some name; a rule's fix names them so, a framework's module writes them
# under its own name. A key of another form ("--train.batch_size", "data.max_length") is the framework's own name.
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

# What a framework does with settings that it cannot serve. Each is its own rule.
Consequence = Literal[
    "refuses",  # stops with an error, at start or at the first step
    "replaces",  # goes on with another setting than the one written
    "ignores",  # the setting does nothing
    "wrong",  # goes on and computes something else, silently
    "no_step",  # runs and never takes an optimiser's step
    "waits",  # waits for ever
]


@dataclass(frozen=True)
class UnknownSetting:
    """A setting that this version of the framework does not know."""

    name: str  # as written
    location: SourceLocation
    now: tuple[str, ...] = ()  # what it is called in this version, with values where they change; (): it is gone
    since: str = ""  # version in which it went or was renamed, or from which on it is known
    near: str = ""  # where it was never known: the nearest name that is
    dropped: str = ""  # where the framework's source shows that it goes on without the setting, and is silent about it
    proof: str = ""  # what shows that the parser which will run refuses it; "": nobody knows, and nobody may say so


@dataclass(frozen=True)
class SettingProblem:
    """What the framework will do with some of the settings, read in its source."""

    consequence: Consequence
    message: str  # one line: the settings, with their numbers, and what happens
    evidence: tuple[str, ...]  # the framework's own text, and where: "openrlhf 0.11.2 cli/train_sft.py:321"
    location: SourceLocation = SourceLocation()
    sets: Mapping[str, str] = field(default_factory=dict)  # `Key`s (or own names) that repair it
    advice: str = ""  # if no setting repairs it: what to do
    installs: tuple[str, ...] = ()  # requirements that repair it: "transformers==4.55.2"
    mild: bool = False  # costs speed or memory, or is a matter of taste, or nothing proves it: a warning at most
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
    deepspeed: Fact[bool] = Known(False)  # whether transformers' Trainer hands its gradients to DeepSpeed
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
    """One launch as it was read and as it is corrected."""

    job: Job
    diff: str = ""  # of the source, unified; "" if nothing is to be changed
    command: str = ""  # corrected, with its environment and folder, to paste; "" for a file, and without changes
    edits: tuple[Edit, ...] = ()
    safe: tuple[Edit, ...] = ()  # of those, what leaves the job what it was: new names, the same settings otherwise
    shell_variables: tuple[str, ...] = ()  # that the shell must hold for `command`: only running tells their values

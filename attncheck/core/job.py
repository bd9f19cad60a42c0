"""The job that a launch will run: its settings as one framework version reads them; plain data."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, get_args

from attncheck.core.facts import Absent, Fact, Known
from attncheck.core.launch import Edit, Setting, SourceLocation
from attncheck.core.plan import Plan

# Settings that every framework has under some name. A rule's fix uses these names, and a framework's module writes its
# own. A key of another form ("--train.batch_size", "data.max_length") is the framework's own name.
Key = Literal[
    "attn_implementation",  # "flash_attention_2", "sdpa", …
    "packing",  # "on", "off"
    "precision",  # "bf16", "fp16", "fp32"
    "ring_size",  # processes that share one row of tokens, in any scheme
    "heads_k_stride",
    "tensor_parallel",
    "deterministic",  # "on", "off"
    "liger",  # "on", "off"
    "gradient_checkpointing",  # "on", "off"
    "max_length",
    "batch",  # rows per device
    "global_batch",  # rows per optimiser step, over all ranks
    "padding_side",  # "right", "left"
]
KEYS: tuple[Key, ...] = get_args(Key)
DROP = "\0drop"  # as a value: remove the setting

# A framework's reactions to settings that it cannot support. Each is its own rule.
Consequence = Literal[
    "refuses",  # stops with an error, at start or at the first step
    "replaces",  # it continues with a different setting from the written one
    "ignores",  # the setting does nothing
    "wrong",  # it continues and silently computes something else
    "no_step",  # it runs but never takes an optimiser step
    "waits",  # waits forever
]


NO_ARGUMENT = "its class has no such argument"  # the end of a proof about a constructor's keyword
NO_READER = "nothing"  # that a program imports reads a setting


@dataclass(frozen=True)
class UnknownSetting:
    """A setting that this version of the framework does not know."""

    name: str  # as written
    location: SourceLocation
    now: tuple[str, ...] = ()  # its name in this version, with values if they change; (): it was removed
    since: str = ""  # the version that removed, renamed or introduced it
    near: str = ""  # the closest known name, if the name was never known
    dropped: str = ""  # source code which shows that the framework silently continues without the setting
    proof: str = ""  # evidence that the job's parser refuses it; "": not known, so no error may be reported
    reader: str = ""  # the place in the program that reads it, or `NO_READER`; "": unknown
    choice: str = ""  # "group=option" of a Hydra config group whose files have it


@dataclass(frozen=True)
class SettingProblem:
    """How the framework will treat some of the settings, according to its source."""

    consequence: Consequence
    message: str  # one line: the settings with their numbers, and the effect
    evidence: tuple[str, ...]  # the framework's own text with its location: "openrlhf 0.11.2 cli/train_sft.py:321"
    location: SourceLocation = SourceLocation()
    sets: Mapping[str, str] = field(default_factory=dict)  # `Key`s (or the framework's own names) that fix it
    advice: str = ""  # what to do if no setting fixes it
    installs: tuple[str, ...] = ()  # requirements that fix it: "transformers==4.55.2"
    mild: bool = False  # it costs speed or memory, is a matter of preference, or is not proven: a warning at most
    assumes_absence: bool = False  # it comes from the default of a setting that the launch does not write
    universal: bool = False  # true of every release and fork: an argparse option without its value
    refused_value: str = ""  # the value of a setting of the framework's own that this release does not take
    is_registered: bool = False  # the value is the name of a registry, to which each release adds


@dataclass(frozen=True)
class Job:
    """A launch as one version of one framework reads it."""

    framework: str
    version: str
    trainer: str  # "sft", "dpo", "rm", "ppo", "grpo", …
    plan: Plan = Plan()  # what will really run, after the framework has processed the settings
    model: str = ""
    location: SourceLocation = SourceLocation()  # location of the command, or of the file's first line
    settings: tuple[Setting, ...] = ()
    unknown_settings: tuple[UnknownSetting, ...] = ()
    problems: tuple[SettingProblem, ...] = ()
    stated_by: tuple[str, ...] = ()  # files of the tree that state the versions: "verl/version/version"
    world_size: Fact[int] = Absent("the launch does not set the number of training processes")
    gpus: Fact[int] = Absent("the launch does not set the number of GPUs")  # total over all roles and nodes
    nodes: int = 1
    deepspeed: Fact[bool] = Known(False)  # whether transformers' Trainer passes its gradients to DeepSpeed
    tensor_parallel: int = 1
    scheme: str = ""  # scheme of sequence parallelism: "llama3", "ulysses", "torch", "megatron"; "" if there is none
    hooked: tuple[str, ...] = ()  # implementations for which that scheme takes effect; (): all
    packs_with: tuple[str, ...] = ()  # implementations that the framework packs with; (): all
    requires: tuple[str, ...] = ()  # requirements of this release of the framework: "transformers==5.15.0"
    reinforcement: bool = False  # whether another engine (vLLM, SGLang) generates rollouts
    pins: tuple[str, ...] = ()  # other requirements that a fix must meet, of the tree and of the launch's options
    plain_forwards: tuple[SourceLocation, ...] = ()  # of the program's own models that it may train; without **kwargs
    has_plain_forward: bool = False  # whether any model that it may train has one of these
    has_equal_rows: bool = False  # whether all rows have the same number of labels
    head: str = ""  # of the model that its program loads: "ForTokenClassification"
    imports: tuple[str, ...] = ()  # modules that are imported with any settings: "flash_attn"
    locations: Mapping[str, SourceLocation] = field(default_factory=dict)  # location of each `Key` that the launch sets
    variables: tuple[Setting, ...] = ()  # environment variables of the job that may be shown, with the location of each
    unknown: tuple[str, ...] = ()  # fields of `plan` that are known only at run time; it has their defaults
    warnings: tuple[str, ...] = ()  # that its program certainly logs, with the place of each
    remarks: tuple[str, ...] = ()  # values that could not be determined, so that the default was assumed


@dataclass(frozen=True)
class LintedLaunch:
    """One launch as read, and as corrected."""

    job: Job
    diff: str = ""  # unified diff of the source; "" if nothing changes
    command: str = ""  # corrected command with its environment and folder, to paste; "" for a file, or without changes
    edits: tuple[Edit, ...] = ()
    # The changes among these that leave the job as it is: new names, otherwise the same settings.
    safe: tuple[Edit, ...] = ()
    # Variables that the shell must define for `command`: their values are known only at run time.
    shell_variables: tuple[str, ...] = ()
    # Questions that decide whether the launch is right and that no check answered: "the gradients' size".
    unchecked: tuple[str, ...] = ()

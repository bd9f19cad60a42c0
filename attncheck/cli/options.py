"""The options of all commands, each defined once: `Annotated` aliases, and groups of related options.

A command's function takes aliases as parameters, and groups as parameters whose type is the group. `expand_groups`
gives Typer a function in which the fields of a group replace it.
"""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields, is_dataclass
from typing import Annotated, Any

import typer

from attncheck.cli.completion import (
    complete_backends,
    complete_checks,
    complete_codes,
    complete_field,
    complete_format,
    complete_from,
    complete_output,
    complete_target,
)

# Headings of options in a command's help.
EXAMINE = "What to examine"
MEASURE = "What to measure"
RANKS = "Across ranks"
NODES = "Across nodes"
TRAIN = "How the job trains"
POLICY = "What the gate checks"
OUTPUT = "Output"

PANELS = (EXAMINE, MEASURE, TRAIN, RANKS, NODES, POLICY, OUTPUT)  # in the order of the help

LANES = ("static", "import", "device")
PROFILES = ("auto", "flash", "ring", "rl", "all")
SUITES = ("quick", "standard", "full")
DEVICES = ("auto", "cpu", "cuda")
DTYPES = ("bf16", "fp16", "fp32")
PASSES = ("forward", "forward+backward", "both")
ATTN_IMPLEMENTATIONS = ("eager", "sdpa", "flex_attention", "flash_attention_2", "flash_attention_3")
FAIL_ON = ("error", "warning", "never")


def option(panel: str, *names: str, **settings: Any) -> Any:
    """Return a Typer option under a heading of the help."""
    return typer.Option(*names, rich_help_panel=panel, show_default=False, **settings)


Texts = list[str] | None  # a repeatable option; None if it was not given

Model = Annotated[
    str | None,
    typer.Argument(
        metavar="MODEL",
        show_default=False,
        help="Judge or measure for this model: a folder, or a Hub name in the local cache.",
    ),
]
Python = Annotated[
    str | None,
    option(
        EXAMINE,
        "--python",
        metavar="PATH",
        help="Examine this interpreter's environment. Default: attncheck's own; if that has no torch, the active one.",
    ),
]
Facts = Annotated[
    str | None,
    option(
        EXAMINE,
        "--facts",
        metavar="FILE",
        help=(
            "Judge a snapshot that `attncheck probe` wrote: a file, or - for standard input. Default: examine this "
            "machine."
        ),
    ),
]
Online = Annotated[bool, option(EXAMINE, "--online", help="Allow downloading a model's configuration from the Hub.")]
Lanes = Annotated[
    Texts,
    option(
        EXAMINE,
        "--lane",
        metavar="LANE",
        help=(
            "Run only these lanes: static (which always runs), import or device. Repeat for several. Default: all "
            "three."
        ),
        autocompletion=complete_from(LANES),
    ),
]
Timeout = Annotated[
    float | None,
    option(
        EXAMINE,
        "--timeout",
        metavar="SECONDS",
        help="Stop one import or one measured case after this many seconds. Default: 60.",
    ),
]
Device = Annotated[
    str,
    option(
        EXAMINE,
        "--device",
        metavar="DEVICE",
        help="Measure on this device: auto, cpu or cuda. Default: auto, a GPU if there is one.",
        autocompletion=complete_from(DEVICES),
    ),
]
Target = Annotated[
    str | None,
    option(
        EXAMINE,
        "--target",
        metavar="MACHINE",
        help=(
            "Judge for this machine and these packages: h100x8, or sm_90,gpus=8,driver=580,torch=2.9, or "
            "h100x8,requirements.txt. Default: this machine."
        ),
        autocompletion=complete_target,
    ),
]
Profile = Annotated[
    str | None,
    option(
        EXAMINE,
        "--profile",
        metavar="NAME",
        help=(
            "Run the rules that matter for this kind of job: auto, flash, ring, rl or all. Default: auto, by what "
            "is installed."
        ),
        autocompletion=complete_from(PROFILES),
    ),
]
FrameworkVersion = Annotated[
    str | None,
    option(
        EXAMINE,
        "--framework-version",
        metavar="VERSION",
        help="Read launches with the option names of this release of their framework. Default: the installed one.",
    ),
]
Backends = Annotated[
    Texts,
    option(
        MEASURE,
        "--backend",
        metavar="NAME",
        help=(
            "Measure only this backend, as `attncheck backends` lists it. Repeat for several. Default: all that "
            "run here."
        ),
        autocompletion=complete_backends,
    ),
]
Seed = Annotated[int, option(MEASURE, "--seed", metavar="N", min=0, help="Make the inputs from this seed. Default: 0.")]
Dtype = Annotated[
    str | None,
    option(
        MEASURE,
        "--dtype",
        metavar="DTYPE",
        help="Compute in this dtype: bf16, fp16 or fp32. Default: the model's, otherwise bf16.",
        autocompletion=complete_from(DTYPES),
    ),
]
Verbose = Annotated[
    bool, option(OUTPUT, "--verbose", "-v", help="Also list every verdict and every inconclusive check.")
]
ListFormat = Annotated[
    str,
    option(
        OUTPUT,
        "--format",
        metavar="FORMAT",
        help="Print in this format: text or json. Default: text.",
        autocompletion=complete_from(("text", "json")),
    ),
]
ModelOption = Annotated[
    str | None,
    option(
        EXAMINE,
        "--model",
        metavar="MODEL",
        help="Judge for this model: a folder, or a Hub name in the local cache. Default: the launch's own.",
    ),
]
Baseline = Annotated[
    str | None,
    option(
        POLICY,
        "--baseline",
        metavar="FILE",
        help="Allow the findings that this file records, so that only new ones fail. Default: the policy's `baseline`.",
    ),
]


@dataclass(frozen=True)
class OutputOptions:
    """The options for how a report is written."""

    format: Annotated[
        str,
        option(
            OUTPUT,
            "--format",
            metavar="FORMAT",
            help=(
                "Write the report to standard output in this format: text, json, markdown, html, junit, sarif or "
                "github. Default: text."
            ),
            autocompletion=complete_format,
        ),
    ] = "text"
    output: Annotated[
        Texts,
        option(
            OUTPUT,
            "--output",
            metavar="FORMAT=FILE",
            help="Write the report to this file too, in this format. Repeat for several. Default: none.",
            autocompletion=complete_output,
        ),
    ] = None
    fail_on: Annotated[
        str | None,
        option(
            OUTPUT,
            "--fail-on",
            metavar="LEVEL",
            help="Exit with 1 at this severity or above: error, warning or never. Default: error.",
            autocompletion=complete_from(FAIL_ON),
        ),
    ] = None
    github: Annotated[
        bool,
        option(
            OUTPUT,
            "--github/--no-github",
            help="Write annotations and a job summary under GitHub Actions. Default: yes.",
        ),
    ] = True


@dataclass(frozen=True)
class RuleOptions:
    """The options for which rules are evaluated."""

    select: Annotated[
        Texts,
        option(
            OUTPUT,
            "--select",
            metavar="CODE",
            help=("Use only these rules: codes or prefixes of codes. Repeat for several, or use commas. Default: all."),
            autocompletion=complete_codes,
        ),
    ] = None
    ignore: Annotated[
        Texts,
        option(
            OUTPUT,
            "--ignore",
            metavar="CODE",
            help="Leave these rules out: codes or prefixes of codes. Repeat for several, or use commas. Default: none.",
            autocompletion=complete_codes,
        ),
    ] = None


RingSize = Annotated[
    int | None,
    option(
        RANKS,
        "--ring-size",
        min=1,
        max=1024,
        metavar="N",
        help=(
            "Run across this many processes; under torchrun or srun, join as one of their ranks. Default: one, "
            "without a ring."
        ),
    ),
]
Rendezvous = Annotated[
    float | None,
    option(
        RANKS,
        "--rendezvous-timeout",
        min=1,
        metavar="SECONDS",
        help="Wait this many seconds for all ranks to join. Default: 120.",
    ),
]
MinEfficiency = Annotated[
    float | None,
    option(
        RANKS,
        "--min-efficiency",
        metavar="SHARE",
        min=0,
        max=1,
        help=(
            "Exit with 1 if no correct scheme reaches this share (0 to 1) of flash-attn's speed over N. "
            "Default: no minimum."
        ),
    ),
]


@dataclass(frozen=True)
class RingOptions:
    """The options of a ring of processes."""

    ring_size: RingSize = None
    communication: Annotated[
        bool,
        option(
            RANKS,
            "--communication/--no-communication",
            help="Check that ranks can communicate before anything is measured. Default: yes.",
        ),
    ] = True
    emulate: Annotated[
        bool | None,
        option(
            RANKS,
            "--emulate/--no-emulate",
            help="Replace flash-attn's kernels with plain torch. Default: only if there is no GPU.",
        ),
    ] = None
    rendezvous_timeout: Rendezvous = None


@dataclass(frozen=True)
class ShapeOptions:
    """The options of the one shape that is timed."""

    seqlen: Annotated[
        int | None,
        option(
            MEASURE,
            "--seqlen",
            min=1,
            metavar="TOKENS",
            help="Time sequences of this many tokens. Default: 8192 (512 on a CPU).",
        ),
    ] = None
    batch: Annotated[
        int | None, option(MEASURE, "--batch", min=1, metavar="N", help="Time this many rows at once. Default: 1.")
    ] = None
    heads: Annotated[
        int | None,
        option(
            MEASURE,
            "--heads",
            min=1,
            metavar="N",
            help="Time this many query heads. Default: the model's, otherwise 32 (4 on a CPU).",
        ),
    ] = None
    kv_heads: Annotated[
        int | None,
        option(
            MEASURE,
            "--kv-heads",
            min=1,
            metavar="N",
            help=(
                "Time this many key/value heads. Default: as many as --heads; without it the model's, otherwise 8 (2 "
                "on a CPU)."
            ),
        ),
    ] = None
    head_dim: Annotated[
        int | None,
        option(
            MEASURE,
            "--head-dim",
            min=1,
            metavar="N",
            help="Time heads of this size. Default: the model's, otherwise 128 (64 on a CPU).",
        ),
    ] = None
    dtype: Dtype = None
    causal: Annotated[
        bool | None,
        option(
            MEASURE, "--causal/--full", help="Time causal or full attention. Default: the model's, otherwise causal."
        ),
    ] = None
    window: Annotated[
        int | None,
        option(
            MEASURE,
            "--window",
            min=1,
            metavar="KEYS",
            help="Limit each query to this many keys, including its own. Default: the model's window, otherwise all.",
        ),
    ] = None
    packed: Annotated[
        str | None,
        option(
            MEASURE,
            "--packed",
            metavar="LENGTHS",
            help=("Pack documents of these token counts into one row: 4096,1024,3072. Default: one sequence per row."),
        ),
    ] = None
    passes: Annotated[
        str,
        option(
            MEASURE,
            "--passes",
            metavar="WHICH",
            help="Time these passes: forward, forward+backward or both. Default: both.",
            autocompletion=complete_from(PASSES),
        ),
    ] = "both"


@dataclass(frozen=True)
class PlanOptions:
    """The options for how a job trains; each is a field of `attncheck.core.plan.Plan`."""

    attn_implementation: Annotated[
        str | None,
        option(
            TRAIN,
            "--attn-implementation",
            metavar="NAME",
            help=(
                "Train with this implementation, as transformers names it. Default: flash_attention_2 if it is "
                "installed."
            ),
            autocompletion=complete_from(ATTN_IMPLEMENTATIONS),
        ),
    ] = None
    packing: Annotated[
        str | None,
        option(
            TRAIN,
            "--packing",
            metavar="LAYOUT",
            help=(
                "Separate packed documents by position_ids, cu_seqlens, mask_2d, mask_4d or padding. "
                "Default: position_ids."
            ),
            autocompletion=complete_field("packing"),
        ),
    ] = None
    positions: Annotated[
        str | None,
        option(
            TRAIN,
            "--positions",
            metavar="KIND",
            help="Number positions as reset (restart in each document), running, reset_3d or reset_4d. Default: reset.",
            autocompletion=complete_field("positions"),
        ),
    ] = None
    padding_side: Annotated[
        str | None,
        option(
            TRAIN,
            "--padding-side",
            metavar="SIDE",
            help="Pad rows on this side: right or left. Default: right.",
            autocompletion=complete_field("padding_side"),
        ),
    ] = None
    precision: Annotated[
        str | None,
        option(
            TRAIN,
            "--precision",
            metavar="NAME",
            help="Train in this precision: fp32, bf16, fp16 or autocast. Default: bf16.",
            autocompletion=complete_field("precision"),
        ),
    ] = None
    batch: Annotated[
        int | None,
        option(TRAIN, "--batch", min=1, metavar="N", help="Train this many rows at once on a device. Default: 1."),
    ] = None
    accumulation: Annotated[
        int | None,
        option(
            TRAIN,
            "--accumulation",
            min=1,
            metavar="N",
            help="Take an optimiser step after this many batches. Default: 4.",
        ),
    ] = None
    max_length: Annotated[
        int | None,
        option(TRAIN, "--max-length", min=1, metavar="TOKENS", help="Pack rows of this many tokens. Default: 512."),
    ] = None
    use_cache: Annotated[
        bool | None,
        option(TRAIN, "--use-cache/--no-use-cache", help="Leave the model's cache on while training. Default: no."),
    ] = None
    gradient_checkpointing: Annotated[
        bool | None,
        option(
            TRAIN,
            "--gradient-checkpointing/--no-gradient-checkpointing",
            help="Recompute layers in the backward pass. Default: no.",
        ),
    ] = None
    liger: Annotated[
        bool | None, option(TRAIN, "--liger/--no-liger", help="Patch the model with liger-kernel. Default: no.")
    ] = None
    cross_entropy: Annotated[
        str | None,
        option(
            TRAIN,
            "--cross-entropy",
            metavar="NAME",
            help="Compute the loss with this cross entropy: torch, chunked or flash_attn. Default: torch.",
            autocompletion=complete_field("cross_entropy"),
        ),
    ] = None
    deterministic: Annotated[
        bool | None,
        option(
            TRAIN, "--deterministic/--no-deterministic", help="Require two runs to be bitwise identical. Default: no."
        ),
    ] = None
    compile: Annotated[
        bool | None, option(TRAIN, "--compile/--no-compile", help="Compile the model with torch.compile. Default: no.")
    ] = None
    scheme: Annotated[
        str | None,
        option(
            RANKS,
            "--scheme",
            metavar="SCHEME",
            help=(
                "Split sequences across ranks by this scheme: llama3 (ring-flash-attn's adapter) or ulysses. "
                "Default: llama3."
            ),
            autocompletion=complete_field("scheme"),
        ),
    ] = None
    heads_k_stride: Annotated[
        int | None,
        option(
            RANKS,
            "--heads-k-stride",
            min=1,
            metavar="N",
            help="Take this many key/value heads at a time in llama3's scheme. Default: 1.",
        ),
    ] = None
    steps: Annotated[
        int | None, option(TRAIN, "--steps", min=1, metavar="N", help="Train this many steps. Default: 40.")
    ] = None
    learning_rate: Annotated[
        float | None,
        option(
            TRAIN, "--learning-rate", metavar="RATE", help="Train with this learning rate of AdamW. Default: 0.005."
        ),
    ] = None


@dataclass(frozen=True)
class PolicyOptions:
    """The options for the keys of a gate's policy; they take precedence over the file."""

    level: Annotated[
        int | None,
        option(
            POLICY,
            "--level",
            min=1,
            max=3,
            metavar="N",
            help=(
                "Check this much: 1 reads files for seconds, 2 measures for up to 3 minutes, 3 for up to 30. Default: "
                "the policy's level, otherwise its checks."
            ),
        ),
    ] = None
    checks: Annotated[
        Texts,
        option(
            POLICY,
            "--checks",
            metavar="CHECK",
            help=(
                "Run these checks: doctor, lint, parity, smoke, rehearsal, determinism or bench. Repeat for several. "
                "Default: the policy's, otherwise doctor, lint and parity."
            ),
            autocompletion=complete_checks,
        ),
    ] = None
    model: Annotated[
        Texts,
        option(
            POLICY,
            "--model",
            metavar="MODEL",
            help=(
                "Check for this model: a folder, or a Hub name in the local cache. Repeat for several. Default: "
                "the policy's."
            ),
        ),
    ] = None
    launch: Annotated[
        Texts,
        option(
            POLICY,
            "--launch",
            metavar="FILE",
            help=(
                "Lint this script or configuration file, and run it if a rehearsal is requested. Repeat for several. "
                "Default: the policy's."
            ),
        ),
    ] = None
    budget: Annotated[
        float | None,
        option(
            POLICY,
            "--budget",
            min=1,
            metavar="SECONDS",
            help="Stop after this many seconds for all checks together. Default: no limit.",
        ),
    ] = None
    suite: Annotated[
        str | None,
        option(
            POLICY,
            "--suite",
            metavar="SUITE",
            help="Measure parity on the cases of this suite: quick, standard or full. Default: quick.",
            autocompletion=complete_from(SUITES),
        ),
    ] = None
    max_error: Annotated[
        float | None,
        option(
            POLICY,
            "--max-error",
            metavar="SHARE",
            min=0,
            max=1,
            help=(
                "Report a backend that passes but uses more than this share (0 to 1) of its error budget. "
                "Default: the whole budget."
            ),
        ),
    ] = None
    profile: Profile = None
    target: Target = None
    framework_version: FrameworkVersion = None
    device: Annotated[
        str | None,
        option(
            EXAMINE,
            "--device",
            metavar="DEVICE",
            help=(
                "Measure on this device: auto, cpu or cuda (a GPU is required). Default: auto, a GPU if there is one."
            ),
            autocompletion=complete_from(DEVICES),
        ),
    ] = None
    timeout: Timeout = None
    ring_size: Annotated[
        int | None,
        option(
            RANKS, "--ring-size", min=2, max=1024, metavar="N", help="Also check over this many ranks. Default: none."
        ),
    ] = None
    min_efficiency: MinEfficiency = None


def expand_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` with the fields of its option groups as separate parameters, as Typer requires."""
    declared = _read_parameters(function)
    groups: dict[str, Any] = {param.name: param.annotation for param in declared if is_dataclass(param.annotation)}
    parameters: list[inspect.Parameter] = []
    for param in declared:
        parameters += _read_parameters(groups[param.name]) if param.name in groups else [param]

    def call(**values: Any) -> None:
        built: dict[str, Any] = {}
        for name, group in groups.items():
            built[name] = group(**{field.name: values.pop(field.name) for field in fields(group)})
        function(**values, **built)

    parameters = sorted((p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters), key=_panel_order)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__doc__, call.__name__ = function.__doc__, function.__name__
    return call


def _read_parameters(function: Callable[..., object]) -> list[inspect.Parameter]:
    """Return the parameters of a function or dataclass with their annotations evaluated.

    In Python 3.10 `get_type_hints` wraps the type of a parameter whose default is None in Optional, where Typer does
    not look for an option.
    """
    return list(inspect.signature(function, eval_str=True).parameters.values())


def _panel_order(parameter: inspect.Parameter) -> int:
    """Return a parameter's position: arguments first, then options heading by heading."""
    for settings in getattr(parameter.annotation, "__metadata__", ()):
        if settings.rich_help_panel in PANELS:
            return PANELS.index(settings.rich_help_panel)
    return -1

"""The options of all commands, each defined once: `Annotated` aliases, and groups of those that go together.

A command's function takes aliases as parameters, and groups as parameters whose type is the group: `expand_groups`
gives Typer a function with the fields of its groups in their place.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

import typer

# Headings of options in a command's help.
EXAMINE = "What to examine"
MEASURE = "What to measure"
RANKS = "Over ranks"
TRAIN = "How the job trains"
POLICY = "What the gate asks"
OUTPUT = "Output"

PANELS = (EXAMINE, MEASURE, TRAIN, RANKS, POLICY, OUTPUT)  # as they follow one another

LANES = ("static", "import", "device")
PROFILES = ("auto", "flash", "ring", "rl", "all")
SUITES = ("quick", "standard", "full")
DEVICES = ("auto", "cpu", "cuda")
FAIL_ON = ("error", "warning", "never")


def option(panel: str, *names: str, **settings: Any) -> Any:
    """Return a Typer option under a heading of the help."""
    return typer.Option(*names, rich_help_panel=panel, show_default=False, **settings)


def complete_from(choices: Iterable[str]) -> Callable[[str], list[str]]:
    """Return the function with which a shell completes a value out of `choices`."""
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def complete_format(incomplete: str) -> list[str]:
    """Return the formats whose names begin with `incomplete`."""
    from attncheck.report.formats import format_names

    return complete_from(format_names())(incomplete)


Texts = list[str] | None  # of an option that may be repeated; None where it was not given

Model = Annotated[
    str | None, typer.Argument(metavar="MODEL", show_default=False, help="A folder, or a Hub name in the cache.")
]
Python = Annotated[
    str | None,
    option(EXAMINE, "--python", metavar="PATH", help="The interpreter whose environment it is. Default: this one."),
]
Online = Annotated[bool, option(EXAMINE, "--online", help="Allow fetching a model's configuration from the Hub.")]
Lanes = Annotated[
    Texts,
    option(
        EXAMINE,
        "--lane",
        metavar="LANE",
        help="static, import or device; repeat for several. Default: all three.",
        autocompletion=complete_from(LANES),
    ),
]
Timeout = Annotated[
    float | None,
    option(EXAMINE, "--timeout", metavar="SECONDS", help="Deadline of one import or one case. Default: 60."),
]
Device = Annotated[
    str,
    option(
        EXAMINE,
        "--device",
        metavar="DEVICE",
        help="auto, cpu or cuda. Default: auto.",
        autocompletion=complete_from(DEVICES),
    ),
]
Target = Annotated[
    str | None,
    option(
        EXAMINE,
        "--target",
        metavar="MACHINE",
        help="Judge for this machine: h100x8, or sm_90,gpus=8,driver=580,torch=2.9.",
    ),
]
Profile = Annotated[
    str | None,
    option(
        EXAMINE,
        "--profile",
        metavar="NAME",
        help="What matters: auto, flash, ring, rl or all. Default: auto.",
        autocompletion=complete_from(PROFILES),
    ),
]
FrameworkVersion = Annotated[
    str | None,
    option(
        EXAMINE,
        "--framework-version",
        metavar="VERSION",
        help="Read launches in the names of this release. Default: the installed one.",
    ),
]
Backends = Annotated[Texts, option(MEASURE, "--backend", metavar="NAME", help="Only this backend; repeat for several.")]
Seed = Annotated[int, option(MEASURE, "--seed", metavar="N", min=0, help="Seed of the inputs. Default: 0.")]
Dtype = Annotated[
    str | None, option(MEASURE, "--dtype", metavar="DTYPE", help="bf16, fp16 or fp32. Default: the model's, else bf16.")
]
Verbose = Annotated[
    bool, option(OUTPUT, "--verbose", "-v", help="Also list every verdict, and what could not be judged.")
]
ListFormat = Annotated[
    str, option(OUTPUT, "--format", help="text or json.", autocompletion=complete_from(("text", "json")))
]
ModelOption = Annotated[
    str | None,
    option(
        EXAMINE,
        "--model",
        metavar="MODEL",
        help="Judge for this model: a folder, or a Hub name in the cache. Default: the launch's.",
    ),
]
Baseline = Annotated[
    str | None,
    option(POLICY, "--baseline", metavar="FILE", help="Allow what this file records; only new findings fail."),
]


@dataclass(frozen=True)
class OutputOptions:
    """How a report is written."""

    format: Annotated[
        str,
        option(
            OUTPUT,
            "--format",
            metavar="FORMAT",
            help="text, json, markdown, junit, sarif or github. Default: text.",
            autocompletion=complete_format,
        ),
    ] = "text"
    output: Annotated[
        Texts, option(OUTPUT, "--output", metavar="FORMAT=FILE", help="Write this file too; repeat for several.")
    ] = None
    fail_on: Annotated[
        str | None,
        option(
            OUTPUT,
            "--fail-on",
            metavar="LEVEL",
            help="Exit 1 from here on: error, warning or never. Default: error.",
            autocompletion=complete_from(FAIL_ON),
        ),
    ] = None
    github: Annotated[
        bool, option(OUTPUT, "--github/--no-github", help="Annotate under GitHub Actions. Default: yes.")
    ] = True


@dataclass(frozen=True)
class RuleOptions:
    """Which rules judge."""

    select: Annotated[
        Texts, option(OUTPUT, "--select", metavar="CODE", help="Only these rules: codes or prefixes.")
    ] = None
    ignore: Annotated[Texts, option(OUTPUT, "--ignore", metavar="CODE", help="Not these rules: codes or prefixes.")] = (
        None
    )


RingSize = Annotated[
    int | None,
    option(
        RANKS,
        "--ring-size",
        min=1,
        max=1024,
        metavar="N",
        help="Run over N processes, or as a rank under torchrun or srun.",
    ),
]
Rendezvous = Annotated[
    float | None,
    option(
        RANKS, "--rendezvous-timeout", min=1, metavar="SECONDS", help="How long ranks may take to meet. Default: 120."
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
        help="Exit 1 where no correct scheme reaches this share of flash-attn / N.",
    ),
]


@dataclass(frozen=True)
class RingOptions:
    """A ring of processes, and what it needs."""

    ring_size: RingSize = None
    communication: Annotated[
        bool,
        option(
            RANKS, "--communication/--no-communication", help="Check first that ranks can communicate. Default: yes."
        ),
    ] = True
    emulate: Annotated[
        bool | None,
        option(
            RANKS,
            "--emulate/--no-emulate",
            help="Let plain torch stand in for flash-attn's kernels. Default: where there is no GPU.",
        ),
    ] = None
    rendezvous_timeout: Rendezvous = None


@dataclass(frozen=True)
class ShapeOptions:
    """The one shape that is timed."""

    seqlen: Annotated[
        int | None,
        option(MEASURE, "--seqlen", min=1, metavar="TOKENS", help="Sequence length. Default: 8192 (512 on a CPU)."),
    ] = None
    batch: Annotated[int | None, option(MEASURE, "--batch", min=1, metavar="N", help="Rows. Default: 1.")] = None
    heads: Annotated[
        int | None,
        option(MEASURE, "--heads", min=1, metavar="N", help="Query heads. Default: the model's, else 32 (4 on a CPU)."),
    ] = None
    kv_heads: Annotated[
        int | None,
        option(
            MEASURE,
            "--kv-heads",
            min=1,
            metavar="N",
            help="Key/value heads. Default: as many as --heads, the model's, else 8 (2).",
        ),
    ] = None
    head_dim: Annotated[
        int | None,
        option(MEASURE, "--head-dim", min=1, metavar="N", help="Size of a head. Default: the model's, else 128 (64)."),
    ] = None
    dtype: Dtype = None
    causal: Annotated[
        bool | None,
        option(MEASURE, "--causal/--full", help="Causal or full attention. Default: the model's, else causal."),
    ] = None
    window: Annotated[
        int | None,
        option(MEASURE, "--window", min=1, metavar="KEYS", help="A query sees this many keys, its own included."),
    ] = None
    packed: Annotated[
        str | None,
        option(MEASURE, "--packed", metavar="LENGTHS", help="Documents packed into one row: 4096,1024,3072."),
    ] = None
    passes: Annotated[
        str, option(MEASURE, "--passes", metavar="WHICH", help="forward, forward+backward or both. Default: both.")
    ] = "both"


@dataclass(frozen=True)
class PlanOptions:
    """How a job trains: each is a field of `attncheck.core.plan.Plan`."""

    attn_implementation: Annotated[
        str | None,
        option(
            TRAIN,
            "--attn-implementation",
            metavar="NAME",
            help="As transformers names it. Default: flash_attention_2 where it is installed.",
        ),
    ] = None
    packing: Annotated[
        str | None,
        option(
            TRAIN,
            "--packing",
            metavar="LAYOUT",
            help="position_ids, cu_seqlens, mask_2d, mask_4d or padding. Default: position_ids.",
        ),
    ] = None
    positions: Annotated[
        str | None,
        option(
            TRAIN,
            "--positions",
            metavar="KIND",
            help="reset (anew in each document), running, reset_3d or reset_4d. Default: reset.",
        ),
    ] = None
    padding_side: Annotated[
        str | None, option(TRAIN, "--padding-side", metavar="SIDE", help="right or left. Default: right.")
    ] = None
    precision: Annotated[
        str | None, option(TRAIN, "--precision", metavar="NAME", help="fp32, bf16, fp16 or autocast. Default: bf16.")
    ] = None
    batch: Annotated[int | None, option(TRAIN, "--batch", min=1, metavar="N", help="Rows on a device. Default: 1.")] = (
        None
    )
    accumulation: Annotated[
        int | None,
        option(TRAIN, "--accumulation", min=1, metavar="N", help="Batches to an optimiser's step. Default: 4."),
    ] = None
    max_length: Annotated[
        int | None,
        option(TRAIN, "--max-length", min=1, metavar="TOKENS", help="Length of a packed row. Default: 512."),
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
            help="Recompute layers in the backward. Default: no.",
        ),
    ] = None
    liger: Annotated[
        bool | None, option(TRAIN, "--liger/--no-liger", help="Patch the model with liger-kernel. Default: no.")
    ] = None
    cross_entropy: Annotated[
        str | None,
        option(TRAIN, "--cross-entropy", metavar="NAME", help="torch, chunked or flash_attn. Default: torch."),
    ] = None
    deterministic: Annotated[
        bool | None,
        option(TRAIN, "--deterministic/--no-deterministic", help="Require the same bits of two runs. Default: no."),
    ] = None
    compile: Annotated[
        bool | None, option(TRAIN, "--compile/--no-compile", help="torch.compile the model. Default: no.")
    ] = None
    scheme: Annotated[
        str | None,
        option(
            RANKS, "--scheme", metavar="SCHEME", help="llama3 (ring-flash-attn's adapter) or ulysses. Default: llama3."
        ),
    ] = None
    heads_k_stride: Annotated[
        int | None,
        option(RANKS, "--heads-k-stride", min=1, metavar="N", help="kv heads at a time in llama3's scheme."),
    ] = None
    steps: Annotated[int | None, option(TRAIN, "--steps", min=1, metavar="N", help="Steps to train. Default: 40.")] = (
        None
    )
    learning_rate: Annotated[
        float | None, option(TRAIN, "--learning-rate", metavar="RATE", help="AdamW's. Default: 0.005.")
    ] = None


@dataclass(frozen=True)
class PolicyOptions:
    """The keys of a gate's policy, over which options win."""

    checks: Annotated[
        Texts,
        option(
            POLICY,
            "--checks",
            metavar="CHECK",
            help="doctor, lint, parity, determinism, smoke, bench; repeat for several.",
        ),
    ] = None
    model: Annotated[
        Texts, option(POLICY, "--model", metavar="MODEL", help="A folder or Hub name; repeat for several.")
    ] = None
    launch: Annotated[
        Texts,
        option(POLICY, "--launch", metavar="FILE", help="Lint this script or configuration; repeat for several."),
    ] = None
    budget: Annotated[
        float | None,
        option(POLICY, "--budget", min=1, metavar="SECONDS", help="For all checks together. Default: no bound."),
    ] = None
    suite: Annotated[
        str | None,
        option(
            POLICY,
            "--suite",
            metavar="SUITE",
            help="quick, standard or full: parity's cases. Default: quick.",
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
            help="Of a verdict that passes, in units of its budget.",
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
            help="auto, cpu or cuda (a GPU is required). Default: auto.",
            autocompletion=complete_from(DEVICES),
        ),
    ] = None
    timeout: Timeout = None
    ring_size: Annotated[
        int | None,
        option(RANKS, "--ring-size", min=2, max=1024, metavar="N", help="Also check over N ranks."),
    ] = None
    min_efficiency: MinEfficiency = None


def expand_groups(function: Callable[..., None]) -> Callable[..., None]:
    """Return `function` with the fields of its groups of options as parameters of their own, as Typer wants them."""
    hints = get_type_hints(function, include_extras=True)
    groups: dict[str, Any] = {name: kind for name, kind in hints.items() if dataclasses.is_dataclass(kind)}
    parameters: list[inspect.Parameter] = []
    for parameter in inspect.signature(function).parameters.values():
        if parameter.name not in groups:
            parameters.append(parameter.replace(annotation=hints[parameter.name]))
            continue
        group = groups[parameter.name]
        kinds = get_type_hints(group, include_extras=True)
        for field in dataclasses.fields(group):
            parameters.append(
                inspect.Parameter(
                    field.name, inspect.Parameter.KEYWORD_ONLY, default=field.default, annotation=kinds[field.name]
                )
            )

    def call(**values: Any) -> None:
        built: dict[str, Any] = {}
        for name, group in groups.items():
            built[name] = group(**{field.name: values.pop(field.name) for field in dataclasses.fields(group)})
        function(**values, **built)

    parameters = sorted((p.replace(kind=inspect.Parameter.KEYWORD_ONLY) for p in parameters), key=_panel_order)
    call.__signature__ = inspect.Signature(parameters)  # type: ignore[attr-defined]
    call.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    call.__doc__, call.__name__ = function.__doc__, function.__name__
    return call


def _panel_order(parameter: inspect.Parameter) -> int:
    """Return where a parameter stands: arguments first, then options heading by heading."""
    for settings in getattr(parameter.annotation, "__metadata__", ()):
        if settings.rich_help_panel in PANELS:
            return PANELS.index(settings.rich_help_panel)
    return -1

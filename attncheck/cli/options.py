"""Options that several commands share, each group a decorator."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

Command = Callable[..., Any]
FORMATS = "text, json, markdown, junit, sarif or github."


def reporting(command: Command) -> Command:
    """Give a command the options of writing its report."""
    for option in (
        click.option("--github/--no-github", default=True, help="Annotate under GitHub Actions. Default: yes."),
        click.option("--output", "outputs", multiple=True, metavar="FORMAT=FILE", help="Write FILE too; repeat."),
        click.option("--fail-on", help="Exit 1 from here on: error, warning or never. Default: error."),
        click.option("--format", "form", default="text", help=FORMATS),
    ):
        command = option(command)
    return command


def judging(command: Command) -> Command:
    """Give a command the options of which rules judge, and how much is told."""
    for option in (
        click.option("--verbose", "-v", is_flag=True, help="Also list what could not be judged."),
        click.option("--ignore", multiple=True, metavar="CODE", help="Not these rules: codes or prefixes."),
        click.option("--select", multiple=True, metavar="CODE", help="Only these rules: codes or prefixes."),
    ):
        command = option(command)
    return command


def looking(command: Command) -> Command:
    """Give a command the argument and options of looking at an environment."""
    for option in (
        click.option("--online", is_flag=True, help="Allow fetching MODEL's configuration from the Hub."),
        click.option("--timeout", type=float, metavar="SECONDS", help="Deadline of one import. Default: 60."),
        click.option(
            "--lane",
            "lanes",
            multiple=True,
            metavar="LANE",
            help="static, import or device; repeat for several. Default: all three.",
        ),
        click.option(
            "--python", metavar="PATH", help="Examine the environment of this interpreter (Python 3.8 or newer)."
        ),
        click.argument("model", required=False),
    ):
        command = option(command)
    return command


def measuring(command: Command) -> Command:
    """Give a command the argument and options of measuring backends."""
    for option in (
        click.option("--verbose", "-v", is_flag=True, help="Also list every verdict, and the reasons of refusals."),
        reporting,
        click.option("--timeout", type=float, metavar="SECONDS", help="Deadline of one case. Default: 60."),
        click.option("--python", metavar="PATH", help="Measure this interpreter's environment (Python 3.10 or newer)."),
        click.option("--device", default="auto", help="auto, cpu or cuda. Default: auto."),
        click.option("--seed", type=click.IntRange(0), default=0, help="Seed of the inputs. Default: 0."),
        click.option("--backend", "backends", multiple=True, metavar="NAME", help="Only this one; repeat for several."),
        click.argument("model", required=False),
    ):
        command = option(command)
    return command


def over_ranks(command: Command) -> Command:
    """Give a command the options of a ring of processes."""
    for option in (
        click.option(
            "--rendezvous-timeout", type=click.FloatRange(1), metavar="SECONDS", help="For ranks to meet. Default: 120."
        ),
        click.option(
            "--emulate/--no-emulate",
            default=None,
            help="Let plain torch stand in for flash-attn's kernels. Default: where there is no GPU.",
        ),
        click.option(
            "--communication/--no-communication", default=True, help="Check first that ranks can talk. Default: yes."
        ),
        click.option(
            "--ring-size",
            type=click.IntRange(1, 1024),
            metavar="N",
            help="Run the schemes of context parallelism on N processes, or as a rank under torchrun or srun.",
        ),
    ):
        command = option(command)
    return command


def shaped(command: Command) -> Command:
    """Give a command the options of the one shape that is timed."""
    size = click.IntRange(1)
    for option in (
        click.option("--passes", default="both", help="forward, forward+backward or both. Default: both."),
        click.option("--packed", metavar="LENGTHS", help="Documents packed into one row: 4096,1024,3072."),
        click.option("--window", type=size, metavar="KEYS", help="A query sees this many keys, its own included."),
        click.option("--causal/--full", default=None, help="Default: the model's, else causal."),
        click.option("--dtype", help="bf16, fp16 or fp32. Default: the model's, else bf16."),
        click.option("--head-dim", type=size, metavar="N", help="Default: the model's, else 128 (64 on a CPU)."),
        click.option(
            "--kv-heads", type=size, metavar="N", help="Default: as many as --heads, the model's, else 8 (2)."
        ),
        click.option("--heads", type=size, metavar="N", help="Default: the model's, else 32 (4 on a CPU)."),
        click.option("--batch", type=size, metavar="N", help="Rows. Default: 1."),
        click.option("--seqlen", type=size, metavar="TOKENS", help="Default: 8192 (512 on a CPU)."),
    ):
        command = option(command)
    return command


def planned(command: Command) -> Command:
    """Give a command the options that say how a job trains; each is a field of `Plan`."""
    size = click.IntRange(1)
    for option in (
        click.option("--learning-rate", type=click.FloatRange(0, min_open=True), help="AdamW's. Default: 0.005."),
        click.option("--steps", type=size, metavar="N", help="Steps to train. Default: 40."),
        click.option("--heads-k-stride", type=size, metavar="N", help="kv heads at a time in llama3's scheme."),
        click.option("--scheme", help="Over ranks: llama3 (ring-flash-attn's adapter) or ulysses. Default: llama3."),
        click.option("--compile/--no-compile", default=None, help="torch.compile the model."),
        click.option("--deterministic/--no-deterministic", default=None, help="Demand the same bits of two runs."),
        click.option("--cross-entropy", help="torch, chunked or flash_attn. Default: torch."),
        click.option("--liger/--no-liger", default=None, help="Patch the model with liger-kernel."),
        click.option("--gradient-checkpointing/--no-gradient-checkpointing", default=None, help="Recompute layers."),
        click.option("--use-cache/--no-use-cache", default=None, help="Leave the model's cache on while training."),
        click.option("--max-length", type=size, metavar="TOKENS", help="Of a packed row. Default: 512."),
        click.option("--accumulation", type=size, metavar="N", help="Batches to an optimiser's step. Default: 4."),
        click.option("--batch", type=size, metavar="N", help="Rows on a device. Default: 1."),
        click.option("--precision", help="fp32, bf16, fp16 or autocast. Default: bf16."),
        click.option("--padding-side", help="right or left. Default: right."),
        click.option(
            "--positions", help="reset (anew in each document), running, reset_3d or reset_4d. Default: reset."
        ),
        click.option("--packing", help="position_ids, cu_seqlens, mask_2d, mask_4d or padding. Default: position_ids."),
        click.option("--attn-implementation", metavar="NAME", help="Default: flash_attention_2 where it is."),
    ):
        command = option(command)
    return command


class Launching(click.Command):
    """A command that takes another one after `--`, untouched."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """Put what stands after the first `--` aside; the rest is ours."""
        if "--" in args:
            ctx.meta["command"] = tuple(args[args.index("--") + 1 :])
            args = args[: args.index("--")]
        return super().parse_args(ctx, args)


def gating(command: Command) -> Command:
    """Give a command the options of a gate; each is a key of the policy, over which it wins."""
    for option in (
        click.option("--verbose", "-v", is_flag=True, help="Also list every verdict and what could not be judged."),
        reporting,
        click.option("--ignore", multiple=True, metavar="CODE", help="Not these rules: codes or prefixes."),
        click.option("--select", multiple=True, metavar="CODE", help="Only these rules: codes or prefixes."),
        click.option("--profile", help="What matters: auto, flash, ring, rl or all. Default: auto."),
        click.option("--timeout", type=float, metavar="SECONDS", help="Deadline of one import or case. Default: 60."),
        click.option("--budget", type=click.FloatRange(1), metavar="SECONDS", help="For all checks together."),
        click.option("--python", metavar="PATH", help="Check this interpreter's environment. Default: this one."),
        click.option("--device", help="auto, cpu or cuda (a GPU is required). Default: auto."),
        click.option("--suite", help="quick, standard or full: parity's cases. Default: quick."),
        click.option("--min-efficiency", type=click.FloatRange(0, 1, min_open=True), help="A ring's least."),
        click.option("--max-error", type=click.FloatRange(0, 1, min_open=True), help="Of a verdict, in its budget."),
        click.option("--ring-size", type=click.IntRange(2, 1024), metavar="N", help="Also check over N ranks."),
        click.option("--target", metavar="MACHINE", help="Judge for this machine: h100x8, or sm_90,gpus=8,torch=2.9."),
        click.option("--framework-version", metavar="VERSION", help="In the names of this release."),
        click.option("--launch", multiple=True, metavar="FILE", help="Lint this script or configuration; repeat."),
        click.option("--model", "models", multiple=True, metavar="MODEL", help="A folder or Hub name; repeat."),
        click.option(
            "--checks", multiple=True, metavar="CHECK", help="doctor, lint, parity, determinism, smoke, bench; repeat."
        ),
    ):
        command = option(command)
    return command


baselined: Callable[[Command], Command] = click.option(
    "--baseline", metavar="FILE", help="Let pass what this file knows; only new findings fail."
)

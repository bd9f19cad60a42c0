"""Combines options with the policy file's settings; an invalid value is one clear line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from attncheck.core.io.errors import BadUsage, Unanswered
from attncheck.core.results.gate import CHECKS
from attncheck.doctor.profile import PROFILES
from attncheck.gate.policy import FAIL_ON, Policy, load_policy, override_policy

if TYPE_CHECKING:
    from attncheck.cli.options import OutputOptions, PlanOptions, PolicyOptions, RingOptions, RuleOptions
    from attncheck.core.plan import Plan
    from attncheck.doctor.probes.collect import Lane
    from attncheck.doctor.probes.interpreter import Interpreter
    from attncheck.ring.group import Ring
    from attncheck.workers.execution import ExecutionTarget

DAY = 86400  # seconds
# what `refuse_options` says of options
FOR_RING = "{} is for --ring-size"
NOT_IN_RING = "{} cannot be used with --ring-size, which times a fixed set of shapes"
OF_ONE_MACHINE = "{} is about one machine, so it cannot be used with --nodes or --ray"
NOT_IN_FACTS = "--facts judges a recorded snapshot; pass {} to `attncheck probe` instead"


def resolve_policy(
    output: OutputOptions | None = None,
    rules: RuleOptions | None = None,
    profile: str | None = None,
    timeout: float | None = None,
) -> Policy:
    """Return the policy file's settings overridden by the command line. Raises `BadUsage`."""
    base = load_policy(Path.cwd())
    if timeout is not None and not 0 < timeout < DAY:
        raise BadUsage(f"--timeout {timeout:g} is not a number of seconds")
    fail_on = output.fail_on if output is not None else None
    select = rules.select if rules is not None else None
    ignore = rules.ignore if rules is not None else None
    return replace(
        base,
        profile=check_choice("--profile", profile, PROFILES) if profile is not None else base.profile,
        fail_on=check_choice("--fail-on", fail_on, FAIL_ON) if fail_on is not None else base.fail_on,
        select=split_codes(select) if select else base.select,
        ignore=split_codes(ignore or ()),
        timeout=timeout if timeout is not None else base.timeout,
    )


def resolve_gate_policy(
    options: PolicyOptions, output: OutputOptions, rules: RuleOptions, baseline: str | None = None
) -> Policy:
    """Return the policy file's settings, overridden by a gate's options and limited by its level. Raises `BadUsage`."""
    from attncheck.gate.levels import apply_level

    policy = resolve_policy(output, rules, options.profile, options.timeout)
    values = asdict(options)
    del values["profile"], values["timeout"]
    values["checks"] = [word for value in options.checks or () for word in value.split(",") if word]
    values["models"] = values.pop("model")
    values["baseline"] = baseline
    policy = override_policy(policy, {name.replace("_", "-"): value for name, value in values.items()})
    named: set[str] = {*values["checks"], *(["rehearsal"] if options.launch else [])}
    return apply_level(replace(policy, named_checks=tuple(check for check in CHECKS if check in named)))


def check_choice(option: str, value: str, choices: tuple[Any, ...]) -> Any:
    """Return `value` if it is one of `choices`. Raises `BadUsage` that lists them."""
    if value not in choices:
        raise BadUsage(f"{option} {value!r} is not one of {', '.join(choices)}")
    return value


def split_codes(values: Sequence[str]) -> tuple[str, ...]:
    """Return codes given as repeated options or with commas."""
    return tuple(code.strip().upper() for value in values for code in value.split(",") if code.strip())


def parse_lanes(values: Sequence[str]) -> tuple[Lane, ...]:
    """Return the requested lanes; the static one always runs. Raises `BadUsage`."""
    from attncheck.doctor.probes.collect import LANES

    if not values:
        return LANES
    names = [word for value in values for word in value.split(",") if word]
    chosen = {check_choice("--lane", word, LANES) for word in names}
    return tuple(lane for lane in LANES if lane in chosen or lane == "static")


def select_interpreter(python: str | None, argv: Sequence[str] = ()) -> Interpreter:
    """Return the interpreter to examine: `python` if given, otherwise that of the command `argv` if there is one."""
    from attncheck.doctor.probes import interpreter

    return interpreter.select_interpreter(python, argv)


def print_selection(interpreter: Interpreter) -> None:
    """Print which interpreter was selected on standard error, for a command whose output does not show it."""
    from attncheck.core.io.streams import print_message

    selection = interpreter.selection
    if selection.is_notable:
        print_message(f"attncheck: {'; '.join((f'{interpreter.path}, {selection.reason}', *selection.passed_over))}")


def make_execution_target(interpreter: Interpreter, device: str, policy: Policy) -> ExecutionTarget:
    """Return the interpreter, device and timeout for running cases. Raises `BadUsage`."""
    from attncheck.workers.execution import ExecutionTarget

    check_choice("--device", device, ("auto", "cpu", "cuda"))
    return ExecutionTarget(interpreter.path, device, policy.timeout, interpreter.selection)


def parse_ring_options(options: RingOptions) -> Ring | None:
    """Return the requested ring, None without --ring-size. Raises `BadUsage` for ring options without it."""
    from attncheck.ring.group import Ring
    from attncheck.workers.ranks import RENDEZVOUS_SECONDS

    if options.ring_size is None:
        refuse_options(
            FOR_RING,
            emulate=options.emulate is not None,
            rendezvous_timeout=options.rendezvous_timeout,
            no_communication=not options.communication,
        )
        return None
    seconds = options.rendezvous_timeout or RENDEZVOUS_SECONDS
    return Ring(options.ring_size, options.emulate, seconds, options.communication)


def make_training_plan(policy: Policy, options: PlanOptions, seed: int, ring_size: int | None) -> Plan:
    """Return the policy's plan, overridden by options. Raises `BadUsage`, and `Unanswered` if it is not trusted."""
    from attncheck.core.plan import CHOICES, Plan

    option_values = {name: value for name, value in asdict(options).items() if value is not None}
    values = {**policy.plan, **option_values}
    for name, choices in CHOICES.items():
        if name in values:
            check_choice(option_name(name), values[name], choices)
    for name, value in values.items():
        if isinstance(value, int) and not isinstance(value, bool) and value < 1:
            raise BadUsage(f"{option_name(name)} {value} is not 1 or more")
    training_plan = Plan(**values, seed=seed, ring_size=ring_size or 1)
    if "/" in training_plan.attn_implementation and options.attn_implementation is None:  # a Hub kernel, which is code
        from attncheck.gate.trust import find_doubt

        if doubt := find_doubt(policy, {}):
            raise Unanswered(f"not run: {doubt}")
    return training_plan


def option_name(field: str) -> str:
    """Return the name of the option that sets `field`: "--max-length"."""
    return f"--{field.replace('_', '-')}"


def refuse_options(message: str, **options: object) -> None:
    """Raise `BadUsage` for the first option that is set; "{}" in the message becomes its name, or an argument's."""
    for name, value in options.items():
        if value:
            raise BadUsage(message.format(name if name.isupper() else option_name(name)))


def refuse_with_target(lanes: Sequence[str], ring_size: int | None) -> None:
    """Raise `BadUsage` for lanes and ranks next to --target, because only the machine itself can run them."""
    if ring_size is not None or any(word != "static" for value in lanes for word in value.split(",") if word):
        raise BadUsage("--target describes another machine: imports, GPUs and ranks cannot be tested there")


def check_backends(names: Sequence[str]) -> None:
    """Raise `BadUsage` for a backend that attncheck does not know."""
    from attncheck.measure.discovery import get_backend

    for name in names:
        get_backend(name)

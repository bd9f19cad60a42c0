"""Completes the values of options in a shell; each function imports what it needs when it is called.

A function takes the text typed so far and returns values, or pairs of a value and its help, which zsh and fish show.
"""

from collections.abc import Callable, Iterable

Completion = str | tuple[str, str]

TARGET_KEYS = ("gpus=", "driver=", "torch=", "transformers=", "flash-attn=")


def complete_from(choices: Iterable[str]) -> Callable[[str], list[str]]:
    """Return the function that completes one of `choices` in a shell."""
    return lambda incomplete: [choice for choice in choices if choice.startswith(incomplete)]


def complete_field(name: str) -> Callable[[str], list[str]]:
    """Return the function that completes a field of a plan that is one of several words."""

    def complete(incomplete: str) -> list[str]:
        from attncheck.core.plan import CHOICES

        return complete_from(CHOICES[name])(incomplete)

    return complete


def complete_checks(incomplete: str) -> list[str]:
    """Return the checks of a gate whose names begin with `incomplete`."""
    from attncheck.core.results.gate import CHECKS

    return complete_from(CHECKS)(incomplete)


def complete_format(incomplete: str) -> list[str]:
    """Return the formats whose names begin with `incomplete`."""
    from attncheck.report.formats import format_names

    return complete_from(format_names())(incomplete)


def complete_output(incomplete: str) -> list[str]:
    """Return the beginnings of values of --output, such as "json="."""
    return [f"{name}=" for name in complete_format(incomplete)]


def complete_codes(incomplete: str) -> list[tuple[str, str]]:
    """Return the codes of rules with their names; in a comma-separated list, complete the last one."""
    from attncheck.doctor.engine import all_rules

    before, comma, last = incomplete.rpartition(",")
    rules = [rule for rule in all_rules()[0] if rule.code.startswith(last.upper())]
    # in the case (upper or lower) that was typed
    return [(before + comma + last + rule.code[len(last) :], rule.name) for rule in rules]


def complete_rules(incomplete: str) -> list[Completion]:
    """Return the codes of rules, and their names if the text begins like a name."""
    from attncheck.doctor.engine import all_rules

    rules = all_rules()[0]
    names = [(rule.name, rule.code) for rule in rules if incomplete and rule.name.startswith(incomplete)]
    return [*complete_codes(incomplete), *names]


def complete_backends(incomplete: str) -> list[tuple[str, str]]:
    """Return the names of backends, with their titles."""
    from attncheck.attention import backends

    known = backends.load()[0].values()
    return [(backend.name, backend.title) for backend in known if backend.name.startswith(incomplete)]


def complete_frameworks(incomplete: str) -> list[str]:
    """Return the frameworks that lint reads."""
    from attncheck.lint import frameworks

    return complete_from(framework.name for framework in frameworks.load())(incomplete)


def complete_smoke_checks(incomplete: str) -> list[tuple[str, str]]:
    """Return the names of smoke's checks, with their titles."""
    from attncheck.smoke import checks

    known = checks.load()[0].values()
    return [(check.name, check.title) for check in known if check.name.startswith(incomplete)]


def complete_target(incomplete: str) -> list[str]:
    """Return machines, and the keys of a target; in a comma-separated list, complete the last one."""
    from attncheck.doctor.knowledge.gpus import GPUS_BY_NAME

    before, comma, last = incomplete.rpartition(",")
    machines = [name + count for name in GPUS_BY_NAME for count in ("", "x8")]
    return [before + comma + choice for choice in complete_from([*machines, "cpu", *TARGET_KEYS])(last)]


def complete_faults(incomplete: str) -> list[str]:
    """Return the codes that selftest can inject a fault for."""
    from attncheck.selftest.run import select_faults

    codes = sorted({code for fault in select_faults(()) for code in fault.codes})
    return complete_from(["all", *codes])(incomplete)

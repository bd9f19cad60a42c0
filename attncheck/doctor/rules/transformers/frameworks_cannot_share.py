"""Two installed frameworks require versions that no release satisfies.

What it checks: for every package that matters to attention, whether any version meets the requirements of all
installed distributions.

Why it matters: the one installed last breaks the other, and no upgrade helps. OpenRLHF 0.11.2 (transformers==5.15.0)
and verl 0.9.1 (transformers<5.11) are such a pair.

What to do: give each framework its own environment.

Source: METADATA of openrlhf 0.11.2 and verl 0.9.1.
"""

from attncheck.doctor.knowledge.frameworks import RELEVANT_DISTRIBUTIONS, WATCHED_DISTRIBUTIONS
from attncheck.doctor.queries import may_import, requirements
from attncheck.doctor.rules import Fix, Problem, Problems, Rule, Snapshot


def check(snapshot: Snapshot) -> Problems:
    for name in sorted(RELEVANT_DISTRIBUTIONS):
        if not snapshot.has(name) or requirements.has_common_version(snapshot, name):
            continue
        constraints = [
            (owner, specifier)
            for owner, specifier in requirements.version_constraints(snapshot, name)
            if owner.name in WATCHED_DISTRIBUTIONS and may_import(snapshot, owner.name)
        ]
        if len(constraints) < 2:
            continue
        owners = [f"{owner.name} {owner.version}" for owner, _ in constraints]
        yield Problem(
            message=f"{' and '.join(owners)} cannot share an environment: no {name} satisfies both",
            subject=name,
            evidence=tuple(
                f"{owner.name} {owner.version} requires {name}{specifier}" for owner, specifier in constraints
            ),
            fixes=(
                Fix(
                    "use one environment per framework",
                    "command",
                    f"python -m venv ./{constraints[-1][0].name}-env",
                    "safe",
                ),
            ),
        )


RULE = Rule("ATN148", "warning", check)

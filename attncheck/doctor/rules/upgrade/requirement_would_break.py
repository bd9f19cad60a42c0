"""Another version of a package would not be one that an installed package accepts.

What it checks: `attncheck upgrade` reads Requires-Dist of every installed package, markers evaluated for the examined
interpreter, against the version that would come. A requirement that is not met today either is left out; what ATN123,
ATN147 or ATN156 says of the same two packages is said there.

Why it matters: pip installs past it with a line of red text, and the package then meets an interface that its authors
excluded.

What to do: upgrade both packages in one command, `attncheck upgrade A==1 B==2`, or stay with a version that is
accepted.

Source: attncheck/stacks/upgrade/requirements.py; https://packaging.python.org/en/latest/specifications/core-metadata/,
"Requires-Dist".
"""

from __future__ import annotations

from attncheck.doctor.rules import Rule

RULE = Rule("ATN921", "warning", lambda snapshot: (), by_engine=True)

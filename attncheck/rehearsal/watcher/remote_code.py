"""Prevents code of a model's repository from running, regardless of the launch, unless the rehearsal allows it.

transformers 5.17.0 dynamic_module_utils.py: `resolve_trust_remote_code` decides for every Auto class whether the
repository's class is used, and `get_class_in_module` runs its file.
"""

from __future__ import annotations

import functools
from typing import Any

REFUSAL = "attncheck does not run code of model repositories (--trust-remote-code allows it)"


def refuse(dynamic_module_utils: Any) -> None:
    """Make transformers use its own classes, and refuse models without one."""
    original = getattr(dynamic_module_utils, "resolve_trust_remote_code", None)

    def run_none(*arguments: Any, **options: Any) -> Any:
        raise ValueError(f"{REFUSAL}: {arguments[1] if len(arguments) > 1 else arguments[0]}")

    dynamic_module_utils.get_class_in_module = run_none
    if original is None:
        return

    @functools.wraps(original)
    def resolve(trust_remote_code: Any, model_name: Any, has_local_code: Any, *arguments: Any, **options: Any) -> Any:
        if not has_local_code:
            return original(trust_remote_code, model_name, has_local_code, *arguments, **options)
        return False

    dynamic_module_utils.resolve_trust_remote_code = resolve

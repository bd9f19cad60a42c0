"""A package silently works without part of the attention stack, because an imported name no longer exists.

What it checks: imports from flash_attn, ring_flash_attn, liger_kernel, kernels and transformers' attention and mask
modules that fail, are caught by `except ImportError`, and do not stop the package.

Why it matters: there is no error, but the job does not take the requested path: eager attention instead of flash,
padded batches instead of packed ones, no patch.

What to do: read the named lines. If they disable something that your job needs, install compatible releases.

Source: the installed files. The method: attncheck/doctor/probes/payload/links/.
"""

from attncheck.doctor.fixes import links as fixes
from attncheck.doctor.queries import links as queries
from attncheck.doctor.queries import may_import
from attncheck.doctor.rules import Problem, Problems, Rule, Snapshot

PROVIDERS = ("flash_attn", "flash_attn_interface", "ring_flash_attn", "liger_kernel", "kernels")
WORDS = ("flash", "attention", "masking", "liger", "packing")


def check(snapshot: Snapshot) -> Problems:
    links = tuple(
        link
        for link in queries.package_links(snapshot)
        if link.fallback_line
        and (link.provider in PROVIDERS or any(word in link.target.lower() for word in WORDS))
        and may_import(snapshot, link.consumer)
    )
    for consumer, provider, group in queries.group_by_pair(links):
        yield Problem(
            message=f"{consumer} works around the missing {group[0].target}, which {provider} does not have",
            evidence=tuple(
                f"{link.place} imports {link.target}; the exception handler continues at line {link.fallback_line}"
                for link in group[:6]
            ),
            fixes=tuple(fixes.fitting_provider(snapshot, group)),
            subject=consumer,
        )


RULE = Rule("ATN133", "note", check)

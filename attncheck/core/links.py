"""Names that a package, or the user's own code, uses from another package that no longer has them: plain data."""

from dataclasses import dataclass
from typing import Literal

LAUNCH_CODE = "launch"  # the `consumer` that means the scripts that a launch starts


@dataclass(frozen=True)
class UnresolvedName:
    """A name, module, attribute or argument that a package's source uses and that its provider lacks.

    `breaks` are the modules whose import fails because of it, the most public first. `patched_by` is a module that sets
    the name itself; then only importing can show whether it exists. `outcome` is the outcome of importing the first of
    `breaks`, if that was tried.
    """

    consumer: str  # distribution, "model" for a model's own code, or LAUNCH_CODE
    module: str  # "verl.models.transformers.qwen2_vl"
    path: str
    line: int
    provider: str  # import name: "transformers"
    source: str  # the module it is imported from: "transformers.models.qwen2_vl.modeling_qwen2_vl"
    name: str = ""  # "": the module itself no longer exists; "DynamicCache.seen_tokens" for an attribute of a class
    kind: Literal["import", "attribute", "argument"] = "import"
    argument: str = ""  # the argument of a call that does not match
    reason: str = ""  # why a call does not match: "it takes no argument input_embeds"
    # the function that uses it when called: "Trainer.train"; "": it is used when the module is imported
    function: str = ""
    conditions: tuple[str, ...] = ()  # conditions under which it is used, which the source alone does not decide
    tried: tuple[str, ...] = ()  # alternatives tried before it that no longer exist either: "module:name"
    fallback_line: int = 0  # the line where its module continues without it; 0: no handler catches the failure
    moved_to: tuple[str, ...] = ()  # modules of the provider that define the name now
    patched_by: str = ""
    breaks: tuple[str, ...] = ()
    outcome: Literal["", "ok", "raised", "died", "hung", "skipped"] = ""
    error: str = ""  # the exception's message

    @property
    def target(self) -> str:
        """The used name, dotted: "transformers.cache_utils.HybridCache"."""
        return f"{self.source}.{self.name}" if self.name else self.source

    @property
    def place(self) -> str:
        """The location of the use: "verl/models/transformers/qwen2_vl.py:24"."""
        return f"{self.path}:{self.line}"

"""Names that one package, or the user's own code, uses from another that no longer has them: plain data."""

from dataclasses import dataclass
from typing import Literal

LAUNCH_CODE = "launch"  # as `consumer`: the scripts that a launch starts


@dataclass(frozen=True)
class UnresolvedName:
    """One name, module, attribute or argument that was read in a package's source and that its provider lacks.

    `breaks` are the modules whose import fails with it, the most public first. `patched_by` is a module that sets the
    name itself, so that only importing tells. `outcome` is how importing the first of `breaks` ended, if it was
    tried.
    """

    consumer: str  # distribution, "model" for a model's own code, or LAUNCH_CODE
    module: str  # "verl.models.transformers.qwen2_vl"
    path: str
    line: int
    provider: str  # import name: "transformers"
    source: str  # the module it is taken from: "transformers.models.qwen2_vl.modeling_qwen2_vl"
    name: str = ""  # "": the module itself no longer exists; "DynamicCache.seen_tokens" for an attribute of a class
    kind: Literal["import", "attribute", "argument"] = "import"
    argument: str = ""  # of a call that does not fit
    reason: str = ""  # why a call does not fit: "it takes no argument input_embeds"
    function: str = ""  # that takes it when it is called: "Trainer.train"; "": when the module is imported
    conditions: tuple[str, ...] = ()  # under which it is taken, and which the source leaves open
    tried: tuple[str, ...] = ()  # what was tried before it, and no longer exists as well: "module:name"
    fallback_line: int = 0  # the line where its module continues without it; 0: nothing catches the failure
    moved_to: tuple[str, ...] = ()  # modules of the provider that define the name now
    patched_by: str = ""
    breaks: tuple[str, ...] = ()
    outcome: Literal["", "ok", "raised", "died", "hung", "skipped"] = ""
    error: str = ""  # the exception's words

    @property
    def target(self) -> str:
        """What is taken, dotted: "transformers.cache_utils.HybridCache"."""
        return f"{self.source}.{self.name}" if self.name else self.source

    @property
    def place(self) -> str:
        """Where it is taken: "verl/models/transformers/qwen2_vl.py:24"."""
        return f"{self.path}:{self.line}"

"""The options of one Megatron-LM launch; argparse accepts only full names (`allow_abbrev=False`).

megatron/training/arguments.py of core_v0.15.0: the parser at line 44, the options in functions below line 1300. A
fork's may have underscores (epfLLM's Megatron-LLM, megatron/arguments.py).
"""

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cached_property

from attncheck.core.launch import Launch, Setting, Word
from attncheck.lint.arguments import parse_options
from attncheck.lint.fields.reading import Reading

SCRIPTS = (  # at the root of the source tree, core_v0.6.0 to core_v0.19.0
    *("pretrain_gpt", "pretrain_bert", "pretrain_t5", "pretrain_mamba", "pretrain_hybrid", "pretrain_vlm"),
    *("pretrain_retro", "pretrain_ict", "pretrain_vision_classify", "pretrain_vision_dino", "pretrain_vision_inpaint"),
)
TELLTALE_OPTIONS = frozenset(  # a script with three of these is a fork's
    {
        *("--tensor-model-parallel-size", "--pipeline-model-parallel-size", "--context-parallel-size", "--train-iters"),
        *("--micro-batch-size", "--global-batch-size", "--num-layers", "--seq-length", "--num-attention-heads"),
        *("--transformer-impl", "--use-mcore-models", "--use-distributed-optimizer", "--train-samples"),
    }
)
# Options of slime and miles, which train by reinforcement learning on Megatron (slime 0.2 utils/arguments.py).
FOREIGN_OPTIONS = frozenset(
    {
        *("--rollout-batch-size", "--actor-num-gpus-per-node", "--hf-checkpoint"),
        *("--actor-num-nodes", "--rollout-num-gpus", "--prompt-data"),
    }
)
OTHER_USES = ("generat", "inference", "server", "eval", "convert", "preprocess", "export")
SWITCHES = frozenset(
    {
        *("bf16", "fp16", "sft", "use-flash-attn", "deterministic-mode", "reset-position-ids", "reset-attention-mask"),
        *("recompute-activations", "sequence-parallel", "cross-entropy-loss-fusion", "use-torch-fsdp2"),
        *("use-megatron-fsdp", "use-custom-fsdp", "overlap-moe-expert-parallel-comm", "use-legacy-models"),
        *("use-mcore-models", "use-checkpoint-args", "use-distributed-optimizer", "group-query-attention", "swiglu"),
    }
)
SWITCH_PREFIXES = ("--no-", "--disable-", "--untie-", "--overlap-", "--add-")  # options with these take no value
MODEL_PARALLEL_OPTIONS = ("tensor-model-parallel-size", "pipeline-model-parallel-size", "context-parallel-size")


@dataclass(frozen=True)
class MegatronReading(Reading):
    """The options of a launch by name, without dashes."""

    launch: Launch
    all_settings: tuple[Setting, ...]
    by_field: Mapping[str, Setting]

    @cached_property
    def is_open(self) -> bool:
        """Whether more options may come from elsewhere: a shell variable, a file, the checkpoint."""
        has_unread_words = any(not word.known and word.text.startswith("$") for word in self._loose_words())
        return has_unread_words or self.has_any("yaml-cfg", "use-checkpoint-args")

    def _loose_words(self) -> list[Word]:
        """Return the words that are neither options nor their values."""
        options = {setting.location for setting in self.all_settings}
        words = self.launch.words[1:]
        names = (word.text if word.text.startswith("--") and "=" not in word.text else "" for word in words)
        takes_next = [False, *(bool(name) and not _is_switch(name) for name in names)]
        return [word for word, is_value in zip(words, takes_next) if not is_value and word.location not in options]

    def is_on(self, name: str) -> bool:
        """Return whether a switch is set."""
        return name in self.by_field

    @cached_property
    def is_local(self) -> bool:
        """Whether Megatron's own attention is used instead of Transformer Engine's (the default since core_v0.6.0).

        The parser of the launch's own tree decides if it was read: without the option, it has only its own attention.
        """
        options = self.launch.program.options if self.launch.program is not None else {}
        option = options.get("transformer-impl")
        written = {f"--{name}" == item.name for name, item in self.by_field.items() if f"--{name}" in TELLTALE_OPTIONS}
        is_fork = written == {False}  # all of them have underscores
        is_without = option is None and ("num-attention-heads" in options or is_fork)
        default = str(option.default) if option is not None and option.is_default_known else ""
        return is_without or "local" in (self.get_text("transformer-impl") or default, self.get_text("spec"))

    @cached_property
    def model_parallel_size(self) -> int:
        """Return the number of ranks that hold one copy of the model, according to the options that are set."""
        size = 1
        for name in MODEL_PARALLEL_OPTIONS:
            size *= self.get_int(name, 1)
        return size


def is_own_launch(launch: Launch) -> bool:
    """Return whether a launch trains with Megatron-LM or a fork: by its script, or by three of its options."""
    if not launch.words:
        return False
    program = launch.words[0].text
    name = program.rsplit("/", 1)[-1].removesuffix(".py")
    is_swift = "swift/cli/" in program  # ms-swift's programs have Megatron-LM's options
    if is_swift or any(part in name.lower() for part in OTHER_USES) or not program.endswith(".py"):
        return False
    if launch.trainers is not None:
        return any(name.startswith("megatron.") for name in launch.trainers)
    written = {word.text.partition("=")[0].replace("_", "-") for word in launch.words[1:]}
    if written & FOREIGN_OPTIONS:
        return False
    written &= TELLTALE_OPTIONS
    return len(written) >= (1 if name in SCRIPTS else 3)


def parse_launch_options(launch: Launch) -> MegatronReading:
    """Return the options of a launch; if one is set twice, the last takes effect."""
    settings = parse_options(launch.words[1:], lambda name: "none" if _is_switch(name) else "many", launch.source)
    options = (setting for setting in settings if setting.name.startswith("--"))
    by_field = {setting.name.removeprefix("--").replace("_", "-"): setting for setting in options}
    return MegatronReading(launch, settings, by_field)


def _is_switch(name: str) -> bool:
    name = name.replace("_", "-")
    return name.removeprefix("--") in SWITCHES or name.startswith(SWITCH_PREFIXES)

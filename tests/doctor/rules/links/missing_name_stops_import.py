"""Cases for ATN131."""

from __future__ import annotations

from tests import snapshots as s

VERL = s.with_package(s.h200(), "verl", "0.9.1", requires=("transformers>=4.51,<5.20",))
SFT = ("verl.trainer.sft_trainer", "verl.models.transformers.qwen2_vl")
SAID = "ImportError: cannot import name 'Qwen2VLCausalLMOutputWithPast' from 'transformers.models.qwen2_vl'"
EVERYTHING = ("verl", "verl.protocol", *SFT)

LIGER = s.with_links(
    s.with_import(
        s.with_package(s.h200(), "liger-kernel", "0.5.2"),
        "liger_kernel.transformers",
        "raised",
        exception="ImportError",
        message="cannot import name 'x'",
    ),
    *(
        s.make_link(consumer="liger-kernel", name=name, breaks=("liger_kernel.transformers",), moved_to=("elsewhere",))
        for name in ("FIRST", "SECOND")
    ),
)

FIRES = {
    "one trainer": s.with_links(VERL, s.make_link(breaks=SFT)),
    "every trainer, and the import agrees": s.with_links(
        VERL, s.make_link(breaks=EVERYTHING, outcome="raised", error=SAID)
    ),
    "put back by the package, and the import fails anyway": s.with_links(
        VERL, s.make_link(breaks=EVERYTHING, patched_by="verl.patch", outcome="raised", error=SAID)
    ),
    "what the job's framework imports": s.with_job(
        s.with_links(VERL, s.make_link(breaks=("trl.trainer.utils", *SFT))), framework="llamafactory", trainer="sft"
    ),
    "ring-flash-attn, over a ring": s.with_job(
        s.with_links(VERL, s.make_link(consumer="ring-flash-attn", provider="flash_attn", breaks=("ring_flash_attn",))),
        {"ring_size": 2},
    ),
    "liger-kernel, whose import said so": LIGER,
    "the user's own script": s.with_job(
        s.with_links(VERL, s.make_link(breaks=EVERYTHING)), framework="transformers", trainer="trainer"
    ),
    "the job's own trainer": s.with_job(s.with_links(VERL, s.make_link(breaks=SFT)), framework="verl", trainer="sft"),
}
STRANGER = s.make_link(consumer="my-trainer", module="trainlib.train", breaks=("trainlib", "trainlib.train"))
FIRES["a package that nobody here knows"] = s.with_links(s.with_package(s.h200(), "my-trainer", "0.3"), STRANGER)
SILENT = {
    "a package that nobody here knows, which another requires": s.with_links(
        s.with_package(s.with_package(s.h200(), "my-trainer", "0.3"), "verl", "0.9.1", requires=("my_trainer",)),
        STRANGER,
    ),
    "a package that nobody here knows, beside a framework's launch": s.with_job(
        s.with_links(s.with_package(s.h200(), "my-trainer", "0.3"), STRANGER), framework="trl", trainer="sft"
    ),
    "another framework than the job's": s.with_job(
        s.with_links(VERL, s.make_link(breaks=EVERYTHING)), framework="trl", trainer="sft"
    ),
    "ring-flash-attn, which the job does not use": s.with_job(
        s.with_links(
            s.h200(), s.make_link(consumer="ring-flash-attn", provider="flash_attn", breaks=("ring_flash_attn",))
        ),
        {"ring_size": 1},
        framework="trl",
        trainer="sft",
    ),
    "the recorded machine, which was not linked": s.h200(),
    "nothing no longer exists": s.with_links(VERL),
    "the import works": s.with_links(VERL, s.make_link(breaks=EVERYTHING, outcome="ok")),
    "put back by the package, and nobody imported it": s.with_links(
        VERL, s.make_link(breaks=SFT, patched_by="verl.patch")
    ),
    "in a function": s.with_links(VERL, s.make_link(function="f")),
    "a module that no trainer imports": s.with_links(VERL, s.make_link(breaks=("verl.models.transformers.qwen2_vl",))),
    "another trainer than the job's": s.with_job(
        s.with_links(VERL, s.make_link(breaks=SFT)), framework="verl", trainer="ppo"
    ),
    "ring-flash-attn, which has its own rule": s.with_links(
        s.h200(), s.make_link(consumer="ring-flash-attn", breaks=("ring_flash_attn",))
    ),
}


def says(text: str) -> bool:
    """Return whether the finding names the name, the place, what is stopped and a fix."""
    if "liger-kernel 0.5.2" in text:
        return "liger-kernel==0.8.5" in text and "put the name back" not in text
    wanted = ("Qwen2VLCausalLMOutputWithPast", "qwen2_vl.py:24", "cannot be imported", "pip install")
    return all(word in text for word in wanted)

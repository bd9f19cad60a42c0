"""Cases for ATN467."""

from __future__ import annotations

import re
from dataclasses import replace

from attncheck.core.experiments import Experiments, SavingMeasurement
from attncheck.core.launch import Setting, SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s

LOADED, MERGED = "saved and loaded", "merged"
TARGET, SAVED = "target_modules=embed_tokens", "modules_to_save=embed_tokens"


def with_savings(*savings: SavingMeasurement) -> Snapshot:
    return replace(s.h200(), experiments=s.Known(Experiments(savings=savings)))


OWN = with_savings(SavingMeasurement("custom class", LOADED, 2.6))
WRONG_MERGE = with_savings(SavingMeasurement(TARGET, LOADED), SavingMeasurement(TARGET, MERGED, 940.0))
WRONG_TABLE = with_savings(SavingMeasurement(SAVED, MERGED), SavingMeasurement(SAVED, f"{MERGED}, {LOADED}", 66.5))


PREFIXED = with_savings(
    *(SavingMeasurement(f"modules_to_save={name}_head", f"{LOADED} ({name})", 3.6) for name in ("lora", "boft"))
)
TWO = with_savings(SavingMeasurement("LORA use_dora", "merged with another", 0.3))


def with_setting(snapshot: Snapshot, name: str, value: str) -> Snapshot:
    setting = Setting(name, value, SourceLocation("run.sh", 3, 1), (0, 1))
    return s.with_job(snapshot, framework="trl", model="Qwen/Qwen2.5-3B", settings=(setting,))


def with_tied(tied: bool) -> Snapshot:
    snapshot = with_setting(WRONG_TABLE, "--lora_modules_to_save", "embed_tokens")
    return s.with_model(snapshot, ties_embeddings=s.Known(tied))


ENLARGED = with_savings(
    SavingMeasurement("untied embeddings", "given a larger vocabulary, then initialised again", 2.8)
)
FIRES = {
    "two operations that keep a model, one after the other": ENLARGED,
    "a module with an adapter's name": PREFIXED,
    "a launch that saves such a module": with_setting(PREFIXED, "modules_to_save", "lora_scorer"),
    "two adapters that are merged": TWO,
    "a model whose embeddings are tied": with_tied(True),
    "a custom class loses its weights": OWN,
    "a script that names no model": s.with_job(OWN, framework="transformers", model=""),
    "a launch that trains them": with_setting(WRONG_MERGE, "--lora_target_modules", "q_proj embed_tokens"),
    "a merged model that is loaded": WRONG_TABLE,
    "a launch that saves them": with_setting(WRONG_TABLE, "--lora_modules_to_save", "embed_tokens"),
    "a launch of LLaMA-Factory": with_setting(WRONG_TABLE, "additional_target", "embed_tokens,lm_head"),
}
SILENT = {
    "a launch, and operations that it may not run": s.with_job(ENLARGED, framework="trl", model="Qwen/Qwen2.5-3B"),
    "a launch that saves a module with another name": with_setting(PREFIXED, "modules_to_save", "score"),
    "a launch, and adapters of a kind that it may not use": with_setting(TWO, "--lora_target_modules", "q_proj"),
    "a model whose embeddings are not tied": with_tied(False),
    "a merge that is wrong in every release, and no launch": WRONG_MERGE,
    "nothing was measured": s.h200(),
    "measured right": with_savings(SavingMeasurement("custom class", LOADED), SavingMeasurement(SAVED, MERGED, 1e-6)),
    "could not be measured": with_savings(SavingMeasurement(SAVED, MERGED, 3.0, error="TypeError")),
    "a launch of a named model": s.with_job(OWN, framework="transformers", model="Qwen/Qwen2.5-3B"),
    "a launch of another adapter": with_setting(WRONG_MERGE, "--lora_target_modules", "q_proj v_proj"),
    "the other setting": with_setting(WRONG_MERGE, "--lora_modules_to_save", "embed_tokens"),
}


def says(findings: str) -> bool:
    """Return whether the change of the outputs is given, with what to do."""
    return "standard deviation" in findings and bool(
        re.search("merg(e|ing)|torch.nn.init|rename|transformers>=", findings)
    )

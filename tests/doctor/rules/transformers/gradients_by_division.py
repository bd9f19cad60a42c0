"""Cases for ATN459."""

from __future__ import annotations

from dataclasses import replace

from attncheck.core.experiments import CAPPED as SOFTCAP
from attncheck.core.experiments import (
    CHECKPOINTED,
    SHORT_STEP,
    Experiments,
    GradientMeasurement,
    RouterMeasurement,
    TwinMeasurement,
)
from attncheck.core.launch import Setting, SourceLocation
from attncheck.core.snapshot import Snapshot
from tests import snapshots as s


def with_gradients(
    snapshot: Snapshot, *divisions: tuple[str, float, float], trainer: str = "transformers", variant: str = ""
) -> Snapshot:
    measured = [
        GradientMeasurement(trainer, name, ratio, cosine, ratio, variant=variant) for name, ratio, cosine in divisions
    ]
    return with_measured(snapshot, *measured)


def with_measured(snapshot: Snapshot, *measured: GradientMeasurement) -> Snapshot:
    earlier = snapshot.measurements.gradients
    return replace(snapshot, experiments=s.Known(Experiments((*earlier, *measured))))


RIGHT = ("one batch", 1.0, 1.0)
HALVED = ("two micro-batches", 0.5, 1.0)
ORPO = with_gradients(s.h200(), RIGHT, ("two micro-batches", 2.0, 1.0), trainer="trl", variant="orpo")
LIGER = with_gradients(
    with_gradients(s.h200(), RIGHT), ("one batch", 1.0, 1.0), HALVED, trainer="transformers", variant="liger"
)
SHARED = with_gradients(
    with_gradients(s.h200(), RIGHT), ("two ranks", 2.0, 1.0), trainer="transformers", variant="tensor parallel"
)
EXPERTS = with_gradients(
    with_gradients(s.h200(), RIGHT),
    RIGHT,
    ("two micro-batches", 1.9, 0.99),
    ("two ranks", 1.96, 0.99),
    variant="balancing loss",
)


def with_router(
    value: str = "0.001", accumulation: int = 8, name: str = "--router_aux_loss_coef", ranks: int = 1
) -> Snapshot:
    setting = Setting(name, value, SourceLocation("run.sh", 3, 1), (0, 1))
    plan, size = {"accumulation": accumulation}, s.Known(ranks)
    return s.with_job(EXPERTS, plan, framework="transformers", settings=(setting,), world_size=size)


STOPS = with_measured(
    s.h200(),
    GradientMeasurement("transformers", "one batch", 1, 1, 1, variant="QLoRA"),
    GradientMeasurement("transformers", "one batch", error="RuntimeError: element 0 …", variant=CHECKPOINTED),
)


def with_adapter(checkpoints: bool) -> Snapshot:
    setting = Setting("peft.model", "true", SourceLocation("train.py", 3, 1), (0, 1))
    plan = {"gradient_checkpointing": checkpoints}
    return s.with_job(STOPS, plan, framework="transformers", settings=(setting,))


def with_script(snapshot: Snapshot, adapted: bool = True, model: str = "", **options: object) -> Snapshot:
    setting = Setting("peft.model", "true", SourceLocation("train.py", 3, 1), (0, 1))
    return s.with_job(
        snapshot, options, framework="trl", trainer="dpo", settings=(setting,) * adapted, model=model or None
    )


def with_reference(loss: float, adapter: str = "QLoRA") -> Snapshot:
    measured = GradientMeasurement("trl", "one batch", 1, 1, 1, loss=loss, variant=f"dpo {adapter}")
    return with_measured(s.h200(), measured)


BASE = with_reference(0.6474)
CAPPED = with_gradients(
    with_gradients(s.h200(), RIGHT, trainer="trl", variant="dpo"),
    ("one batch", 2.18, 0.72),
    trainer="trl",
    variant="dpo liger softcap",
)
GEMMA = "google/gemma-2-2b-it"
ON_RANKS = with_gradients(s.h200(), RIGHT, ("two ranks", 0.9, 0.9), trainer="trl")
ROUTERS = replace(
    s.h200(), experiments=s.Known(Experiments(routers=(RouterMeasurement("mixtral", True), RouterMeasurement("olmoe"))))
)


def with_mixture(model_type: str, name: str = "--moe_aux_loss_coef") -> Snapshot:
    setting = Setting(name, "0.001", SourceLocation("run.sh", 3, 1), (0, 1))
    snapshot = s.with_job(ROUTERS, framework="llamafactory", model="m/model", settings=(setting,))
    return s.with_model(snapshot, model_type=model_type)


FIRES = {
    "router logits that are probabilities": ROUTERS,
    "a launch of such a mixture with its balancing loss": with_mixture("mixtral"),
    "two micro-batches halve the gradient": with_gradients(s.h200(), RIGHT, ("two micro-batches", 0.5, 1.0)),
    "replicas train the rows of the first alone": with_gradients(s.h200(), RIGHT, ("two replicas", 0.46, 0.46)),
    "the same norm in another direction": with_gradients(s.h200(), RIGHT, ("two micro-batches", 1.0, 0.9)),
    "ms-swift's trainer alone": with_gradients(s.h200(), RIGHT, ("two micro-batches", 2.0, 1.0), trainer="ms-swift"),
    "TRL's trainer alone": with_gradients(s.h200(), RIGHT, ("two micro-batches", 2.0, 1.0), trainer="trl"),
    "two ranks average their means": ON_RANKS,
    "a launch on several ranks": s.with_job(ON_RANKS, framework="trl", trainer="sft", world_size=s.Known(8)),
    "liger's loss alone": LIGER,
    "a launch with liger": s.with_job(LIGER, {"accumulation": 2, "liger": True}, framework="transformers"),
    "a model that ranks share": SHARED,
    "a launch with tensor parallelism": s.with_job(
        SHARED, framework="transformers", tensor_parallel=2, world_size=s.Known(4)
    ),
    "a launch with a balancing loss": with_router(),
    "a launch with a balancing loss on ranks": with_router(accumulation=1, ranks=8),
    "a launch that builds its model with one": with_router(
        '{"output_router_logits": true}', name="--model_init_kwargs"
    ),
    "TRL's ORPO alone": ORPO,
    "a launch of ORPO": s.with_job(ORPO, {"accumulation": 2}, framework="trl", trainer="orpo"),
    "gradients are not cleared": with_measured(
        s.h200(), GradientMeasurement("transformers", "one batch", 1, 1, 1, later=2.0)
    ),
    "a parameter is never trained": with_measured(
        s.h200(), GradientMeasurement("transformers", "one batch", 1, 1, 1, moved=0.9)
    ),
    "the adapter of a given model is frozen": with_measured(
        s.h200(), GradientMeasurement("trl", "one batch", moved=0.0, variant="QLoRA")
    ),
    "the last step of an epoch is divided by micro-batches that it has not": with_measured(
        with_gradients(s.h200(), RIGHT), GradientMeasurement("transformers", SHORT_STEP, 1, 1, 1, later=0.5)
    ),
}
UNDIVIDED = GradientMeasurement("trl", "one batch", 1, 1, 1, loss=4.0)
FIRES |= {
    "another norm is logged": with_measured(s.h200(), GradientMeasurement("trl", "one batch", 1, 1, 0.5)),
    "the logged loss adds up micro-batches": with_measured(
        s.h200(), UNDIVIDED, GradientMeasurement("trl", "two micro-batches", 1, 1, 1, loss=8.0)
    ),
    "checkpointing an adapter stops": STOPS,
    "DPO compares an adapter with the base model": BASE,
    "a script that gives DPO an adapter": with_script(BASE),
    "DPO compares an adapter of experts with the base model": with_reference(0.6259, "target_parameters"),
    "liger's loss leaves out the cap": CAPPED,
    "a launch of a model with a cap": with_script(CAPPED, model=GEMMA, liger=True),
    "a script that checkpoints its adapter": with_adapter(True),
}


def with_twin(trainer: str, error: str, change: str = "") -> Snapshot:
    twin = TwinMeasurement("llamafactory", "dpo", change=change, error=error)
    measured = replace(s.h200(), experiments=s.Known(Experiments(twins=(twin,))))
    return s.with_job(measured, framework="llamafactory", trainer=trainer)


NO_MODULE = "an import fails: No module named 'mergekit'"
FIRES["a launch whose trainer cannot be imported"] = with_twin("dpo", NO_MODULE)
SILENT = {
    "a launch of another mixture": with_mixture("olmoe"),
    "a launch of such a mixture without its balancing loss": with_mixture("mixtral", "--learning_rate"),
    "a model with a cap, whose loss is another one": with_measured(
        s.h200(),
        GradientMeasurement("trl", "one batch", 1, 1, 1, loss=0.0015, variant="gkd"),
        GradientMeasurement("trl", "one batch", 1, 1, 1, loss=0.124, variant=f"gkd {SOFTCAP}"),
    ),
    "another trainer cannot be imported": with_twin("sft", NO_MODULE),
    "an option's import fails": with_twin("dpo", NO_MODULE, "use_liger_kernel"),
    "a trainer takes none of our rows": with_twin("dpo", "it takes none of the known kinds of rows"),
    "DPO compares an adapter with its copy": with_reference(0.6943),
    "DPO logs no loss": with_reference(0.0),
    "a script that gives DPO an adapter of no experts": with_script(with_reference(0.6259, "target_parameters")),
    "a script that gives DPO a whole model": with_script(BASE, adapted=False),
    "a cap that liger's loss keeps": with_gradients(
        with_gradients(s.h200(), RIGHT, trainer="trl", variant="dpo"),
        RIGHT,
        trainer="trl",
        variant="dpo liger softcap",
    ),
    "a launch of a model without a cap": with_script(CAPPED, model="Qwen/Qwen2.5-7B", liger=True),
    "a launch of a model with a cap, without liger": with_script(CAPPED, model=GEMMA),
    "nothing was measured": s.h200(),
    "all alike": with_gradients(s.h200(), RIGHT, ("two micro-batches", 1.0, 1.0), ("two replicas", 1.0, 1.0)),
    "another count of tokens, for all divisions": with_gradients(
        s.h200(), ("one batch", 1.1, 1.0), ("two micro-batches", 1.1, 1.0)
    ),
    "the division was not measured": replace(
        s.h200(),
        experiments=s.Known(
            Experiments(
                (GradientMeasurement("trl", *RIGHT), GradientMeasurement("trl", "two replicas", error="KeyError"))
            )
        ),
    ),
    "ATN457 reports it": with_gradients(
        s.with_package(s.h200(), "transformers", "5.5.0", faults={"ATN457": True}),
        RIGHT,
        ("two micro-batches", 0.5, 1.0),
    ),
    "the launch accumulates nothing": s.with_job(
        with_gradients(s.h200(), RIGHT, ("two micro-batches", 0.5, 1.0)), {"accumulation": 1}
    ),
    "a launch of DPO, which was not measured": s.with_job(ORPO, {"accumulation": 2}, framework="trl", trainer="dpo"),
    "a launch without liger": s.with_job(LIGER, {"accumulation": 2}, framework="transformers"),
    "a launch without tensor parallelism": s.with_job(SHARED, framework="transformers", world_size=s.Known(4)),
    "the balancing loss, which no launch adds": EXPERTS,
    "a launch without a balancing loss": s.with_job(EXPERTS, {"accumulation": 8}, framework="transformers"),
    "a balancing loss that is turned off": with_router("0"),
    "a balancing loss without accumulation": with_router(accumulation=1),
    "a launch on one rank": s.with_job(ON_RANKS, framework="trl", trainer="sft", world_size=s.Known(1)),
    "SFT is wrong, and the launch is ORPO, which was measured right": s.with_job(
        with_gradients(
            with_gradients(s.h200(), RIGHT, HALVED, trainer="trl"),
            RIGHT,
            ("two micro-batches", 1.0, 1.0),
            trainer="trl",
            variant="orpo",
        ),
        {"accumulation": 2},
        framework="trl",
        trainer="orpo",
    ),
    "the same adapter trained": with_measured(
        s.h200(), GradientMeasurement("trl", "one batch", 1.1, 1, 1.1, later=0.7, variant="QLoRA")
    ),
    "a right last step": with_measured(
        with_gradients(s.h200(), RIGHT), GradientMeasurement("transformers", SHORT_STEP, 1, 1, 1, later=0.98)
    ),
    "a last step that is never reached": with_measured(
        with_gradients(s.h200(), RIGHT), GradientMeasurement("transformers", SHORT_STEP, 1, 1, 1, later=0.0)
    ),
    "nothing is logged": with_measured(s.h200(), GradientMeasurement("trl", "one batch", 1, 1, 0)),
    "the logged loss counts a label less": with_measured(
        s.h200(), UNDIVIDED, GradientMeasurement("trl", "two micro-batches", 1, 1, 1, loss=4.2)
    ),
    "a script that checkpoints nothing": with_adapter(False),
    "a launch that checkpoints without an adapter": s.with_job(STOPS, {"gradient_checkpointing": True}),
    "the same step without checkpointing was not measured": with_measured(
        s.h200(), GradientMeasurement("transformers", "one batch", error="TypeError", variant=CHECKPOINTED)
    ),
    "a faster second step": with_measured(
        s.h200(), GradientMeasurement("transformers", "one batch", 1, 1, 1, later=0.98)
    ),
}

"""Saving and loading a trained model, or merging its adapter, gives another model.

What it checks: `doctor --deep` changes the weights of a tiny model, saves and loads it, and compares the outputs. The
models are one with tied embeddings and one of a class that is not part of transformers, whose `_init_weights` writes
into the weights. If PEFT is installed, adapters that include the embeddings or the head are also merged. Each kind of
adapter that PEFT has, and LoRA with each of its options, is saved and loaded together with another module, whose name
may begin as those of the adapter's parameters do (`lora_head`). Two of them are merged at once. A plain model is saved
and loaded, copied, initialised again (`post_init`) and given a larger vocabulary, two of these one after the other.
With a launch, only the adapter that it sets is reported, or a custom class if it names no model. A model whose
config.json says that its embeddings are not tied is not reported.

Why it matters: the error is silent. The training is right, but the saved model is not the trained one.

What to do: use settings or a release that were measured right, or serve the adapter without merging it.

Source: the measurement (attncheck/doctor/experiments/worker/saving.py). Measured wrong: loading a custom class
with transformers 5.0.0, 5.5.0 and 5.12.0 (right: 4.56.1, 5.17.0); merging `modules_to_save` with 4.56.1 (right:
5.0.0); merging `target_modules=embed_tokens` with PEFT 0.17.1 to 0.21.2; loading `modules_to_save=lora_head` with PEFT
0.18.1, and merging two adapters of DoRA (right: 0.21.2); `post_init` of a model whose vocabulary was enlarged with
transformers 4.57.3. Faults of this kind: huggingface/transformers#46620, #45079, huggingface/peft#2777, #3433, #3608.
"""

import re

from attncheck.core.experiments import SavingMeasurement
from attncheck.core.facts import Absent, Fact
from attncheck.core.launch import Setting
from attncheck.doctor.fixes.install import install_packages
from attncheck.doctor.rules import Fix, Job, Known, Problem, Problems, Rule, Snapshot

OWN_CLASS = "custom class"
NAMES = {  # of an adapter's settings, in the frameworks
    "modules_to_save": re.compile("modules_to_save|additional_target"),
    "target_modules": re.compile("target_modules|lora_target"),
}
MERGES_RIGHT = "transformers>=5.5.4"
PEFT_RIGHT = "peft>=0.21.2"
PREFIXED = re.compile("(.+_)head")  # a module whose name begins as those of an adapter's parameters do
ANOTHER = "merged with another"
TABLES = ("embed_tokens", "lm_head")
MEASURED_RIGHT = "transformers>=5.17.0"


def check(snapshot: Snapshot) -> Problems:
    job = snapshot.job.value if isinstance(snapshot.job, Known) else None
    savings = snapshot.measurements.savings
    ties = snapshot.model.value.ties_embeddings if isinstance(snapshot.model, Known) else Absent("no model is known")
    wrong = {_name_fault(item): item for item in reversed(savings) if item.is_another}  # the first one that is wrong
    for item in reversed(wrong.values()):
        setting = _find_setting(job, item) if job is not None else None
        is_own, is_of_table = item.model == OWN_CLASS, item.model.endswith(TABLES)
        if job is None:
            is_known = item.operation != ANOTHER or item.model.startswith("LORA")  # others define no sum of two
            is_concerned = is_known and "target_modules" not in item.model  # that is wrong in every release
        else:
            is_adapter = setting is not None and not (is_of_table and ties == Known(False))
            is_concerned = is_adapter or (is_own and job.framework == "transformers" and not job.model)
        if not is_concerned:
            continue
        yield Problem(
            message=_describe(item, ties),
            evidence=(
                f"measured: its outputs change by {item.change:.2g} of their standard deviation",
                *["unknown: whether this model's embeddings are tied"]
                * bool(setting and is_of_table and ties != Known(True)),
            ),
            fixes=tuple(_iter_fixes(snapshot, item, savings)),
            subject=item.model,
            predicted=is_own or job is None,
            locations=(setting.location,) if setting is not None else (),
        )


def _name_fault(item: SavingMeasurement) -> str:
    """Return what is wrong: the model, or what adapters of all kinds share."""
    is_prefixed = PREFIXED.fullmatch(item.model.partition("=")[2])
    return "a prefix" if is_prefixed and not item.model.endswith(TABLES) else item.model


def _describe(item: SavingMeasurement, ties: Fact[bool]) -> str:
    if item.model == OWN_CLASS:
        return "loading a custom PreTrainedModel loses its weights if _init_weights writes into .data"
    if item.operation == ANOTHER:
        return f"two active adapters ({item.model}) compute something else after they are merged"
    adapter = f" with an adapter of {item.model}" if "=" in item.model else ""
    is_certain = ties == Known(True) or ("=" in item.model and not item.model.endswith(TABLES))
    condition = "" if is_certain else f"if its embeddings are {'not ' * item.model.startswith('untied')}tied, "
    return f"{condition}a model{adapter} computes something else after it was {item.operation}"


def _find_setting(job: Job, measured: SavingMeasurement) -> Setting | None:
    """Return the setting of a launch that makes the measured adapter."""
    kind, _, module = measured.model.partition("=")
    settings = job.settings if kind in NAMES else ()
    prefixed = None if module in TABLES else PREFIXED.fullmatch(module)
    module = prefixed[1] if prefixed else module
    return next((item for item in settings if NAMES[kind].search(item.name) and module in item.value), None)


def _iter_fixes(snapshot: Snapshot, item: SavingMeasurement, savings: tuple[SavingMeasurement, ...]) -> list[Fix]:
    kind, _, module = item.model.partition("=")
    if item.operation == ANOTHER:
        return [Fix("merge one adapter, and train the other on the result", "manual", "model.set_adapter(…)")]
    if module and module not in TABLES:
        name = f"{module.split('_')[-1]}: a name that does not begin with {module.rpartition('_')[0]}_"
        return [install_packages(snapshot, PEFT_RIGHT), Fix("rename the module", "edit", name)]
    if item.model.endswith("embeddings"):
        return [install_packages(snapshot, MEASURED_RIGHT)]
    if not module:
        return [
            Fix("initialise without .data", "edit", "torch.nn.init.normal_(module.weight, std=0.02)"),
            install_packages(snapshot, MEASURED_RIGHT),
        ]
    other = [saving for saving in savings if saving.model == f"modules_to_save={module}"]
    fixes = [Fix("serve the adapter without merging it", "command", "vllm serve MODEL --enable-lora")]
    if kind == "modules_to_save":
        return [install_packages(snapshot, MERGES_RIGHT), *fixes]
    if other and not any(saving.is_another for saving in other):
        fixes.insert(0, Fix("train the whole table", "setting", f"modules_to_save: [{module}]"))
    return fixes


RULE = Rule("ATN467", "warning", check)

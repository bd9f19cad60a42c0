"""Options of a launch that replace -log p by another loss per token, as documented by the framework.

Sources: transformers 5.17.0 trainer_pt_utils.py (`LabelSmoother`); trl 1.16.0 trainer/sft_trainer.py (`loss_type`);
LLaMA-Factory 0.9.5 hparams/finetuning_args.py (`use_dft_loss`, `use_asft_loss`, `use_eaft_loss`); ms-swift 4.6.0
arguments/sft_args.py (`enable_dft_loss`); slime v0.3.1 utils/arguments.py (`loss_type`). The
watcher turns off NEFTune's noise.
"""

from dataclasses import replace

from attncheck.core.job import Job
from attncheck.core.rehearsal import Objective, TokenLoss
from attncheck.lint.fields.rehearsing import get_setting, is_number, is_on

KNOWN_LOSSES = ("nll", "chunked_nll", "cross_entropy", "sft_loss", "dft", "")
DFT = ("use_dft_loss", "enable_dft_loss")
UNKNOWN = ("use_asft_loss", "use_eaft_loss", "enable_channel_loss")


def add_options(objective: Objective, job: Job) -> Objective:
    """Return the objective with the token loss that the launch's options set, or an unknown one."""
    if objective.preference is not None or objective.policy is not None:
        return objective
    kind = (get_setting(job, "loss_type") or "").lower()
    factor = get_setting(job, "label_smoothing_factor") or "0"
    is_dft = kind == "dft" or any(is_on(job, name) for name in DFT)
    smoothing = float(factor) if is_number(factor) and not is_dft else 0.0
    is_known = kind in KNOWN_LOSSES and is_number(factor) and not any(is_on(job, name) for name in UNKNOWN)
    normalisations = objective.normalisations
    if smoothing:  # before transformers 5.15 its mean was over each batch
        normalisations = tuple(dict.fromkeys((*normalisations, "batch_tokens")))
    return replace(
        objective,
        token_loss=TokenLoss(smoothing, is_dft),
        normalisations=normalisations,
        is_documented=objective.is_documented and is_known,
    )

"""The releases of axolotl to which each constraint applies, read in its wheels and sdists from 0.8.0 to 0.19.0.

Before 0.10.0 the code of utils/schemas/validation.py was in utils/schemas/config.py.
"""

from collections.abc import Mapping

from attncheck.lint.fields.constraints import Constraint, Constraints, read_table

LIGER_TENSOR_PARALLEL: Mapping[str, Constraints] = {
    "liger_rms_norm": (
        Constraint("axolotl 0.19.0 integrations/liger/args.py:118", "0.12.0",
                   quote="`liger_rms_norm` is incompatible with tensor parallelism"),
    ),
    "liger_fused_linear_cross_entropy": (
        Constraint("axolotl 0.19.0 integrations/liger/args.py:139", "0.12.0",
                   quote="Tensor parallelism is not compatible with liger losses"),
    ),
}  # fmt: skip


__getattr__ = read_table(__file__)  # the constraints of a name in constraints.toml

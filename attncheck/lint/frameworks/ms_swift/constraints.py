"""The releases of ms-swift to which each constraint applies, read in its wheels 2.0.0 to 4.6.0.

4.0.0 moved llm/argument/ to arguments/ and trainers/sequence_parallel/ to sequence_parallel/.
"""

from attncheck.lint.fields.constraints import Constraint, read_table
from attncheck.lint.frameworks.ms_swift.tables import (
    HUGGING_FACE_SINCE,
    LEFT_ROW_REFUSED_SINCE,
)

LEFT_PADDING = (  # even with a single row
    Constraint("ms-swift 4.6.0 template/base.py:2078", LEFT_ROW_REFUSED_SINCE,
               quote='padding_side must be "right" when use_megatron or sequence_parallel_size > 1'),
)  # fmt: skip
LEFT_PADDING_OF_ROWS = (
    Constraint("ms-swift 3.8.0 llm/template/base.py:1759", HUGGING_FACE_SINCE, LEFT_ROW_REFUSED_SINCE,
               "Sequence parallel only support padding_side=right"),
    *LEFT_PADDING,
)  # fmt: skip


__getattr__ = read_table(__file__)  # the constraints of a name in constraints.toml

"""A user's own script with its own training loop: it is rehearsed, but never linted, so its record imports nothing.

Its source trains a model that it loads, or it has options common to many scripts: those of the model, the data and the
output, together with a learning rate or a number of epochs or steps. Its loss is not documented. A loss that is some
mean over its targets is assumed to be intended, and any other loss is not judged. The number of steps cannot be set, so
the script is ended after its steps. Its output folder need not be an option, because own scripts run only where the
user's files are protected.
"""

from attncheck.lint.frameworks import Framework, defer

FRAMEWORK = Framework(
    "script",
    "",
    "",
    defer("lint.frameworks.own_loop.reading:detect_trainer"),
    defer("lint.frameworks.own_loop.reading:read_model_name"),
    defer("lint.frameworks.own_loop.reading:read"),
    defer("lint.frameworks.own_loop.reading:write"),
    defer("lint.frameworks.own_loop.reading:format_plan"),
    cut=defer("lint.frameworks.own_loop.reading:cut"),
    general=True,
    is_linted=False,
)

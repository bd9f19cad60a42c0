"""Errors that a user can cause, each with one clear line and an exit code."""

CLEAN = 0
FOUND = 1
BAD_USAGE = 2
UNANSWERED = 3


class AttncheckError(Exception):
    """An error that the user can fix: printed as one line, never as a traceback."""

    exit_code = BAD_USAGE


class BadUsage(AttncheckError):
    """Wrong arguments, configuration or input file."""


class Unanswered(AttncheckError):
    """The question could not be answered: an interpreter or a required GPU is missing, or a deadline passed."""

    exit_code = UNANSWERED


class Following(AttncheckError):
    """This process is a rank of an external launcher and does not report; a message is its last line of output."""

    exit_code = CLEAN


class Interrupted(AttncheckError):
    """Ctrl-C or SIGTERM, raised after the child processes were stopped."""

    exit_code = 130

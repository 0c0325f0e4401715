"""Every error that Adaptask raises on purpose.

Catch `AdaptaskError` to catch them all. A message says what was expected, what came and what to
do. A call that raises one has changed nothing.
"""


class AdaptaskError(Exception):
    """The root of all errors raised by Adaptask."""


class ArgumentError(AdaptaskError, ValueError):
    """A value given to a constructor, a method or the command line cannot be used."""


class StateError(AdaptaskError):
    """A saved state does not fit what it is loaded into, or is damaged."""


class DataError(AdaptaskError):
    """A dataset is missing, incomplete, damaged or not to be trusted."""


class TrainingError(AdaptaskError):
    """Training cannot continue: the loss is not finite, or a file cannot be written."""

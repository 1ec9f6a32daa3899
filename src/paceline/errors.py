"""The errors that paceline raises for a user's mistakes, one family.

    PacelineError
    ├── InputError                 a value that cannot be used (also a ValueError)
    │   ├── CheckpointError        a checkpoint that is missing, damaged, or made for another model
    │   ├── UnsupportedModelError  a model whose architecture cannot be served losslessly
    │   └── PromptTooLongError     a prompt that leaves no room in the context
    ├── TrainingDivergedError      a training run whose loss is no longer a number
    ├── WorkerLostError            a process of a shared run that died
    ├── LawBrokenError             a target and drafter for which drafting is not lossless
    └── DownloadError              an artefact that could not be fetched or verified

Each message is one sentence that says what came, what was expected and what to do. The command line
prints it and exits; nothing else in the package catches the family. Our own mistakes are assertions.
"""


class PacelineError(Exception):
    """Base of every error meant for the user."""


class InputError(PacelineError, ValueError):
    """A value from the user that cannot be used."""


class TrainingDivergedError(PacelineError):
    """A training run whose loss is no longer a number."""


class WorkerLostError(PacelineError):
    """A process of a shared run that died."""


class LawBrokenError(PacelineError):
    """The proof of losslessness failed."""


class CheckpointError(InputError):
    """A checkpoint that is missing, damaged, or made for another model."""


class UnsupportedModelError(InputError):
    """A model whose architecture cannot be served losslessly."""


class PromptTooLongError(InputError):
    """A prompt that leaves no room for new tokens in the context."""


class DownloadError(PacelineError):
    """An artefact that could not be fetched, or whose digest is not the expected one."""

"""`paceline train`: conversations from a target, and a drafter from conversations."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.errors import InputError
from paceline.train.config import TrainConfig
from paceline.train.conversations_config import ConversationsConfig


@dataclass(frozen=True)
class Arguments:
    """Record conversations of a target, or train a drafter on them. The same command again resumes."""

    what: Annotated[
        Annotated[
            ConversationsConfig,
            tyro.conf.subcommand("conversations", description=ConversationsConfig.__doc__),
        ]
        | Annotated[TrainConfig, tyro.conf.subcommand("dflash", description=TrainConfig.__doc__)],
        tyro.conf.arg(name=""),
    ]


def run(args: Arguments) -> None:
    """Do one of the two, and say where the result is."""
    if isinstance(args.what, ConversationsConfig):
        from paceline.train.conversations import record_conversations

        print(record_conversations(args.what))
    else:
        print(_trainer()(args.what))


def _trainer() -> Callable[[TrainConfig], Path]:
    try:
        from paceline.train.trainer import train
    except ModuleNotFoundError as error:
        raise InputError(
            f"training needs the package {error.name!r}, which is not installed; pip install 'paceline[train]'."
        ) from error
    return train

"""`paceline train`: conversations from a target, and a drafter from conversations."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated

import tyro

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
        from paceline.train.trainer import train

        print(train(args.what))

"""`paceline train`: conversations from a target, a drafter from conversations, a policy from labels."""

from __future__ import annotations

import sys
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated

import tyro

from paceline.errors import InputError
from paceline.train.config import RunConfig, TrainConfig
from paceline.train.conversations_config import ConversationsConfig
from paceline.train.eagle3_config import Eagle3TrainConfig
from paceline.train.heads_config import HeadsTrainConfig
from paceline.train.policy_config import PolicyTrainConfig
from paceline.train.specblock_config import SpecBlockTrainConfig


@dataclass(frozen=True)
class Arguments:
    """Record conversations of a target, train a drafter on them, or a policy on labels."""

    what: Annotated[
        Annotated[
            ConversationsConfig,
            tyro.conf.subcommand("conversations", description=ConversationsConfig.__doc__),
        ]
        | Annotated[TrainConfig, tyro.conf.subcommand("dflash", description=TrainConfig.__doc__)]
        | Annotated[
            SpecBlockTrainConfig,
            tyro.conf.subcommand("specblock", description=SpecBlockTrainConfig.__doc__),
        ]
        | Annotated[Eagle3TrainConfig, tyro.conf.subcommand("eagle3", description=Eagle3TrainConfig.__doc__)]
        | Annotated[HeadsTrainConfig, tyro.conf.subcommand("heads", description=HeadsTrainConfig.__doc__)]
        | Annotated[PolicyTrainConfig, tyro.conf.subcommand("policy", description=PolicyTrainConfig.__doc__)],
        tyro.conf.arg(name=""),
    ]


def run(args: Arguments) -> None:
    """Do what was chosen, and say where the result is."""
    if isinstance(args.what, ConversationsConfig):
        from paceline.train.conversations import record_conversations

        print(record_conversations(args.what))
    elif isinstance(args.what, PolicyTrainConfig):
        from paceline.train.policy import Epoch, train_policy

        def report(epoch: Epoch) -> None:
            print(
                f"epoch {epoch.number}  loss {epoch.loss:.4f}  validation loss {epoch.validation_loss:.4f}  "
                f"best size found {epoch.validation_accuracy:.3f}  of its value {epoch.validation_value:.4f}",
                file=sys.stderr,
            )

        print(train_policy(args.what, report))
    else:
        print(_trainer()(args.what))


def _trainer() -> Callable[[RunConfig], Path]:
    try:
        from paceline.train.trainer import train
    except ModuleNotFoundError as error:
        raise InputError(
            f"training needs the package {error.name!r}, which is not installed; pip install 'paceline[train]'."
        ) from error
    return train

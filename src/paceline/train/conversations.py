"""Conversations without a data set: the target invents prompts, then answers them (or answers given ones).

An invented prompt is sampled from the target itself, after its chat template up to the user's turn and, for
a share of them, a starter phrase. Shard i is a function of the settings and i, so a killed run goes on with
the first shard that is missing.
"""

from __future__ import annotations

import json
import random
from importlib import resources
from pathlib import Path

from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from paceline.decode import Parts
from paceline.engine import Request
from paceline.errors import InputError
from paceline.learning.conversation import Conversation
from paceline.learning.recorder import Recorder
from paceline.loading import set_threads
from paceline.prompts import check_length, read_prompts
from paceline.records import RECORDING, as_plain, check_settings, exclusive, read_json
from paceline.result_files import write_text
from paceline.sources import load_tokenizer, template_digest
from paceline.target_loading import load_target
from paceline.text_model import Model
from paceline.train.conversations_config import ConversationsConfig
from paceline.train.data import fold_seed
from paceline.train.shards import read_shard, write_shard
from paceline.types import GenerationSettings

_MARKER = "PACELINE-USER-TURN"
MAX_EMPTY_SHARDS = 8


def record_conversations(config: ConversationsConfig) -> Path:
    """Write shards until there are enough response tokens; the folder.

    Raises:
        InputError: settings that differ from those of the shards already there, or a prompt file without prompts.
    """
    set_threads(config.threads)
    tokenizer = load_tokenizer(config.target)
    target = load_target(config.target, config.dtype, config.device)
    target.check_layers(config.target_layer_ids)
    recorder = Recorder(config.target_layer_ids)
    model = Model(Parts(target, observer=recorder), tokenizer, config.batch)
    writer = _Writer(config, model, recorder)
    config.out.mkdir(parents=True, exist_ok=True)
    with exclusive(config.out):
        _settle_settings(config, template_digest(tokenizer.chat_template))
        _write_shards(config, writer)
    return config.out


def _write_shards(config: ConversationsConfig, writer: _Writer) -> None:
    columns = (TextColumn("response tokens"), BarColumn(), TextColumn("{task.completed:.0f}"), TimeRemainingColumn())
    with Progress(*columns) as progress:
        task = progress.add_task("", total=config.response_tokens)
        count = index = empty = 0
        while count < config.response_tokens and not writer.is_exhausted(index):
            added = writer.shard(index)
            count, index, empty = count + added, index + 1, 0 if added else empty + 1
            if empty == MAX_EMPTY_SHARDS:
                raise InputError(
                    f"the last {empty} shards came out empty: the target invents no prompts of three words or more, or "
                    "answers with a single token; give --prompts FILE or another target."
                )
            progress.update(task, completed=count)


def _settle_settings(config: ConversationsConfig, template: str) -> None:
    """Record the settings and the chat template of a new folder, or check them against the folder's own."""
    path = config.out / RECORDING
    plain = as_plain(config) | {"chat_template_sha256": template}
    if path.exists():
        check_settings(config.out, plain, read_json(path), frozenset({"out", "response_tokens", "threads"}))
    else:
        write_text(path, json.dumps(plain, indent=1) + "\n")


class _Writer:
    """Makes one shard after another."""

    def __init__(self, config: ConversationsConfig, model: Model, recorder: Recorder):
        self.config, self.model, self.recorder = config, model, recorder
        text = (resources.files("paceline.train") / "starters.txt").read_text(encoding="utf-8")
        self.starters = [line for line in text.splitlines() if line]
        self.prompts = _read_prompts(config, model)

    def is_exhausted(self, index: int) -> bool:
        """Whether the files have no prompts left for shard `index`."""
        return bool(self.config.prompts) and index * self.config.conversations_per_shard >= len(self.prompts)

    def shard(self, index: int) -> int:
        """Write shard `index` unless it is there; its number of response tokens (0: no prompts are left)."""
        path = self.config.out / f"shard-{index:05d}.safetensors"
        if path.exists():
            shard = read_shard(path)
            return sum(len(shard[i].tokens) - shard[i].response_start for i in range(len(shard)))
        prompts = self._prompts(index)
        conversations = self._answer(prompts, index) if prompts else []
        if conversations:
            write_shard(path, conversations)
        return sum(len(c.tokens) - c.response_start for c in conversations)

    def _prompts(self, index: int) -> list[str]:
        size = self.config.conversations_per_shard
        if self.config.prompts:
            return self.prompts[index * size : (index + 1) * size]
        return self._invent(index, size)

    def _invent(self, index: int, count: int) -> list[str]:
        """Prompts sampled from the target; too short ones and broken turns are left out."""
        rng = random.Random(fold_seed(self.config.seed, 2 * index))
        opening = _opening(self.model)
        starts = [rng.choice(self.starters) if rng.random() < self.config.starters else "" for _ in range(count)]
        requests = [
            self.model.engine.submit(
                list(self.model.tokenizer(opening + start, add_special_tokens=False)["input_ids"]),
                GenerationSettings(
                    max_tokens=self.config.max_prompt_tokens, temperature=1.0, min_p=0.03, seed=rng.getrandbits(62)
                ),
            )
            for start in starts
        ]
        self.model.engine.run()
        texts = [self._text(start, request) for start, request in zip(starts, requests, strict=True)]
        return [text for text in texts if len(text.split()) >= 3]

    def _text(self, start: str, request: Request) -> str:
        return (start + self.model.tokenizer.decode(request.tokens, skip_special_tokens=True)).strip()

    def _answer(self, prompts: list[str], index: int) -> list[Conversation]:
        rng = random.Random(fold_seed(self.config.seed, 2 * index + 1))
        requests = []
        for prompt in prompts:
            settings = GenerationSettings(
                max_tokens=self.config.max_response_tokens,
                temperature=self.config.temperature,
                seed=rng.getrandbits(62),
            )
            requests.append(self.model.submit(prompt, settings))
            self.recorder.watch(requests[-1].sequence)
        self.model.engine.run()
        return [
            self.recorder.take(r.sequence, [*r.prompt, *r.tokens], len(r.prompt)) for r in requests if len(r.tokens) > 1
        ]


def _opening(model: Model) -> str:
    """The chat template up to where the user's words begin."""
    if model.tokenizer.chat_template is None:
        raise InputError("the target's tokenizer has no chat template to invent prompts with; give --prompts FILE.")
    text = model.tokenizer.apply_chat_template([{"role": "user", "content": _MARKER}], tokenize=False)
    return str(text[: text.index(_MARKER)])


def _read_prompts(config: ConversationsConfig, model: Model) -> list[str]:
    """The prompts of the files; one that leaves no room for an answer is refused before anything is recorded."""
    prompts = read_prompts(config.prompts) if config.prompts else []
    for prompt in prompts:
        check_length(prompt, len(model.encode(prompt.text)), model.target.info.max_context)
    return [prompt.text for prompt in prompts]

"""Everything that a training run is told; flags are generated from it."""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from typing import Literal

from paceline.errors import InputError

MAY_CHANGE = frozenset(
    {"steps_per_log", "minutes_per_checkpoint", "minutes_per_probe", "max_minutes", "threads", "chunk_blocks"}
)
"""Settings of TrainConfig that a resumed run may be given anew: none moves the loss curve."""


@dataclass(frozen=True)
class NetworkShape:
    """What the shapes of all draft networks have. Hidden size and vocabulary are the target's."""

    num_layers: int = 2
    """Decoder layers."""
    target_layer_ids: tuple[int, ...] = (1, 14, 27)
    """Target layers whose outputs are recorded in the shards, in their order there."""
    intermediate_size: int | None = None
    """Width of the MLP; the target's where not given."""
    num_attention_heads: int | None = None
    """Query heads; the target's where not given."""
    num_key_value_heads: int | None = None
    """Key and value heads; the target's where not given."""
    draft_vocab_size: int | None = 9000
    """Size of the reduced draft vocabulary (the most frequent response tokens); None drafts the target's whole."""
    init_layers: tuple[int, ...] = ()
    """Target layers whose weights the draft layers start from, one per draft layer; random where empty."""

    def __post_init__(self) -> None:
        if self.num_layers < 1 or not self.target_layer_ids:
            raise InputError(
                f"a drafter needs at least one layer ({self.num_layers} given) and one tapped layer "
                f"({len(self.target_layer_ids)} given)."
            )
        if self.init_layers and len(self.init_layers) != self.num_layers:
            raise InputError(
                f"init_layers names {len(self.init_layers)} target layers for {self.num_layers} draft layers; "
                "give one for each, or none"
            )


@dataclass(frozen=True)
class DrafterShape(NetworkShape):
    """A DFlash draft network. Its embedding and head are the target's too."""

    block_size: int = 8
    """Rows of a block, anchor included: it drafts one token fewer."""
    mask_token_id: int | None = None
    """Token that stands for `not yet known` in a block; where not given, the lowest that no conversation has."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.block_size < 2:
            raise InputError(f"block_size is {self.block_size}, but must be at least 2: it counts the anchor.")


@dataclass(frozen=True)
class LossConfig:
    """What the drafter is rewarded for."""

    weights: Literal["decay", "d_pace"] = "decay"
    """Weight of each position: exp(-(k-1)/gamma), or D-PACE, which follows the drafter's own confidence."""
    gamma: float | None = None
    """Decay of the position weights; where not given, the paper's for the block size (4, 5, 7 for 8, 10, 16)."""
    smoothing: float = 0.3
    """D-PACE: how far confidences are drawn towards one, 0..1."""
    soft: float = 0.5
    """Share of the target's recorded distribution in what is learnt; the rest is the token it chose."""

    def __post_init__(self) -> None:
        if (self.gamma is not None and not self.gamma > 0) or not 0 <= self.smoothing <= 1 or not 0 <= self.soft <= 1:
            raise InputError(
                f"gamma {self.gamma} must be above 0, smoothing {self.smoothing} and soft {self.soft} within 0..1"
            )


@dataclass(frozen=True)
class OptimizerConfig:
    """How the weights move."""

    kind: Literal["muon", "adamw"] = "muon"
    """muon: Muon for the matrices of the layers and `fc`, AdamW for the rest; adamw: AdamW for everything."""
    learning_rate: float = 2e-3
    """Peak learning rate (Muon's updates are scaled to the size of AdamW's, so that one rate serves both)."""
    weight_decay: float = 0.01
    """Decoupled weight decay of matrices; vectors have none."""
    momentum: float = 0.95
    """Muon's momentum."""
    betas: tuple[float, float] = (0.9, 0.95)
    """AdamW's averages."""
    warmup_steps: int = 50
    """Steps of linear warm-up."""
    decay: Literal["cosine", "linear"] = "linear"
    """Shape of the decay from the peak to the floor, from the end of the warm-up to the last step."""
    floor: float = 0.05
    """Last learning rate, as a fraction of the peak."""
    clip: float = 1.0
    """Largest norm of the gradient; longer gradients are shortened to it."""

    def __post_init__(self) -> None:
        if not self.learning_rate > 0 or not self.clip > 0:
            raise InputError(
                f"learning_rate {self.learning_rate} and clip {self.clip} must both be above 0; give positive numbers"
            )
        if not self.weight_decay >= 0 or not 0 <= self.momentum < 1 or not all(0 <= beta < 1 for beta in self.betas):
            raise InputError(
                f"weight_decay {self.weight_decay} must be at least 0, momentum {self.momentum} and betas {self.betas} "
                "within 0..1 (1 excluded); correct them"
            )
        if self.warmup_steps < 0 or not 0 <= self.floor <= 1:
            raise InputError(
                f"warmup_steps {self.warmup_steps} must be at least 0 and floor {self.floor} within 0..1; correct them"
            )


@dataclass(frozen=True)
class RunConfig:
    """What every training run is told. The same settings again resume it."""

    data: Path
    """Folder of conversation shards (`shard-*.safetensors`) of the target."""
    run: Path
    """Folder of this run: log, checkpoints, `drafter/` with the best drafter so far."""
    target: str | None = None
    """Hugging Face name or folder of the target: the source of embedding, head and shapes; the embedded
    SmolLM2-135M-Instruct where not given."""
    optimizer: OptimizerConfig = field(default_factory=OptimizerConfig)
    """How it learns."""
    steps: int = 1500
    """Steps of the whole run; the learning rate decays over them."""
    batch_size: int = 16
    """Conversations per step and process."""
    num_anchors: int = 32
    """Blocks per conversation and step."""
    max_length: int = 1024
    """Conversations are cut after this many tokens."""
    seed: int = 0
    """Seed of initial weights, order and anchors."""
    held_out: float = 0.05
    """Fraction of the conversations that is never trained on."""
    num_held_out: int = 64
    """Held-out conversations that the acceptance is measured on."""
    tree_budget: int = 16
    """Nodes of the tree whose acceptance is measured beside the chain's."""
    average: float = 0.99
    """Decay of the weights' moving average, which is measured and exported; 0 keeps none."""
    start_from: Path | None = None
    """Drafter folder of an earlier run whose weights and draft vocabulary this run starts from."""
    precision: Literal["no", "bf16"] = "no"
    """Mixed precision of the products (`bf16` on accelerators)."""
    threads: int | None = None
    """CPU threads; PyTorch's choice where not given."""
    chunk_blocks: int = 64
    """Blocks whose logits exist at a time: lower uses less memory."""
    max_minutes: float | None = None
    """Stop after this many minutes with a checkpoint; the same command goes on from there."""
    minutes_per_checkpoint: float = 3.0
    """Time between checkpoints."""
    minutes_per_probe: float = 6.0
    """Time between measurements of the held-out acceptance."""
    steps_per_log: int = 10
    """Steps that a line of the log covers."""

    def __post_init__(self) -> None:
        for name in (
            "steps",
            "batch_size",
            "num_anchors",
            "chunk_blocks",
            "steps_per_log",
            "num_held_out",
            "tree_budget",
        ):
            if getattr(self, name) < 1:
                raise InputError(f"{name} is {getattr(self, name)} but must be at least 1; give a larger number")
        if self.max_length < 2:
            raise InputError(f"max_length is {self.max_length} but must be at least 2; give a larger number")
        if not 0 < self.held_out < 1 or not 0 <= self.average < 1:
            raise InputError(
                f"held_out {self.held_out} must lie between 0 and 1 and average {self.average} within 0..1 (1 excluded)"
            )


@dataclass(frozen=True)
class TrainConfig(RunConfig):
    """A training run of a DFlash drafter. The same settings again resume it."""

    shape: DrafterShape = field(default_factory=DrafterShape)
    """The draft network."""
    loss: LossConfig = field(default_factory=LossConfig)
    """What it learns."""

"""Whether a target gives a node the same logits, bit for bit, whatever else is in the pass.

Where it does, drafted text equals plain decoding's in every dtype; elsewhere a wider pass of bfloat16 rounds
differently, and tokens that nearly tie can swap.
"""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor

from paceline.errors import UnsupportedModelError
from paceline.target.base import Target
from paceline.tree import DraftTree, pack

#: (tokens of the prompt, nodes of the tree): a narrow pass over a short text and a wide one over a long one.
_CASES = ((20, 11), (300, 63))


def require_exact(target: Target) -> None:
    """Compare paths of trees, beside another sequence, with the same tokens one at a time.

    Raises:
        UnsupportedModelError: their logits differ.
    """
    for prompt_length, num_nodes in _CASES:
        if prompt_length + num_nodes < target.info.max_context and not _agree(target, prompt_length, num_nodes):
            raise UnsupportedModelError(
                f"exact is asked for, but {target.info.name} in {str(target.info.dtype).removeprefix('torch.')} on "
                f"{target.info.device} rounds a token's logits differently when other tokens are in the pass; "
                "use float32, where texts are equal all the same, or leave exact out."
            )


def _agree(target: Target, prompt_length: int, num_nodes: int) -> bool:
    generator = torch.Generator().manual_seed(0)
    tokens = torch.randint(target.info.vocab_size, (prompt_length + num_nodes,), generator=generator)
    prompt, nodes = tokens[:prompt_length].tolist(), tokens[prompt_length:]
    parents = [max(0, node - 1 - node % 3) for node in range(num_nodes)]
    tree = DraftTree(nodes, torch.tensor(parents), torch.zeros(num_nodes))
    together = _verify_beside_another(target, prompt, tree)
    alone = target.new_cache(1, prompt_length + num_nodes)
    target.prefill(alone, 0, prompt[:-1])
    for node in (0, *_path(parents, num_nodes)):
        token = prompt[-1] if node == 0 else int(nodes[node - 1])
        step = target.verify(alone, pack([DraftTree.empty()], torch.tensor([token])).to(target.info.device))
        alone.keep([[]])
        if not torch.equal(step.logits[0, 0], together[node]):
            return False
    return True


def _verify_beside_another(target: Target, prompt: list[int], tree: DraftTree) -> Float[Tensor, "m v"]:
    cache = target.new_cache(2, len(prompt) + tree.num_nodes + 1)
    target.prefill(cache, 0, prompt[:-1])
    target.prefill(cache, 1, prompt[:5])
    anchors = torch.tensor([prompt[-1], prompt[5]])
    return target.verify(cache, pack([tree, DraftTree.empty()], anchors).to(target.info.device)).logits[0]


def _path(parents: list[int], node: int) -> list[int]:
    """From below the root to a node."""
    path: list[int] = []
    while node:
        path.insert(0, node)
        node = parents[node - 1]
    return path

"""Models whose decoder modules are replaced by their twins give what they gave, in every family that has twins."""

import pytest
import torch
from transformers import AutoModelForCausalLM
from transformers.models.llama import LlamaConfig
from transformers.models.mistral import MistralConfig
from transformers.models.qwen2 import Qwen2Config
from transformers.models.qwen3 import Qwen3Config
from transformers.models.qwen3_moe import Qwen3MoeConfig

from paceline.kernels import openmp, panel_linear, prepare_for_device
from paceline.kernels.decoder_twins import AttentionTwin, GatedMlpTwin, RmsNormTwin
from paceline.models.layers import RMSNorm, SwiGLU
from paceline.target.hugging_face import HuggingFaceTarget
from paceline.tree import DraftTree, pack
from tiny_models import tiny_model

pytestmark = pytest.mark.skipif(not openmp.is_available(), reason="no compiled loops on this machine")
SIZES = {
    "vocab_size": 48,
    "hidden_size": 64,
    "intermediate_size": 96,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "head_dim": 16,
    "max_position_embeddings": 128,
}
CONFIGS = {
    "Llama": LlamaConfig(**SIZES, attention_bias=True),
    "Mistral": MistralConfig(**SIZES, sliding_window=6),
    "Qwen2": Qwen2Config(**{k: v for k, v in SIZES.items() if k != "head_dim"}),
    "Qwen3": Qwen3Config(**SIZES),
    "Qwen3Moe": Qwen3MoeConfig(**SIZES, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32),
}
TREE = DraftTree(torch.tensor([5, 6, 7, 8, 9]), torch.tensor([0, 0, 1, 1, 3]), torch.zeros(5))


def model_of(family, dtype=torch.float32):
    torch.manual_seed(0)
    model = AutoModelForCausalLM.from_config(CONFIGS[family], attn_implementation="sdpa").to(dtype)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0) if parameter.dim() > 1 else parameter.add_(torch.randn_like(parameter) * 0.3)
    return model.requires_grad_(False)


def twin_of(family, dtype=torch.float32):
    target = HuggingFaceTarget(model_of(family, dtype), "tiny")
    prepare_for_device(target.model)
    return target


def passes(target):
    """Logits of a ragged batch of trees after prompts of different lengths, and of what follows."""
    cache = target.new_cache(2, 64)
    found = [target.prefill(cache, 0, list(range(1, 20))), target.prefill(cache, 1, [3, 1, 4])]
    batch = pack([TREE, DraftTree.empty()], torch.tensor([2, 4]))
    found.append(target.verify(cache, batch, (0, 1)))
    cache.keep([[1, 4], []])
    found.append(target.verify(cache, batch, (0, 1)))
    return [found[0].logits, found[1].logits, *(p.logits[0] for p in found[2:]), *(p.logits[1, :1] for p in found[2:])]


@pytest.mark.parametrize("family", CONFIGS)
def test_a_family_gives_what_it_gave(family):
    plain, twin = HuggingFaceTarget(model_of(family), "tiny"), twin_of(family)
    kinds = {type(module) for module in twin.model.modules()}
    assert {AttentionTwin, RmsNormTwin} <= kinds and (family == "Qwen3Moe" or GatedMlpTwin in kinds)
    replaced = (f"{family}Attention", f"{family}RMSNorm")
    assert not any(type(module).__name__ in replaced for module in twin.model.modules())
    for expected, found in zip(passes(plain), passes(twin), strict=True):
        torch.testing.assert_close(found, expected, atol=2e-4, rtol=2e-4)


@pytest.mark.parametrize("family", ["Llama", "Qwen3"])
def test_in_bfloat16_it_is_as_close_to_float32_as_the_plain_model(family):
    exact = passes(HuggingFaceTarget(model_of(family, torch.bfloat16).float(), "exact"))
    plain, twin = HuggingFaceTarget(model_of(family, torch.bfloat16), "plain"), twin_of(family, torch.bfloat16)

    def error(found):
        return sum(float((f.float() - e).abs().mean()) for f, e in zip(found, exact, strict=True))

    assert error(passes(twin)) <= 1.25 * error(passes(plain))


def test_a_forward_pass_without_mask_or_cache_is_causal():
    plain, twin = model_of("Llama"), twin_of("Llama").model
    ids = torch.tensor([[4, 8, 15, 16, 23, 42]])
    torch.testing.assert_close(twin(ids).logits, plain(ids).logits, atol=2e-4, rtol=2e-4)


def test_modules_of_the_draft_networks_have_twins_too():
    torch.manual_seed(0)
    norm, mlp = RMSNorm(32, 1e-6), SwiGLU(32, 48)
    torch.nn.init.normal_(norm.weight)
    parent = torch.nn.ModuleDict({"norm": norm, "mlp": mlp}).requires_grad_(False)
    prepare_for_device(parent)
    assert isinstance(parent["norm"], RmsNormTwin) and isinstance(parent["mlp"], GatedMlpTwin)
    x = torch.randn(2, 3, 32)
    torch.testing.assert_close(parent["norm"](x), norm(x), atol=1e-5, rtol=1e-5)
    torch.testing.assert_close(parent["mlp"](x), mlp(x), atol=1e-5, rtol=1e-5)


def test_another_activation_other_families_and_other_dtypes_keep_their_modules():
    relu = AutoModelForCausalLM.from_config(LlamaConfig(**SIZES, hidden_act="relu"))
    prepare_for_device(relu)
    assert not any(isinstance(module, GatedMlpTwin) for module in relu.modules())
    for other in (tiny_model("gemma2_sliding").float(), tiny_model("llama").double()):
        prepare_for_device(other)
        assert not any(isinstance(module, AttentionTwin | RmsNormTwin | GatedMlpTwin) for module in other.modules())


@pytest.mark.skipif(
    not panel_linear.is_supported(torch.nn.Linear(16, 16)), reason="another linear layer is chosen on this processor"
)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=str)
def test_a_node_of_a_tree_gives_what_it_gives_alone_bit_for_bit(dtype):
    target = twin_of("Qwen3", dtype)
    prompt = list(range(1, 20))
    cache = target.new_cache(2, 64)
    target.prefill(cache, 0, prompt)
    target.prefill(cache, 1, [3, 1, 4])
    tree = target.verify(cache, pack([TREE, TREE], torch.tensor([2, 4]))).logits[0]

    alone = target.new_cache(1, 64)
    target.prefill(alone, 0, prompt)
    for node, token in [(0, 2), (1, 5), (3, 7), (5, 9)]:  # nodes 1, 3, 5 hang below one another
        step = target.verify(alone, pack([DraftTree.empty()], torch.tensor([token])))
        alone.keep([[]])
        assert torch.equal(step.logits[0, 0], tree[node]), node

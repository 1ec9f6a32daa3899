"""Run by vLLM's own Python: answers prompts with a drafter, and says what was accepted at each position.

serve_vllm.py TARGET DRAFTER METHOD TOKENS < {"prompts": [[ids]], "max_tokens": n} > {"tokens": ..., "accepted": ...}
"""

import json
import sys

from vllm import LLM, SamplingParams


def main() -> None:
    target, drafter, method, count = sys.argv[1:]
    asked = json.load(sys.stdin)
    speculative = {"method": method, "model": drafter, "num_speculative_tokens": int(count)}
    llm = LLM(
        target,
        dtype="float32",
        max_model_len=512,
        max_num_seqs=1,
        gpu_memory_utilization=0.4,  # of a CPU's memory too
        enforce_eager=True,
        enable_prefix_caching=False,
        disable_log_stats=False,
        speculative_config=speculative,
    )
    greedy = SamplingParams(temperature=0.0, max_tokens=asked["max_tokens"], ignore_eos=True)
    prompts = [{"prompt_token_ids": ids} for ids in asked["prompts"]]
    outputs = [llm.generate([prompt], greedy, use_tqdm=False)[0].outputs[0] for prompt in prompts]
    found = {metric.name: metric for metric in llm.get_metrics()}
    print(
        json.dumps(
            {
                "tokens": [list(output.token_ids) for output in outputs],
                "rounds": found["vllm:spec_decode_num_drafts"].value,
                "accepted": list(found["vllm:spec_decode_num_accepted_tokens_per_pos"].values),
            }
        )
    )


if __name__ == "__main__":
    main()

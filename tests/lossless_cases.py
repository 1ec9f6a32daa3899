"""Exact distributions of short continuations, and samples of them: what the statistical proof compares."""

from __future__ import annotations

from itertools import product

import numpy as np
import torch
from scipy import stats

from paceline.decode import Parts
from paceline.engine import Engine
from paceline.sampling import transformed_log_probs
from paceline.types import GenerationSettings


def exact_distribution(model, prompt, length, settings) -> np.ndarray:
    """Probability of each continuation of `length` tokens, in lexicographic order."""
    vocabulary = model.config.vocab_size
    paths = list(product(range(vocabulary), repeat=length))
    with torch.inference_mode():
        ids = torch.tensor([[*prompt, *path] for path in paths])
        logits = model(ids, use_cache=False).logits[:, len(prompt) - 1 : -1]
    rows = logits.reshape(-1, vocabulary)
    log_probs = transformed_log_probs(rows, [settings] * len(rows)).view(len(paths), length, vocabulary)
    chosen = log_probs.gather(2, torch.tensor(paths)[..., None])[..., 0]
    return chosen.sum(1).exp().double().numpy()


def sample_continuations(parts: Parts, prompt, length, settings, count, batch=100) -> np.ndarray:
    """Continuations by the engine, one seed each, as numbers in lexicographic order."""
    engine = Engine(parts, max_batch=batch)
    requests = [
        engine.submit(
            prompt,
            GenerationSettings(
                max_tokens=length, temperature=settings.temperature, top_k=settings.top_k, top_p=settings.top_p, seed=s
            ),
        )
        for s in range(count)
    ]
    engine.run()
    vocabulary = parts.target.info.vocab_size
    return np.array([sum(t * vocabulary ** (length - 1 - i) for i, t in enumerate(r.tokens)) for r in requests])


def chi_square_p(samples: np.ndarray, exact: np.ndarray) -> float:
    """p-value of the samples under the exact distribution; rare outcomes are pooled to an expectation of 5."""
    expected = exact / exact.sum() * len(samples)
    counts = np.bincount(samples, minlength=len(exact)).astype(float)
    common = expected >= 5.0
    observed = np.append(counts[common], counts[~common].sum())
    wanted = np.append(expected[common], expected[~common].sum())
    if wanted[-1] == 0.0:
        assert observed[-1] == 0.0, "a continuation of probability zero was sampled"
        observed, wanted = observed[:-1], wanted[:-1]
    return float(stats.chisquare(observed, wanted).pvalue)

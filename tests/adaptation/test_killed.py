"""A process that is killed while its drafter learns or is saved leaves a whole drafter on disk: the old or the new."""

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from paceline.checkpoints.specblock import load_specblock

SERVES = """
import sys, torch
from pathlib import Path
torch.set_num_threads(1)
from paceline.adaptation.adapter import Adapter
from test_adapter import EAGER, conversations, every, serve, specblock_task
from test_killed import digest
from tiny_models import tiny_target
folder = Path(sys.argv[1])
adapter = Adapter(specblock_task(tiny_target("llama", vocab_size=50, num_hidden_layers=4), folder), EAGER)
better = iter(range(1, 10**6))
adapter.learner.measure = lambda network, apart: (float(next(better)), 50)
adapter.save(folder / "adapted")
print(digest(folder / "adapted"), flush=True)
for number in range(10**6):
    adapter._finish(adapter.learner.update("whole", conversations(6), conversations(2)))
    adapter.save(folder / f"next{number}")
    print(digest(folder / f"next{number}"), flush=True)
    adapter.save(folder / "adapted")
"""


def digest(folder):
    """Of all weights of a checkpoint."""
    weights = load_specblock(folder).state_dict()
    return sum(float(weight.double().abs().sum()) * (1 + i) for i, weight in enumerate(weights.values())).hex()


@pytest.mark.slow
@pytest.mark.parametrize("delay", [0.0, 0.3, 0.9])
def test_what_is_on_disk_after_a_kill_is_one_of_the_drafters_that_were_saved(tmp_path, delay):
    here = Path(__file__).parent
    environment = {**os.environ, "PYTHONPATH": f"{here.parent}{os.pathsep}{here}"}
    command = [sys.executable, "-c", SERVES, str(tmp_path)]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment) as process:
        first = [process.stdout.readline().strip() for _ in range(2)]  # from then on one takes the other's place
        original = (tmp_path / "drafter" / "model.safetensors").read_bytes()
        time.sleep(delay)
        assert process.poll() is None, "it serves until it is killed"
        process.send_signal(signal.SIGKILL)
        saved = [*first, *process.stdout.read().split()]
    assert (tmp_path / "drafter" / "model.safetensors").read_bytes() == original
    assert digest(tmp_path / "adapted") in saved
    assert len(set(saved)) == len(saved) >= 2

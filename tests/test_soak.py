"""The soak, for a few thousand rounds; in a process of its own, since checking shapes would take most of the time."""

import subprocess
import sys
from pathlib import Path

import pytest

ROUNDS = 3000


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_soak():
    script = Path(__file__).parent / "soak.py"
    done = subprocess.run([sys.executable, str(script), "--rounds", str(ROUNDS)], capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    assert f"{ROUNDS} rounds" in done.stdout

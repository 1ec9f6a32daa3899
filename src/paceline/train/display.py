"""What a run shows while it runs: a bar on a terminal, plain lines elsewhere."""

from __future__ import annotations

from collections.abc import Mapping
from types import TracebackType

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn


class Display:
    """Loss, speed and the last held-out acceptance beside a progress bar."""

    def __init__(self, steps: int, done: int) -> None:
        self._console = Console(stderr=True)
        self._bar = Progress(
            TextColumn("training"),
            BarColumn(),
            MofNCompleteColumn(),
            TextColumn("{task.fields[state]}"),
            TextColumn("{task.fields[acceptance]}"),
            TimeElapsedColumn(),
            TimeRemainingColumn(),
            console=self._console,
        )
        self._task = self._bar.add_task("training", total=steps, completed=done, state="", acceptance="")

    def __enter__(self) -> Display:
        if self._console.is_terminal:
            self._bar.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        if self._console.is_terminal:
            self._bar.stop()

    def advance(self, step: int, values: Mapping[str, float]) -> None:
        """Show the state after `step` steps."""
        state = (
            f"loss {values['loss']:.3f}  first token right {values['accuracy_first']:.3f}  "
            f"{values['tokens_per_second']:.0f} tokens/s"
        )
        self._bar.update(self._task, completed=step, state=state)
        if not self._console.is_terminal:
            self._console.print(f"step {step}  {state}  {values['minutes']:.1f} min", highlight=False)

    def show_acceptance(self, step: int, acceptance: Mapping[str, float]) -> None:
        """Show a measurement."""
        text = "acceptance length " + "  ".join(f"{name} {value:.3f}" for name, value in acceptance.items())
        self._bar.update(self._task, acceptance=text)
        if not self._console.is_terminal:
            self._console.print(f"step {step}  held-out {text}", highlight=False)

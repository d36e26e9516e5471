"""Progress on long work, on stderr: a bar on a terminal, else a plain line now and then."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

_PAUSE, _LONG_PAUSE = 10.0, 60.0


@contextmanager
def progress_bar(
    description: str, total: int, enabled: bool = True, unit: str = "rounds"
) -> Iterator[Callable[[int], None]]:
    """Yield a function that advances the bar by some units; it does nothing when disabled."""
    if not enabled:
        yield lambda amount: None
        return
    if not sys.stderr.isatty():
        yield _lines(description, total, unit)
        return
    from rich.console import Console
    from rich.progress import BarColumn, Progress, ProgressColumn, Task, TextColumn
    from rich.progress import TimeRemainingColumn as Remaining
    from rich.text import Text

    class Rate(ProgressColumn):
        def render(self, task: Task) -> Text:
            speed = task.finished_speed or task.speed
            return Text(f"{speed:,.1f} {unit}/s" if speed else "", style="dim")

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        TextColumn("{task.completed:,.0f}/{task.total:,.0f}"),
        Rate(),
        Remaining(),
    )
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(description, total=total)
        yield lambda amount: bar.advance(task, amount)


def _lines(description: str, total: int, unit: str) -> Callable[[int], None]:
    """Write a line after 10 seconds and a tenth of the work, or after a minute, since the last."""
    began = last = time.monotonic()
    done = said = 0

    def advance(amount: int) -> None:
        nonlocal last, done, said
        done += amount
        now = time.monotonic()
        if now - last >= (_PAUSE if done - said >= total / 10 else _LONG_PAUSE):
            rate = done / (now - began)
            sys.stderr.write(f"{description}: {done:,}/{total:,} {unit}, {rate:,.1f}/s\n")
            last, said = now, done

    return advance

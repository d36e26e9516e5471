"""Reports of a training as TensorBoard's curves."""

from collections.abc import Callable
from pathlib import Path
from types import TracebackType
from typing import Any

from sottovoce.errors import DistributedError


class TensorBoard:
    """Write the numbers of every report to a folder that `tensorboard --logdir` shows.

    A curve has the name of its number and agent, such as `accuracy/agent 0`, over epochs. What
    does not reach the terminal does not reach the folder.
    """

    def __init__(self, folder: str | Path) -> None:
        try:
            from torch.utils.tensorboard import SummaryWriter
        except ImportError as error:
            raise DistributedError(
                "TensorBoard is not installed; install it with `pip install 'sottovoce"
                "[tensorboard]'`, or leave out --tensorboard"
            ) from error
        self._writer: Any = SummaryWriter(str(folder))

    def __call__(self, report: dict[str, Any]) -> None:
        """Add the numbers of a report."""
        for name, value in report.items():
            if name not in ("epoch", "agent") and isinstance(value, int | float):
                curve = f"{name}/agent {report['agent']}"
                self._writer.add_scalar(curve, value, report["epoch"])
        self._writer.flush()

    def __enter__(self) -> Callable[[dict[str, Any]], None]:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        at: TracebackType | None,
    ) -> None:
        self._writer.close()

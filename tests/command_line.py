"""What a command leaves behind; the fixture `run` of conftest.py calls one."""

import json
from collections.abc import Callable
from typing import Any, NamedTuple


class Done(NamedTuple):
    """What a command left behind."""

    code: int
    out: str
    err: str

    def json(self) -> Any:
        """Everything on stdout, which must be JSON alone."""
        return json.loads(self.out)


CommandLine = Callable[..., Done]

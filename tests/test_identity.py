"""Identities: equal for what gives the same numbers, different for what could give others."""

import functools
import subprocess
import sys
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from sottovoce.graphs import complete, from_matrix, ring
from sottovoce.problems import Estimation
from sottovoce.storage.identity import code_of, digest, fingerprint, identity_of


def made(source: str, **around: Any) -> Any:
    """The `f` that a user's source defines, compiled anew."""
    scope = {"__name__": "users_own", **around}
    exec(compile(source, "users_own.py", "exec"), scope)
    return scope["f"]


PLAIN = "def f(x):\n    return 2 * x"
SAME = {
    "again": (PLAIN, PLAIN),
    "a comment": (PLAIN, "def f(x):\n    # twice\n    return 2 * x"),
    "a line further down": (PLAIN, "\n\n\n" + PLAIN),
    "a global that is not used": (PLAIN, "other = 3\n" + PLAIN),
    "a set in another order": ("def f(x): return x in {'a', 'b'}",) * 2,
    "recursion": ("def f(x): return x and f(x - 1)",) * 2,
}
OTHER = {
    "a constant": (PLAIN, PLAIN.replace("2", "3")),
    "an operation": (PLAIN, PLAIN.replace("*", "+")),
    "a default": ("def f(x, a=1): return a", "def f(x, a=2): return a"),
    "a keyword's default": ("def f(x, *, a=1): return a", "def f(x, *, a=2): return a"),
    "a function inside": (
        "def f(x):\n    def g(): return 1\n    return g()",
        "def f(x):\n    def g(): return 2\n    return g()",
    ),
    "a helper": (
        "def g(): return 1\ndef f(): return g()",
        "def g(): return 2\ndef f(): return g()",
    ),
    "a helper of an inner function": (
        "def g(): return 1\nf = lambda: (lambda: g())()",
        "def g(): return 2\nf = lambda: (lambda: g())()",
    ),
    "a global number": ("A = 1\ndef f(): return A", "A = 2\ndef f(): return A"),
    "a global tensor": (
        "import torch\nA = torch.ones(2)\ndef f(): return A",
        "import torch\nA = torch.ones(3)\ndef f(): return A",
    ),
    "a closed-over number": (
        "def g(a):\n    return lambda: a\nf = g(1)",
        "def g(a):\n    return lambda: a\nf = g(2)",
    ),
    "a closed-over function": (
        "def g(a):\n    return lambda: a()\nf = g(lambda: 1)",
        "def g(a):\n    return lambda: a()\nf = g(lambda: 2)",
    ),
    "a method": (
        "class f:\n    def g(self): return 1",
        "class f:\n    def g(self): return 2",
    ),
    "a property": (
        "class f:\n    @property\n    def g(self): return 1",
        "class f:\n    @property\n    def g(self): return 2",
    ),
    "a static method": (
        "class f:\n    @staticmethod\n    def g(): return 1",
        "class f:\n    @staticmethod\n    def g(): return 2",
    ),
    "a cached property": (
        "import functools\nclass f:\n    @functools.cached_property\n    def g(self): return 1",
        "import functools\nclass f:\n    @functools.cached_property\n    def g(self): return 2",
    ),
    "a cached function": (
        "import functools\n@functools.cache\ndef f(): return 1",
        "import functools\n@functools.cache\ndef f(): return 2",
    ),
    "a class attribute": ("class f:\n    a = 1", "class f:\n    a = 2"),
    "a base class": (
        "class g:\n    def h(self): return 1\nclass f(g): pass",
        "class g:\n    def h(self): return 2\nclass f(g): pass",
    ),
    "a field's default": (
        "from dataclasses import dataclass\n@dataclass\nclass f:\n    a: int = 1",
        "from dataclasses import dataclass\n@dataclass\nclass f:\n    a: int = 2",
    ),
    "an object's state": (
        "class g:\n    def __init__(self, a): self.a = a\nf = g(1)",
        "class g:\n    def __init__(self, a): self.a = a\nf = g(2)",
    ),
    "a slot": (
        "class g:\n    __slots__ = ('a',)\n    def __init__(self, a): self.a = a\nf = g(1)",
        "class g:\n    __slots__ = ('a',)\n    def __init__(self, a): self.a = a\nf = g(2)",
    ),
    "the object of a bound method": (
        "class g:\n    def __init__(self, a): self.a = a\n    def h(self): pass\nf = g(1).h",
        "class g:\n    def __init__(self, a): self.a = a\n    def h(self): pass\nf = g(2).h",
    ),
    "a partial's argument": (
        "import functools\nf = functools.partial(lambda a: a, 1)",
        "import functools\nf = functools.partial(lambda a: a, 2)",
    ),
    "a table": ("f = {1: 0.1}.__getitem__", "f = {1: 0.2}.__getitem__"),
    "a function of a library": ("import math\nf = math.sin", "import math\nf = math.cos"),
}


@pytest.mark.parametrize("pair", SAME.values(), ids=SAME.keys())
def test_the_same_code_is_the_same(pair: tuple[str, str]) -> None:
    assert code_of(made(pair[0])) == code_of(made(pair[1]))


@pytest.mark.parametrize("pair", OTHER.values(), ids=OTHER.keys())
def test_other_code_is_another(pair: tuple[str, str]) -> None:
    assert code_of(made(pair[0])) == code_of(made(pair[0]))
    assert code_of(made(pair[0])) != code_of(made(pair[1]))


def test_two_functions_on_one_line_are_told_apart() -> None:
    one, other = (lambda k: 1 / k), (lambda k: 2 / k)
    assert code_of(one) != code_of(other)


def test_what_a_users_module_defines_counts() -> None:
    def module(number: int) -> Any:
        found = type(sys)("users_helpers")
        exec(f"def g(): return {number}", vars(found))
        return found

    source = "def f(): return helpers.g()"
    codes = [code_of(made(source, helpers=module(number))) for number in (1, 1, 2)]
    assert codes[0] == codes[1] != codes[2]


def test_the_package_counts_by_name_and_what_it_closes_over() -> None:
    assert identity_of(Estimation)["class"] == "sottovoce.problems.estimation.Estimation"
    assert code_of(Estimation) == code_of(Estimation)
    assert identity_of(digest)["function"] == "sottovoce.storage.identity.digest"


def test_libraries_count_by_version() -> None:
    assert identity_of(nn.Linear)["library"] == f"torch {torch.__version__}"
    assert identity_of(torch.nn.functional.cross_entropy)["library"] == f"torch {torch.__version__}"


def test_codes_are_the_same_in_every_process() -> None:
    script = "\n".join(
        [
            "import sys",
            "from sottovoce.storage.identity import code_of",
            "def f(x): return x in {'a', 'b', 'c', 'd'} or g",
            "class g: a, b = {'x', 'y', 'z'}, f",
            "print(code_of(f))",
        ]
    )
    found = {
        subprocess.run(
            [sys.executable, "-c", script],
            env={"PYTHONHASHSEED": seed, "PYTHONPATH": ":".join(sys.path)},
            capture_output=True,
            check=True,
        ).stdout
        for seed in ("1", "2")
    }
    assert len(found) == 1


def test_fingerprints_tell_numbers_shapes_and_types() -> None:
    one = torch.arange(6.0)
    tensors = [one, one + 1, one.view(2, 3), one.double(), one.int(), one[:5]]
    assert len({fingerprint(tensor) for tensor in tensors}) == len(tensors)
    assert fingerprint(one.view(2, 3).T) == fingerprint(one.view(2, 3).T.contiguous())
    assert fingerprint(one, one) != fingerprint(torch.cat([one, one]))


def test_arrays_count_by_their_numbers() -> None:
    one = np.arange(6.0)
    arrays = [one, one + 1, one.reshape(2, 3), one.astype("float32")]
    assert len({digest(identity_of(array)) for array in arrays}) == len(arrays)
    assert identity_of(one) == identity_of(one.copy())


class Scaled(nn.Module):
    """A module with something of everything."""

    def __init__(self, scale: float = 2.0) -> None:
        super().__init__()
        self.inner, self.scale = nn.Linear(2, 2), scale
        self.register_buffer("shift", torch.zeros(2), persistent=False)
        with torch.no_grad():
            self.inner.weight.fill_(1.0)
            self.inner.bias.zero_()

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return self.scale * self.inner(x) + self.shift


def _hooked(model: Scaled) -> None:
    model.inner.register_forward_hook(lambda layer, inputs, outputs: 2 * outputs)


@pytest.mark.parametrize(
    "change",
    [
        lambda model: model.inner.weight.data.add_(1),
        lambda model: model.shift.add_(1),
        lambda model: setattr(model, "scale", 3.0),
        lambda model: model.inner.weight.requires_grad_(False),
        _hooked,
    ],
    ids=["weight", "buffer", "attribute", "frozen", "hook"],
)
def test_a_module_counts_with_all_that_it_computes_by(change: Callable[[Scaled], Any]) -> None:
    model = Scaled()
    assert identity_of(model) == identity_of(Scaled())
    assert identity_of(model.eval()) == identity_of(Scaled())
    change(model)
    assert identity_of(model) != identity_of(Scaled())


def test_what_has_no_state_to_show_counts_by_its_class() -> None:
    assert identity_of(threading.Lock()) == identity_of(threading.Lock())
    assert identity_of([1, threading.Lock()]) != identity_of([2, threading.Lock()])


def test_circles_end() -> None:
    circle: list[Any] = [1]
    circle.append({"again": circle})
    other: list[Any] = [2]
    other.append({"again": other})
    assert digest(identity_of(circle)) != digest(identity_of(other))


def test_a_partial_is_not_its_function() -> None:
    assert code_of(functools.partial(made(PLAIN), 1)) != code_of(made(PLAIN))


def test_graphs_are_told_apart_by_their_weights() -> None:
    graphs = [ring(5), ring(6), complete(5), ring(5, "lazy-metropolis")]
    assert len({digest(graph.spec) for graph in graphs}) == len(graphs)
    assert ring(5).spec == ring(5).spec
    shifted = ring(5).mixing.toarray()
    shifted[[0, 1, 0, 1], [1, 0, 0, 1]] += torch.tensor([-0.1, -0.1, 0.1, 0.1]).double().numpy()
    named = [from_matrix(matrix).spec for matrix in (ring(5).mixing.toarray(), shifted)]
    assert named[0]["mixing"] != named[1]["mixing"]

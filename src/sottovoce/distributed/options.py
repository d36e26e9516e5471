"""What can be asked of a real agent beside the training itself, and what holds unless it is."""

from typing import TypedDict, get_args

from sottovoce.errors import DistributedError
from sottovoce.randomness import require_jitter, warn_about_seed
from sottovoce.simulation.options import Links


class Options(TypedDict, total=False):
    """Keywords of `DecentralizedSGD`.

    private_start: standard deviation of private Gaussian numbers added to the starting point, which
    closes the first round. timeout: seconds after which a silent neighbour counts as lost; at the
    start at least 60; a transport that is given has its own. record: keep everything for an auditor
    (`save_recording`). insecure_seed: make the private numbers repeatable, which gives up privacy.
    same_start: refuse to train unless all agents begin with the same parameters; they compare a
    digest, before any private number is added. norm_bound: refuse a message whose norm is larger.
    links: "masked" shows every agent the sum of its neighbours' messages and no single message;
    norm_bound then bounds the sum, times the number of neighbours.
    batch: how many samples a batch has, or is expected to have, by which `backward` divides; agents
    compare it. poisson: batches are Poisson samples (`poisson_sample`), on which agents agree, too.
    """

    private_start: float
    timeout: float
    record: bool
    insecure_seed: int | None
    same_start: bool
    norm_bound: float | None
    links: Links
    batch: int | None
    poisson: bool


DEFAULTS: Options = {
    "private_start": 0.0,
    "timeout": 60.0,
    "record": False,
    "insecure_seed": None,
    "same_start": False,
    "norm_bound": None,
    "links": "plain",
    "batch": None,
    "poisson": False,
}


def completed(given: Options) -> Options:
    """What was given, and the defaults for the rest; refuse what no agent could start with."""
    if unknown := sorted(set(given) - set(DEFAULTS)):
        raise TypeError(
            f"DecentralizedSGD has no option {', '.join(unknown)}; accepted: {', '.join(DEFAULTS)}"
        )
    options: Options = {**DEFAULTS, **given}
    if not 0 < options["timeout"] < float("inf"):
        raise DistributedError(
            f"timeout is {options['timeout']}; accepted: a positive number of seconds"
        )
    if options["links"] not in get_args(Links):
        raise DistributedError(
            f"links is {options['links']!r}; accepted: {', '.join(get_args(Links))}"
        )
    bound = options["norm_bound"]
    if bound is not None and not 0 < bound < float("inf"):
        raise DistributedError(f"norm_bound is {bound}; accepted: None or a positive number")
    require_jitter(options["private_start"])
    if options["insecure_seed"] is not None:
        warn_about_seed()
    return options

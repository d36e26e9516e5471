"""What the studio says in words: a command that repeats a view, and what a listener got."""

import shlex
from collections.abc import Mapping
from typing import Any

from sottovoce.studio.wishes import Wish


def command(wish: Wish, said: Mapping[str, Any] | None = None) -> str:
    """The command that repeats a training and, where `said` describes one, a listener."""
    parts = ["sottovoce", "listen", "--data", wish.data, "--graph", wish.graph]
    if wish.epsilon is None:
        parts += ["--algorithm", wish.mechanism]
    else:
        parts += ["--epsilon", f"{wish.epsilon:g}"]
    parts += ["--rounds", str(wish.rounds), "--insecure-seed", str(wish.seed)]
    if said is not None:
        hears = ",".join(f"{int(i)}-{int(j)}" for i, j in said["links"])
        inside = ",".join(str(int(one)) for one in said["agents"])
        parts += ["--hears", hears] * bool(hears) + ["--inside", inside] * bool(inside)
        parts += ["--target", str(int(said["target"])), "--links", str(said["protection"])]
    return shlex.join(parts)


def sentence(found: Mapping[str, Any]) -> str:
    """What a listener got, in one sentence."""
    who, whose = f"The listener at {found['listener']}", f"agent {found['target']}"
    whose += f"'s round {found['round']}"
    if not found["heard"]:
        return f"{who} reads nothing of {whose}: {found['why']}."
    parts = [part for part in (_record(found), _rank(found["identification"])) if part]
    return f"{who} reads {whose} by {found['attack']}: {'; '.join(parts)}."


def _record(found: Mapping[str, Any]) -> str:
    if "error" in found:
        gained = "" if found["error"] < found["blind_error"] else ", so nothing was gained"
        return (
            f"the nearest image is off by {found['error']:.3g}, "
            f"where a blind guess is off by {found['blind_error']:.3g}{gained}"
        )
    if found["exact"]:
        return "every entry of the private batch is right"
    return (
        f"{found['precision']:.0%} of what it reads is right, "
        f"and it reads {found['recall']:.0%} of what is there"
    )


def _rank(rank: Mapping[str, Any]) -> str:
    if rank["top1"] is None:
        return ""
    among = rank["candidates"] + 1
    if rank["targets"] == 1:
        said = f"the record ranks {rank['median_rank']:g} of {among}"
    else:
        said = f"{rank['top1']:.1%} of {rank['targets']} records rank first among {among}"
    if rank["permitted"] is None:
        return f"{said} (chance {rank['chance']:.1%})"
    batch = "" if rank["in_batch"] is None else f", {rank['in_batch']:.3g} for one batch"
    proof = f"the proof, ε = {rank['epsilon']:.3g} here{batch}"
    return f"{said}; {proof}, permits {rank['permitted']:.1%}"

"""`sottovoce identity`, `invite`, `join`: files that organisations exchange before they train."""

import secrets
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer

from sottovoce.cli.options import AS_JSON, GRAPH
from sottovoce.cli.show import answers, print_json, print_rows, print_written, say
from sottovoce.errors import FederationError
from sottovoce.federation.agreement import (
    Agreement,
    Member,
    Terms,
    facts_of,
    read_agreement,
)
from sottovoce.federation.changes import require_follows, with_member
from sottovoce.federation.identity import Identity, create_identity, read_card, read_key
from sottovoce.federation.signatures import (
    Signatures,
    read_signatures,
    write_signature,
)
from sottovoce.federation.state import StateFolder
from sottovoce.federation.toml import read_toml
from sottovoce.graphs import parse_graph

KEY = typer.Option("--key", help="The key file of this agent, NAME.key.")
STATE = typer.Option("--state", help="Folder for the agent's state; NAME.state beside the key.")
FILE = typer.Argument(help="The agreement, federation.toml.")


def identity(
    name: Annotated[str, typer.Argument(help="Letters, digits, dots, hyphens.")],
    listen: Annotated[
        str | None, typer.Option("--listen", help="HOST:PORT at which others reach this agent.")
    ] = None,
    no_listen: Annotated[
        bool, typer.Option("--no-listen", help="Nobody can dial this agent; it dials the others.")
    ] = False,
    out: Annotated[Path, typer.Option("--out", help="Folder for both files.")] = Path(),
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Make this organisation's key and its card, and print a fingerprint to compare by telephone.

    NAME.key is secret: keep it, and never send it. NAME.card is public: send it to the person who
    prepares the agreement.
    """
    if (listen is None) != no_listen:
        raise FederationError(
            "give --listen HOST:PORT where others can reach this agent, or --no-listen where they "
            "cannot, as behind NAT"
        )
    made, key, card = create_identity(name, listen, out)
    if as_json:
        print_json({**made.card.content, "fingerprint": made.card.fingerprint, "key": str(key)})
        return
    answers.print(f"fingerprint of {name}: {made.card.fingerprint}", soft_wrap=True)
    print_written([key, card])
    say(f"Keep {key} to yourself. Send {card} to the person who prepares the agreement.")


def invite(
    cards: Annotated[list[Path], typer.Argument(help="Cards in the order of agents 0, 1, ...")],
    graph: Annotated[str, typer.Option(help=GRAPH)] = "",
    out: Annotated[Path, typer.Option("--out", help="The agreement.")] = Path("federation.toml"),
    algorithm: Annotated[str, typer.Option(help="Such as pdsgd, dsgd.")] = "pdsgd",
    stepsize: Annotated[
        str, typer.Option(help="Such as uniform:0.3/k; the algorithm's own unless given.")
    ] = "",
    weights: Annotated[str, typer.Option(help="The rule for W.")] = "metropolis",
    links: Annotated[
        str, typer.Option(help="masked: agents see the sum of their neighbours' messages alone.")
    ] = "plain",
    rounds: Annotated[int, typer.Option(help="Rounds to train.", min=1)] = 200,
    batch: Annotated[int, typer.Option(help="Samples in a batch; 0 leaves it open.", min=0)] = 0,
    poisson: Annotated[
        bool, typer.Option("--poisson", help="Batches are Poisson samples.")
    ] = False,
    private_start: Annotated[
        float, typer.Option(help="Deviation of private numbers added to the starting point.")
    ] = 0.0,
    same_start: Annotated[
        bool, typer.Option("--same-start", help="Refuse unless all models begin alike.")
    ] = False,
    norm_bound: Annotated[float, typer.Option(help="Refuse longer messages; 0: no bound.")] = 0.0,
    meet_every: Annotated[
        int, typer.Option(help="Rounds between two occasions to leave or to join.", min=1)
    ] = 20,
    delta: Annotated[float, typer.Option(help="δ of the accountant.")] = 1e-5,
    fact: Annotated[
        list[str] | None, typer.Option("--fact", help="KEY=VALUE for the script; may be repeated.")
    ] = None,
    into: Annotated[
        Path | None,
        typer.Option("--into", help="An agreement in training, which the card's owner joins late."),
    ] = None,
    linked_to: Annotated[
        str, typer.Option("--linked-to", help="With --into: neighbours, such as anna,ben.")
    ] = "",
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Prepare an agreement from everybody's cards: members, graph and all that they share.

    Send the file to every member, who checks and signs it with `sottovoce join`.
    """
    members = [_member(path) for path in cards]
    if into is not None:
        if len(members) != 1 or not linked_to:
            raise FederationError("--into takes one card and --linked-to with its neighbours")
        names = [name.strip() for name in linked_to.split(",")]
        agreement = with_member(read_agreement(into), members[0], names)
    else:
        if not graph:
            raise FederationError(f"give --graph, such as ring:{len(members)}")
        terms = Terms(
            graph=graph,
            rounds=rounds,
            weights=weights,
            algorithm=algorithm,
            stepsize=stepsize,
            links=links,  # type: ignore[arg-type]
            batch=batch,
            poisson=poisson,
            private_start=private_start,
            same_start=same_start,
            norm_bound=norm_bound,
            meet_every=meet_every,
            delta=delta,
            facts=facts_of(fact or ()),
        )
        agreement = _first_edition(members, terms, Path(graph))
        require_trainable(agreement)
    if out.exists():
        raise FederationError(f"{out} exists; give another name with --out, or remove it")
    agreement.write(out)
    if as_json:
        print_json(described(agreement))
        return
    show(agreement)
    print_written([out])
    say(f"Send {out} to every member; each runs `sottovoce join {out} --key NAME.key`.")


def join(
    file: Annotated[Path, FILE],
    key: Annotated[Path, KEY],
    state: Annotated[Path | None, STATE] = None,
    yes: Annotated[
        bool, typer.Option("--yes", help="Sign without asking: fingerprints were compared.")
    ] = False,
    as_json: Annotated[bool, typer.Option("--json", help=AS_JSON)] = False,
) -> None:
    """Show members, terms and fingerprints of an agreement, and sign it.

    Compare the fingerprints with the other members by telephone before you sign. The signature lies
    beside the agreement; agents exchange signatures when they start.
    """
    agreement = read_agreement(file)
    own = member_identity(agreement, key)
    folder = StateFolder.beside(key, agreement.training, state)
    current = folder.current() if agreement.edition else None
    if agreement.edition and current:
        if agreement.previous != current.digest:
            raise FederationError(
                f"{file} follows another edition than the one in {folder.folder} (edition "
                f"{current.edition}, {current.fingerprint})"
            )
        require_follows(current, agreement)
    require_consent(yes, as_json)
    if not as_json:
        show(agreement)
    if not yes:
        typer.confirm("Were these fingerprints compared, and do you sign?", abort=True, err=True)
    written = [write_signature(file, agreement, own)]
    known = read_signatures(file, agreement)
    if current:
        written.append(folder.propose(agreement, known))
    if as_json:
        signed = {"signed_by": own.name, "signatures": sorted(known.by_name)}
        print_json({**described(agreement), **signed, "missing": known.missing})
        return
    print_written(written)
    _say_who_signed(known)


def require_consent(yes: bool, as_json: bool) -> None:
    """Raise where nobody would be asked, and nobody said beforehand that a signature is wanted."""
    if as_json and not yes:
        raise FederationError(
            "with --json nobody is asked, and a signature needs a person's consent: compare the "
            "fingerprints, then give --yes as well"
        )


def require_trainable(agreement: Agreement) -> None:
    """Raise unless the texts of the terms name an algorithm and a stepsize that fit the graph."""
    from sottovoce.mechanisms import check, parse_algorithm
    from sottovoce.stepsizes import parse_stepsize

    algorithm, text = parse_algorithm(agreement.terms.algorithm), agreement.terms.stepsize
    stepsize = parse_stepsize(text) if text else algorithm.default_stepsize
    check(algorithm, agreement.graph, stepsize)


def member_identity(agreement: Agreement, key: Path) -> Identity:
    """The identity of a key file, which must be a member's."""
    private = read_key(key)
    public = private.public_key().public_bytes_raw().hex()
    card = agreement.members[agreement.agent_of_key(public)].card
    return Identity(private, card.name, card.listen)


def described(agreement: Agreement) -> dict[str, Any]:
    """An agreement as JSON, with its fingerprints."""
    members = [
        {**one.card.content, "fingerprint": one.card.fingerprint} for one in agreement.members
    ]
    content = {key: value for key, value in agreement.content.items() if key != "member"}
    about = {"fingerprint": agreement.fingerprint, "digest": agreement.digest}
    return {**content, **about, "members": members, "warnings": warnings(agreement)}


def show(agreement: Agreement) -> None:
    """Members, terms and fingerprints on stdout."""
    graph = agreement.graph
    rows = [
        (
            agent,
            one.name,
            one.card.listen or "dials others",
            ", ".join(agreement.names[other] for other in graph.neighbours(agent)),
            one.card.fingerprint,
        )
        for agent, one in enumerate(agreement.members)
    ]
    print_rows("Members", ("agent", "name", "listens", "talks to", "fingerprint"), rows)
    skipped = ("member", "format", "facts")
    terms = {k: v for k, v in agreement.content.items() if k not in skipped and v not in ("", 0)}
    terms |= agreement.terms.facts
    shown = [(key.replace("_", " "), value) for key, value in terms.items()]
    print_rows("Terms", ("what", "value"), shown)
    answers.print("Fingerprint of the agreement, the same at every member:")
    digits = agreement.fingerprint
    answers.print(f"  {digits[:35]}\n  {digits[36:]}\n")
    for line in warnings(agreement):
        say(line)


def warnings(agreement: Agreement) -> list[str]:
    """What a member should know before it signs."""
    found = []
    terms, names = agreement.terms, agreement.names
    if terms.links == "masked":
        pairs = [names[agent] for agent, n in enumerate(agreement.graph.degrees) if n == 2]
        if pairs:
            found.append(
                f"{', '.join(pairs)}: two neighbours each. Masks protect the two from that "
                "receiver alone: where it and one of them work together, they read the messages of "
                "the other."
            )
    else:
        found.append("Links are encrypted, and every neighbour reads the messages sent to it.")
    return found


def _member(path: Path) -> Member:
    card = read_card(path)
    return Member(card, str(read_toml(path, "a card")["signature"]))


def _first_edition(members: list[Member], terms: Terms, file: Path) -> Agreement:
    """The agreement itself; a graph in a file becomes pairs, since members do not have the file."""
    if file.is_file():
        pairs = ",".join(f"{i}-{j}" for i, j in parse_graph(str(file)).links)
        terms = replace(terms, graph=f"links:{pairs}")
    return Agreement(training=secrets.token_hex(8), members=tuple(members), terms=terms)


def _say_who_signed(signatures: Signatures) -> None:
    missing = signatures.missing
    if missing:
        say(
            f"Signatures seen here: {', '.join(signatures.by_name)}. Those of {', '.join(missing)} "
            "come over the links when the agents start."
        )
    else:
        say("Every member has signed.")

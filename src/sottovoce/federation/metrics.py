"""Where an agent stands, for people and for Prometheus: on this machine, and no private number."""

import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any

from sottovoce.errors import FederationError
from sottovoce.federation.agreement import Agreement
from sottovoce.federation.audit_log import AuditLog
from sottovoce.federation.state import StateFolder

_SECONDS_BETWEEN_WRITES = 1.0
_OF_LINKS = ("link joined", "link lost", "not reached", "refused")
_MOST_LINES = 60
"""Lines on one link in a minute: a member whose connections come and go shall not fill a disk."""
_TRAFFIC = {"sent": "sent", "sent again": "sent_again", "received": "received"}


class Monitor:
    """Takes in what happens at an agent: to the log, to `status.json`, to the metrics.

    An agent that starts again stands where its status says, until it has done a round. Several
    threads call it.
    """

    def __init__(self, state: StateFolder, name: str, rounds: int) -> None:
        self._state, self._name, self._rounds = state, name, rounds
        self._log = AuditLog(state.log)
        self._lock = threading.Lock()
        self._written = -1.0
        self._refusals, self._minute = 0, -1
        self._lines: Counter[str] = Counter()
        self._peers: dict[str, dict[str, Any]] = {}
        self._counts: Counter[tuple[str, str]] = Counter()
        known = state.status()
        start = {"round": 0, "edition": 0, "epoch": 0, "executed": 0}
        self._place = {name: known.get(name, value) for name, value in start.items()}
        self._spent = {name: known.get(name) for name in ("epsilon", "delta")}
        self._unproved = known.get("unproved")
        self._finished = self._left = False

    def note(self, event: str, **about: Any) -> None:
        """Add an event to the log, and count it."""
        admitted = self._admits(event, about.get("peer"))
        if admitted:
            self._log.note(event, **about)
        with self._lock:
            peer = self._peers.get(str(about.get("peer")))
            if event == "refused":
                self._refusals += 1
            elif peer is not None and event in ("link joined", "link lost"):
                peer["linked"] = event == "link joined"
            elif peer is not None and event in _TRAFFIC:
                self._counts[_TRAFFIC[event], str(about["peer"])] += 1
                peer[_TRAFFIC[event]] = about.get("number")
        if admitted and event not in _TRAFFIC:
            self.write()

    def _admits(self, event: str, peer: object) -> bool:
        """Whether an event of a link is one of the first in this minute."""
        if peer is None or event not in _OF_LINKS:
            return True
        minute = int(time.monotonic() // 60)
        with self._lock:
            if minute != self._minute:
                self._minute = minute
                self._lines.clear()
            self._lines[str(peer)] += 1
            return self._lines[str(peer)] <= _MOST_LINES

    def enter(self, agreement: Agreement) -> None:
        """Note the edition that is trained, and who the neighbours are."""
        own = agreement.agent(self._name)
        names = [agreement.names[other] for other in agreement.graph.neighbours(own)]
        with self._lock:
            known = self._peers
            self._peers = {name: known.get(name, {"linked": False}) for name in names}
            self._place["edition"] = agreement.edition
        members = {one.name: one.card.fingerprint for one in agreement.members}
        self.note("edition", edition=agreement.edition, digest=agreement.digest, members=members)

    def at(self, round: int, epoch: int, executed: int) -> None:
        """Note a round that is finished; executed: what an accountant charges so far."""
        with self._lock:
            self._place |= {"round": round, "epoch": epoch, "executed": executed}
        self._log.note("round", round=round, epoch=epoch, executed=executed)
        if time.monotonic() > self._written + _SECONDS_BETWEEN_WRITES:
            self.write()

    def spent(self, epsilon: float | None, delta: float, unproved: str | None = None) -> None:
        """Note what is proved so far; None where nothing is. The status alone says why not."""
        with self._lock:
            self._spent = {"epsilon": epsilon, "delta": delta}
            self._unproved = unproved
        self.note("epsilon", **self._spent, executed=self._place["executed"])

    def finish(self, how: str) -> None:
        """Note the end: `finished`, `left` or why the agent stopped."""
        with self._lock:
            self._finished, self._left = how == "finished", how == "left"
            for peer in self._peers.values():
                peer["linked"] = False
        self.note("end", how=how, round=self._place["round"])

    def status(self) -> dict[str, Any]:
        """Where the agent stands, as JSON."""
        with self._lock:
            peers = {name: dict(one) for name, one in self._peers.items()}
            about = {"name": self._name, **self._place, "rounds": self._rounds, **self._spent}
            about |= {"unproved": self._unproved, "finished": self._finished, "left": self._left}
            about |= {"refusals": self._refusals, "peers": peers}
            return {**about, "log": self._log.end._asdict()}

    def write(self) -> None:
        """Write `status.json`."""
        self._written = time.monotonic()
        self._state.keep_status(self.status())

    def text(self) -> str:
        """The metrics as Prometheus reads them."""
        status, own = self.status(), f'agent="{self._name}"'
        lines = []

        def add(name: str, kind: str, help: str, values: Mapping[str, float]) -> None:
            lines.extend([f"# HELP sottovoce_{name} {help}", f"# TYPE sottovoce_{name} {kind}"])
            lines.extend(f"sottovoce_{name}{{{own}{more}}} {v:g}" for more, v in values.items())

        add("round", "gauge", "Last finished round.", {"": status["round"]})
        add("rounds_agreed", "gauge", "Rounds of the training.", {"": status["rounds"]})
        add("edition", "gauge", "Edition of the agreement.", {"": status["edition"]})
        add("executed_rounds", "counter", "Rounds that are charged.", {"": status["executed"]})
        linked = {f',peer="{n}"': float(one["linked"]) for n, one in status["peers"].items()}
        add("link_up", "gauge", "Whether a neighbour is connected.", linked)
        with self._lock:
            counts = dict(self._counts)
        for word in _TRAFFIC.values():
            found = {f',peer="{n}"': float(c) for (w, n), c in counts.items() if w == word}
            add(f"messages_{word}", "counter", "Messages by neighbour.", found)
        add("refusals", "counter", "Connections and records refused.", {"": status["refusals"]})
        if status["epsilon"] is not None:
            delta = f',delta="{status["delta"]:g}"'
            add("epsilon", "gauge", "Proved so far for one record.", {delta: status["epsilon"]})
        return "\n".join(lines) + "\n"


class MetricsServer:
    """Serves http://127.0.0.1:PORT/metrics to this machine."""

    def __init__(self, port: int, text: Callable[[], str]) -> None:
        class Answers(BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                known = self.path == "/metrics"
                content = text().encode() if known else b"see /metrics\n"
                self.send_response(200 if known else 404)
                self.send_header("Content-Type", "text/plain; version=0.0.4; charset=utf-8")
                self.send_header("Content-Length", str(len(content)))
                self.end_headers()
                self.wfile.write(content)

            def log_message(self, format: str, *arguments: Any) -> None:
                pass

        try:
            self._server = ThreadingHTTPServer(("127.0.0.1", port), Answers)
        except OSError as error:
            raise FederationError(
                f"metrics cannot be served at 127.0.0.1:{port}: {error.strerror}; give another port"
            ) from None
        self.port = int(self._server.server_address[1])
        threading.Thread(target=self._server.serve_forever, daemon=True).start()

    def close(self) -> None:
        self._server.shutdown()
        self._server.server_close()

"""The search with egglog for instances of lemmas, in a process of its own.

The process gets the rules once and then answers queries; it can be killed at any time, and no answer is a
valid answer. Nothing it says is trusted: `solver.merging` proves each equality again in the store.

Run as a program, this module is that process: lines of JSON in, lines of JSON out.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from queue import Empty, Queue
from threading import Thread
from typing import Any, Final, TextIO

ROUNDS: Final = 12
"""Rounds without late lemmas, and then with them."""
CHUNK: Final = 16
"""Lines that are parsed at once: egglog copies the text into every node."""
GRAPHS: Final = 24
"""Most e-graphs that are kept, one per program of rules."""
MEMORY: Final = 6 << 30
"""Bytes of address space that the process may use."""
READY: Final = 60.0
"""Seconds that the process may take to start and read the rules."""


@dataclass(frozen=True, slots=True)
class Query:
    """What is asked: egglog lines that state two sides and the facts, the limit on nodes, and the rules.

    `rules` names a program of rules, which the process is given once.
    """

    lines: tuple[str, ...]
    nodes: int
    rules: str


@dataclass(frozen=True, slots=True)
class Answer:
    """`status` is `equal`, `open`, `inconsistent` or why there is none (`time`, `failed`).

    `fired` counts matches per rule, `nodes` are those that were made. `terms` and `log` are the terms
    and the equations (rule, left, right) from which an equality follows.
    """

    status: str
    nodes: int = 0
    fired: dict[str, int] = field(default_factory=dict)
    terms: tuple[tuple[str, tuple[Any, ...]], ...] = ()
    log: tuple[tuple[str, int, int], ...] = ()


class Worker:
    """The process: started by the first query, started again after it was killed."""

    def __init__(self, programs: Mapping[str, str]) -> None:
        self.programs = programs
        self.process: subprocess.Popen[str] | None = None
        self.lines: Queue[str | None] = Queue()
        self.given: set[str] = set()
        self.broken = False

    def ask(self, query: Query, seconds: float) -> Answer:
        """The answer, or `time` when the seconds are over and the process was killed."""
        if self.process is None and (self.broken or not self._start()):
            self.broken = True
            self.close()
            return Answer("failed")
        if query.rules not in self.given:
            self.given.add(query.rules)
            self._send({"name": query.rules, "program": self.programs[query.rules]})
            if self._receive(READY) != {"ready": True}:
                self.close()
                return Answer("failed")
        self._send({"lines": list(query.lines), "nodes": query.nodes, "rules": query.rules})
        reply = self._receive(seconds)
        if isinstance(reply, str):
            self.close()
            return Answer(reply)
        try:
            return _answer(reply)
        except (KeyError, TypeError, ValueError, IndexError):
            self.close()
            return Answer("failed")

    def close(self) -> None:
        """End the process."""
        process, self.process = self.process, None
        if process is None:
            return
        process.kill()
        process.wait()
        for stream in (process.stdin, process.stdout):
            if stream is not None:
                stream.close()

    def _start(self) -> bool:
        environment = {**os.environ, "RAYON_NUM_THREADS": "1", "RUST_BACKTRACE": "0", "PYTHONHASHSEED": "0"}
        try:
            self.process = subprocess.Popen(
                [sys.executable, "-P", "-m", "shardproof.solver.search.saturate"],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                stderr=subprocess.DEVNULL,
                encoding="utf-8",
                env=environment,
            )
        except OSError:
            return False
        self.lines = Queue()
        self.given = set()
        Thread(target=_pump, args=(self.process.stdout, self.lines), daemon=True).start()
        return bool(self._receive(READY) == {"ready": True})

    def _send(self, message: Any) -> None:
        process = self.process
        if process is None or process.stdin is None:
            return
        try:
            process.stdin.write(json.dumps(message) + "\n")
            process.stdin.flush()
        except (OSError, ValueError):
            return

    def _receive(self, seconds: float) -> Any:
        try:
            line = self.lines.get(timeout=max(seconds, 0.0))
        except Empty:
            return "time"
        try:
            return json.loads(line) if line is not None else "failed"
        except ValueError:
            return "failed"


def _pump(stream: TextIO | None, lines: Queue[str | None]) -> None:
    try:
        for line in stream or ():
            lines.put(line)
    except (OSError, ValueError):
        pass
    lines.put(None)


def _answer(reply: dict[str, Any]) -> Answer:
    terms = tuple((str(op), tuple(x)) for op, x in reply.get("terms", ()))
    log = tuple((str(rule), int(a), int(b)) for rule, a, b in reply.get("log", ()))
    return Answer(
        str(reply["status"]),
        int(reply["nodes"]),
        {str(k): int(v) for k, v in reply["fired"].items()},
        terms,
        log,
    )


# the process


class _Graph:
    """An e-graph with rules, which every query leaves as it was."""

    def __init__(self, rules: str) -> None:
        from egglog.bindings import EggSmolError, EGraph

        self.graph = EGraph()
        for chunk in _chunks(rules.split("\n")):
            try:
                self.run(chunk)
            except EggSmolError:
                for line in chunk.split("\n"):
                    self._declare(line)
        self.run("(run-schedule (run main))")

    def run(self, text: str) -> list[Any]:
        return list(self.graph.run_program(*self.graph.parse_program(text)))

    def _declare(self, line: str) -> None:
        """Add one line; a rule that egglog does not take is left out, as one that never fires."""
        from egglog.bindings import EggSmolError

        with suppress(EggSmolError):
            self.run(line)

    def holds(self, fact: str) -> bool:
        from egglog.bindings import EggSmolError

        try:
            self.run(f"(check {fact})")
        except EggSmolError:
            return False
        return True

    def search(self, query: Query) -> tuple[str, dict[str, int]]:
        """The status of a query and the matches per rule; the graph holds the query afterwards."""
        for chunk in _chunks(query.lines):
            self.run(chunk)
        fired: dict[str, int] = {}
        late = False
        done = 0
        while True:
            self.run("(run-schedule (saturate (run facts)))")
            if self.holds("(Inconsistent)"):
                return "inconsistent", fired
            if self.holds("(= (side 0) (side 1))"):
                return "equal", fired
            until = f":until (<= {query.nodes} (get-size!))"
            again = f"(run late {until})" if late else ""
            (ran,) = self.run(f"(run-schedule (run main {until}) {again})")
            for rule, n in ran.report.num_matches_per_rule.items():
                fired[rule] = fired.get(rule, 0) + n
            done += 1
            if not ran.report.updated or done >= ROUNDS:
                if late:
                    return "open", fired
                late, done = True, 0

    def size(self) -> int:
        (sizes,) = self.run("(print-size)")
        return sum(n for _, n in sizes.sizes)


def _chunks(lines: Sequence[str]) -> Iterator[str]:
    for n in range(0, len(lines), CHUNK):
        yield "\n".join(lines[n : n + CHUNK])


def _serve(source: TextIO, sink: TextIO) -> None:
    from egglog.bindings import EGraph  # noqa: F401

    _reply(sink, {"ready": True})
    programs: dict[str, str] = {}
    graphs: dict[str, _Graph] = {}
    for line in source:
        message = json.loads(line)
        if "program" in message:
            programs[message["name"]] = message["program"]
            graphs[message["name"]] = _Graph(message["program"])
            _reply(sink, {"ready": True})
        else:
            name = message["rules"]
            graph = graphs.pop(name, None) or _Graph(programs[name])
            graphs[name] = graph
            _reply(sink, _reply_to(graph, Query(tuple(message["lines"]), int(message["nodes"]), name)))
        if len(graphs) > GRAPHS:
            del graphs[next(iter(graphs))]


def _reply_to(graph: _Graph, query: Query) -> dict[str, Any]:
    graph.run("(push)")
    status, fired = graph.search(query)
    reply: dict[str, Any] = {"status": status, "nodes": graph.size(), "fired": fired}
    if status == "equal":
        reply |= _logged(graph)
    graph.run("(pop)")
    return reply


def _logged(graph: _Graph) -> dict[str, Any]:
    """The logged instances over numbered terms."""
    seen: dict[int, int] = {}
    terms: list[Any] = []
    numbers: dict[tuple[str, tuple[Any, ...]], int] = {}

    def number(dag: Any, k: int) -> Any:
        node = dag.get(k)
        if type(node).__name__ == "TermLit":
            return node.value.value
        if node.name == "bigrat":
            n, d = (number(dag, x) for x in node.args)
            return f"{n}/{d}"
        if node.name == "from-string":
            return number(dag, node.args[0])
        if k not in seen:
            key = (node.name[1:], tuple(number(dag, x) for x in node.args))
            if key not in numbers:
                numbers[key] = len(terms)
                terms.append(key)
            seen[k] = numbers[key]
        return seen[k]

    (printed,) = graph.run("(print-function Log 1000000)")
    log = []
    dag = printed.termdag
    for t, _ in printed.terms:
        entry = dag.get(t)
        rule, left, right = (number(dag, x) for x in entry.args)
        log.append((rule, left, right))
    return {"terms": terms, "log": log}


def _limit_memory() -> None:
    try:
        import resource
    except ImportError:
        return
    _, hard = resource.getrlimit(resource.RLIMIT_AS)
    most = MEMORY if hard == resource.RLIM_INFINITY else min(MEMORY, hard)
    resource.setrlimit(resource.RLIMIT_AS, (most, hard))


def _reply(sink: TextIO, message: Any) -> None:
    sink.write(json.dumps(message) + "\n")
    sink.flush()


def _main() -> None:
    sys.setrecursionlimit(20_000)
    _limit_memory()
    source, sink = sys.stdin, sys.stdout
    sys.stdout = sys.stderr
    _serve(source, sink)


if __name__ == "__main__":
    _main()

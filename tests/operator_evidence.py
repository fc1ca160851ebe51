"""A pytest plugin that records which operators of each framework the tests read, and what they become.

`make operators` runs it (`-p tests.operator_evidence`) on the tests of the frontends, and writes
docs/operators.md from what it finds. Only tests that pass count. Of each operator it keeps the opcodes that
it becomes, without what only fits operands together (`GLUE`), and those that it becomes alone.
`OPERATOR_EVIDENCE` in the environment names another file to write.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import pytest

FILE: Final = Path(os.environ.get("OPERATOR_EVIDENCE", Path(__file__).with_name("operator_evidence.json")))
GLUE: Final = frozenset({"broadcast_in_dim", "constant", "convert", "reshape"})
ROOT: Final = Path(__file__).resolve().parents[1]

Found = dict[tuple[str, str], list[frozenset[str]]]


class Recorder:
    """Operators read by the running test (`now`), and by those that passed, by test file."""

    def __init__(self) -> None:
        self.now: Found = {}
        self.kept: dict[str, Found] = {}
        self._inner: list[set[int]] = []

    def watched(self, frontend: str, name: str, rule: Callable[..., Any]) -> Callable[..., Any]:
        """The rule, noting the operators that it adds itself; its first argument holds them in `ops`."""

        def noting(state: Any, *args: Any, **kwargs: Any) -> Any:
            return self.note(frontend, name, state.ops, lambda: rule(state, *args, **kwargs))

        return noting

    def note(self, frontend: str, name: str, ops: Sequence[Any], call: Callable[[], Any]) -> Any:
        start = len(ops)
        self._inner.append(set())
        try:
            found = call()
        finally:
            inner = self._inner.pop()
        if self._inner:
            self._inner[-1].update(id(op) for op in ops[start:])
        opcodes = frozenset(op.opcode for op in ops[start:] if id(op) not in inner)
        self.now.setdefault((frontend, name), []).append(opcodes)
        return found

    def judged(self, disagreement: Callable[[Any], str | None]) -> Callable[[Any], str | None]:
        """The judge of one case among many of a test; what it reads counts where it finds nothing."""

        def judging(case: Any) -> str | None:
            before, self.now = self.now, {}
            try:
                found = disagreement(case)
            finally:
                mine, self.now = self.now, before
            if found is None:
                _extend(self.now, mine)
            return found

        return judging

    def end(self, file: str, passed: bool) -> None:
        if passed:
            _extend(self.kept.setdefault(file, {}), self.now)
        self.now = {}


def _extend(found: Found, more: Found) -> None:
    for key, seen in more.items():
        found.setdefault(key, []).extend(seen)


def watch(recorder: Recorder) -> None:
    """Put the recorder around every rule of every frontend."""
    from tests.frontends import onnx_node_cases

    from shardproof.frontends.fx.lowering.call import Entry
    from shardproof.frontends.fx.lowering.table import TABLE as ATEN
    from shardproof.frontends.hlo.rules import RULES as HLO
    from shardproof.frontends.jaxpr.rules import RULES as JAX
    from shardproof.frontends.onnx.walk import Walk

    tables: Any = HLO, JAX, ATEN
    for name, rule in HLO.items():
        tables[0][name] = recorder.watched("hlo", name, rule)
    for name, rule in JAX.items():
        tables[1][name] = recorder.watched("jax", name, rule)
    for name, entry in ATEN.items():
        tables[2][name] = Entry(entry.parameters, recorder.watched("aten", name, entry.rule))
    apply: Callable[..., Any] = Walk._apply

    def applied(walk: Walk, node: Any) -> Any:
        name = f"{node.domain}::{node.op_type}" if node.domain else node.op_type
        return recorder.note("onnx", name, walk.state.ops, lambda: apply(walk, node))

    Walk._apply = applied  # type: ignore[method-assign]
    cases: Any = onnx_node_cases
    cases.disagreement = recorder.judged(cases.disagreement)


def summary(found: Found) -> dict[str, dict[str, Any]]:
    """By frontend and operator: the opcodes it becomes, and those that it becomes alone."""
    told: dict[str, dict[str, Any]] = {}
    for (frontend, name), seen in sorted(found.items()):
        cores = {opcodes - GLUE or opcodes - {"constant"} or opcodes for opcodes in seen}
        becomes = sorted({opcode for core in cores for opcode in core})
        alone = sorted({next(iter(core)) for core in cores if len(core) == 1})
        told.setdefault(frontend, {})[name] = {"becomes": becomes, "alone": alone}
    return told


_RECORDER: Final = Recorder()


def pytest_configure(config: pytest.Config) -> None:
    watch(_RECORDER)


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Any:
    report = yield
    if call.when == "setup" and not report.passed:
        _RECORDER.now = {}
    if call.when == "call":
        _RECORDER.end(item.path.relative_to(ROOT).as_posix(), report.passed)
    return report


def pytest_sessionfinish(session: pytest.Session) -> None:
    stored = json.loads(FILE.read_text(encoding="utf-8")) if FILE.exists() else {}
    stored = {file: seen for file, seen in stored.items() if (ROOT / file).exists()}
    stored |= {file: summary(found) for file, found in _RECORDER.kept.items() if found}
    lines = (f"{json.dumps(file)}: {json.dumps(stored[file], sort_keys=True)}" for file in sorted(stored))
    FILE.write_text("{\n" + ",\n".join(lines) + "\n}\n", encoding="utf-8")

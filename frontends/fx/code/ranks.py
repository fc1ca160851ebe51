"""Dumps of several ranks: later ones are read by the lines in which they differ from an earlier one."""

from __future__ import annotations

import ast
import warnings
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Final

from shardproof.frontends.fx.archive.read import read_archive
from shardproof.frontends.fx.code.lines import MAX_TEXT, frame, is_single, rank_of
from shardproof.frontends.fx.code.meta import location_of
from shardproof.frontends.fx.code.read import Reading, read, split
from shardproof.frontends.fx.code.scope import Replay
from shardproof.frontends.fx.code.statements import parse, statement
from shardproof.frontends.fx.graph import Graph, Node, titled
from shardproof.frontends.locate import WRAPPER_FILES, Locator
from shardproof.frontends.source import contents, is_archive
from shardproof.ir.module import ModuleError

MAX_COMPARED: Final = 8


def read_ranks(paths: Sequence[str | Path], wrapper_files: Sequence[str] = WRAPPER_FILES) -> list[Graph]:
    """The graphs of one code dump or archive per rank, each as read alone, in the order of `paths`.

    Nodes that the dumps of two ranks write alike are one object in both graphs.
    Raises `ModuleError`: file and line, what was found, what is needed.
    """
    readings: list[Reading] = []
    locator = Locator(wrapper_files)
    return [_graph_of(Path(path), str(path), readings, locator) for path in paths]


def read_texts(texts: Sequence[tuple[str, str]]) -> list[Graph]:
    """As `read_ranks`, of dumps given as pairs of text and source."""
    readings: list[Reading] = []
    return [_next(text, source, readings) for text, source in texts]


def _graph_of(path: Path, source: str, readings: list[Reading], locator: Locator) -> Graph:
    if is_archive(path):
        return titled(read_archive(path, source, locator))
    try:
        text = contents(path, MAX_TEXT).decode("utf-8")
    except UnicodeDecodeError:
        raise ModuleError(f"{source}: is neither an FX code dump nor a .pt2 archive") from None
    except ModuleError as error:
        raise ModuleError(f"{source}: {error}") from None
    return _next(text, source, readings)


def _next(text: str, source: str, readings: list[Reading]) -> Graph:
    """The graph of one more dump; `readings` are those that were read in full, the latest last."""
    lines = split(text, source)
    graph = _by_difference(lines, source, readings)
    if graph is not None:
        return graph
    reading = read(lines, source)
    readings.append(reading)
    del readings[:-MAX_COMPARED]
    return reading.graph


def _by_difference(lines: list[str], source: str, readings: Sequence[Reading]) -> Graph | None:
    """The graph of `lines` out of that of the most similar reading; None when it must be read in full."""
    best: tuple[list[int], Reading] | None = None
    for reading in readings:
        if len(reading.lines) != len(lines):
            continue
        pairs = zip(reading.lines, lines, strict=True)
        differing = [index for index, (old, new) in enumerate(pairs) if old != new]
        if len(differing) * 2 <= len(lines) and (best is None or len(differing) < len(best[0])):
            best = differing, reading
    if best is None:
        return None
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            return _patched(lines, source, *best)
    except ModuleError:
        return None


def _patched(lines: list[str], source: str, differing: Sequence[int], reading: Reading) -> Graph | None:
    nodes = list(reading.graph.nodes)
    head = reading.head
    before = [index for index in differing if index <= head.def_line]
    if before == [head.rank_line] and (rank := rank_of(lines[before[0]])) is not None:
        head = replace(head, rank=rank)
    elif before:
        head = frame(lines)
        if replace(head, rank=None, rank_line=None) != replace(reading.head, rank=None, rank_line=None):
            return None
        if head.def_line in before:
            return None
    inside = differing[len(before) :]
    for index in inside:
        if _is_comment(lines[index]) and not _relocated(lines, index, reading, nodes):
            return None
    changed = [index for index in inside if not _is_comment(lines[index])]
    for index, trees in zip(changed, _parsed([lines[index] for index in changed]), strict=True):
        if not _replayed(trees, index, reading, nodes):
            return None
    constants = {node.target: None for node in nodes if node.op == "get_attr"}
    return replace(reading.graph, nodes=tuple(nodes), source=source, rank=head.rank, constants=constants)


def _parsed(lines: Sequence[str]) -> list[list[ast.stmt]]:
    """The statements of each line. Raises `ModuleError` when one isn't whole by itself."""
    if not all(is_single(line) for line in lines):
        raise ModuleError("a statement of several lines")
    statements: list[list[ast.stmt]] = [[] for _ in lines]
    for tree in parse("\n".join(line.strip() for line in lines)):
        if tree.end_lineno != tree.lineno:
            raise ModuleError("a statement of several lines")
        statements[tree.lineno - 1].append(tree)
    return statements


def _is_comment(line: str) -> bool:
    return line.lstrip().startswith("#")


def _relocated(lines: list[str], index: int, reading: Reading, nodes: list[Node]) -> bool:
    """Gives the nodes below the comment at `index` its location; False when the other has none."""
    if not _is_comment(reading.lines[index]):
        return False
    location = location_of(lines[index].strip())
    for following in range(index + 1, len(lines)):
        if _is_comment(lines[following]):
            break
        effect = reading.effects.get(following)
        if effect is not None:
            for position in range(effect.start, effect.start + len(effect.nodes)):
                nodes[position] = replace(nodes[position], location=location)
        elif lines[following].strip():
            return lines[following].lstrip().startswith("return")
    return True


def _replayed(trees: Sequence[ast.stmt], index: int, reading: Reading, nodes: list[Node]) -> bool:
    """Puts the nodes of `trees` in place of those of line `index`; False when they can't stand for it."""
    old = reading.effects.get(index)
    if old is None:
        return False
    scope = Replay(reading.scope, index)
    location = nodes[old.start].location if old.nodes else None
    fresh: list[Node] = []
    deleted: list[str] = []
    for tree in trees:
        outcome = statement(tree, scope, location, reading.metas)
        if isinstance(outcome, tuple):
            deleted.extend(outcome)
        elif isinstance(outcome, Node) and not deleted:
            fresh.append(outcome)
        else:
            return False
    if tuple(node.name for node in fresh) != old.names or tuple(deleted) != old.deleted:
        return False
    nodes[old.start : old.start + len(fresh)] = fresh
    return True

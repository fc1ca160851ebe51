"""The assumptions that a proof leans on, from the proof itself: what a certificate may not leave out."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator

from shardproof.ir.module import Module, Op
from shardproof.lemmas.terms import Lemma
from shardproof.passes.classes import Store
from shardproof.passes.unroll import LOOP
from shardproof.solver.meaning import needed_ops
from shardproof.solver.sweep import BASE, Composed, Swept
from shardproof.solver.verdict import Assumption


def claims(
    store: Store, composed: Composed, swept: Swept, reference: Module, implementation: Module
) -> tuple[Assumption, ...]:
    """What the store assumed, and the operators of either program that are unknown functions."""
    found = stored(store)
    known = {*swept.reference.opaque, *swept.implementation.opaque}
    for module in (reference, implementation):
        for name_of, op in _inside(needed_ops(module)):
            if op.opcode in ("custom_call", "opaque") and name_of not in known:
                name = op.attrs.get("target") or op.attrs.get("name")
                claim = "is a function of its operands and attributes, the same on every rank"
                batched = bool(op.attrs.get("free"))
                found.append(
                    Assumption(
                        "opaque_batched" if batched else "opaque_function",
                        f"`{_short(str(name))}` {claim}" + (", slice by slice" if batched else ""),
                        op.result.name,
                    )
                )
    return unique(found)


def _inside(ops: Iterable[Op], prefix: str = "") -> Iterator[tuple[str, Op]]:
    """All operators, those of the rounds of loops included, each with what its result is called.

    That is how `passes.loops` calls it: after the first result of the loop and `/`.
    """
    for op in ops:
        yield prefix + op.result.name, op
        if op.opcode == LOOP:
            yield from _inside(op.attrs["body"].ops, f"{prefix}{op.result.name}/")


def stored(store: Store, known: Collection[tuple[str, str]] = ()) -> list[Assumption]:
    """What the store assumed beyond what is known."""
    return [
        Assumption(kind, text.replace(BASE, ""), value)
        for (kind, text), value in store.assumptions.items()
        if (kind, text) not in known
    ]


def lemma_claims(lemmas: Iterable[tuple[Lemma, bool]]) -> tuple[Assumption, ...]:
    """Assumptions for lemmas that were used, each with whether it is proved."""
    found = []
    for lemma, proved in lemmas:
        if lemma.assumed or not proved:
            kinds = (lemma.claims or ("assume_lemma",)) if lemma.assumed else ("tested_lemma",)
            clauses = lemma.doc.removesuffix(".").split("; ")
            texts = clauses if len(clauses) == len(kinds) > 1 else [lemma.doc] * len(kinds)
            found += [
                Assumption(kind, f"`{lemma.name}`: {text}", lemma.name)
                for kind, text in zip(kinds, texts, strict=True)
            ]
    return unique(found)


def unique(found: Iterable[Assumption]) -> tuple[Assumption, ...]:
    """Each kind and text once, in order; the first of equal ones stays."""
    kept: dict[tuple[str, str], Assumption] = {}
    for a in found:
        kept.setdefault((a.kind, a.text), a)
    return tuple(kept.values())


def _short(text: str) -> str:
    return text if len(text) <= 80 else text[:77] + "..."

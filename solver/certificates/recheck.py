"""The certificate checker: replays a proof without search, and accepts nothing that it has not rebuilt.

It knows the normal form, the lemmas of the library by name, and how an instance is installed. Each
instance must hold at the place where the certificate names it, each rewritten class is evaluated on random
inputs (soundness V2), and assumptions are collected anew.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from shardproof.ir.digest import digest
from shardproof.ir.module import Module, ModuleError
from shardproof.ir.types import Mesh
from shardproof.lemmas.printer import fingerprint
from shardproof.lemmas.terms import Lemma
from shardproof.passes.classes import Store
from shardproof.passes.evaluate import EvaluationError
from shardproof.passes.mesh_axes import mesh_axes
from shardproof.passes.normalise import new_store
from shardproof.passes.views import Unsupported
from shardproof.solver.certificates.certificate import Certificate, CertificateError, Claim, Range
from shardproof.solver.certificates.claims import claims, lemma_claims
from shardproof.solver.certificates.stated_relation import assumed_values, check_relation, drawn_from
from shardproof.solver.certificates.stepping import undone
from shardproof.solver.certificates.table import Table
from shardproof.solver.randomness import alignment
from shardproof.solver.sweep import Composed, Swept, compare, joined, outcome, sides, sweep
from shardproof.solver.verdict import ASSUMPTION_KINDS, Assumption

Statuses = Mapping[str, Mapping[str, str]]
"""What is known of lemmas by name: `status`, and `sha256` of the printed statement that has it."""


def check(
    certificate: Certificate,
    reference: Module,
    implementation: Module,
    library: Mapping[str, Lemma],
    statuses: Statuses,
    *,
    defines: Sequence[Assumption] = (),
    tick: Callable[[], None] = lambda: None,
) -> Claim:
    """What the certificate shows of these programs. Raises CertificateError with the first reason against it.

    Custom operators of the programs are written out (`solver.meaning`); `defines` are the assumptions which
    that made. Lemmas are those of `library`, by name; one whose status is not `proved` counts as an
    assumption. `tick` is called now and then and may raise.
    """
    claim = certificate.claim
    if claim.digest != certificate.stated:
        raise CertificateError("the claim is not the one that the certificate was written for")
    first = _program("reference", reference, claim.meshes[0], claim.reference)
    second = _program("implementation", implementation, claim.meshes[1], claim.implementation)
    check_relation(certificate, first, second)
    composed = joined(
        first,
        second,
        claim.layouts,
        claim.expected,
        _by_name(claim.ranges),
        frozenset(claim.even),
        claim.assumed,
    )
    lemmas = _lemmas(certificate, library, statuses)
    flags = certificate.flags
    store = new_store(
        folding=flags.folding,
        lenient=flags.lenient,
        reading=flags.reading,
        algebra=flags.algebra,
        inside=flags.inside,
    )
    store.check = tick
    table = Table(store, certificate.instances, lemmas, {u.name: u.plain for u in certificate.lemmas})
    if certificate.instances:
        store.rewrite = table.rewrite
    try:
        found = _replay(certificate, composed, store, table, tick)
        needed = [*claims(store, composed, found, first, second), *defines]
    except (Unsupported, EvaluationError, ModuleError) as error:
        raise CertificateError(f"the programs cannot be replayed: {error}") from None
    needed += lemma_claims((x, status_of(x, statuses) == "proved") for x in lemmas.values())
    needed += assumed_values(claim)
    needed += alignment(drawn_from(claim))
    _assumptions(claim, [(a.kind, a.text) for a in needed])
    return claim


def _program(role: str, module: Module, mesh: Mesh, wanted: str) -> Module:
    if mesh.size != module.mesh.size:
        raise CertificateError(
            f"the {role} runs on {module.mesh.size} ranks, the certificate has {mesh.size}"
        )
    module = mesh_axes(module, mesh)
    if digest(module) != wanted:
        raise CertificateError(f"the {role} is another program than the certificate's")
    return module


def _by_name(ranges: Sequence[Range]) -> dict[str, tuple[int, int]]:
    found = {name: (low, high) for name, low, high in ranges}
    if len(found) != len(ranges) or any(low >= high for low, high in found.values()):
        raise CertificateError("a range is empty or given twice")
    return found


# lemmas


def _lemmas(certificate: Certificate, library: Mapping[str, Lemma], statuses: Statuses) -> dict[str, Lemma]:
    """The library's own lemmas of the names that the certificate uses."""
    found: dict[str, Lemma] = {}
    for use in certificate.lemmas:
        lemma = library.get(use.name)
        if lemma is None:
            raise CertificateError(f"there is no lemma `{use.name}` (--lemmas FILE adds lemmas)")
        own = fingerprint(lemma)
        if own != use.digest:
            raise CertificateError(f"the lemma `{use.name}` says something else than when it was used")
        if use.name in found:
            raise CertificateError(f"the lemma `{use.name}` is listed twice")
        status = status_of(lemma, statuses)
        if use.status not in (status, "tested"):
            raise CertificateError(f"the lemma `{use.name}` is {status}, not {use.status}")
        found[use.name] = lemma
    if {i.lemma.partition(".")[0] for i in certificate.instances} != set(found):
        raise CertificateError("the lemmas listed are not those of the instances")
    return found


def status_of(lemma: Lemma, statuses: Statuses) -> str:
    """`proved` only when it was, as it stands; else `tested`, and `assumed` for an `assume`."""
    if lemma.assumed:
        return "assumed"
    known = statuses.get(lemma.name, {})
    proved = known.get("status") == "proved" and known.get("sha256") == fingerprint(lemma)
    return "proved" if proved else "tested"


# the replay


def _replay(
    certificate: Certificate, composed: Composed, store: Store, table: Table, tick: Callable[[], None]
) -> Swept:
    swept = sweep(store, composed, tick, bounds=_by_name(certificate.bounds))
    if swept.uneven:
        raise CertificateError(f"the reference's ranks do not agree on `{min(swept.uneven)}`")
    holds = compare(store, composed, swept)
    for name, count in certificate.rounds:
        if holds.get(name) is not False:
            raise CertificateError(f"`{name}` is no output that a round of steps could prove")
        with undone(store):
            both = sides(store, *outcome(composed, swept, name))
            holds[name] = both is not None and table.finish(count, *both)
            assumed = dict(store.assumptions)
        store.assumptions |= assumed
    if table.left:
        instance = table.instances[table.used]
        raise CertificateError(f"instance {table.used} of `{instance.lemma}` is never used")
    for name, good in holds.items():
        if not good:
            raise CertificateError(f"output `{name}` is not what is expected")
    return swept


def _assumptions(claim: Claim, needed: Sequence[tuple[str, str]]) -> None:
    for kind, _ in claim.assumptions:
        if kind not in ASSUMPTION_KINDS:
            raise CertificateError(f"`{kind}` is no kind of assumption")
    missing = [(kind, text) for kind, text in needed if (kind, text) not in claim.assumptions]
    if missing:
        kind, text = missing[0]
        raise CertificateError(f"the certificate does not list the assumption `{text}` ({kind})")

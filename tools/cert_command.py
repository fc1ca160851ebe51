"""The command `shardproof cert check`: replays a certificate on the files that it speaks of."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from shardproof import __version__
from shardproof.tools.failure import guarded
from shardproof.tools.options import (
    Format,
    FormatOption,
    ImplementationArgument,
    Initializers,
    InitializersOption,
    LemmasOption,
    OutputOption,
    ReferenceArgument,
    VerboseOption,
    check_writable,
    emit,
    group,
)

if TYPE_CHECKING:
    from shardproof.solver.certificates.certificate import Certificate, Claim

REJECTED: Final = 1
"""Exit code of a certificate that does not hold."""

app = group("cert", "Check certificates.")


@app.callback()
def cert() -> None:
    """Check certificates."""


@app.command(short_help="Replay a certificate.")
def check(
    path: Annotated[Path, typer.Argument(metavar="CERTIFICATE", help="The file that --certificate wrote.")],
    reference: ReferenceArgument,
    implementation: ImplementationArgument,
    claim: Annotated[
        str | None, typer.Option(metavar="DIGEST", help="Reject a certificate of any other claim.")
    ] = None,
    relation: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="The relation file, for groups and constants of PyTorch dumps."),
    ] = None,
    lemmas: LemmasOption = None,
    initializers: InitializersOption = None,
    format: FormatOption = Format.TEXT,
    output: OutputOption = None,
    verbose: VerboseOption = False,
) -> int:
    """Check that CERTIFICATE proves IMPLEMENTATION right, without any search; prints what it proves.

    Exit codes: 0 valid, 1 rejected, 3 bad input or usage, 4 internal error.
    """

    def run() -> int:
        files = [reference, *implementation]
        check_writable(output, [path, *files, *(lemmas or [])])
        from shardproof.solver.certificates.certificate import CertificateError
        from shardproof.solver.certificates.certificate_file import from_bytes

        content = path.read_bytes()
        try:
            certificate = from_bytes(content)
            if claim is not None and certificate.stated != claim:
                raise CertificateError(f"the certificate is for the claim {certificate.stated}")
            shown = replayed(certificate, reference, implementation, lemmas or [], relation, initializers)
        except CertificateError as error:
            answer = {"version": __version__, "valid": False, "reason": str(error)}
            text = f"rejected: {error}\n"
            emit(json.dumps(answer, indent=2) + "\n" if format is Format.JSON else text, output)
            return REJECTED
        if format is Format.JSON:
            emit(json.dumps(_plain(certificate, shown, files), indent=2) + "\n", output)
        else:
            emit("\n".join(_lines(certificate, shown, files)) + "\n", output)
        return 0

    return guarded(run, json=format is Format.JSON, verbose=verbose)


def replayed(
    certificate: Certificate,
    reference: Path,
    implementation: Sequence[Path],
    lemmas: Sequence[Path],
    relation: Path | None = None,
    initializers: Initializers | None = None,
) -> Claim:
    """What a certificate proves of these files. Raises CertificateError, or ModuleError for the files."""
    from shardproof.ir.module import ModuleError
    from shardproof.ir.types import Mesh
    from shardproof.passes.fold_ranks import Divergent
    from shardproof.passes.unfold_ranks import NotUnfolded, unfold_ranks
    from shardproof.solver.certificates.certificate import CertificateError
    from shardproof.solver.certificates.claims import unique
    from shardproof.solver.certificates.recheck import check as recheck
    from shardproof.solver.meaning import meant
    from shardproof.solver.pair import read_pair
    from shardproof.solver.programs import checked_only
    from shardproof.solver.randomness import with_draws
    from shardproof.solver.relations.relation_file import Declared, read
    from shardproof.solver.search.statuses import statuses_of

    told = Declared() if relation is None else read(relation)
    if initializers is not None:
        told = replace(told, initializers=initializers.value)
    own, other = certificate.claim.meshes
    apart = False
    try:
        try:
            pair = read_pair(reference, [*implementation], told, (own, other))
        except ModuleError:
            if other != Mesh():
                raise
            pair, apart = read_pair(reference, [*implementation], told, (own, None)), True
    except Divergent as error:
        raise CertificateError(str(error)) from None
    first, second = pair.reference, pair.implementation
    if pair.dumps == 2:
        first = checked_only(first, {source for _, source, _ in certificate.claim.outputs})
    both = meant((first, second), lemmas)
    library = {}
    if certificate.lemmas:
        from shardproof.lemmas.load import load

        known = load(lemmas).lemmas
        library = {use.name: known[use.name] for use in certificate.lemmas if use.name in known}
    first, second = (with_draws(m.module) for m in both)
    try:
        second = unfold_ranks(second) if apart else second
    except NotUnfolded as error:
        raise CertificateError(f"the implementation runs on {second.mesh.size} ranks: {error}") from None
    return recheck(
        certificate,
        first,
        second,
        library,
        statuses_of(library.values()),
        defines=unique(a for m in both for a in m.assumptions),
    )


def _lines(certificate: Certificate, claim: Claim, files: Sequence[Path]) -> Iterator[str]:
    from shardproof.ir.text import to_text

    names = ", ".join(f.name for f in files[1:])
    yield f"valid: {names} refines {files[0].name}"
    yield f"  claim          {claim.digest}"
    yield f"  reference      {files[0].name}, {claim.reference}, {claim.meshes[0]}"
    yield f"  implementation {names}, {claim.implementation}, {claim.meshes[1]}"
    for own, source, words in claim.outputs:
        yield f"  output         {source} is {own}" + (f", stated as {words}" if words else "")
    for name, low, high in claim.ranges:
        yield f"  range          {low} <= {name} < {high}"
    for name in claim.even:
        yield f"  agree          the reference's ranks hold one {name}"
    for use in certificate.lemmas:
        count = sum(i.lemma.partition(".")[0] == use.name for i in certificate.instances)
        yield f"  lemma          {use.name} ({use.status}), {count} instances"
    for kind, text in claim.assumptions:
        yield f"  assumes        {text} ({kind})"
    if not claim.assumptions:
        yield "  assumes        nothing"
    yield "  relation       every input is made of free base tensors, and outputs are compared, as follows"
    for module in claim.modules:
        yield from (f"    {line}" for line in to_text(module).splitlines())


def _plain(certificate: Certificate, claim: Claim, files: Sequence[Path]) -> dict[str, Any]:
    from shardproof.ir.text import to_text

    def program(names: Sequence[Path], digest: str, mesh: Any) -> dict[str, Any]:
        return {"files": [f.name for f in names], "digest": digest, "mesh": dict(mesh.axes)}

    return {
        "version": __version__,
        "valid": True,
        "reason": None,
        "claim": claim.digest,
        "reference": program(files[:1], claim.reference, claim.meshes[0]),
        "implementation": program(files[1:], claim.implementation, claim.meshes[1]),
        "outputs": [
            {"reference": source, "implementation": own, "placement": words}
            for own, source, words in claim.outputs
        ],
        "ranges": {name: [low, high] for name, low, high in claim.ranges},
        "even": list(claim.even),
        "lemmas": [{"name": u.name, "status": u.status, "sha256": u.digest} for u in certificate.lemmas],
        "assumptions": [{"kind": kind, "text": text} for kind, text in claim.assumptions],
        "relation": [to_text(m) for m in claim.modules],
    }

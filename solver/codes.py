"""Every stable code of a verdict or an error, with what `shardproof explain CODE` says about it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class Code:
    """One code: its letter tells the kind (V verified, R refuted, U unknown, E error)."""

    title: str
    explanation: str


CODES: Final[dict[str, Code]] = {
    "V01": Code(
        "verified under the declared relation",
        """\
For all inputs laid out as the relation file says, and over the real numbers, every reference
output equals its counterpart in the implementation on every rank, read through the placement that is
listed with the output. Shapes are the ones in the files; nothing was sampled or shrunk.

It does not speak of rounding: two programs that are equal over the reals may differ in the last bits of
a float. It also rests on every line under `assumes`; an empty list means that there are none.""",
    ),
    "V02": Code(
        "verified on an inferred layout",
        """\
The outputs are proved equal, as for V01, but nobody declared how the inputs are laid out over the
ranks: the layout was inferred from names, parameter numbers, shapes, sharding metadata and the places
where the reference cuts a tensor. It was never chosen because it makes the proof work.

The proof is only as good as that layout. Compare the lines under `inferred` with the code that loads the
weights, or write them with --save-relation, review the file, and run again with --relation. With
--strict an inferred layout is not accepted.""",
    ),
    "R01": Code(
        "an output differs",
        """\
There are inputs that satisfy the relation and every listed assumption, for which one element of one
output differs. Both programs were evaluated in NumPy as they were imported, before any transformation,
so the counterexample does not depend on the proof machinery. The location is the first value of the
implementation that departs from the reference; it is where to look first, not always where to repair.""",
    ),
    "R02": Code(
        "a collective is missing, doubled, or spans the wrong ranks",
        """\
The value that departs is a partial sum that was never reduced, a total that was reduced twice, or a
collective whose replica groups join other ranks than the reference's meaning needs (half of the group,
or the groups of another mesh axis). A value that is correct only on some ranks counts as wrong: an output
of the reference's shape must be right on every rank unless a relation file declares otherwise.""",
    ),
    "R03": Code(
        "a slice, offset or index reads other elements",
        """\
The value that departs reads elements of its operand other than the ones the reference reads: a wrong
start, a wrong stride, a start computed from the rank with the wrong size, or two dims of equal size that
are exchanged. `expected` and `found` give the two ranges.""",
    ),
    "R04": Code(
        "a value is off by a constant factor",
        """\
The value that departs is a constant multiple of what the reference computes. Usual causes are a mean
over local instead of global elements, a bias added on every rank before an all-reduce, or a scale applied
twice.""",
    ),
    "R05": Code(
        "another operator, or operands in another order",
        """\
At the first value that departs the two programs apply different operators to related operands, or the
same non-commutative operator with its operands exchanged.""",
    ),
    "R06": Code(
        "collectives do not match",
        """\
The ranks do not agree on the collectives they run: a rank waits for a partner that never comes, two
ranks meet with different operators, shapes or groups, or a rank is in two groups at once. The program
would hang or fail on a real machine; there is no element to compare, so the counterexample may be absent.""",
    ),
    "U01": Code(
        "no layout could be inferred for an input",
        """\
The shapes, names and metadata of an implementation input fit no layout that inference proposes: equal
copies, contiguous shards in rank order, or segments at the places where the reference cuts the tensor.
Padding, repetition, interleaving and permuted ranks are never guessed. Declare the layout of the inputs
that are named under `blocks` in a relation file and pass it with --relation.""",
    ),
    "U02": Code(
        "nothing relates a value",
        """\
The proof reached a value of the implementation for which no equal expression over reference values is
known. This is not an error in the program: it means that the proof rules do not reach. `closest` names
the lemma that nearly applied and the condition that failed. If the value is known to be right,
--assume VALUE goes on from there and lists the assumption in the verdict.""",
    ),
    "U03": Code(
        "an operator without a known meaning",
        """\
The value comes from an operator that is not in the operator table, or a custom call or rng whose
meaning is not known. It is kept as an unknown function: two calls are equal when the name, attributes and
operands are equal. Here that was not enough, because the ranks call it on parts of the operand and nothing
says that the function works part by part. A definition in a lemma file (--lemmas, docs/lemmas.md) can say
what the operator computes, or only along which dims it works slice by slice.""",
    ),
    "U04": Code(
        "the time limit was reached",
        """\
The run stopped at --timeout before it was finished. What was proved until then is in `outputs`;
nothing follows for the rest. Run again with a higher limit.""",
    ),
    "U05": Code(
        "an output without counterpart",
        """\
A reference output has no counterpart in the implementation: the numbers of outputs differ, or no
placement turns the one shape into the other. Every reference output must be accounted for. Name the
counterpart and its placement in the [outputs] part of a relation file. Implementation outputs without a
reference are not an error; they are listed as `unchecked_outputs`.""",
    ),
    "U06": Code(
        "would hold under another layout",
        """\
The preferred layout of the inputs does not prove the outputs, but another plausible one would. A layout
is never chosen because it proves: a program that reads the wrong columns of a fused weight can be "proved"
by assuming that the weight was stored wrongly. Look up how the weights are really loaded and declare it
in a relation file; the one that would work is in the message.""",
    ),
    "U07": Code(
        "an output's placement is ambiguous",
        """\
The natural placement of an output (equal on every rank, or contiguous shards in rank order) is not
unique: two dims or two mesh axes fit its shape equally well. Declare it in the [outputs] part of a
relation file.""",
    ),
    "U08": Code(
        "not accepted under --strict",
        """\
The outputs were proved, but the proof uses something that --strict does not accept: an inferred
layout, a guessed mesh axis or constant, or a lemma that is tested and not proved. The lines under
`assumes` say what. Declare the layout and the groups in a relation file to remove them.""",
    ),
    "U09": Code(
        "not proved, and could not be replayed",
        """\
The proof failed and no counterexample could be looked for: an operator has no NumPy meaning, the shapes
cannot be shrunk consistently and the full size does not fit the memory budget, or no inputs that satisfy
the assumptions could be drawn. The note says which.""",
    ),
    "U10": Code(
        "differs, but only under an inferred layout",
        """\
On the inferred layout of the inputs the outputs differ. Since nobody declared the layout, the program
may be right and the layout wrong, and no independent evidence was found that the program is at fault, so
this is not a refutation. Declare the layout with --relation to get a definite answer.""",
    ),
    "U11": Code(
        "the proof does not hold when it is checked again",
        """\
A proof was found, but the checker, which replays it without any search and evaluates every use of a
lemma on random inputs, does not accept it. Either a lemma is false (check those of --lemmas files with
`shardproof lemma check`), or this is a defect of shardproof: please report it. Nothing follows for the
program.""",
    ),
    "U12": Code(
        "a lemma that the proof used is false",
        """\
The outputs were proved with a lemma that is not part of the library, and that lemma is no theorem: on the
functions of the counterexample its two sides differ, or it is not well formed. A verdict never rests on such
a lemma. Correct it (`shardproof lemma check FILE` shows the counterexample again) and run again.""",
    ),
    "U13": Code(
        "inconsistent",
        """\
While equalities were searched with the lemmas, two different numbers, or true and false, were found equal.
From that everything would follow, so nothing is proved. Either a lemma of a --lemmas file is false
(`shardproof lemma check FILE` finds a counterexample), or an assumption contradicts the programs.""",
    ),
    "U14": Code(
        "an exponent is not kept from overflow",
        """\
The outputs are equal over the reals, and only there: the reference subtracts a maximum before it
exponentiates, the implementation something made of maxima that is none, such as their sum over the ranks,
or the larger of the maximum and a constant.
Over the reals the difference cancels; in floating point the exponentials overflow, or all vanish. This is
the trace of a wrong collective (sum in the place of max), so it is not called verified.""",
    ),
    "U15": Code(
        "a part of a program is not supported",
        """\
A primitive of a traced program has no counterpart here and is no function of its operands that could be
kept by name: it has effects, calls back into Python, communicates in a way that is not known, loops for a
number of rounds that is not known, or has a parameter that is not. The location is where it was written.
Nothing was compared.""",
    ),
    "U16": Code(
        "stored tensors do not hold what the relation says",
        """\
Both files store their weights, and those of the implementation are not what the layout, inferred or declared,
makes of the reference's: another shard, another order, a transposed tensor, or weights of another model. A
proof would speak of weights that these files do not have, so nothing was compared. Correct the files or the
layout; with --initializers inputs the programs are compared for all weights, whatever the files hold.""",
    ),
    "E01": Code(
        "a file cannot be read as a program",
        """\
The file is missing, empty, truncated, of another type, or describes a program that is not well formed
(an operand that does not exist, a name used twice, a cycle, types that do not fit). Readable are: XLA HLO
protos (HloModuleProto or HloProto, also gzipped), HLO text with all constants written out, StableHLO
(text, bytecode, or a file of jax.export) where jaxlib is installed, and the project's own form (.spf).""",
    ),
    "E02": Code(
        "a relation file is not valid",
        """\
The relation file is not TOML, names an input or output that does not exist, uses an unknown step or
placement, or its shapes do not add up to the shapes of the implementation. A relation file is never
partly ignored.""",
    ),
    "E03": Code(
        "wrong usage of the command line",
        """\
An option or argument is unknown, missing or malformed, or an output file cannot be written. See
`shardproof COMMAND --help`.""",
    ),
    "E04": Code(
        "internal error",
        """\
A defect of shardproof itself; nothing follows about the two programs. Run again with --verbose for the
traceback and report it.""",
    ),
    "E05": Code(
        "the files of the ranks do not fit together",
        """\
Several implementation files are taken as the programs of ranks 0, 1, ... of one run: in the order of
the rank numbers in their headers when all have one, else in the order of the arguments. A rank is missing
or appears twice, the number of ranks contradicts --mesh or the replica groups, or the files cannot be
one program.""",
    ),
    "E06": Code(
        "a lemma file is not valid",
        """\
A file of lemmas and definitions does not parse, breaks a rule of the language (docs/lemmas.md), uses a name
that another file has, or a file or package that the project names cannot be read. The message says where
and what is needed. A file is never partly ignored.""",
    ),
}


def explain(code: str) -> str | None:
    """The text for `shardproof explain`; None when there is no such code. Case does not matter."""
    entry = CODES.get(code.upper())
    if entry is None:
        return None
    return f"{code.upper()}: {entry.title}\n\n{entry.explanation}\n"

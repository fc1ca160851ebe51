"""Corrupted certificates: each is rejected, or what is left proves the claim of the original.

Checksums are made anew after each corruption, so nothing is found by them. Half of the corruptions keep
every type: another lemma with its own digest, terms of one sort exchanged, another index of one extent.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from copy import deepcopy
from dataclasses import replace
from random import Random
from typing import Any

import pytest
from certified_pairs import Certified, certified, checked, holds, library

from shardproof.lemmas.printer import fingerprint
from shardproof.solver.certificates.certificate import CertificateError
from shardproof.solver.certificates.certificate_file import from_bytes, packed
from shardproof.solver.certificates.recheck import status_of
from shardproof.solver.search.statuses import statuses_of

PAIRS = [
    ("flash_attention", "two_blocks"),
    ("flash_attention", "finite_start"),
    ("softmax", "shifted_by_max"),
    ("softmax", "log_sum_exp"),
    ("ring_attention", "cp4"),
    ("lora", "row_parallel"),
    ("layer_norm", "moments"),
    ("gradient_norm", "tp4"),
    ("searched", "difference_of_squares"),
]
Corruption = Callable[[Any, Random], bool]
"""Changes a certificate's data in place; False when it cannot."""


# with other types


def class_number(body: Any, draw: Random) -> bool:
    instance = draw.choice(body["instances"])
    instance[0] = draw.choice([-1, 0, 1, instance[0] + 1, instance[0] - 1, instance[0] + 40, 1 << 40])
    return True


def inner_class(body: Any, draw: Random) -> bool:
    term = draw.choice(terms(body))
    term[1] = max(0, term[1] + draw.choice([-3, -1, 1, 2, 500]))
    return True


def coefficient(body: Any, draw: Random) -> bool:
    term = draw.choice(terms(body))
    term[0] = draw.choice(["2", "-1", "0", "1/3", "7/5"])
    return True


def lead(body: Any, draw: Random) -> bool:
    draw.choice(body["instances"])[5] = draw.choice(["2", "-1", "0", "1/2"])
    return True


def extent(body: Any, draw: Random) -> bool:
    instance = draw.choice([i for i in body["instances"] if i[2]] or [None])
    if instance is None:
        return False
    n = draw.randrange(len(instance[2]))
    instance[2][n] = draw.choice([1, 2, 3, instance[2][n] + 1, instance[2][n] * 2])
    return True


def lemma_name(body: Any, draw: Random) -> bool:
    draw.choice(body["instances"])[1] = draw.choice(["no_such", "exp_add.back", "exp_add.within", "exp_log"])
    return True


def digest(body: Any, draw: Random) -> bool:
    where, key = draw.choice(
        [(body["reference"], "digest"), (body["implementation"], "digest"), (body, "claim")]
        + [(use, 1) for use in body["lemmas"]]
    )
    n = draw.randrange(64)
    text = where[key]
    where[key] = text[:n] + format(int(text[n], 16) ^ 1, "x") + text[n + 1 :]
    return True


def dropped(body: Any, draw: Random) -> bool:
    del body["instances"][draw.randrange(len(body["instances"]))]
    return True


def repeated(body: Any, draw: Random) -> bool:
    own = body["instances"]
    own.insert(draw.randrange(len(own) + 1), deepcopy(draw.choice(own)))
    return True


def variable_left_out(body: Any, draw: Random) -> bool:
    variables = draw.choice(body["instances"])[4]
    del variables[draw.choice(sorted(variables))]
    return True


def nesting(body: Any, draw: Random) -> bool:
    instance = draw.choice(body["instances"])
    instance[7] = draw.choice([["exp_add"], [], [*instance[7], instance[1]], instance[7][:-1]])
    return True


def relation_text(body: Any, draw: Random) -> bool:
    """A digit of a program of the relation, the claim renewed."""
    n = draw.randrange(len(body["relation"]))
    text = body["relation"][n]
    places = [k for k, c in enumerate(text) if c.isdigit()]
    k = draw.choice(places)
    body["relation"][n] = text[:k] + draw.choice("0123456789") + text[k + 1 :]
    body["claim"] = "renew"
    return True


def mesh(body: Any, draw: Random) -> bool:
    axes = body["implementation"]["mesh"]
    axes.append(["more", draw.choice([1, 2])]) if draw.random() < 0.5 or not axes else axes.pop()
    return True


# with the same types


def another_lemma(body: Any, draw: Random) -> bool:
    """Another lemma of as many variables and indices, rightly described."""
    known = library().lemmas
    instance = draw.choice(body["instances"])
    old = known[instance[1].partition(".")[0]]
    shape = sorted(kind for _, kind in old.variables), len(old.indices)
    same = [
        x
        for x in known.values()
        if (sorted(k for _, k in x.variables), len(x.indices)) == shape and x.name != old.name
    ]
    if not same:
        return False
    new = draw.choice(same)
    instance[1] = new.name
    names = dict(zip(sorted(n for n, _ in old.variables), sorted(n for n, _ in new.variables), strict=True))
    instance[4] = {names.get(n, n): v for n, v in instance[4].items()}
    at = dict(zip(old.indices, new.indices, strict=True))
    instance[3] = {at.get(k, k): v for k, v in instance[3].items()}
    used = {i[1].partition(".")[0] for i in body["instances"]}
    statuses = statuses_of(known[n] for n in used)
    plain = {u[0]: u[3] for u in body["lemmas"]}
    body["lemmas"] = [
        [n, fingerprint(known[n]), status_of(known[n], statuses), plain.get(n, True)] for n in sorted(used)
    ]
    return True


def variables_exchanged(body: Any, draw: Random) -> bool:
    variables = draw.choice(body["instances"])[4]
    if len(variables) < 2:
        return False
    a, b = draw.sample(sorted(variables), 2)
    variables[a], variables[b] = variables[b], variables[a]
    return True


def variable_of_another(body: Any, draw: Random) -> bool:
    """A variable's terms taken from another instance, or from another variable."""
    a, b = draw.choice(body["instances"])[4], draw.choice(body["instances"])[4]
    a[draw.choice(sorted(a))] = deepcopy(b[draw.choice(sorted(b))])
    return True


def indices_exchanged(body: Any, draw: Random) -> bool:
    """Two positions of one term."""
    term = draw.choice(terms(body))
    if len(term[2]) < 2:
        return False
    a, b = draw.sample(range(len(term[2])), 2)
    term[2][a], term[2][b] = term[2][b], term[2][a]
    return True


def another_index(body: Any, draw: Random) -> bool:
    """An index of a term made another one."""
    term = draw.choice(terms(body))
    atoms = [item for e in term[2] for item in e[1] if isinstance(item[0], int)]
    if not atoms:
        return False
    draw.choice(atoms)[0] = draw.randrange(6)
    return True


def offset(body: Any, draw: Random) -> bool:
    term = draw.choice(terms(body))
    if not term[2]:
        return False
    draw.choice(term[2])[0] += draw.choice([-1, 1])
    return True


def order(body: Any, draw: Random) -> bool:
    own = body["instances"]
    if len(own) < 2:
        return False
    a, b = draw.sample(range(len(own)), 2)
    own[a], own[b] = own[b], own[a]
    return True


def class_of_another(body: Any, draw: Random) -> bool:
    own = body["instances"]
    draw.choice(own)[0] = draw.choice(own)[0]
    return True


def joined(body: Any, draw: Random) -> bool:
    variables = draw.choice(body["instances"])[4]
    variables[draw.choice(sorted(variables))][0] = draw.choice(["add", "multiply", "maximum", ""])
    return True


def flag(body: Any, draw: Random) -> bool:
    name = draw.choice(sorted(body["flags"]))
    body["flags"][name] = not body["flags"][name]
    return True


def plainness(body: Any, draw: Random) -> bool:
    use = draw.choice(body["lemmas"])
    use[3] = not use[3]
    return True


def status(body: Any, draw: Random) -> bool:
    draw.choice(body["lemmas"])[2] = draw.choice(["proved", "tested", "assumed"])
    return True


def rest_moved(body: Any, draw: Random) -> bool:
    instance = draw.choice(body["instances"])
    instance[6] = deepcopy(draw.choice(body["instances"])[6]) or [deepcopy(draw.choice(terms(body)))]
    return True


def relation_entry(body: Any, draw: Random) -> bool:
    """Another base tensor for an input, another value for a name, the claim renewed."""
    n = draw.choice([0, 1])
    lines = body["relation"][n].splitlines()
    bases = [x.split(" = ")[0].strip() for x in lines if " = input(" in x]
    at = [k for k, x in enumerate(lines) if "(%" in x and " = input(" not in x]
    k = draw.choice(at)
    head, _, tail = lines[k].partition("(")
    inner, _, rest = tail.partition(")")
    operands = inner.split(", ")
    operands[0] = draw.choice(bases)
    lines[k] = f"{head}({', '.join(operands)}){rest}"
    body["relation"][n] = "\n".join(lines) + "\n"
    body["claim"] = "renew"
    return True


def output_stated(body: Any, draw: Random) -> bool:
    entry = draw.choice(body["outputs"])
    entry[draw.randrange(3)] = draw.choice(["shards of dim 0 over tp", entry[0], entry[1], "y"])
    return True


def assumption(body: Any, draw: Random) -> bool:
    if body["assumptions"] and draw.random() < 0.7:
        body["assumptions"].pop(draw.randrange(len(body["assumptions"])))
        body["claim"] = "renew"
    else:
        body["assumptions"].append(["finite_value", "all is finite"])
    return True


def terms(body: Any) -> list[Any]:
    """Every term of every instance."""
    return [t for i in body["instances"] for part in (*(own for _, own in i[4].values()), i[6]) for t in part]


OTHER: list[Corruption] = [
    class_number,
    inner_class,
    coefficient,
    lead,
    extent,
    lemma_name,
    digest,
    dropped,
    repeated,
    variable_left_out,
    nesting,
    relation_text,
    mesh,
]
TYPED: list[Corruption] = [
    another_lemma,
    another_lemma,
    variables_exchanged,
    variable_of_another,
    variable_of_another,
    indices_exchanged,
    another_index,
    offset,
    order,
    class_of_another,
    joined,
    flag,
    plainness,
    status,
    rest_moved,
    relation_entry,
    output_stated,
    assumption,
]


def outcome(pair: Certified, body: Any, seed: int) -> str:
    """`rejected`, `same` if what is left proves the claim, `other` if it truly proves another one."""
    try:
        certificate = from_bytes(packed(body))
        if certificate.stated == "renew":
            certificate = replace(certificate, stated=certificate.claim.digest)
        claim = checked(certificate, pair)
    except CertificateError as error:
        assert "\n" not in str(error)
        return "rejected"
    assert holds(claim, pair, seed), "a certificate of a false claim was accepted"
    return "same" if claim.digest == pair.certificate.stated else "other"


def corrupted(count: int, seed: int) -> Counter[tuple[str, str]]:
    """What became of `count` corruptions, half of them with the same types, by their kind."""
    draw = Random(seed)
    found: Counter[tuple[str, str]] = Counter()
    by_lemmas = [own for own in (certified(*p) for p in PAIRS) if own.body["instances"]]
    assert len(by_lemmas) > len(PAIRS) // 2
    while found.total() < count:
        pair = by_lemmas[found.total() % len(by_lemmas)]
        body = pair.body
        original = deepcopy(body)
        corruption = draw.choice(TYPED if found.total() % 2 else OTHER)
        unchanged = not corruption(body, draw) or body == {**original, "claim": body["claim"]}
        if unchanged and body["claim"] in ("renew", original["claim"]):
            continue
        result = outcome(pair, body, found.total())
        renewed = body["claim"] == "renew"
        assert result != "other" or renewed, f"{corruption.__name__} changed the claim unseen"
        found[corruption.__name__, result] += 1
    return found


def judge(found: Counter[tuple[str, str]]) -> None:
    total = found.total()
    results: Counter[str] = Counter()
    for (_, result), n in found.items():
        results[result] += n
    assert results["rejected"] > 0.75 * total, found
    assert not results["other"], found
    for name in ("digest", "dropped", "mesh", "variable_left_out", "lead", "extent"):
        assert not found[name, "same"], found


def test_some_corruptions() -> None:
    judge(corrupted(240, seed=1))


@pytest.mark.slow
def test_two_thousand_corruptions() -> None:
    judge(corrupted(2000, seed=2))

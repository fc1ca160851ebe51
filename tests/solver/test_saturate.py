"""Equalities that the search finds, each proved again in a store of its own."""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Iterator
from fractions import Fraction

import pytest
from lemma_sides import lemma, sides

from shardproof.lemmas.load import load
from shardproof.lemmas.terms import Lemma
from shardproof.lemmas.variants import resolve
from shardproof.passes.access import index
from shardproof.passes.arithmetic import absolute, multiply, power
from shardproof.passes.classes import Term
from shardproof.passes.normalise import new_store, same
from shardproof.solver.certificates.install import Instance
from shardproof.solver.certificates.instance import NoInstance
from shardproof.solver.certificates.portable import written
from shardproof.solver.certificates.stepping import plain, proved, stepped
from shardproof.solver.search.equality import Outcome, Saturation

LIBRARY = load(entry_points=False).lemmas
EQUAL = (
    "x*(y + z) + w => x*y + w + x*z",
    "(x + y)*(x - y) => x*x - y*y",
    "(x + v)*(y + z) => x*y + x*z + v*y + v*z",
    "sum[k](x*(y + z)) => sum[k](x*y) + z*sum[k](x) when k not in z",
    "sum[k](sum[j](x*y)*z) => sum[j](x*sum[k](y*z)) when k not in x, j not in z",
    "sum[k]((x - sum[k](x)/|k|)*(x - sum[k](x)/|k|)) => sum[k](x*x) - sum[k](x)*sum[k](x)/|k|",
    "sum[k](z*sum[j](x*y)) + w => w + sum[j](x*sum[k](y*z)) when k not in x, j not in z",
    "tanh(x)*w + 1 => (2*sigmoid(2*x) - 1)*w + 1",
    "x/(1 + exp(-x)) => x*sigmoid(x)",
    "sigmoid(-x) + sigmoid(x) => 1",
    "1 - tanh(x)*tanh(x) => 4*sigmoid(2*x)*(1 - sigmoid(2*x))",
    "exp(x + y)*z => exp(x)*z*exp(y)",
    "exp(x)*exp(log(y) - x) => y when y > 0",
    "log(exp(x)*exp(y)) => x + y",
    "log(x*y) => log(x) + log(y) when x > 0, y > 0",
    "log(sum[k](exp(x - c))) + c => log(sum[k](exp(x))) when k not in c",
    "exp(x - c)/sum[k](exp(x - c)) => exp(x)/sum[k](exp(x)) when k not in c",
    "log(sum[k](exp(x - max[k](x)))) + max[k](x) => log(sum[k](exp(x)))",
    "where(p and q, exp(x), exp(y)) => where(p, exp(where(q, x, y)), exp(y))",
    "where(p, c*x, c*y) + w => w + c*where(p, x, y)",
    "max(x + c, y + c) - c => max(x, y)",
    "max[k](x + c) => max[k](x) + c when k not in c",
    "max(z, max[k](c*x)) => max(z, c*max[k](x)) when k not in c, c > 0",
)
DIFFERENT = (
    "x*(y + z) + w => x*y + w + z",
    "sum[k](x*(y + z)) => sum[k](x*y) + z*sum[k](x)",
    "sum[k](sum[j](x*y)*z) => sum[j](x*sum[k](y*z)) when k not in x",
    "exp(x - c)/sum[k](exp(x - c)) => exp(x)/sum[k](exp(x))",
    "log(x*y) => log(x) + log(y)",
    "max[k](c*x) => c*max[k](x) when k not in c",
    "where(p, where(q, x, y), y) => where(p or q, x, y)",
    "tanh(x) => 2*sigmoid(x) - 1",
)


@pytest.fixture(scope="module")
def search() -> Iterator[Saturation]:
    with Saturation(LIBRARY.values()) as own:
        yield own


def shown(outcome: Outcome, text: str, lemmas: dict[str, Lemma]) -> bool:
    """Whether the instances, written out and read back, prove the equality in a store made anew."""
    assert outcome.instances is not None
    again = [Instance.read(i.data()) for i in outcome.instances]
    store, a, b = sides(text)
    return proved(store, lemmas, again, *((b, a) if outcome.turned else (a, b)))


@pytest.mark.parametrize("text", EQUAL)
def test_equal_terms_are_proved_equal(search: Saturation, text: str) -> None:
    store, a, b = sides(text)
    assert not same(store, a, b)
    before = len(store.classes), len(store.sizes), dict(store.rewritten)
    outcome = search.prove_equal(store, a, b)
    assert outcome.reason == "proved"
    assert (len(store.classes), len(store.sizes), dict(store.rewritten)) == before
    assert shown(outcome, text, LIBRARY)
    assert sum(outcome.needed.values()) == len(outcome.instances or ()) > 0
    assert not proved(store, LIBRARY, (), a, b)


@pytest.mark.parametrize("text", DIFFERENT)
def test_different_terms_are_not(search: Saturation, text: str) -> None:
    outcome = search.prove_equal(*sides(text))
    assert outcome.instances is None
    assert outcome.reason in ("open", "unchecked")


@pytest.mark.parametrize("text", EQUAL)
def test_every_instance_is_needed(search: Saturation, text: str) -> None:
    outcome = search.prove_equal(*sides(text))
    for n in range(len(outcome.instances or ())):
        fewer = [i for m, i in enumerate(outcome.instances or ()) if m != n]
        store, a, b = sides(text)
        try:
            assert not proved(store, LIBRARY, fewer, *((b, a) if outcome.turned else (a, b)))
        except (NoInstance, ValueError):
            continue


def test_many_differences_deep_inside_are_made_equal_one_after_the_other() -> None:
    """Far more operators than one query holds, with differences at several depths."""

    def nested(inner: str, other: bool) -> str:
        for n in range(8):
            root = f"(2*sigmoid(2*({inner})) - 1)" if other and n % 3 == 0 else f"tanh({inner})"
            inner = f"exp(y*{root} + z)*w + cos({root})"
        return inner

    text = f"{nested('x', False)} => {nested('x', True)}"
    with Saturation([LIBRARY["tanh_as_sigmoid"]], seconds=60) as search:
        store, a, b = sides(text)
        outcome = search.prove_equal(store, a, b)
        assert outcome.reason == "proved"
        assert shown(outcome, text, LIBRARY)


def test_a_long_chain_ends_within_its_budget(search: Saturation) -> None:
    names = ["a", "b", "c", "d", "e", "f", "g", "h", "i", "j", "k", "l", "m", "n", "o", "p"]
    text = f"({' + '.join(names)})*exp({'*'.join(names)}) => exp({' + '.join(names)})*({'*'.join(names)})"
    start = time.monotonic()
    outcome = search.prove_equal(*sides(text))
    assert outcome.instances is None
    assert time.monotonic() - start < search.seconds + 2


def test_a_search_that_explodes_is_killed_and_the_next_one_runs() -> None:
    chain = "a*(b + c)*(d + e)*(f + g)*(h + i)*(j + k)*(l + m)*(n + o) + exp(a) => exp(b) + a"
    grow = lemma("x*y => x*exp(y - x)*exp(x) + y*exp(x)*exp(y - x) - 1", "grow")
    with Saturation([*LIBRARY.values(), grow], nodes=10**9, seconds=0.5) as search:
        search.prove_equal(*sides("log(exp(x)*exp(y)) => x + y"))
        start = time.monotonic()
        outcome = search.prove_equal(*sides(chain))
        assert (outcome.instances, outcome.reason) == (None, "time")
        assert time.monotonic() - start < 3
        search.seconds = 30
        assert search.prove_equal(*sides("tanh(x) + w => 2*sigmoid(2*x) - 1 + w")).reason == "proved"


def test_two_runs_find_the_same() -> None:
    def run() -> list[tuple[object, ...]]:
        with Saturation(LIBRARY.values()) as search:
            found = [search.prove_equal(*sides(text)) for text in (*EQUAL[:8], *DIFFERENT[:3])]
        return [(o.instances, o.reason, dict(o.fired), dict(o.needed), o.nodes) for o in found]

    assert run() == run()


def test_queries_that_differ_in_names_alone_are_asked_once() -> None:
    with Saturation(LIBRARY.values()) as search:
        first = search.prove_equal(*sides("sum[k](exp(x + c)) => exp(c)*sum[k](exp(x)) when k not in c"))
        asked = search.asked.queries, search.asked.remembered
        assert asked[1] == 0
        other = search.prove_equal(*sides("sum[j](exp(u + v)) => exp(v)*sum[j](exp(u)) when j not in v"))
        assert (search.asked.queries, search.asked.remembered) == (2 * asked[0], asked[0])
        assert (first.reason, other.reason) == ("proved", "proved")
        search.prove_equal(
            *sides("sum[j](exp(u + v)) => exp(v)*sum[j](exp(u)) when j not in v", {"j": 9})
        )
        assert search.asked.remembered == asked[0]


def test_what_is_known_of_an_atom_is_part_of_the_query() -> None:
    with Saturation(LIBRARY.values()) as search:
        assert search.prove_equal(*sides("log(x*y) => log(x) + log(y)")).instances is None
        positive = sides("log(x*y) => log(x) + log(y) when x > 0, y > 0")
        assert search.prove_equal(*positive).reason == "proved"
        assert search.asked.remembered == 0


def test_two_numbers_that_become_equal_are_no_proof() -> None:
    wrong = [lemma("exp(x) => 1", "one"), lemma("exp(x) => 2", "two")]
    with Saturation([*LIBRARY.values(), *wrong]) as search:
        outcome = search.prove_equal(*sides("exp(x)*y => y"))
        assert (outcome.instances, outcome.reason) == (None, "inconsistent")
        outcome = search.prove_equal(*sides("tanh(x) + w => 2*sigmoid(2*x) - 1 + w"))
        assert outcome.reason == "proved"


def test_true_that_becomes_false_is_no_proof() -> None:
    wrong = [lemma("x < y => 0 == 0", "always"), lemma("x < y => 0 == 1", "never")]
    with Saturation(wrong) as search:
        outcome = search.prove_equal(*sides("where(x < y, u, v) => exp(u)"))
        assert (outcome.instances, outcome.reason) == (None, "inconsistent")


def test_a_row_sum_read_at_a_bound_index_is_no_trace(search: Saturation) -> None:
    """S4: the sum over k of row j, itself summed over j, is not the sum over the diagonal."""
    text = "sum[j](exp(sum[k](x))*y) => sum[k](exp(x)*y) when k not in y, j not in y"
    store, a, b = sides(text, {"j": 5, "k": 5})
    assert search.prove_equal(store, a, b).instances is None


def test_a_class_that_is_not_read_whole_is_not_rewritten() -> None:
    """S1: what holds of two rows rewrites no class that has other elements."""
    store = new_store(folding=True, algebra=True)
    i, j, two = store.fresh(5), store.fresh(5), store.fresh(2)
    cls = store.leaf("input", ("x",), "real", (5, 5))
    own = lemma("sqrt(x*x) => abs(x)", "root")

    def used(x: Term, *indices: int) -> Term:
        data = written(store, x, {k: n for n, k in enumerate(indices)})
        instance = Instance(-1, "root", tuple(store.sizes[k] for k in indices), {}, {"x": ("", (data,))})
        with plain(store):
            t = power(store, multiply(store, [x, x]), Fraction(1, 2))
            return stepped(store, own, instance, t)

    whole = Term(1, cls, (index(i), index(j)))
    assert used(whole, i, j) == absolute(store, whole)
    with pytest.raises(NoInstance):
        used(Term(1, cls, (index(two), index(j))), two, j)


def test_variants_are_named_after_their_lemma() -> None:
    assert resolve(LIBRARY, "where_and.reverse") is not None
    assert resolve(LIBRARY, "where_and.reverse.within") is not None
    assert resolve(LIBRARY, "exp_add.reverse") is None
    assert resolve(LIBRARY, "exp_add.back.among") is not None
    for name in ("exp_add.within.within", "exp_add.within.back", "exp_add.", "exp_add.x", "nothing"):
        assert resolve(LIBRARY, name) is None


def test_the_search_is_no_part_of_this_process() -> None:
    program = (
        "import sys; sys.path.insert(0, 'tests')\n"
        "from lemma_sides import lemma, sides\n"
        "from shardproof.solver.search.equality import Saturation\n"
        "with Saturation([lemma('tanh(x) => 2*sigmoid(2*x) - 1')]) as s:\n"
        "    s.rules\n"
        "    assert s.process is None\n"
        "    assert s.prove_equal(*sides('tanh(x)*y => y*(2*sigmoid(2*x) - 1)')).reason == 'proved'\n"
        "    own = s.process\n"
        "    assert own.poll() is None\n"
        "assert own.poll() is not None and s.process is None\n"
        "assert 'egglog' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True, timeout=120)

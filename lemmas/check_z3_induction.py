"""The laws of finite sums that the normal form uses, each proved by induction on the extent.

A sum is given by S(0) = 0 and S(n + 1) = S(n) + t(n), where t is any function. For each law the base
and the step are questions to Z3 in which n is any number from 0; the induction itself is ours.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import z3

from shardproof.lemmas.check_z3_encode import INT, REAL, Expr

Sum = Callable[[Expr], Expr]

N: Final = z3.Int("n")
M: Final = z3.Int("m")


def _function(name: str, arity: int = 1) -> Callable[..., Expr]:
    symbol = z3.Function(name, *([INT] * arity), REAL)
    return lambda *x: symbol(*x)


def _sum(name: str, t: Callable[[Expr], Expr], at: Expr) -> tuple[Sum, list[Expr]]:
    """A sum as a function of its extent, and what defines it at 0 and at `at` + 1."""
    s = _function(f"sum of {name}")
    return s, [s(z3.IntVal(0)) == 0, s(at + 1) == s(at) + t(at)]


def _proved(known: list[Expr], claim: Callable[[Expr], Expr], n: Expr, start: int = 0) -> bool:
    """Base at `start` and step from n to n + 1."""
    for assumed, goal in (([], claim(z3.IntVal(start))), ([n >= start, claim(n)], claim(n + 1))):
        solver = z3.Solver()
        solver.set("rlimit", 5_000_000)
        solver.add(*known, *assumed, z3.Not(goal))
        if solver.check() != z3.unsat:
            return False
    return True


def _linear() -> bool:
    """sum(a + b) = sum(a) + sum(b)."""
    a, b = _function("a"), _function("b")
    (x, one), (y, two) = _sum("a", a, N), _sum("b", b, N)
    z, three = _sum("a + b", lambda k: a(k) + b(k), N)
    return _proved([*one, *two, *three], lambda n: z(n) == x(n) + y(n), N)


def _factor() -> bool:
    """sum(c*a) = c*sum(a) for a factor that does not read the index."""
    a, c = _function("a"), z3.Real("c")
    (x, one), (y, two) = _sum("a", a, N), _sum("c a", lambda k: c * a(k), N)
    return _proved([*one, *two], lambda n: y(n) == c * x(n), N)


def _unread() -> bool:
    """A sum of a constant is the extent times it."""
    c = z3.Real("c")
    x, known = _sum("c", lambda k: c, N)
    return _proved(known, lambda n: x(n) == z3.ToReal(n) * c, N)


def _equal() -> bool:
    """Sums of equal summands are equal."""
    a, b = _function("a"), _function("b")
    (x, one), (y, two) = _sum("a", a, N), _sum("b", b, N)
    return _proved([*one, *two, a(N) == b(N)], lambda n: x(n) == y(n), N)


def _signs() -> bool:
    """A sum over at least one position of positive summands is positive, of others likewise."""
    a = _function("a")
    x, known = _sum("a", a, N)
    first = [x(z3.IntVal(1)) == x(z3.IntVal(0)) + a(z3.IntVal(0))]
    positive = [*known, *first, a(N) > 0, a(z3.IntVal(0)) > 0]
    rest = [*known, *first, a(N) >= 0, a(z3.IntVal(0)) >= 0]
    return _proved(positive, lambda n: x(n) > 0, N, 1) and _proved(rest, lambda n: x(n) >= 0, N, 1)


def _one_place() -> bool:
    """Summands that are 0 but at e add up to the one at e, if that is in range."""
    a, e = _function("a"), z3.Int("e")
    x, known = _sum("a", a, N)
    known.append(z3.Or(e == N, a(N) == 0))
    return _proved(known, lambda n: x(n) == z3.If(z3.And(e >= 0, e < n), a(e), 0), N)


def _exchange() -> bool:
    """Two sums in either order: the sum over columns of n + 1 rows is that of n rows and of the last."""
    t = _function("t", 2)
    row, last = _sum("last row", lambda r: t(N, r), M)
    columns = _function("sum of a column", 2)
    total, taller = _function("sum of columns of n rows"), _function("sum of columns of n + 1 rows")
    zero = z3.IntVal(0)
    known = [*last, columns(N + 1, M) == columns(N, M) + t(N, M), total(zero) == 0, taller(zero) == 0]
    known += [total(M + 1) == total(M) + columns(N, M), taller(M + 1) == taller(M) + columns(N + 1, M)]
    return _proved(known, lambda m: taller(m) == total(m) + row(m), M)


def _blocks() -> bool:
    """The sum over the first r*n + v positions is that of r blocks and of v more positions."""
    x, start = _function("x"), z3.Int("start")
    whole = _function("sum of x")
    block, known = _sum("a block", lambda v: x(start + v), N)
    known.append(whole(start + N + 1) == whole(start + N) + x(start + N))
    return _proved(known, lambda n: whole(start + n) == whole(start) + block(n), N)


LAWS: Final[dict[str, Callable[[], bool]]] = {
    "linear": _linear,
    "factor": _factor,
    "unread": _unread,
    "equal": _equal,
    "signs": _signs,
    "one place": _one_place,
    "exchange": _exchange,
    "blocks": _blocks,
}
"""Name to a proof by induction on the extent."""

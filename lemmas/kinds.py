"""The kinds of terms: real, int or bool (L8 of the soundness rules).

`+ - * /` of different kinds are different symbols, so a lemma is one statement at the kinds that
`Inference` gives its metavariables. Numerals and extents take the kind of their context.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from shardproof.lemmas.errors import LemmaError
from shardproof.lemmas.functions import SIGNATURES
from shardproof.lemmas.printer import show_condition, show_term
from shardproof.lemmas.terms import (
    Apply,
    Compare,
    Condition,
    Extent,
    Fact,
    Kind,
    NotIn,
    Number,
    Opaque,
    Position,
    Reduce,
    Relation,
    Span,
    Take,
    Term,
    Variable,
)


@dataclass(slots=True)
class _Slot:
    """What is known of one unknown kind; `parent` once it is another's.

    `numeric`: not bool. `integral`: not real (the operand of `real`). `measured`: holds an extent in
    its arithmetic; `compared`: is a side of a comparison. Both of these make an int where nothing says real.
    """

    kind: Kind | None = None
    numeric: bool = False
    integral: bool = False
    measured: bool = False
    compared: bool = False
    parent: _Slot | None = None


@dataclass(slots=True)
class Inference:
    """Finds the kinds of one statement by unification; errors are at its span."""

    span: Span | None = None
    variables: dict[str, _Slot] = field(default_factory=dict)
    opaque: dict[Term, _Slot] = field(default_factory=dict)

    def known(self, name: str, kind: Kind) -> None:
        """Fixes the kind of a name before the terms that use it."""
        self.variables[name] = _Slot(kind)

    def same(self, left: Term, right: Term) -> None:
        """Both terms are of one kind."""
        self._join(self._visit(left), self._visit(right), left, right)

    def visit(self, term: Term) -> None:
        self._visit(term)

    def assign(self, name: str, term: Term) -> None:
        """From here on the name means the value of the term."""
        self.variables[name] = self._visit(term)

    def condition(self, condition: Condition) -> None:
        match condition:
            case NotIn():
                pass
            case Fact(_, term):
                self._numeric(self._visit(term), term)
            case Relation(direction, left, right):
                slot = self._join(self._visit(left), self._visit(right), left, right)
                self._order(slot, direction, condition)

    def kinds(self) -> tuple[tuple[str, Kind], ...]:
        """The kinds of all names, in order of first occurrence; real where nothing says otherwise."""
        return tuple((name, self._settled(slot, name)) for name, slot in self.variables.items())

    def _settled(self, slot: _Slot, name: str) -> Kind:
        root = _root(slot)
        if root.kind == "real" and root.integral:
            raise LemmaError(f"found `real` of `{name}`, which is real already", self.span)
        if root.kind is not None:
            return root.kind
        return "int" if root.integral or (root.measured and root.compared) else "real"

    def _visit(self, term: Term) -> _Slot:
        match term:
            case Number(value):
                return _Slot("real" if value.denominator != 1 else None, numeric=True)
            case Variable(name):
                return self.variables.setdefault(name, _Slot())
            case Position():
                return _Slot("int", numeric=True)
            case Extent():
                return _Slot(numeric=True, measured=True)
            case Compare(direction, left, right):
                slot = self._join(self._visit(left), self._visit(right), left, right)
                self._order(slot, direction, term)
                return _Slot("bool")
            case Reduce(kind, _, body):
                slot = self._visit(body)
                if kind in ("and", "or"):
                    self._fix(slot, "bool", body)
                else:
                    self._numeric(slot, body)
                return slot
            case Take(_, body, position):
                self._fix(self._visit(position), "int", position)
                return self._visit(body)
            case Opaque(_, _, _, operands):
                for operand in operands:
                    self._visit(operand)
                return self.opaque.setdefault(term, _Slot())
            case Apply(op, operands):
                return self._apply(op, operands)

    def _apply(self, op: str, operands: tuple[Term, ...]) -> _Slot:
        slots = [self._visit(x) for x in operands]
        match SIGNATURES.get(op):
            case "real":
                for x, slot in zip(operands, slots, strict=True):
                    self._fix(slot, "real", x)
                return _Slot("real", numeric=True)
            case "bool":
                for x, slot in zip(operands, slots, strict=True):
                    self._fix(slot, "bool", x)
                return _Slot("bool")
            case "number":
                result = slots[0]
                for x, slot in zip(operands[1:], slots[1:], strict=True):
                    result = self._join(result, slot, operands[0], x)
                return self._numeric(result, operands[0])
            case "select":
                self._fix(slots[0], "bool", operands[0])
                return self._join(slots[1], slots[2], operands[1], operands[2])
            case "convert":
                root = _root(slots[0])
                root.integral = True
                if root.kind == "real":
                    raise LemmaError(
                        f"found `real` of `{show_term(operands[0])}`, which is real already", self.span
                    )
                return _Slot("real", numeric=True)
            case _:
                raise LemmaError(f"found the unknown operator `{op}`", self.span)

    def _order(self, slot: _Slot, direction: str, place: Compare | Relation) -> None:
        root = _root(slot)
        root.compared = True
        if direction not in ("EQ", "NE"):
            if root.kind == "bool":
                text = show_condition(place) if isinstance(place, Relation) else show_term(place)
                raise LemmaError(f"found `{text}`, truth values have no order", self.span)
            root.numeric = True

    def _fix(self, slot: _Slot, kind: Kind, term: Term) -> None:
        root = _root(slot)
        found = root.kind
        if found is None and kind == "bool" and root.numeric:
            raise LemmaError(f"found a number where a bool is needed: `{show_term(term)}`", self.span)
        if found is not None and found != kind:
            hint = ", write `real(...)`" if (found, kind) == ("int", "real") else ""
            raise LemmaError(f"found {found} where {kind} is needed: `{show_term(term)}`{hint}", self.span)
        root.kind = kind

    def _numeric(self, slot: _Slot, term: Term) -> _Slot:
        root = _root(slot)
        if root.kind == "bool":
            raise LemmaError(f"found a bool where a number is needed: `{show_term(term)}`", self.span)
        root.numeric = True
        return root

    def _join(self, a: _Slot, b: _Slot, left: Term, right: Term) -> _Slot:
        """One slot for both sides of a sign, else the error names the two."""
        a, b = _root(a), _root(b)
        if a is b:
            return a
        kind = a.kind or b.kind
        numeric = a.numeric or b.numeric
        if (a.kind is not None and b.kind is not None and a.kind != b.kind) or (kind == "bool" and numeric):
            one, other = (s.kind or ("number" if s.numeric else "any") for s in (a, b))
            sides = f"`{show_term(left)}` and `{show_term(right)}`"
            raise LemmaError(f"found {one} and {other} where one kind is needed: {sides}", self.span)
        b.parent = a
        a.kind, a.numeric = kind, numeric
        a.integral |= b.integral
        a.measured |= b.measured
        a.compared |= b.compared
        return a


def _root(slot: _Slot) -> _Slot:
    while slot.parent is not None:
        slot = slot.parent
    return slot


def kind_of(term: Term, variables: dict[str, Kind]) -> Kind | None:
    """The kind of a term of a checked statement; None for numerals and extents, which take any number's."""
    match term:
        case Number(value):
            return "real" if value.denominator != 1 else None
        case Variable(name):
            return variables[name]
        case Position():
            return "int"
        case Compare():
            return "bool"
        case Reduce(kind, _, body):
            return "bool" if kind in ("and", "or") else kind_of(body, variables)
        case Take(_, body, _):
            return kind_of(body, variables)
        case Apply(op, operands):
            match SIGNATURES[op]:
                case "bool":
                    return "bool"
                case "number" | "select":
                    sides = operands if op != "select" else operands[1:]
                    return next((k for k in (kind_of(x, variables) for x in sides) if k is not None), None)
                case _:
                    return "real"
        case _:
            return None

"""A certificate's instances, used in their order: the twin of the search, which looks for nothing.

Each instance must hold where the replay comes to the class that it names, and each class is compared with
what it is rewritten to on random inputs (soundness V2).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from shardproof.lemmas.terms import Lemma, Number, Relation, Variable
from shardproof.lemmas.variants import resolve
from shardproof.passes.arithmetic import absolute, add, scaled
from shardproof.passes.classes import Rewritten, Store, Term
from shardproof.passes.evaluate import EvaluationError
from shardproof.passes.normalise import new_store
from shardproof.passes.sampling import TooLarge, difference
from shardproof.passes.views import Unsupported
from shardproof.solver.certificates.certificate import CertificateError
from shardproof.solver.certificates.install import Instance, install
from shardproof.solver.certificates.instance import Binding, NoInstance, left, right
from shardproof.solver.certificates.portable import Data, Malformed
from shardproof.solver.certificates.stepping import proved


class Table:
    """The rewriting of a store by the instances of a certificate, in their order."""

    def __init__(
        self,
        store: Store,
        instances: Sequence[Instance],
        lemmas: Mapping[str, Lemma],
        plain: Mapping[str, bool],
    ) -> None:
        self.store = store
        self.instances = instances
        self.lemmas = lemmas
        self.plain = plain
        self.used = 0
        self.under: list[str] = []
        self._sampled: set[tuple[object, ...]] = set()

    @property
    def left(self) -> bool:
        return self.used < len(self.instances)

    def rewrite(self, cls: int) -> Rewritten | None:
        """What the next instance makes of a class, if it names it here."""
        if not self.left:
            return None
        n, instance = self.used, self.instances[self.used]
        if instance.cls != cls or instance.under != tuple(self.under):
            return None
        self.used += 1
        lemma = resolve(self.lemmas, instance.lemma)
        if lemma is None or instance.lemma not in self.plain:
            raise CertificateError(f"there is no lemma `{instance.lemma}` that rewrites a class")
        try:
            done = install(self.store, lemma, instance, self.under, plain=self.plain[instance.lemma])
        except (NoInstance, Malformed, Unsupported) as error:
            raise _rejected(n, instance, error) from None
        self._evaluate(n, instance, cls, done)
        return done

    def finish(self, count: int, a: Term, b: Term) -> bool:
        """Whether the next instances, which name no class, make one term into the other."""
        first, steps = self.used, self.instances[self.used : self.used + count]
        if len(steps) < count or any(i.cls != -1 or i.under or i.rest or i.lead != "1" for i in steps):
            raise CertificateError(f"instances {first} to {first + count - 1} are no steps of a round")
        self.used += count

        def seen(instance: Instance, cls: int, done: Rewritten) -> None:
            self._evaluate(first + steps.index(instance), instance, cls, done)

        try:
            return proved(self.store, self.lemmas, steps, a, b, seen)
        except (NoInstance, Malformed, Unsupported) as error:
            raise CertificateError(f"a step of a round does not hold: {error}") from None

    def _evaluate(self, n: int, instance: Instance, cls: int, done: Rewritten) -> None:
        """Compare a class with what it was rewritten to on random inputs."""
        whole = self.store.whole(cls, done.slots)
        terms = [t for _, own in instance.variables.values() for t in own]
        parts = [*_classes(instance.rest), *_classes(terms)]
        try:
            wrong = difference(self.store, whole, done.term, parts)
        except EvaluationError as error:
            wrong = str(error)
        except TooLarge:
            wrong = self._smaller(instance)
        if wrong is not None:
            raise CertificateError(f"instance {n} of `{instance.lemma}` is false: {wrong}")

    def _smaller(self, instance: Instance) -> str | None:
        """The sides of the lemma at few values of each index, where the instance itself is too large."""
        lemma = resolve(self.lemmas, instance.lemma)
        if lemma is None:
            return "there is no such lemma"
        key = (lemma.name, tuple(len(own) for own in instance.indices.values()))
        if key in self._sampled:
            return None
        store = new_store(folding=True)
        indices = {k: (store.fresh(2 + n % 2),) for n, k in enumerate(lemma.indices)}
        variables = {name: self._free(store, lemma, indices, name, kind) for name, kind in lemma.variables}
        binding = Binding(variables, indices)
        try:
            a, b = left(store, lemma, binding), right(store, lemma, binding)
            wrong = difference(store, a, b, [t.cls for t in variables.values()])
        except (NoInstance, Unsupported, EvaluationError, TooLarge):
            return "its values cannot be computed"
        if wrong is None:
            self._sampled.add(key)
        return wrong

    def _free(
        self, store: Store, lemma: Lemma, indices: Mapping[str, tuple[int, ...]], name: str, kind: str
    ) -> Term:
        own = [i for k in lemma.reads(name) for i in indices[k]]
        extents = tuple(store.sizes[i] for i in own)
        if kind == "int":
            raise CertificateError(f"an instance of `{lemma.name}` is too large to be evaluated")
        cls = store.leaf("input", (name,), "bool" if kind == "bool" else "real", extents)
        free = store.whole(cls, own)
        below = [
            c.right.value
            for c in lemma.conditions
            if isinstance(c, Relation) and c.left == Variable(name) and isinstance(c.right, Number)
            if c.direction in ("LT", "LE")
        ]
        if kind != "real" or not below:
            return free
        return add(store, [store.real(min(below)), scaled(absolute(store, free), -1)])


def _rejected(n: int, instance: Instance, error: Exception) -> CertificateError:
    return CertificateError(f"instance {n} of `{instance.lemma}` does not hold: {error}")


def _classes(data: Data) -> Iterator[int]:
    """The classes that written terms name, those that their positions read included."""
    stack = list(data)
    for _, cls, _ in data:
        yield cls
    while stack:
        item = stack.pop()
        if isinstance(item, list | tuple):
            if len(item) == 3 and item[0] == "element":
                yield item[1]
            stack += item

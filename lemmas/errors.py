"""The error of the lemma language."""

from __future__ import annotations

from shardproof.lemmas.terms import Span


class LemmaError(ValueError):
    """A lemma file is not well formed: one line `file:line:column: what was found, what is needed`."""

    def __init__(self, message: str, span: Span | None = None) -> None:
        super().__init__(message if span is None else f"{span.file}:{span.line}:{span.column}: {message}")
        self.message = message
        self.span = span

"""How a command ends without a result: exit codes, and one message per failure."""

from __future__ import annotations

import sys
import traceback
import warnings
from collections.abc import Callable
from typing import Final

from shardproof.tools.report import error_json, error_line, one_line, write_stdout

BAD_INPUT: Final = 3
INTERNAL: Final = 4
INTERRUPTED: Final = 130


class UsageProblem(Exception):
    """An option has a value that cannot be meant; the message is one line."""


def guarded(command: Callable[[], int], *, json: bool, verbose: bool) -> int:
    """Run `command` and return its exit code; a failure becomes one line on stderr and its exit code.

    With `json` the failure is also one JSON object on stdout. A traceback is shown under `verbose` only.
    """
    try:
        with warnings.catch_warnings():
            if not verbose:
                warnings.simplefilter("ignore")
            return command()
    except KeyboardInterrupt:
        print("interrupted", file=sys.stderr)
        return INTERRUPTED
    except UsageProblem as error:
        return fail("E03", str(error), json)
    except Exception as error:
        return _failure(error, json, verbose)


def fail(code: str, message: str, json: bool, status: int = BAD_INPUT) -> int:
    """Report one failure and return `status`."""
    print(error_line(code, message), file=sys.stderr)
    if json:
        write_stdout(error_json(code, message) + "\n")
    return status


def reason(error: OSError) -> str:
    """Why the system refused, in its words."""
    return (error.strerror or "unknown reason").lower()


def _failure(error: Exception, json: bool, verbose: bool) -> int:
    from shardproof.ir.module import ModuleError

    if isinstance(error, ModuleError):
        return fail(_code_of(error), str(error), json)
    lemmas = sys.modules.get("shardproof.lemmas.errors")
    if lemmas is not None and isinstance(error, lemmas.LemmaError):
        return fail("E06", str(error), json)
    if isinstance(error, OSError) and error.filename is not None:
        return fail("E01", f"cannot read {error.filename}: {reason(error)}", json)
    if verbose:
        traceback.print_exception(error)
    hint = "" if verbose else "; use --verbose for the traceback"
    detail = one_line(str(error))
    described = f"{type(error).__name__}: {detail}" if detail else type(error).__name__
    return fail("E04", f"internal error: {described}{hint}", json, INTERNAL)


def _code_of(error: Exception) -> str:
    """An error class may carry a `code`; else a relation's error is E02 and a program's E01."""
    declared = getattr(error, "code", None)
    if isinstance(declared, str):
        return declared
    relation = sys.modules.get("shardproof.solver.relations.relation")
    kind = getattr(relation, "RelationError", None)
    return "E02" if kind is not None and isinstance(error, kind) else "E01"

"""Makes what tests share importable (`samples`) without putting the rooms' names on the path."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path


def _load(name: str, folder: str = "") -> None:
    spec = importlib.util.spec_from_file_location(name, Path(__file__).parent / folder / f"{name}.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    spec.loader.exec_module(module)


_load("samples")
_load("random_graphs")
_load("random_operators")
_load("arrays")
_load("pair_programs")
_load("evaluated")
_load("random_loops")
_load("loop_programs")
_load("lemma_sides")
_load("random_sides")
_load("random_lemmas")
_load("lemma_text")
_load("mutant_verdicts")
_load("mutated_protos")
_load("fx_edits")
_load("hlo_writer", "frontends")
_load("hlo_programs", "frontends")
_load("onnx_models", "frontends")
_load("onnx_checks", "frontends")
_load("lemma_cases", "solver")
_load("certified_pairs", "solver")

"""Importer and interpreter against the node tests that the onnx package generates."""

from __future__ import annotations

import re

import pytest
from tests.frontends.onnx_node_cases import page as written
from tests.pages import page

AGREE = 0.95
"""Least part of the tests in scope that must agree."""

onnx = pytest.importorskip("onnx", reason="onnx is not installed")


@pytest.mark.skipif(onnx.__version__ != "1.23.2", reason="the list is of onnx 1.23.2")
def test_the_list_of_those_that_disagree_is_up_to_date() -> None:
    now = written()
    in_scope, agree = (
        int(re.search(pattern, now)[1])  # type: ignore[index]
        for pattern in (r"(\d+) are in scope", r"(\d+) agree")
    )
    assert in_scope > 1700 and agree >= AGREE * in_scope
    text = "write docs/onnx-node-tests.md again with `python tests/frontends/onnx_node_cases.py`"
    assert now == page("onnx-node-tests.md"), text

"""Tests for frontends of other packages: `frontend_conformance` (docs/new-frontend.md).

    from shardproof.testing import Sample, frontend_conformance

    report = frontend_conformance(my_frontend, [Sample("graphs/mlp.json", run=my_framework.run)])
    assert report.passed, report
"""

from __future__ import annotations

from shardproof.tools.conformance import Failure, Report, Sample, frontend_conformance

__all__ = ["Failure", "Report", "Sample", "frontend_conformance"]

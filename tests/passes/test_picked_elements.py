"""What is known of elements that are picked or sorted, of the positions that they stand at, and of writes there."""

from __future__ import annotations

import numpy as np
import pytest
from evaluated import normalised
from random_graphs import Graph
from random import Random
from typing import Any

from shardproof.ir.module import Value
from shardproof.ir.types import DType, Mesh, TensorType
from shardproof.passes.classes import NEGATIVE_INFINITY, NONNEGATIVE, POSITIVE, UNKNOWN_SIGN, Class

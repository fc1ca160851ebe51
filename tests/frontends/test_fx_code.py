"""FX code dumps: what is read of them, what is refused, and that nothing in them runs."""

from __future__ import annotations

import gzip
import subprocess
import sys
import time
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from shardproof.frontends.fx.code.lines import starts_like_code
from shardproof.frontends.fx.code.ranks import read_ranks, read_texts
from shardproof.frontends.fx.code.read import read_code
from shardproof.frontends.fx.graph import Graph, Node, Operator, Ref, Symbol, Tensor
from shardproof.frontends.load import load
from shardproof.ir.module import ModuleError
from shardproof.ir.types import DType

REAL = Path(__file__).resolve().parents[2].parent / "shared" / "real"
DUMPS = sorted((REAL / "py").rglob("*.py.gz"))

PLAIN = """\
import torch
from torch import device

f32: type
Sym: type


# Graph[rank=1](fw, gid=0)
class <lambda>(torch.nn.Module):
    def forward(self, x_1: "f32[4, 8]", w_1: "bf16[8, 8][8, 1]cuda:1", ids: "i64[4]"):
         # File: /home/me/model/block.py:17 in forward, code: h = x @ w
        to: "f32[8, 8]" = torch.ops.aten._to_copy.default(w_1, dtype = torch.float32);  w_1 = None
        mm: "f32[4, 8]" = torch.ops.aten.mm.default(x_1, to);  x_1 = to = None
        
        # No stacktrace found for following nodes
        half = torch.ops.aten.split_with_sizes.default(mm, [4, 4], -1);  mm = None
        getitem: "f32[4, 4]" = half[0]
        getitem_1: "f32[4, 4]" = half[1];  half = None
        fill: "f32[4, 4]" = torch.ops.aten.masked_fill.Scalar(getitem, True, -inf);  getitem = None
        lt: "b8[4]" = torch.ops.aten.lt.Scalar(ids, 4);  ids = None
        index: "f32[4, 4]" = torch.ops.aten.index.Tensor(getitem_1, [None, lt]);  getitem_1 = lt = None
        return (fill, None, [index])
"""

JOINT = """\
class joint_helper(torch.nn.Module):
    def forward(self, primals, tangents):
        primals_1: "f32[4]"; primals_2: "Sym(s0)"; tangents_1: "f32[s0, 4][4, 1]cpu"; 
    
        primals_1, primals_2, tangents_1, = fx_pytree.tree_flatten_spec([primals, tangents], self._in_spec)
        # No stacktrace found for following nodes
        _tensor_constant0: "f32[]" = self._tensor_constant0
        lift: "f32[]" = torch.ops.aten.lift_fresh_copy.default(_tensor_constant0);  _tensor_constant0 = None
        floordiv: "Sym((s0//2))" = primals_2 // 2;  primals_2 = None
        ge: "Sym(s0 >= 2)" = floordiv >= 1
        check = torch.ops.aten._assert_scalar.default(ge, "must be s0 >= 2; or 'so'");  ge = check = None
        mul: "f32[s0, 4]" = torch.ops.aten.mul.Tensor(tangents_1, lift);  tangents_1 = lift = None
        del floordiv
        return pytree.tree_unflatten([mul, primals_1], self._out_spec)
"""

LOG = """\
V0101 10:00:00.000001 7 torch/a.py:1] [0/0] [__aot_graphs] aot_config id: 0, fw_metadata=Meta(x=[1])
V0101 10:00:00.000001 7 torch/a.py:9] [0/0] [__aot_graphs] TRACED GRAPH
V0101 10:00:00.000001 7 torch/a.py:9] [0/0] [__aot_graphs]  ===== Forward graph 0 =====
V0101 10:00:00.000001 7 torch/a.py:9] [0/0] [__aot_graphs]  <eval>.3 class GraphModule(torch.nn.Module):
V0101 10:00:00.000001 7 torch/a.py:9] [0/0] [__aot_graphs]     def forward(self, arg0_1: "f32[2]cpu"):
V0101 10:00:00.000001 7 torch/a.py:9] [0/0] [__aot_graphs]         neg: "f32[2][1]cpu" = \
torch.ops.aten.neg.default(arg0_1);  arg0_1 = None
V0101 10:00:00.000001 7 torch/a.py:9] [0/0] [__aot_graphs]         return (neg,)
V0101 10:00:00.000001 7 torch/a.py:9] [0/0] [__aot_graphs]
V0101 10:00:00.000001 7 torch/b.py:9] [0/0] compiled in 3 s
"""

EXPANDED = """\
class GraphModule(torch.nn.Module):
    def forward(
        self,
        primals_1: "f32[2]",  # ParamAOTInput(target='layers.0.bias')
        primals_2: "f32[2]",  # PlainAOTInput(idx=0)
    ):
        # Annotation: {'stage': 1} File: model.py:3 in forward, code: return x + b
        add: "f32[2]" = torch.ops.aten.add.Tensor(primals_2, primals_1)
        return (
            add,  # PlainAOTOutput(idx=0)
            primals_1,  # SavedForBackwardsAOTOutput(idx=0)
        )
"""

HEAD = 'class G(torch.nn.Module):\n    def forward(self, x: "f32[2]", y: "f32[2]"):\n'


def wrapped(*statements: str, result: str = "(x,)") -> str:
    """A dump whose body is `statements`."""
    return HEAD + "".join(f"        {line}\n" for line in statements) + f"        return {result}\n"


def node(graph: Graph, name: str) -> Node:
    return next(node for node in graph.nodes if node.name == name)


def test_what_a_dump_says_is_read() -> None:
    graph = read_code(PLAIN, "dump.py")
    assert (graph.name, graph.rank, graph.source) == ("<lambda>", 1, "dump.py")
    assert [n.name for n in graph.placeholders] == ["x_1", "w_1", "ids"]
    assert node(graph, "w_1").meta == Tensor(DType.BF16, (8, 8))
    to = node(graph, "to")
    assert (to.target, to.args, dict(to.kwargs)) == (
        "aten._to_copy.default",
        (Ref("w_1"),),
        {"dtype": DType.F32},
    )
    assert str(to.location) == str(node(graph, "mm").location) == "/home/me/model/block.py:17"
    assert to.location is not None and to.location.stack[0].function == "forward"
    assert node(graph, "half").location is None and node(graph, "half").meta is None
    assert node(graph, "getitem_1") == Node(
        "getitem_1", "call_function", "getitem", (Ref("half"), 1), {}, Tensor(DType.F32, (4, 4))
    )
    assert node(graph, "fill").args == (Ref("getitem"), True, float("-inf"))
    assert node(graph, "index").args == (Ref("getitem_1"), (None, Ref("lt")))
    assert graph.outputs == (Ref("fill"), None, (Ref("index"),))
    assert graph.nodes[-1] == Node("output", "output", "output", (graph.outputs,))


def test_a_joint_graph_declares_its_parameters_and_computes_sizes() -> None:
    graph = read_code(JOINT, "joint.py")
    assert [n.name for n in graph.placeholders] == ["primals_1", "primals_2", "tangents_1"]
    assert node(graph, "primals_2").meta == Symbol("s0")
    assert node(graph, "tangents_1").meta == Tensor(DType.F32, ("s0", 4))
    assert node(graph, "_tensor_constant0").op == "get_attr"
    assert dict(graph.constants) == {"_tensor_constant0": None}
    assert (node(graph, "floordiv").target, node(graph, "floordiv").args) == (
        "floordiv",
        (Ref("primals_2"), 2),
    )
    assert node(graph, "ge").target == "ge"
    assert node(graph, "check").args == (Ref("ge"), "must be s0 >= 2; or 'so'")
    assert graph.outputs == (Ref("mul"), Ref("primals_1"))


def test_a_log_is_read_without_its_prefixes() -> None:
    graph = read_code(LOG, "run.log")
    assert [n.name for n in graph.nodes] == ["arg0_1", "neg", "output"]
    with pytest.raises(ModuleError, match=r"run\.log:\d+: found another graph 'GraphModule', keep one"):
        read_code(LOG + LOG, "run.log")


def test_an_expanded_signature_names_the_parameters() -> None:
    graph = read_code(EXPANDED, "expanded.py")
    assert dict(graph.titles) == {"primals_1": "layers.0.bias"}
    assert str(node(graph, "add").location) == "model.py:3"
    assert graph.outputs == (Ref("add"), Ref("primals_1"))


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("-inf", float("-inf")),
        ("1e-05", 1e-5),
        ("-3", -3),
        ("(1+2j)", 1 + 2j),
        ("-2j", -2j),
        ("torch.int64", DType.S64),
        ("torch.strided", "strided"),
        ("torch.contiguous_format", "contiguous_format"),
        ("device(type='cuda', index=3)", "cuda:3"),
        ("torch.device('cpu')", "cpu"),
        ("torch.ops._C.rms_norm.default", Operator("_C.rms_norm.default")),
        ("slice(None, 2, None)", slice(None, 2, None)),
        ("[1, (x, None)]", (1, (Ref("x"), None))),
        ("torch.Size([2, 3])", (2, 3)),
        ("'sum'", "sum"),
    ],
)
def test_arguments(text: str, value: object) -> None:
    graph = read_code(wrapped(f"z = torch.ops.a.b.c(x, {text}, k = {text})"), "d.py")
    assert node(graph, "z").args == (Ref("x"), value)
    assert dict(node(graph, "z").kwargs) == {"k": value}


@pytest.mark.parametrize(
    ("statement", "target"),
    [
        ("z = x + 1", "add"),
        ("z = 2 * x", "mul"),
        ("z = -x", "neg"),
        ("z = x[(slice(None, None, None), 0)]", "getitem"),
        ("z = operator.getitem(x, 0)", "getitem"),
        ("z = torch.sym_max(x, 1)", "sym_max"),
        ("z = math.ceil(x)", "math.ceil"),
        ("z = x <= y", "le"),
        ('z = getattr(self.layers, "0").weight', "layers.0.weight"),
    ],
)
def test_what_is_not_an_aten_call_keeps_its_plain_name(statement: str, target: str) -> None:
    assert node(read_code(wrapped(statement), "d.py"), "z").target == target


def test_a_second_name_of_a_parameter_means_the_parameter() -> None:
    graph = read_code(wrapped("x_ = x;  x = None", "z = torch.ops.aten.neg.default(x_)", result="z"), "d.py")
    assert node(graph, "z").args == (Ref("x"),)
    assert graph.outputs == Ref("z")


REFUSED = {
    "import in the body": ("import os", "an import"),
    "call of a builtin": ("z = open('canary', 'w')", "a call of 'open'"),
    "call through import": ("z = __import__('os').system('touch canary')", "a call of a computed function"),
    "call in an argument": ("z = torch.ops.aten.neg.default(exec('1'))", "a call of 'exec'"),
    "call of torch": ("z = torch.load('canary')", "a call of 'torch.load', which is no operator"),
    "method": ("z = x.view(2)", "a call of 'x.view'"),
    "module call": ("z = self.linear(x)", "a call of 'self.linear'"),
    "lambda": ("z = (lambda: 1)()", "a computed function"),
    "comprehension": ("z = [q for q in x]", "a comprehension"),
    "walrus": ("z = torch.ops.aten.neg.default(q := x)", "a NamedExpr"),
    "format": ("z = torch.ops.aten.neg.default(f'{x}')", "a formatted string"),
    "star": ("z = torch.ops.aten.neg.default(*x)", "a Starred"),
    "double star": ("z = torch.ops.aten.neg.default(**x)", "an argument written with"),
    "attribute": ("z = torch.ops.aten.neg.default(x.__class__)", "the attribute 'x.__class__'"),
    "store to an attribute": ("self.a = x", "isn't a name"),
    "unpacked": ("a, b = torch.ops.aten.split.Tensor(x, 1)", "unpacked"),
    "in place": ("x += 1", "an in-place operation"),
    "branch": ("if x: pass", "a branch"),
    "expression": ("torch.ops.aten.neg.default(x)", "without a name"),
    "dict": ("z = torch.ops.aten.neg.default({})", "a dict"),
    "bytes": ("z = torch.ops.aten.neg.default(b'1')", "bytes"),
    "arithmetic in an argument": ("z = torch.ops.aten.neg.default(x + 1)", "inside an argument"),
    "literals": ("z = 1 + 2", "literals only"),
    "unknown name": ("z = torch.ops.aten.neg.default(q)", "the name 'q'"),
    "used before": ("z = torch.ops.aten.neg.default(z)", "the name 'z'"),
    "redefined": ("x = torch.ops.aten.neg.default(x)", "a second definition of 'x'"),
    "redefined inf": ("inf = torch.ops.aten.neg.default(x)", "a value named 'inf'"),
    "deleted in the middle": ("x = None; z = torch.ops.aten.neg.default(x)", "behind deleted names"),
    "big number": ("z = torch.ops.aten.neg.default(99999999999999999999)", "64 bits"),
    "element type": ('z: "q8[2]" = torch.ops.aten.neg.default(x)', "element type 'q8'"),
    "annotation": ('z: "DTensor(f32[2], S(0))" = torch.ops.aten.neg.default(x)', "annotation 'DTensor"),
    "negative extent": ('z: "f32[-2]" = torch.ops.aten.neg.default(x)', "extent '-2'"),
    "called annotation": ("z: exec('1') = torch.ops.aten.neg.default(x)", "as an annotation"),
    "cut off": ("z = torch.ops.aten.neg.default(x", "isn't Python|cut off"),
    "not Python": ("z = = x", "isn't Python"),
    "short operator": ("z = torch.ops.neg(x)", "a call of 'torch.ops.neg'"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_anything_else_is_refused_with_its_line(name: str) -> None:
    statement, found = REFUSED[name]
    with pytest.raises(ModuleError, match=rf"^dump\.py:4: found .*(?:{found})") as error:
        read_code(wrapped("q0 = torch.ops.aten.neg.default(x)", statement), "dump.py")
    assert "\n" not in str(error.value)


def test_a_name_is_not_used_after_its_deletion() -> None:
    with pytest.raises(ModuleError, match=r"d\.py:4: found 'x' used after it was deleted"):
        read_code(
            wrapped("z = torch.ops.aten.neg.default(x);  x = None", "t = torch.ops.aten.neg.default(x)"),
            "d.py",
        )


@pytest.mark.parametrize(
    ("text", "found"),
    [
        ("import os\n" + PLAIN, "1: found 'import os' before the class"),
        ("print(1)\n" + PLAIN, r"1: found 'print\(1\)' before"),
        (PLAIN + "exec('1')\n", r"\d+: found \"exec\('1'\)\" after the graph's return"),
        (PLAIN + PLAIN[PLAIN.index("class") :], "found another graph"),
        (HEAD.replace("def forward", "def backward"), "only forward is read"),
        (HEAD.replace("    def", "    import os\n    def"), "2: found 'import os' in the class"),
        (HEAD.replace("torch.nn.Module", "object"), "no class of a graph|before the class"),
        (HEAD.replace("self, ", ""), "whose first parameter isn't self"),
        (HEAD.replace("self, ", "self, *"), "signature with"),
        (HEAD.replace('y: "f32[2]"', "y=exec('1')") + "        return (x,)\n", "a default value"),
        (HEAD.replace('y: "f32[2]"', "y: exec('1')") + "        return (x,)\n", "as an annotation"),
        (HEAD, "cut off"),
        (HEAD + "        return print(x)\n", "a call of 'print' returned"),
        ("", "holds no class"),
    ],
)
def test_what_stands_around_the_body_is_checked(text: str, found: str) -> None:
    with pytest.raises(ModuleError, match=found) as error:
        read_code(text, "dump.py")
    assert str(error.value).startswith("dump.py:")


@pytest.mark.parametrize(
    "body",
    [
        "-" * 300_000 + "x",
        "x" + ".a" * 300_000,
        "x" + "[0]" * 200_000,
        "x + " * 200_000 + "x",
        "x" + "()" * 200_000,
        "(" * 300_000,
        "(" * 100 + "x" + ")" * 100,
        "lambda: " * 50_000 + "x",
        "f'" + "{x}" * 300_000 + "'",
        "[" + "x, " * 300_000 + "]",
        "9" * 500_000,
        "torch.ops.aten.cat.default([" + "x" * 2_000_000 + "])",
    ],
    ids=lambda body: body[:6],
)
def test_deep_and_huge_lines_are_refused_at_once(body: str) -> None:
    started = time.process_time()
    with pytest.raises(ModuleError, match=r"^dump\.py:(?:3: found| line 3 has)"):
        read_code(wrapped(f"z = {body}"), "dump.py")
    assert time.process_time() - started < 10


CANARIES = [
    "z = __import__('pathlib').Path('{0}').touch()",
    "z: \"f32[2]\" = (lambda: open('{0}', 'w'))()",
    "z = torch.ops.aten.neg.default(x, k = open('{0}', 'w'))",
    "z = torch.ops.aten.neg.default(x)[open('{0}', 'w')]",
    "z: open('{0}', 'w') = x",
    "exec(\"open('{0}', 'w')\")",
    "z = torch.load('{0}'); torch.save(x, '{0}')",
    "z = [open('{0}', 'w') for _ in (1,)]",
    "z = f\"{{open('{0}', 'w')}}\"",
]


@pytest.mark.parametrize("statement", CANARIES)
@pytest.mark.parametrize("place", ["body", "before", "after", "default", "class"])
def test_nothing_is_executed_and_the_exit_code_is_three(statement: str, place: str, tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    line = statement.format(canary)
    text = {
        "body": wrapped(line),
        "before": line + "\n" + wrapped(),
        "after": wrapped() + line + "\n",
        "default": HEAD.replace('y: "f32[2]"', f"y=({line.partition('=')[2] or line})")
        + "        return (x,)\n",
        "class": HEAD.replace("    def", f"    {line}\n    def") + "        return (x,)\n",
    }[place]
    with pytest.raises(ModuleError):
        read_code(text, "dump.py")
    assert not canary.exists()


def test_the_command_refuses_a_hostile_dump(tmp_path: Path) -> None:
    canary = tmp_path / "canary"
    path = tmp_path / "dump.py"
    path.write_text(wrapped(CANARIES[0].format(canary)))
    run = subprocess.run(
        [sys.executable, "-m", "shardproof", "inspect", str(path)],
        capture_output=True,
        text=True,
        check=False,
    )
    assert run.returncode == 3
    assert f"{path}:3: found a call of a computed function" in run.stderr
    assert not canary.exists()


def test_a_dump_is_recognised_by_its_first_lines() -> None:
    for text in (PLAIN, JOINT, LOG, EXPANDED, "import os\n" + PLAIN, HEAD):
        assert starts_like_code(text)
    for text in (
        "HloModule m\n",
        'module "m" mesh () {\n}\n',
        "hello\nclass G(torch.nn.Module):\n",
        "",
        "import torch\n",
    ):
        assert not starts_like_code(text)


def test_a_gzipped_hostile_dump_is_refused_by_name(tmp_path: Path) -> None:
    path = tmp_path / "dump.txt"
    path.write_bytes(gzip.compress(wrapped("import os").encode()))
    with pytest.raises(ModuleError, match=r"dump\.txt:3: found an import"):
        load(path)
    with pytest.raises(ModuleError, match=r"dump\.txt:3: found an import"):
        read_ranks([path])


def test_a_line_of_a_hundred_megabytes_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "dump.py.gz"
    path.write_bytes(gzip.compress((HEAD + "        z = " + "x" * (100 << 20)).encode(), 1))
    started = time.process_time()
    with pytest.raises(ModuleError, match=r"dump\.py\.gz: holds \d+ characters, at most \d+ are read"):
        load(path)
    with pytest.raises(ModuleError, match=r"dump\.py\.gz: holds more than 64 MiB"):
        read_ranks([path])
    assert time.process_time() - started < 10


def test_a_dump_is_loaded_like_any_other_program(tmp_path: Path) -> None:
    path = tmp_path / "dump.py"
    path.write_text(EXPANDED)
    module = load(path)
    assert [given.name for given in module.inputs] == ["primals_1", "primals_2"]
    assert [output.name for output in module.outputs] == ["add", "primals_1"]
    assert str(module.outputs[0].value.location) == "model.py:3"


def test_ranks_share_what_their_dumps_write_alike() -> None:
    other = PLAIN.replace("rank=1", "rank=2").replace("(ids, 4)", "(ids, 8)")
    first, second = read_texts([(PLAIN, "a.py"), (other, "b.py")])
    assert (first.rank, second.rank) == (1, 2)
    assert second == read_code(other, "b.py")
    assert node(second, "lt").args == (Ref("ids"), 8)
    different = [n.name for n, m in zip(first.nodes, second.nodes, strict=True) if n is not m]
    assert different == ["lt"]


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("block.py:17", "block.py:18"),
        ("mm.default(x_1, to)", "mm.default(x_1, x_1)"),
        ("mm: ", "mm_1: "),
        ("getitem_1: ", "getitem_2: "),
        ("masked_fill.Scalar(getitem,", "masked_fill.Scalar(getitem_1,"),
        ("ids = None", "ids = getitem_1 = None"),
        ("return (fill,", "return (index,"),
        ("class <lambda>", "class f"),
        ('ids: "i64[4]"', 'ids: "i32[4]"'),
        ("half[1];  half = None", "half[1]"),
        ("lt.Scalar(ids, 4)", "lt.Scalar(lt, 4)"),
        ("lt.Scalar(ids, 4)", "lt.Scalar(mm, 4)"),
        ("lt.Scalar(ids, 4)", "lt.Scalar(index, 4)"),
        ("lt.Scalar(ids, 4)", "lt.Scalar(exec('1'), 4)"),
        ("lt.Scalar(ids, 4)", "lt.Scalar(ids, '''"),
        ("# No stacktrace", "zz = torch.ops.aten.neg.default(mm) #"),
    ],
)
def test_a_rank_read_by_its_difference_is_as_read_in_full(old: str, new: str) -> None:
    assert old in PLAIN
    other = PLAIN.replace(old, new).replace("rank=1", "rank=0")
    assert_same_as_in_full(PLAIN, other)


def assert_same_as_in_full(first: str, other: str) -> None:
    try:
        expected = read_code(other, "b.py")
    except ModuleError as error:
        with pytest.raises(ModuleError) as raised:
            read_texts([(first, "a.py"), (other, "b.py")])
        assert str(raised.value) == str(error)
    else:
        assert read_texts([(first, "a.py"), (other, "b.py")])[1] == expected


def texts_of(sample: str) -> list[str]:
    return [line for line in sample.splitlines(keepends=True) if line.strip()]


SAMPLES = [PLAIN, JOINT, LOG, EXPANDED]
PIECES = [*{line for sample in SAMPLES for line in texts_of(sample)}]
FRAGMENTS = [
    "(",
    ")",
    "[",
    "]",
    "{",
    '"',
    "'",
    ";",
    "=",
    ":",
    ",",
    ".",
    "\\",
    "\n",
    "#",
    " ",
    "x",
    "None",
    "0",
    "é",
]


@st.composite
def mutated(draw: st.DrawFn) -> str:
    """A sample with a few lines exchanged and a few characters replaced."""
    text = draw(st.sampled_from(SAMPLES))
    for _ in range(draw(st.integers(0, 2))):
        lines = text.splitlines(keepends=True)
        place = draw(st.integers(0, len(lines)))
        lines[place : place + draw(st.integers(0, 1))] = [draw(st.sampled_from([*PIECES, ""]))]
        text = "".join(lines)
    for _ in range(draw(st.integers(0, 4))):
        place = draw(st.integers(0, len(text)))
        text = text[:place] + draw(st.sampled_from(FRAGMENTS)) + text[place + draw(st.integers(0, 3)) :]
    return text


@settings(max_examples=400, deadline=None)
@given(mutated())
def test_a_damaged_dump_is_read_or_refused_with_one_line(text: str) -> None:
    try:
        graph = read_code(text, "dump.py")
    except ModuleError as error:
        assert str(error).startswith("dump.py:") and "\n" not in str(error)
    else:
        names = [n.name for n in graph.nodes]
        assert len(set(names)) == len(names)


@settings(max_examples=300, deadline=None)
@given(mutated(), st.sampled_from(SAMPLES))
def test_reading_by_difference_never_differs_from_reading_in_full(text: str, first: str) -> None:
    assert_same_as_in_full(first, text)


@pytest.mark.skipif(not DUMPS, reason="the captured dumps (../shared/real/py) are not here")
def test_every_captured_dump_is_read() -> None:
    counts = {}
    for path in DUMPS:
        text = gzip.decompress(path.read_bytes()).decode()
        graph = read_code(text, str(path))
        counts[path] = len(graph.nodes)
        assert len(graph.nodes) > len(graph.placeholders) + 1
        assert graph.rank == int(path.name.split(".r")[1].split(".")[0])
        assert all(n.meta is not None for n in graph.placeholders)
    assert len(counts) == 106
    assert sum(counts.values()) == 43040


@pytest.mark.skipif(not DUMPS, reason="the captured dumps (../shared/real/py) are not here")
def test_captured_ranks_are_read_by_their_difference() -> None:
    by_program: dict[str, list[Path]] = {}
    for path in DUMPS:
        by_program.setdefault(f"{path.parent} {path.name.split('.r')[0]}", []).append(path)
    for paths in by_program.values():
        graphs = read_ranks(paths)
        for path, graph in zip(paths, graphs, strict=True):
            assert graph == read_code(gzip.decompress(path.read_bytes()).decode(), str(path))
        shared = {id(n) for n in graphs[0].nodes}
        assert all(sum(id(n) in shared for n in graph.nodes) * 2 > len(graph.nodes) for graph in graphs)

"""Relation files: every step against NumPy, names, errors, and files that verify writes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np
import pytest
from arrays import Graph

from shardproof.ir.interpret import run
from shardproof.ir.module import Module
from shardproof.ir.types import Array, DType
from shardproof.ir.verify import verify as verify_module
from shardproof.solver.relations.relation import BASE, PER_RANK, Composed, Relation, compose
from shardproof.solver.relations.relation_file import read, resolve, write
from shardproof.solver.relations.steps import Layout, RelationError, parse
from shardproof.solver.verify import verify

Axes = tuple[tuple[str, int], ...]
TP2: Axes = (("tp", 2),)
GRID: Axes = (("dp", 2), ("tp", 3))


def written(path: Path, text: str) -> Path:
    file = path / "relation.toml"
    file.write_text(text, encoding="utf-8")
    return file


def holder(shapes: Mapping[str, tuple[int, ...]], axes: Axes = (), name: str = "y") -> Module:
    """A program that returns its first input."""
    g = Graph(axes=axes)
    inputs = [g.input(n, *shape) for n, shape in shapes.items()]
    g.output(name, inputs[0])
    return g.module()


def tensor(*shape: int, start: int = 1) -> Array:
    return np.arange(start, start + int(np.prod(shape)), dtype=np.float32).reshape(shape)


def composed(path: Path, text: str, reference: Module, implementation: Module) -> Composed:
    relation = resolve(read(written(path, text)), reference, implementation)
    made = compose(reference, implementation, relation)
    for module in (made.reference, made.implementation, made.expected):
        verify_module(module)
    return made


def held(
    path: Path, layout: str, sources: Mapping[str, Array], shape: Sequence[int], axes: Axes
) -> list[Array]:
    """What each rank holds of input `w` under a layout (TOML) over the reference inputs `sources`."""
    reference = holder({n: a.shape for n, a in sources.items()})
    implementation = holder({"w": tuple(shape)}, axes)
    made = composed(path, f"[inputs]\nw = {layout}\n", reference, implementation)
    inputs = {i.name: sources[i.name.removeprefix(BASE)] for i in made.implementation.inputs}
    return run(made.implementation, inputs, values=True)["w"]


def same(found: Sequence[Array], wanted: Sequence[Array]) -> None:
    assert len(found) == len(wanted)
    for a, b in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(a, b)


W = tensor(4, 6)
PADDED = np.pad(W, ((0, 0), (1, 1)))
LAYOUTS: dict[str, tuple[Axes, list[Array]]] = {
    "replicate": (TP2, [W, W]),
    "Replicate()": (TP2, [W, W]),
    "shard(1)": (TP2, np.split(W, 2, 1)),
    "Shard(1)": (TP2, np.split(W, 2, 1)),
    "P(None, 'tp')": (TP2, np.split(W, 2, 1)),
    "P('tp')": (TP2, np.split(W, 2, 0)),
    "w | shard(0)": (TP2, np.split(W, 2, 0)),
    "shard(1) | ranks(1, 0)": (TP2, np.split(W, 2, 1)[::-1]),
    "permute(1, 0) | shard(0)": (TP2, np.split(W.T, 2, 0)),
    "shard(0) | permute(1, 0)": (TP2, [p.T for p in np.split(W, 2, 0)]),
    "slice(1, 2, 6) | shard(1)": (TP2, np.split(W[:, 2:6], 2, 1)),
    "pad(1, 1, 1) | shard(1)": (TP2, np.split(PADDED, 2, 1)),
    "shard(1) | pad(1, 1, 0)": (TP2, [np.pad(p, ((0, 0), (1, 0))) for p in np.split(W, 2, 1)]),
    "repeat(0, 2) | shard(0)": (TP2, np.split(np.repeat(W, 2, 0), 2, 0)),
    "repeat(1, 2, block=3)": (TP2, [np.concatenate([W[:, :3], W[:, :3], W[:, 3:], W[:, 3:]], 1)] * 2),
    "repeat(1, 2, 6) | shard(1)": (TP2, [W, W]),
    "a (b c) -> (b a) c, c=2 | shard(0)": (
        TP2,
        np.split(W.reshape(4, 3, 2).transpose(1, 0, 2).reshape(12, 2), 2, 0),
    ),
    "(a b) c -> a b c, a=2": (TP2, [W.reshape(2, 2, 6)] * 2),
    "a c -> a 1 c": (TP2, [W.reshape(4, 1, 6)] * 2),
    "shard(0, dp) | shard(1, tp)": (
        GRID,
        [np.split(np.split(W, 2, 0)[d], 3, 1)[t] for d in range(2) for t in range(3)],
    ),
    "shard(1, tp)": (GRID, [np.split(W, 3, 1)[t] for _ in range(2) for t in range(3)]),
    "shard(1, dp, tp)": (GRID, np.split(W, 6, 1)),
    "shard(1, tp, dp)": (GRID, [np.split(W, 6, 1)[2 * t + d] for d in range(2) for t in range(3)]),
    "P(('dp', 'tp'), None) | slice(1, 0, 2)": ((("dp", 2), ("tp", 2)), np.split(W[:, :2], 4, 0)),
    "shard(1, tp) | ranks(2, 0, 1)": (GRID, [np.split(W, 3, 1)[t] for _ in range(2) for t in (2, 0, 1)]),
    "shard(0) | shard(0, dp)": ((("dp", 1), ("tp", 2)), np.split(W, 2, 0)),
}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_step(layout: str, tmp_path: Path) -> None:
    axes, wanted = LAYOUTS[layout]
    same(held(tmp_path, f'"{layout}"', {"w": W}, wanted[0].shape, axes), wanted)
    assert parse(str(parse(layout))) == parse(layout)


def test_concatenation(tmp_path: Path) -> None:
    q, k, v = tensor(4, 2), tensor(4, 4, start=100), tensor(4, 2, start=200)
    whole = np.concatenate([q, k, v], 1)
    sources = {"q": q, "k": k, "v": v}
    for layout in (
        '"concat(1, q, k, v) | shard(1)"',
        '"q | concat(1, k, v) | shard(1)"',
        '"concat(1, p0, p1, v) | shard(1)"',
    ):
        same(held(tmp_path, layout, sources, (4, 4), TP2), np.split(whole, 2, 1))


def test_segments(tmp_path: Path) -> None:
    q, k = np.split(W, [4], 1)
    fused = [np.concatenate([np.split(q, 2, 1)[r], np.split(k, 2, 1)[r]], 1) for r in range(2)]
    sized = '{ dim = 1, segments = [{ size = 4, steps = "shard(1)" }, { size = 2, steps = "shard(1)" }] }'
    same(held(tmp_path, sized, {"w": W}, (4, 3), TP2), fused)
    first, second = (f'{{ steps = "slice(1, {cut}) | shard(1)" }}' for cut in ("0, 4", "4, 6"))
    sliced = f"{{ dim = 1, segments = [{first}, {second}] }}"
    same(held(tmp_path, sliced, {"w": W}, (4, 3), TP2), fused)
    named = '{ dim = 1, segments = [{ steps = "q | shard(1)" }, { steps = "p1 | shard(1)" }] }'
    same(held(tmp_path, named, {"q": q, "k": k}, (4, 3), TP2), fused)
    sourced = '{ source = "q", dim = 1, segments = [{ steps = "shard(1)" }, { steps = "k | shard(1)" }] }'
    same(held(tmp_path, sourced, {"q": q, "k": k}, (4, 3), TP2), fused)


def test_partial(tmp_path: Path) -> None:
    """The addends are free, the reference has their sum, other steps apply to each."""
    reference, implementation = holder({"w": (4, 6)}), holder({"w": (2, 6)}, GRID)
    made = composed(tmp_path, '[inputs]\nw = "shard(0, dp) | partial(tp)"\n', reference, implementation)
    addends = tensor(3, 4, 6)
    inputs = {BASE + "w": addends}
    same(run(made.reference, inputs, values=True)["w"], [addends.sum(0)])
    wanted = [np.split(addends[t], 2, 0)[d] for d in range(2) for t in range(3)]
    same(run(made.implementation, inputs, values=True)["w"], wanted)


def test_partial_beside_a_whole_copy(tmp_path: Path) -> None:
    reference, implementation = holder({"w": (4, 6)}), holder({"w": (4, 6), "copy": (2, 6)}, TP2)
    text = '[inputs]\nw = "partial"\ncopy = "w | shard(0)"\n'
    made = composed(tmp_path, text, reference, implementation)
    addends = tensor(2, 4, 6)
    values = run(made.implementation, {BASE + "w": addends}, values=True)
    same(values["w"], list(addends))
    same(values["copy"], np.split(addends.sum(0), 2, 0))


def test_output_placements(tmp_path: Path) -> None:
    """The expected output per rank, and partial outputs summed."""
    reference, implementation = holder({"w": (4, 6)}), holder({"w": (2, 6)}, GRID)
    text = '[inputs]\nw = "shard(0, dp)"\n[outputs]\ny = "shard(0, dp) | partial(tp)"\n'
    made = composed(tmp_path, text, reference, implementation)
    same(run(made.expected, {"y@": W})["y"], [p for p in np.split(W, 2, 0) for _ in range(3)])
    found = run(made.implementation, {BASE + "w": W})["y"]
    same(found, [3 * p for p in np.split(W, 2, 0) for _ in range(3)])


# names


def test_layers(tmp_path: Path) -> None:
    """One file for every number of layers; names with expressions on both sides."""
    text = (
        '[inputs]\n"p{2*l}" = "layers.{l}.up | shard(1)"\n"p{2*l+1}" = "layers.{L-1-l}.down | shard(0)"\n'
        '"p{2*L}" = "head | repeat(0, {L})"\n'
    )
    for layers in (1, 2, 5):
        whole, own = Graph(), Graph(2)
        for n in range(layers):
            whole.input(f"layers.{n}.up", 4, 6)
            whole.input(f"layers.{n}.down", 6, 4)
            own.input(f"u{n}", 4, 3)
            own.input(f"d{n}", 3, 4)
        whole.output("y", whole.input("head", 2))
        own.output("y", own.input("last", 2 * layers))
        relation = resolve(read(written(tmp_path, text)), whole.module(), own.module())
        assert [relation.sources[f"u{n}"] for n in range(layers)] == [f"layers.{n}.up" for n in range(layers)]
        assert relation.sources["d0"] == f"layers.{layers - 1}.down"
        assert str(relation.inputs["u0"]) == "layers.0.up | shard(1)"
        assert str(relation.inputs["last"]) == f"head | repeat(0, {layers})"


def test_number_of_layers_must_be_certain(tmp_path: Path) -> None:
    modules = holder({"a": (2,), "b": (2,), "c": (2,)}), holder({"a": (2,), "b": (2,), "c": (2,)}, TP2)
    text = '[inputs]\n"p{L}" = "replicate"\n'
    with pytest.raises(RelationError, match="1 and 2 layers both fit the keys: write layers = 1"):
        resolve(read(written(tmp_path, text)), *modules)
    relation = resolve(read(written(tmp_path, "layers = 2\n" + text)), *modules)
    assert list(relation.inputs) == ["c"]


def test_keys(tmp_path: Path) -> None:
    """A name, else a number, else a glob; a name that looks like a number or a glob stays a name."""
    shapes = {"p1": (2,), "w[0]": (2,), "w0": (2,), "bias.a": (2,), "bias.b": (2,)}
    modules = holder(shapes), holder(shapes, TP2)
    text = (
        '[inputs]\n"p1" = "replicate"\n"w[0]" = "permute(0)"\n"p2" = "shard(0)"\n'
        '"bias.*" = "slice(0, 0, 2)"\n[outputs]\no0 = "replicate"\n'
    )
    relation = resolve(read(written(tmp_path, text)), *modules)
    assert {n: str(s) for n, s in relation.inputs.items()} == {
        "p1": "replicate",
        "w[0]": "permute(0)",
        "w0": "shard(0)",
        "bias.a": "slice(0, 0, 2)",
        "bias.b": "slice(0, 0, 2)",
    }
    assert list(relation.outputs) == ["y"]


def test_sources_by_number_and_in_quotes(tmp_path: Path) -> None:
    reference = holder({"params['w']": (4, 6), "x": (2,)})
    implementation = holder({"weight": (4, 6), "other": (4, 6)}, TP2)
    text = """[inputs]\nweight = "replicate"\nother = '''"params['w']" | replicate'''\n"""
    relation = resolve(read(written(tmp_path, text)), reference, implementation)
    assert relation.sources == {"weight": "params['w']", "other": "params['w']"}


def test_ranges(tmp_path: Path) -> None:
    g = Graph()
    g.output("y", g.input("ids", 3, dtype=DType.S32))
    made = composed(tmp_path, "[ranges]\np0 = [0, 6]\n", g.module(), Graph(2).module())
    assert made.ranges == {BASE + "ids": (0, 6)}


# errors


BAD = {
    'w = "turn(1)"': "input `w`: layout `turn(1)`: there is no step `turn`; the steps are concat, pad,",
    'w = "shard(2)"': "input `w`: `shard(2)`: there is no dim 2 in f32[4,6]",
    'w = "shard(-1)"': "input `w`: `shard(-1)`: there is no dim -1 in f32[4,6]",
    'w = "shard(1, ep)"': "input `w`: `shard(1, ep)`: the mesh has no axis `ep` (it has tp=4)",
    'w = "partial(ep)"': "input `w`: the mesh has no axis `ep` (it has tp=4)",
    'w = "shard(0, tp, tp)"': "axis `tp` is named twice",
    'w = "shard(0) | shard(1)"': "an axis of the mesh divides the tensor twice",
    'w = "partial | partial"': "an axis is used twice",
    'w = "shard(0) | partial"': "an axis is used twice",
    'w = "shard(1)"': "dim 1 of extent 6 does not divide into 4 parts",
    'w = "shard(0) | ranks(0, 1, 1, 2)"': "ranks(0, 1, 1, 2) is no permutation of the 4 parts",
    'w = "ranks(0, 1, 2, 3)"': "`ranks(0, 1, 2, 3)`: stands right after the shard step whose parts it orders",
    'w = "shard(0) | permute(0, 1) | ranks(3, 2, 1, 0)"': "stands right after the shard step",
    'w = "permute(0, 0)"': "are no permutation of the 2 dims",
    'w = "permute(a, b)"': "permute takes the new order of all dims, as in permute(1, 0)",
    'w = "slice(0, 2, 9)"': "2:9 is not within dim 0 of extent 4",
    'w = "pad(0, -1, 0)"': "padding is not negative",
    'w = "pad(0, 1)"': "pad takes a dim and the zeros before and after",
    'w = "repeat(1, 2, block=4)"': "blocks of 4 do not fill dim 1 of extent 6",
    'w = "repeat(1, 0)"': "blocks of 1 do not fill dim 1",
    'w = "repeat(1, 2, of=4)"': "repeat takes a dim, a count and perhaps a block",
    'w = "concat(0, other)"': "input `w`: the reference has no `other` (it has w, v)",
    'w = "w | concat(1, v)"': "f32[4,6] and f32[5] can't be joined on dim 1",
    'w = "w | concat(7, w)"': "there is no dim 7 in f32[4,6]",
    'w = "u | shard(0)"': "input `w`: the reference has no `u` (it has w, v)",
    'w = "v | shard(0) | w"': "there is no step `w`",
    'w = "a b -> a"': "the two sides do not name the same axes once each",
    'w = "a (b c) -> a b c"': "(b c) does not fit extent 6",
    'w = "a (b c) -> a b c, c=0"': "sizes are at least 1, each of an axis on the left, once",
    'w = "a b -> b a, z=2"': "sizes are at least 1, each of an axis on the left, once",
    'w = "a b c -> c b a"': "has 3 dims on the left, the tensor is f32[4,6]",
    'w = "shard(0"': "layout `shard(0`: `shard(0` can't be read",
    'w = "shard(0) |"': "layout `shard(0) |`: an empty step",
    'w = "per_rank"': "only an output of a distributed reference is per rank",
    'w = "shard(0)"': "input `w`: the layout `shard(0)` makes f32[1,6], the program takes f32[4,6]",
    "w = 3": '`w`: write "source | step | ..." or {',
    'w.x = "shard(0)"': '`w`: write "source | step | ..." or {',
    "w = { dim = 1, segments = [{ size = 4, steps = 3 }] }": '`w`: write "source | step | ..." or {',
    'w = { dim = 1, segments = [{ size = 4 }, { steps = "shard(1)" }] }': "size to every segment or to none",
    "w = { dim = 1, segments = [{ size = 4 }, { size = 3 }] }": "the segments reach beyond dim 1",
    "w = { dim = 1, segments = [{ size = 8 }, { size = -2 }] }": "the segments reach beyond dim 1",
    "w = { dim = 1, segments = [{ size = 2 }, { size = 2 }] }": "the segments hold 4 of the 6 elements",
    "w = { dim = -1, segments = [{ size = 2 }, { size = 4 }] }": "there is no dim -1 in f32[4,6]",
    "w = { dim = 2, segments = [{}, {}] }": "there is no dim 2 in f32[4,6]",
    'w = { dim = 1, segments = [{ size = 6, steps = "v" }] }': "has a size, so it can't name another input",
    'w = { dim = 0, segments = [{ steps = "partial" }] }': "partial stands for the whole tensor",
    'w = "replicate"\n"p0" = "replicate"': "input `p0`: `w` is named by another key too",
    'w = "replicate"\n"*" = "replicate"': "input `*`: `w` is named by another key too",
    '"p7" = "replicate"': "input `p7`: the implementation has no input `p7` (it has w)",
    '"p{9*l}" = "replicate"\n"q{l}" = "replicate"': "no number of layers fits the keys",
    '"p{l**2}" = "replicate"': "`{l**2}` is no integer expression over l and L",
    '"p{x}" = "replicate"': "`{x}` is no integer expression over l and L",
    '"p{l//0}" = "replicate"': "`{l//0}` is no integer expression over l and L",
    f'"p{{{"1+" * 300}1}}" = "replicate"': "is no integer expression over l and L",
    f'"p{{{"(" * 95}l{")" * 95}}}" = "shard(1)"': "dim 1 of extent 6 does not divide",
    'w = "repeat(0, {L})"': "`w`: write layers = ..., no key has `{l}` or `{L}`",
    '"p{l}" = "replicate"\n"v" = "repeat(0, {l})"': "its layout depends on the layer `l`, the key does not",
}


@pytest.mark.parametrize("line", BAD)
def test_bad_input_layout(line: str, tmp_path: Path) -> None:
    reference, implementation = holder({"w": (4, 6), "v": (5,)}), holder({"w": (4, 6)}, (("tp", 4),))
    with pytest.raises(RelationError) as e:
        composed(tmp_path, f"[inputs]\n{line}\n", reference, implementation)
    assert BAD[line] in str(e.value)
    assert "\n" not in str(e.value)


BAD_FILES = {
    "[inputs": "not TOML",
    '[input]\nw = "x"': "unknown section `input`; a relation has constants, groups, initializers,",
    "outputs = 3": "`outputs` is a table of names",
    "mesh = { tp = 0 }": "`mesh` is a table of axis sizes, as in { tp = 4 }",
    "mesh = 4": "`mesh` is a table of axis sizes",
    "layers = -1": "`layers` is a number from 0 to",
    "[ranges]\nw = [3, 3]": "range of `w`: write [low, high] with low < high (exclusive)",
    "[ranges]\nw = [0, 3]": "range `w`: `w` is f32[4,6], only integers have ranges",
    "[ranges]\nz = [0, 3]": "range `z`: the reference has no input `z`",
    '[reference]\nw = "permute(1, 0)"': "reference input `w`: may only be replicated or sharded",
    '[reference]\nz = "replicate"': "reference input `z`: the reference has no input `z`",
    '[outputs]\nz = "replicate"': "output `z`: the implementation has no output `z` (it has y)",
    '[outputs]\ny = "z | replicate"': "output `y`: the reference has no `z` (it has y)",
    '[outputs]\ny = "shard(0)"': "output `y`: the placement `shard(0)` makes f32[1,6]",
    '[outputs]\ny = "partial(ep)"': "output `y`: the mesh has no axis `ep`",
}


@pytest.mark.parametrize("text", BAD_FILES)
def test_bad_file(text: str, tmp_path: Path) -> None:
    reference, implementation = holder({"w": (4, 6)}), holder({"w": (4, 6)}, (("tp", 4),))
    with pytest.raises(RelationError) as e:
        composed(
            tmp_path,
            f'{text}\n[inputs]\nw = "replicate"\n'.replace('w = "x"\n[inputs]', "[inputs]"),
            reference,
            implementation,
        )
    assert BAD_FILES[text] in str(e.value)
    assert "\n" not in str(e.value)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(RelationError, match=r"none\.toml: no such file or directory$"):
        read(tmp_path / "none.toml")


def test_kinds_must_agree(tmp_path: Path) -> None:
    g = Graph(2)
    g.output("y", g.input("w", 4, 6, dtype=DType.S32))
    with pytest.raises(RelationError, match=r"the reference has f32\[4,6\], the program takes s32\[4,6\]"):
        composed(tmp_path, '[inputs]\nw = "replicate"\n', holder({"w": (4, 6)}), g.module())


def test_several_axes_must_be_named(tmp_path: Path) -> None:
    for step in ("shard(0)", "partial"):
        with pytest.raises(RelationError, match=r"the mesh has several axes \(dp=2, tp=3\): name one, as in"):
            held(tmp_path, f'"{step}"', {"w": tensor(6, 6)}, (6, 6), GRID)


# files that verify writes


def fused_mlp(ranks: int, names: tuple[str, str, str]) -> Module:
    """Gate and up side by side in one weight, and the product summed over ranks."""
    g = Graph(ranks)
    x, w, v = g.input(names[0], 3, 4), g.input(names[1], 4, 8 // ranks), g.input(names[2], 4 // ranks, 5)
    h = x @ w
    half = 4 // ranks
    y = (h[:, :half] * h[:, half:].apply("tanh")) @ v
    g.output("out", y.all_reduce() if ranks > 1 else y)
    return g.module()


@pytest.mark.parametrize("names", [("x", "w", "v"), ("v", "x", "w"), ("a['x']", "p0", "w*")])
def test_saved_relation_gives_the_same_verdict(names: tuple[str, str, str], tmp_path: Path) -> None:
    """Also where inputs pair by number although names of the other program mean something else."""
    reference, implementation = fused_mlp(1, ("x", "w", "v")), fused_mlp(2, names)
    if set(names) == {"x", "w", "v"} and names != ("x", "w", "v"):
        pytest.skip("all names agree, so they decide, not the numbers")
    saved = tmp_path / "saved.toml"
    inferred = verify(reference, implementation, save_relation=saved)
    assert (inferred.verdict, inferred.code) == ("verified", "V02"), inferred.message
    declared = verify(reference, implementation, relation=saved, strict=True)
    assert (declared.verdict, declared.code) == ("verified", "V01"), declared.message
    assert declared.outputs == inferred.outputs
    assert not declared.assumptions
    again = resolve(read(saved), reference, implementation)
    assert write(again, implementation.mesh) == saved.read_text(encoding="utf-8")


def test_saved_relation_of_programs_on_as_many_ranks(tmp_path: Path) -> None:
    program = fused_mlp(2, ("x", "w", "v"))
    saved = tmp_path / "saved.toml"
    inferred = verify(program, program, save_relation=saved)
    assert inferred.verdict == "verified"
    declared = verify(program, program, relation=saved)
    assert (declared.verdict, declared.code, declared.outputs) == ("verified", "V01", inferred.outputs)


def test_write_keeps_everything(tmp_path: Path) -> None:
    relation = Relation(
        {"w": parse("permute(1, 0) | shard(0, tp)"), 'odd"\\name': parse("replicate")},
        {"y": parse("partial(tp)")},
        {"w": "v", 'odd"\\name': "w[1]", "output y": "total"},
        {"v": parse("shard(0)")},
        {"total": PER_RANK},
        {"ids": (0, 7)},
    )
    reference, implementation = Graph(2), Graph(2)
    for name in ("v", "w[1]"):
        reference.input(name, 4, 6)
    reference.input("ids", 3, dtype=DType.S32)
    reference.output("total", reference.zeros(2))
    for name in ("w", 'odd"\\name'):
        implementation.input(name, 4, 6)
    implementation.output("y", implementation.zeros(2))
    text = write(relation, implementation.mesh, reference.mesh)
    declared = read(written(tmp_path, text))
    assert (declared.mesh, declared.reference_mesh) == (implementation.mesh, reference.mesh)
    found = resolve(declared, reference.module(), implementation.module())
    assert found.sources == relation.sources
    assert (found.reference, found.reference_outputs) == (relation.reference, relation.reference_outputs)
    assert found.ranges == relation.ranges
    assert [s.steps for s in found.inputs.values() if isinstance(s, Layout)] == [
        parse("permute(1, 0) | shard(0, tp)").steps,
        (),
    ]

"""A decoder block in Pebble, on one rank and on several; writes the graphs of `graphs/`."""

from __future__ import annotations

from pathlib import Path

from pebble import Graph

TOKENS, WIDTH, HEADS, INNER, WORDS = 6, 8, 4, 16, 10


def heads(g: Graph, x: str, w: str, count: int) -> str:
    """A projection, one matrix per head."""
    split = g.reshape(g.matmul(x, w), shape=[TOKENS, count, WIDTH // HEADS])
    return g.transpose(split, order=[1, 0, 2])


def block(g: Graph, tp: int = 1, forget: bool = False) -> None:
    """Heads, inner width and vocabulary over `tp` ranks; `forget` leaves out the last sum over them."""
    own, inner = HEADS // tp, INNER // tp
    size = own * (WIDTH // HEADS)
    x = g.input("x", TOKENS, WIDTH)
    w = {name: g.input(f"{name}.weight", WIDTH, size) for name in ("q", "k", "v")}
    out, norm = g.input("out.weight", size, WIDTH), g.input("norm.weight", WIDTH)
    up, down = g.input("up.weight", WIDTH, inner), g.input("down.weight", inner, WIDTH)
    words = g.input("words.weight", WIDTH, WORDS // tp)

    h = g.rms_norm(x, norm, eps=1e-5)
    q, k, v = (heads(g, h, w[name], own) for name in ("q", "k", "v"))
    scores = g.scale(g.matmul(q, g.transpose(k, order=[0, 2, 1])), by=(WIDTH // HEADS) ** -0.5)
    mixed = g.transpose(g.matmul(g.softmax(scores), v), order=[1, 0, 2])
    attended = g.matmul(g.reshape(mixed, shape=[TOKENS, size]), out)
    if tp > 1:
        attended = g.all_reduce(attended, axis="tp")
    x = g.add(x, attended)

    h = g.relu(g.matmul(g.rms_norm(x, norm, eps=1e-5), up))
    part = g.matmul(h, down)
    if tp > 1 and not forget:
        part = g.all_reduce(part, axis="tp")
    logits = g.matmul(g.add(x, part), words)
    if tp > 1:
        logits = g.all_gather(logits, axis="tp", dim=1)
    g.outputs = {"logits": logits}


def main(folder: Path = Path(__file__).parent / "graphs") -> None:
    """Write the right pair, and one that lacks an all-reduce."""
    folder.mkdir(exist_ok=True)
    for name, tp, forget in (("seq", 1, False), ("tp", 2, False), ("tp_forgotten", 2, True)):
        g = Graph(tp=tp) if tp > 1 else Graph()
        block(g, tp, forget)
        g.write(folder / f"{name}.json")


if __name__ == "__main__":
    main()

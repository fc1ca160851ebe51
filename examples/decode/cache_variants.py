"""Other ways to write the caches: three that are right and four that are wrong."""

from __future__ import annotations

import decoder
from builder import Tensor


class Scattered(decoder.TokenDecoder):
    """Right: the new keys and values are written by scatter."""

    def written(self, cache: Tensor, new: Tensor) -> Tensor:
        b = self.b
        return b.scatter_rows(cache, b.reshape(self.row(), 1, 1), new)


class OwnPositions(decoder.TokenDecoder):
    """Right: every sequence has its own position; caches are [batch, cache length, heads, head_dim]."""

    def position_shape(self) -> tuple[int, ...]:
        return (self.batch,)

    def cache_parameters(self) -> list[Tensor]:
        c, b = self.config, self.b
        shape = (self.batch, c.sequence, self.kv_heads, c.head_dim)
        return [b.parameter("f16", *shape) for _ in range(2 * c.layers)]

    def visible(self, start_ids: Tensor) -> Tensor:
        c, b = self.config, self.b
        shape = (self.batch, 1, c.sequence)
        keys = b.broadcast(b.iota("s32", c.sequence), shape, (2,))
        past = b.compare("LE", keys, b.broadcast(self.position, shape, (0,)))
        started = b.compare("GE", keys, b.broadcast(start_ids, shape, (0,)))
        return b.binary("and", past, started)

    def rotated(self, x: Tensor, cosine: Tensor, sine: Tensor) -> Tensor:
        """Each sequence is rotated by its own position."""
        b, half = self.b, x.shape[3] // 2
        low, high = b.slice(x, 3, 0, half), b.slice(x, 3, half, 2 * half)
        cos = b.broadcast(cosine, low.shape, (1, 3))
        sin = b.broadcast(sine, low.shape, (1, 3))
        new_low = b.binary("subtract", b.binary("multiply", low, cos), b.binary("multiply", high, sin))
        new_high = b.binary("add", b.binary("multiply", high, cos), b.binary("multiply", low, sin))
        return b.concatenate(3, new_low, new_high)

    def remembered(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        super().remembered(key, value)
        by_position = [self.b.transpose(c, 1, 0, 2, 3) for c in self.caches]
        return by_position[0], by_position[1]

    def written(self, cache: Tensor, new: Tensor) -> Tensor:
        b, n = self.b, self.batch
        rows = b.reshape(b.iota("s32", n), n, 1)
        places = b.concatenate(1, rows, b.reshape(self.position, n, 1))
        return b.scatter_rows(cache, places, b.reshape(new, *new.shape[1:]), unique=True)


class OneCache(decoder.TokenDecoder):
    """Right: one cache per layer, its first half the keys, its second half the values."""

    per_layer = 1
    half_of_values = 1

    def cache_parameters(self) -> list[Tensor]:
        c, b = self.config, self.b
        shape = (2, c.sequence, self.batch, self.kv_heads, c.head_dim)
        return [b.parameter("f16", *shape) for _ in range(c.layers)]

    def remembered(self, key: Tensor, value: Tensor) -> tuple[Tensor, Tensor]:
        self.caches = [self.both_written(self.caches[0], key, value)]
        return self.half(0), self.half(1)

    def both_written(self, cache: Tensor, key: Tensor, value: Tensor) -> Tensor:
        b, zero = self.b, self.b.constant("s32", 0)
        for half, new in ((0, key), (self.half_of_values, value)):
            block = b.reshape(new, 1, *new.shape)
            starts = (b.constant("s32", half), self.row(), zero, zero, zero)
            cache = b.dynamic_update_slice(cache, block, starts)
        return cache

    def half(self, number: int) -> Tensor:
        (cache,) = self.caches
        return self.b.reshape(self.b.slice(cache, 0, number, number + 1), *cache.shape[1:])


class NextRow(decoder.TokenDecoder):
    """Wrong: the new token is written one row too far."""

    def row(self) -> Tensor:
        b = self.b
        return b.binary("add", b.reshape(self.position), b.constant("s32", 1))


class NextRowScattered(Scattered):
    """Wrong: as `NextRow`, by scatter."""

    def row(self) -> Tensor:
        b = self.b
        return b.binary("add", b.reshape(self.position), b.constant("s32", 1))


class WrongHalf(OneCache):
    """Wrong: the values are written into the half of the keys."""

    half_of_values = 0


class UnseenToken(decoder.TokenDecoder):
    """Wrong: the mask hides the new token; the caches are right."""

    def visible(self, start_ids: Tensor) -> Tensor:
        c, b = self.config, self.b
        shape = (self.batch, 1, c.sequence)
        keys = b.broadcast(b.iota("s32", c.sequence), shape, (2,))
        past = b.compare("LT", keys, b.broadcast(self.position, shape, (1,)))
        started = b.compare("GE", keys, b.broadcast(start_ids, shape, (0,)))
        return b.binary("and", past, started)

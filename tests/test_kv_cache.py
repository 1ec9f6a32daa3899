import random

import torch
from hypothesis import given
from hypothesis import strategies as st

from paceline.kv_cache import LayerShape, SlotCache


def new_cache(rows=2, slots=8):
    shapes = [LayerShape(2, 3, 3), LayerShape(1, 4, 5), LayerShape(2, 3, 3)]
    return SlotCache(shapes, rows, slots, torch.float32, torch.device("cpu"))


def append(cache, first_row, tokens):
    """Append tokens (a list per row) whose keys and values are the token itself."""
    width = len(tokens[0])
    cache.open(first_row, len(tokens), width)
    for layer, shape in enumerate(cache.shapes):
        values = torch.tensor(tokens, dtype=torch.float32)[:, None, :, None]
        cache.append(
            layer,
            values.expand(-1, shape.num_heads, -1, shape.key_size),
            values.expand(-1, shape.num_heads, -1, shape.value_size),
        )


def stored(cache, row):
    """The committed tokens of a row, which every layer, head and coordinate must agree on."""
    contents = [t[0, :, :].permute(1, 0, 2).flatten(1) for pair in cache.committed([row]) for t in pair]
    together = torch.cat(contents, 1)[: cache.lengths[row]]
    assert (together == together[:, :1]).all()
    return together[:, 0].int().tolist()


def test_an_accepted_path_moves_to_the_front_in_every_layer():
    cache = new_cache()
    append(cache, 0, [[10, 11, 12, 13], [20, 21, 22, 23]])
    cache.keep([[2, 3], []])
    assert stored(cache, 0) == [10, 12, 13]
    assert stored(cache, 1) == [20]
    append(cache, 0, [[14, 15], [24, 25]])
    cache.keep([[], [1]])
    assert stored(cache, 0) == [10, 12, 13, 14]
    assert stored(cache, 1) == [20, 24, 25]


def test_growing_and_moving_rows_keep_what_is_stored():
    cache = new_cache(1, 4)
    append(cache, 0, [[1, 2, 3]])
    cache.extend([3])
    cache.reserve(3, 20)
    append(cache, 1, [[7, 8]])
    cache.extend([1])
    assert (stored(cache, 0), stored(cache, 1)) == ([1, 2, 3], [7])
    cache.move(1, 0)
    assert cache.lengths[:2] == [1, 0]
    assert stored(cache, 0) == [7]


def test_moving_a_row_onto_itself_changes_nothing():
    cache = new_cache()
    append(cache, 0, [[1, 2]])
    cache.extend([2])
    cache.move(0, 0)
    assert stored(cache, 0) == [1, 2]


def test_appending_does_not_allocate_and_returns_views():
    cache = new_cache()
    cache.open(0, 2, 3)
    keys, _ = cache.append(0, torch.ones(2, 2, 3, 3), torch.ones(2, 2, 3, 3))
    assert keys.untyped_storage().data_ptr() == cache.committed([0])[0][0].untyped_storage().data_ptr()


def test_reserve_within_the_capacity_keeps_the_storage():
    cache = new_cache(2, 8)
    before = cache.committed([0])[0][0].untyped_storage().data_ptr()
    cache.reserve(2, 8)
    assert cache.committed([0])[0][0].untyped_storage().data_ptr() == before


@given(st.integers(0, 10**6), st.lists(st.sampled_from(["round", "move", "clear", "save", "grow"]), max_size=14))
def test_any_history_leaves_what_lists_would(seed, history):
    rng = random.Random(seed)
    cache, rows, saved, token = new_cache(2, 40), [[], []], None, 0
    for step in history:
        row = rng.randrange(2)
        if step == "round":
            width = rng.randint(1, 4)
            passes = [list(range(token + 10 * r, token + 10 * r + width)) for r in range(2)]
            token += 20
            paths = [sorted(rng.sample(range(1, width), rng.randint(0, width - 1))) for _ in range(2)]
            append(cache, 0, passes)
            cache.keep(paths)
            for r in range(2):
                rows[r] = rows[r] + [passes[r][i] for i in (0, *paths[r])]
        elif step == "move":
            cache.move(row, 1 - row)
            rows[1 - row], rows[row] = rows[row], []
        elif step == "clear":
            cache.clear(row)
            rows[row] = []
        elif step == "grow":
            cache.reserve(2, cache.num_slots + rng.randint(1, 30))
        else:
            saved = saved or (cache.save(row), rows[row])
            length = rng.randint(0, len(saved[1]))
            cache.clear(row)
            cache.restore(row, saved[0], length)
            rows[row] = saved[1][:length]
        if max(map(len, rows)) > cache.num_slots - 5:
            break
    assert [stored(cache, r) for r in range(2)] == rows

"""minigrid_*: states, views, actions, rewards and ends against the minigrid package; layouts; the planner; options."""

from __future__ import annotations

import itertools
import warnings
from collections import Counter

import gymnasium
import numpy as np
import pytest

import shoal
from shoal import config, registry
from shoal.errors import ShoalError

from .minigrid_reference import (
    BALL,
    CLOSED,
    DONE,
    DOOR,
    DROP,
    EMPTY,
    FORWARD,
    GREEN_GOAL,
    GREY_WALL,
    KEY,
    LEFT,
    LOCKED,
    PICKUP,
    RIGHT,
    TASKS,
    TOGGLE,
    Explorer,
    Rememberer,
    World,
    make,
    put,
    reference,
    see,
    solve,
    take,
)

minigrid = pytest.importorskip("minigrid")
MIXES = {  # how often random play chooses an action
    "walk": [0.2, 0.2, 0.4, 0.05, 0.05, 0.05, 0.05],
    "handle": [0.15, 0.15, 0.2, 0.15, 0.15, 0.15, 0.05],
}
OPTIONS = {
    "minigrid_empty": [{"max_steps": 60}, {"random_start": 1, "max_steps": 40}],
    "minigrid_doorkey": [{"max_steps": 90}, {"size": 5, "max_steps": 60}],
    "minigrid_fourrooms": [{"max_steps": 60}],
    "minigrid_unlock": [{"max_steps": 80}],
    "minigrid_memory": [{"max_steps": 70}, {"random_length": 1, "max_steps": 50}],
    "minigrid_multiroom": [{"rooms": 2, "max_room_size": 4, "max_steps": 40}, {"max_steps": 80}],
}
CASES = [(name, options) for name, all_options in OPTIONS.items() for options in all_options]
IDS = [f"{name[9:]}-{'-'.join(map(str, options.values()))}" for name, options in CASES]


# ---- against the reference ----


@pytest.mark.parametrize(("name", "options"), CASES, ids=IDS)
def test_the_reference_replays_every_step(name, options):
    """Half of the envs play at random, half follow the planner, so that episodes end in every way."""
    rng, num_envs = np.random.default_rng(5), 8
    vec, worlds, obs = make(name, num_envs, seed=3, **options)
    envs = [reference(name, **options) for _ in range(num_envs)]
    plans: list[list[int]] = [[] for _ in range(num_envs)]

    def enter(k, world):
        envs[k].reset()
        put(envs[k], world)
        plans[k] = (solve(world, name) or []) if k % 2 else []

    for k, world in enumerate(worlds.read()):
        enter(k, world)
        assert obs[k].tolist() == see(envs[k])
    ends = Counter()
    for step in range(100):
        mix = MIXES["walk" if step % 20 < 10 else "handle"]
        actions = np.array([plans[k].pop(0) if plans[k] else rng.choice(7, p=mix) for k in range(num_envs)])
        obs, rewards, terminated, truncated, infos = vec.step(actions)
        after = worlds.read() if terminated.any() or truncated.any() else []
        for k, env in enumerate(envs):
            _, reward, ended, cut, _ = env.step(int(actions[k]))
            assert rewards[k] == pytest.approx(reward, abs=1e-6)
            assert (bool(terminated[k]), bool(truncated[k])) == (ended, cut and not ended)
            over = ended or cut
            seen = infos["final_obs"][k] if over else obs[k]
            assert seen.tolist() == see(env)
            if over:
                ends["won" if reward > 0 else "lost" if ended else "late"] += 1
                enter(k, after[k])
    assert ends["won"] >= 4
    assert ends["late"] >= 1


def random_world(rng, side):
    """Any objects anywhere inside a frame of walls; the agent on what it may stand on, with anything it may carry."""
    colors = rng.integers(6, size=(side, side))
    kinds = rng.choice(
        [EMPTY, KEY, BALL, DOOR, CLOSED, LOCKED], p=[0.62, 0.1, 0.08, 0.08, 0.06, 0.06], size=(side, side)
    )
    cells = np.where(kinds == EMPTY, EMPTY, kinds | colors << 4)
    draw = rng.random((side, side))
    cells[draw < 0.12] = GREY_WALL
    cells[draw > 0.95] = GREEN_GOAL
    cells[[0, -1], :] = GREY_WALL
    cells[:, [0, -1]] = GREY_WALL
    x, y = map(int, rng.integers(1, side - 1, 2))
    if rng.random() < 0.5 or int(cells[y, x]) & 15 not in (EMPTY, DOOR):
        cells[y, x] = rng.choice([EMPTY, DOOR | 2 << 4, GREEN_GOAL])
    facing = int(rng.integers(4))
    dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[facing]
    if rng.random() < 0.6 and 0 < x + dx < side - 1 and 0 < y + dy < side - 1:
        kind = int(rng.choice([EMPTY, KEY, BALL, DOOR, CLOSED, LOCKED, LOCKED]))
        cells[y + dy, x + dx] = EMPTY if kind == EMPTY else kind | int(rng.integers(6)) << 4
    ahead, carried = int(cells[y + dy, x + dx]), EMPTY
    if rng.random() < 0.6:
        color = ahead >> 4 if rng.random() < 0.5 and ahead & 15 == LOCKED else int(rng.integers(6))
        carried = int(rng.choice([KEY, BALL], p=[0.8, 0.2])) | color << 4
    return World(cells.astype(np.uint8), x, y, facing, carried, int(rng.integers(50)))


@pytest.mark.parametrize(("name", "side"), [("minigrid_empty", 8), ("minigrid_doorkey", 8), ("minigrid_fourrooms", 19)])
def test_random_worlds_are_seen_and_changed_as_in_the_reference(name, side):
    """Doors of every color and state, wrong keys, things in the way: every action in many of them."""
    rng, count = np.random.default_rng(1), 420
    vec, worlds, _ = make(name, count, seed=0)
    before = [random_world(rng, side) for _ in range(count)]
    worlds.write(before)
    kinds = [LEFT, RIGHT, FORWARD, FORWARD, PICKUP, PICKUP, DROP, DROP, TOGGLE, TOGGLE, TOGGLE, TOGGLE, DONE, 2]
    actions = np.resize(kinds, count)
    obs, rewards, terminated, _, infos = vec.step(actions)
    after, env = worlds.read(), reference(name)
    env.reset()
    changed = 0
    for k, world in enumerate(before):
        put(env, world)
        _, reward, ended, _, _ = env.step(int(actions[k]))
        assert (rewards[k], bool(terminated[k])) == (pytest.approx(reward, abs=1e-6), ended)
        assert (infos["final_obs"][k] if ended else obs[k]).tolist() == see(env)
        if not ended:
            ours, theirs = after[k], take(env)
            assert (ours.cells == theirs.cells).all()
            assert (ours.x, ours.y, ours.facing) == (theirs.x, theirs.y, theirs.facing)
            assert (ours.carried, ours.steps) == (theirs.carried, theirs.steps)
            changed += int((ours.cells != world.cells).any())
    assert changed > 25


# ---- layouts ----


def features(name, world):
    """What a layout can be told by. Each is compared on its own."""
    doors, keys, goals = world.find(DOOR, CLOSED, LOCKED), world.find(KEY), world.find(GREEN_GOAL & 15)
    walls = int((world.cells == GREY_WALL).sum())
    found = {"agent x": world.x, "agent y": world.y, "facing": world.facing, "walls": walls // 6}
    if name == "minigrid_memory":
        found |= {"objects": tuple(int(world.cells[y, x]) for x, y in world.find(KEY, BALL)), "walls": walls}
    elif name != "minigrid_multiroom":
        for k, place in enumerate([*doors, *keys]):
            found |= {f"thing {k} x": place[0], f"thing {k} y": place[1]}
        for x, y in doors:
            found["color"] = int(world.cells[y, x]) >> 4
        if name == "minigrid_fourrooms":
            gaps = [int(np.flatnonzero(line != GREY_WALL)[0]) for line in (world.cells[9, 1:], world.cells[1:, 9])]
            found |= {"gap": gaps[0], "other gap": gaps[1]}
    else:
        found |= {"doors": len(doors), "first door x": doors[0][0] // 3, "first door y": doors[0][1] // 3}
        found["color"] = int(world.cells[doors[0][1], doors[0][0]]) >> 4
        found["span"] = (np.ptp([x for x, _ in doors]) // 3, np.ptp([y for _, y in doors]) // 3)
        found["cells"] = int((world.cells == EMPTY).sum()) // 12
    for x, y in goals:
        found |= {"goal x": x // 2, "goal y": y // 2}
    return found


@pytest.mark.parametrize("name", OPTIONS)
def test_layouts_are_distributed_as_in_the_reference(name):
    """No value of any feature is more or less common than there by more than five standard errors."""
    options = {"random_length": 1} if name == "minigrid_memory" else {"random_start": 1} if name[9:] == "empty" else {}
    compare_layouts(name, options, ours=2000, theirs=100 if name == "minigrid_multiroom" else 300)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "options"),
    [
        ("minigrid_doorkey", {"size": 6}),
        ("minigrid_fourrooms", {}),
        ("minigrid_unlock", {}),
        ("minigrid_memory", {"size": 17, "random_length": 1}),
        ("minigrid_multiroom", {}),
        ("minigrid_multiroom", {"rooms": 4, "max_room_size": 5}),
    ],
)
def test_many_layouts_are_distributed_as_in_the_reference(name, options):
    compare_layouts(name, options, ours=20000, theirs=4000)


def compare_layouts(name, options, ours, theirs):
    _, worlds, _ = make(name, ours, seed=11, **options)
    env = reference(name, **options)
    env.reset(seed=1)
    counts = Counter((feature, value) for world in worlds.read() for feature, value in features(name, world).items())
    wanted: Counter = Counter()
    for _ in range(theirs):
        env.reset()
        wanted.update(features(name, take(env)).items())
    for key in counts.keys() | wanted.keys():
        share = (counts[key] + wanted[key]) / (ours + theirs)
        error = np.sqrt(share * (1 - share) * (1 / ours + 1 / theirs))
        assert abs(counts[key] / ours - wanted[key] / theirs) <= 5 * error + 1e-9, key


@pytest.mark.parametrize("name", OPTIONS)
def test_every_layout_can_be_solved_and_pays_what_the_rule_says(name):
    """The planner's actions, in all envs at once: the reward is that of their number."""
    count = 20
    vec, worlds, _ = make(name, count, seed=2)
    plans = [solve(world, name) for world in worlds.read()]
    limit = int(vec.get_params()["max_steps"][0])
    open_plans = set(range(count))
    for step in range(1, 1 + max(len(plan) for plan in plans)):
        actions = np.array([plan[step - 1] if step <= len(plan) else DONE for plan in plans])
        _, rewards, terminated, _, _ = vec.step(actions)
        for k in sorted(open_plans):
            assert bool(terminated[k]) == (step == len(plans[k]))
            if terminated[k]:
                assert rewards[k] == pytest.approx(1 - 0.9 * step / limit, abs=1e-6)
                open_plans.remove(k)
    assert not open_plans


def test_the_explorer_solves_what_it_has_to_search_for():
    """A scripted player that has only the observations: they tell enough, and they tell the truth."""
    for name in ("minigrid_doorkey", "minigrid_unlock", "minigrid_multiroom"):
        vec, _, obs = make(name, 2, seed=1)
        players, solved = [Explorer(name) for _ in range(2)], np.zeros(2, bool)
        for _ in range(120):
            actions = [DONE if done else player.act(row) for player, row, done in zip(players, obs, solved)]
            obs, _, terminated, _, _ = vec.step(np.array(actions))
            solved |= terminated
            if solved.all():
                break
        assert solved.all()


def test_the_rememberer_scores_what_the_toml_says():
    """With the params of the toml, hallways of random length: it looks first, and always takes the right object."""
    count = 24
    vec, _, obs = make("minigrid_memory", count, seed=1, random_length=1)
    players, returns = [Rememberer("minigrid_memory") for _ in range(count)], np.zeros(count)
    for _ in range(40):
        actions = [DONE if paid else player.act(row) for player, row, paid in zip(players, obs, returns)]
        obs, rewards, *_ = vec.step(np.array(actions))
        returns += np.where(returns, 0, rewards)
    score = config.toml.loads(registry.find("minigrid_memory").with_suffix(".toml").read_text())["score"]
    assert returns.mean() == pytest.approx(score["scripted"], abs=0.003)


def test_doors_of_neighbouring_rooms_differ_in_color():
    """In the order in which the planner opens them."""
    vec, worlds, _ = make("minigrid_multiroom", 10, seed=8)
    before = worlds.read()
    plans = [solve(world, "minigrid_multiroom") for world in before]
    colors = [[] for _ in plans]
    for step in range(max(map(len, plans))):
        states = worlds.read()
        for k, plan in enumerate(plans):
            if step < len(plan) and plan[step] == TOGGLE:
                dx, dy = ((1, 0), (0, 1), (-1, 0), (0, -1))[states[k].facing]
                colors[k].append(int(states[k].cells[states[k].y + dy, states[k].x + dx]) >> 4)
        vec.step(np.array([plan[step] if step < len(plan) else DONE for plan in plans]))
    assert {len(row) for row in colors} == {5}
    assert all(a != b for row in colors for a, b in itertools.pairwise(row))


def test_rooms_leave_the_last_row_free_and_touch_the_other_edges():
    """MiniGrid compares the bottom of a room with >=, the right with >."""
    _, worlds, _ = make("minigrid_multiroom", 1000, seed=6)
    cells = np.array([world.cells for world in worlds.read()])
    assert (cells[:, -1] == EMPTY).all()
    assert all((edge != EMPTY).any() for edge in (cells[:, -2], cells[:, 0], cells[:, :, 0], cells[:, :, -1]))


# ---- single rules ----


def test_the_wrong_object_ends_memory_without_a_reward():
    vec, worlds, _ = make("minigrid_memory", 2, seed=0, size=7)
    (world, _), end = worlds.read(), 4
    cells = world.cells.copy()
    cells[2, 1], cells[1, 5], cells[5, 5] = KEY | 1 << 4, KEY | 1 << 4, BALL | 1 << 4
    worlds.write([World(cells, end + 1, 3, facing, EMPTY, 9) for facing in (3, 1)])
    _, rewards, terminated, _, _ = vec.step(np.array([FORWARD, FORWARD]))
    assert terminated.tolist() == [True, True]
    assert rewards.tolist() == [pytest.approx(1 - 0.9 * 10 / 245), 0]
    stats = vec.drain_stats()
    assert (stats["solved"]["mean"], stats["chosen"]["mean"]) == (0.5, 1)


def test_objects_of_memory_cannot_be_taken():
    vec, worlds, _ = make("minigrid_memory", 1, seed=0)
    (world,) = worlds.read()
    worlds.write([World(world.cells, 1, 6, 3, EMPTY, 0)])
    for action in (PICKUP, TOGGLE, FORWARD):
        _, _, terminated, _, _ = vec.step(np.array([action]))
        (after,) = worlds.read()
        assert (after.cells == world.cells).all()
        assert (after.x, after.y, after.carried, terminated[0]) == (1, 6, EMPTY, False)


def test_a_key_can_be_put_down_and_taken_again():
    vec, worlds, _ = make("minigrid_doorkey", 1, seed=0)
    key = KEY | 4 << 4
    cells = worlds.read()[0].cells.copy()
    cells[1:7, 1:7] = EMPTY
    cells[3, 4] = key
    worlds.write([World(cells, 3, 3, 0, EMPTY, 0)])
    seen = []
    for action in (PICKUP, PICKUP, RIGHT, DROP, DROP, LEFT, RIGHT, PICKUP):
        obs, *_ = vec.step(np.array([action]))
        (world,) = worlds.read()
        seen.append((world.carried == key, int(world.cells[4, 3]) == key, int(obs[0, 3 * (3 * 7 + 6)]) == KEY))
    held, laid = (True, False, True), (False, True, False)
    assert seen == [held, held, held, laid, laid, laid, laid, held]


def test_without_a_time_limit_success_pays_one():
    vec, worlds, _ = make("minigrid_empty", 1, seed=0, max_steps=0)
    (world,) = worlds.read()
    worlds.write([World(world.cells, 5, 6, 0, EMPTY, 500)])
    _, rewards, terminated, _, _ = vec.step(np.array([FORWARD]))
    assert (rewards[0], terminated[0]) == (1, True)


@pytest.mark.parametrize("name", ["minigrid_doorkey", "minigrid_memory"])
def test_one_hot_planes_show_the_same_cells(name):
    """Every kind of cell has its plane; unseen cells have none; the last four are the direction."""
    (plain, _, bytes_), (planes, _, bits) = make(name, 64, seed=4), make(name, 64, seed=4, one_hot=1)
    rng = np.random.default_rng(0)
    order = [(EMPTY, 0), (2, 0), (DOOR, 0), (DOOR, 1), (DOOR, 2), (KEY, 0), (BALL, 0), (GREEN_GOAL & 15, 0)]
    met = set()
    for _ in range(60):
        cells, shown = bytes_[:, :147].reshape(64, 49, 3), bits[:, :392].reshape(64, 49, 8)
        for k, (kind, state) in enumerate(order):
            there = (cells[:, :, 0] == kind) & (cells[:, :, 2] == state)
            assert (there == shown[:, :, k]).all()
            met |= {k} if there.any() else set()
        assert (bits[:, 392:].argmax(1) == bytes_[:, 147]).all()
        assert (bits[:, 392:].sum(1) == 1).all()
        actions = rng.choice(7, p=MIXES["handle"], size=64)
        bytes_, bits = plain.step(actions)[0], planes.step(actions)[0]
    assert len(met) >= 4


# ---- options ----


@pytest.mark.parametrize("task", TASKS)
def test_presets_are_the_registered_ids(task):
    """The same grid, time limit and start as the id that a preset's description names."""
    gymnasium.register_envs(minigrid)
    spec = shoal.make(f"minigrid_{task}", 1).native_spec
    presets = {preset.name: preset.help for preset in spec.presets}
    ids = {"": {"fourrooms": "MiniGrid-FourRooms-v0", "unlock": "MiniGrid-Unlock-v0"}.get(task), **presets}
    assert len(ids) > 1 or ids[""]
    for preset, text in ids.items():
        if text is None:
            continue
        with warnings.catch_warnings():  # an older version of an id is meant
            warnings.simplefilter("ignore")
            env = gymnasium.make(text.split(",")[0]).unwrapped
        env.reset(seed=0)
        ours = shoal.make(f"minigrid_{task}", 1, **({"preset": preset} if preset else {}))
        params = ours.get_params()
        assert int(params["max_steps"][0]) == env.max_steps
        if task in ("empty", "doorkey", "memory"):
            sizes = {const.name: const.default for const in ours.native_spec.consts}  # of the library in use
            assert sizes["size"] == env.width
        if task == "empty":
            assert bool(params["random_start"][0]) == (env.agent_start_pos is None)
        if task == "memory":
            assert bool(params["random_length"][0]) == env.random_length
        if task == "multiroom":
            rooms = env.minNumRooms, env.maxNumRooms, env.maxRoomSize
            assert (int(params["rooms"][0]),) * 2 + (int(params["max_room_size"][0]),) == rooms


@pytest.mark.parametrize(
    ("name", "options", "message"),
    [
        ("minigrid_memory", {"size": 8}, "odd"),
        ("minigrid_doorkey", {"size": 4}, "size"),
        ("minigrid_multiroom", {"rooms": 0}, "rooms"),
        ("minigrid_multiroom", {"max_room_size": 3}, "max_room_size"),
        ("minigrid_empty", {"one_hot": 2}, "one_hot"),
    ],
)
def test_bad_options_are_refused(name, options, message):
    with pytest.raises(ShoalError, match=message):
        shoal.make(name, 1, **options)


def test_a_chain_that_does_not_fit_is_as_long_as_it_can_be():
    """Sixteen rooms on a map of 10 x 10: fewer doors, but a goal that can be reached."""
    _, worlds, _ = make("minigrid_multiroom", 20, seed=0, size=10, rooms=16)
    for world in worlds.read():
        assert 1 <= len(world.find(CLOSED)) < 15
        assert solve(world, "minigrid_multiroom")

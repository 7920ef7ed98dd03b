"""Checks of a league's Triton kernels, run by tests/test_league_device.py in a process of their own: `GROUP`."""

from __future__ import annotations

import sys
from typing import Any

import torch

import shoal
from shoal.algos.collect.league import LeagueCollector
from shoal.algos.fast import fused, fused_core, kernels, member_kernels, members
from shoal.league.games import Games
from shoal.league.seating import Seating
from tests.fake_gpu import GpuLikeVec
from tests.in_flight import hazards
from tests.training import make_trainer, tiny

DUEL = "tests/duel.h"


def check_order() -> None:
    """Every row has one slot, in a tile of its own member; the rows of a member ascend."""
    torch.manual_seed(0)
    for envs, per_env, pool in ((6, 1, 4), (50, 3, 64), (300, 1, 3), (64, 1, 1)):
        order = members.Order(envs * per_env, per_env, pool, torch.device("cpu"))
        order.uses_kernels = True
        for _ in range(2):
            member = torch.randint(0, pool, (envs,))
            order.update(member)
            found: dict[int, list[int]] = {}
            for tile, owner in enumerate(order.tiles.tolist()):
                if owner < 0:
                    continue
                slots = range(tile * members.TILE, min((tile + 1) * members.TILE, int(order.limits[owner])))
                found.setdefault(owner, []).extend(int(order.order[slot]) for slot in slots)
            for owner, rows in found.items():
                assert rows == (order.member == owner).nonzero().squeeze(1).tolist()
            assert sorted(row for rows in found.values() for row in rows) == list(range(envs * per_env))
    print("checked order")


def check_linear() -> None:
    """A product with the weights of each row's member, with and without bias and summand."""
    torch.manual_seed(0)
    order = members.Order(150, 1, 5, torch.device("cpu"))
    for inputs, outputs in ((7, 3), (40, 70), (64, 20)):
        bank = torch.randn(5, outputs * inputs + outputs + 11)
        columns = bank[:, 3 : 3 + outputs * inputs].view(5, outputs, inputs)
        biases = bank[:, 3 + outputs * inputs : 3 + outputs * inputs + outputs]
        weight = members.MemberWeight(columns, order, "fp32")
        bias = members.MemberWeight(biases, order, "fp32")
        x, add = torch.randn(150, inputs), torch.randn(150, outputs)
        member = torch.randint(0, 5, (150,))
        results = []
        for order.uses_kernels in (False, True):
            order.update(member)
            results.append(
                [
                    torch.nn.functional.linear(x, weight, bias),  # type: ignore[arg-type]
                    torch.mm(x, weight.t()),  # type: ignore[arg-type]
                    torch.addmm(add, x, weight.t()),  # type: ignore[arg-type]
                ]
            )
        for plain, fast in zip(*results):
            torch.testing.assert_close(plain, fast, rtol=1e-4, atol=1e-4)
        row = 17
        alone = columns[member[row]] @ x[row] + biases[member[row]]
        torch.testing.assert_close(results[1][0][row], alone, rtol=1e-4, atol=1e-4)
    print("checked linear")


def check_referee() -> None:
    """Counts, returns and new opponents equal those of the plain path."""
    torch.manual_seed(0)
    for players, groups in ((2, ()), (3, ()), (4, ("red=0,3", "blue=1,2"))):
        vec = shoal.make(DUEL, 12 * 16, players=players, backend="serial")
        one, two = (Games(Seating(vec, groups, 2), seed=1, margin=0.3) for _ in range(2))
        for games in (one, two):
            games.set_probs([0.2] * 5)
            games.draw()
            games.begin_all()
        for _ in range(4):
            rewards, over = torch.randn(192 * players).round(decimals=1), torch.rand(192) < 0.4
            one.draw()
            two.draw()
            one.finish_step(rewards, over)
            two._referee(rewards, over)
            for name, mine in one.tensors().items():
                theirs = two.tensors()[name]
                if mine.dtype == torch.float32:
                    torch.testing.assert_close(mine, theirs)
                else:
                    assert torch.equal(mine, theirs), name
        assert int(one.counts.sum()) > 200
        vec.close()
    print("checked referee")


CASES: list[dict[str, Any]] = [
    {},
    {"nn": {"hidden": 16, "core": "lstm"}, "train": {"normalize_obs": True}, "env": {"early": 1, "max_steps": 4}},
    {"nn": {"hidden": 16, "core": "mingru"}},
]


def check_collector() -> None:
    """Iterations of a league on a GPU, whose kernels act for all members, against one on the CPU."""
    for case in CASES:
        league = {"on": True, "pool": 5, "every": 1, "snapshot": 20, "latest": 0.3, "members": ("high",)}
        tables = tiny(**{**case, "env": {"players": 2, **case.get("env", {})}})
        tables["vec"] |= {"num_envs": 12}
        tables["train"] |= {"learning_rate": 0.05, "total_steps": 10**6, "horizon": 4, "epochs": 1, "minibatches": 1}
        plain, fused_one, grouped = (make_trainer(DUEL, **tables, league=league) for _ in range(3))
        for trainer in (fused_one, grouped):
            learner, play = trainer.learners[0], trainer.league
            learner.native = learner.rollout.acting = None
            vec = GpuLikeVec(trainer.vec)
            if play.robots is not None:
                play.robots.given = list(map(torch.from_numpy, trainer.vec.memory.table.given.values()))
            if trainer is fused_one:
                kind = fused_core.FusedCore if learner.rollout.state else fused.Fused
                learner.fused = kind(learner, 16, exact=True)
                learner.optimizer.rate = torch.tensor(learner.config.learning_rate)
            play.members = members.make_members(play, vec, {}, learner.rollout.horizon)
            if trainer is grouped:
                play.members.precision = "fp32"
            play.members.order.uses_kernels = True
            trainer.collector = LeagueCollector(vec, trainer.seats, [learner.fused], play.members)
            trainer.collector.uses_kernels = True
        for number in range(4):
            for trainer in (plain, fused_one, grouped):
                trainer.iterate()
            one = plain.learners[0]
            for other in (fused_one, grouped):
                two = other.learners[0]
                assert torch.equal(plain.league.games.member, other.league.games.member), number
                assert torch.equal(one.rollout.actions, two.rollout.actions), number
                for mine, theirs in zip([*one.rollout.obs, one.weights], [*two.rollout.obs, two.weights]):
                    torch.testing.assert_close(mine, theirs, rtol=5e-3, atol=5e-4)
        assert len(set(plain.league.games.member.tolist())) > 2
        for trainer in (plain, fused_one, grouped):
            trainer.close()
        print("checked collector", case)


def check_parts() -> None:
    check_order()
    check_linear()
    check_referee()


def check_compiles() -> None:
    """Every kernel compiles for a GPU, which needs none."""
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    shape = {"D": 118, "DP": 128, "H": 128, "A": 7, "ACT": 1, "UNIT": 1.0, "NORM": True, "MASKED": True}
    shape |= {"DTYPE": kernels.BFLOAT16, "BM": 64}
    sort = {"PER_ENV": 1, "MEMBERS": 64, "BM": 256}
    none = dict.fromkeys(("hidden", "cell", "new_hidden", "new_cell"))
    absent = dict.fromkeys(("masks", "to_masks", "to_alive", "to_truncated", "to_final"))
    product = {"BIASED": True, "ADDS": False, "add": None, "BM": 64, "BN": 64, "BK": 32}
    jobs: list[tuple[Any, dict[str, Any], int]] = [
        (member_kernels.count_rows, sort, 8),
        (member_kernels.plan_tiles, {"TILE": 64, "MEMBERS": 64, "BLOCKS": 128, "TILES": 128}, 8),
        (member_kernels.place_rows, sort, 8),
        (member_kernels.act, {**shape, **none, "G": 0, "RECURRENT": False}, 4),
        (member_kernels.act, {**shape, "G": 4, "RECURRENT": True}, 4),
        (member_kernels.act, {**shape, "cell": None, "new_cell": None, "G": 3, "RECURRENT": False}, 4),
        (member_kernels.linear, {**product, "PRECISION": "tf32", "DTYPE": kernels.FLOAT32}, 4),
        (member_kernels.linear, {**product, "PRECISION": "tf32", "DTYPE": kernels.BFLOAT16}, 4),
        (member_kernels.inputs, {"PART": 256}, 4),
        (member_kernels.take, {"TRUNCATES": True, "ALIVE": True, "MASKS": 7, "BM": 32, "PART": 64}, 4),
        (member_kernels.take, {**absent, "TRUNCATES": False, "ALIVE": False, "MASKS": 0, "BM": 32, "PART": 64}, 4),
        (member_kernels.referee, {"MEMBERS": 64, "AGENTS": 4, "SIDES": 2, "SIZE": 2, "BM": 128}, 4),
    ]
    whole = {"rows", "size", "blocks", "num_tiles", "stride", "narrow_stride", "IN", "OUT", "envs"}
    longs = {"member", "next_member", "learner", "side", "sides", "places"}
    for kernel, constants, warps in jobs:
        kinds = {}
        for name in kernel.arg_names:
            kind = "*fp32"
            if name in constants:
                kind = "constexpr"
            elif name in whole:
                kind = "i32"
            elif name == "margin":
                kind = "fp32"
            elif name in longs or (name == "counts" and kernel is member_kernels.referee):
                kind = "*i64"
            elif name in ("order", "tiles", "limits", "counts", "starts", "env_actions"):
                kind = "*i32"
            elif name in ("masks", "to_masks", "is_over") or name.removeprefix("to_") in ("done", "truncated", "alive"):
                kind = "*i8"
            elif name == "narrow":
                kind = "*bf16"
            kinds[name] = kind
        places = {(kernel.arg_names.index(name),): value for name, value in constants.items()}
        aligned = [k for k, name in enumerate(kernel.arg_names) if kinds[name][0] == "*" or name == "narrow_stride"]
        source = ASTSource(kernel, kinds, places, {(k,): [["tt.divisibility", 16]] for k in aligned})
        made = triton.compile(source, GPUTarget("cuda", 90, 32), options={"num_warps": warps})
        assert made.metadata.shared <= 227 * 1024, (kernel.__name__, made.metadata.shared)
        assert not hazards(made.asm["ttgir"]), (kernel.__name__, hazards(made.asm["ttgir"]))
        print("checked", kernel.__name__)


if __name__ == "__main__":
    globals()[f"check_{sys.argv[1]}"]()

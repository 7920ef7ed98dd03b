"""Random lives of rows, as rollouts for a Replay and as plain lists that say what it must hold."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
from gymnasium import spaces

from shoal.algos import replay as replays
from shoal.algos.actor import Actor
from shoal.algos.dqn import DQN
from shoal.algos.q import make_policy
from shoal.algos.replay import END, LAST, STEP
from shoal.algos.roles import Role
from shoal.algos.rollout import Rollout
from shoal.nn.policy import Net


def make_actor(agents=1, obs=None, choices=3):
    obs = obs or spaces.Box(-np.inf, np.inf, (2,), np.float32)
    role, net = Role(None, (), obs, spaces.Discrete(choices)), Net(hidden=8)
    policy, head = make_policy(DQN(), role, net, agents)
    return Actor(obs, role.action_space, net, seed=0, policy=policy, head=head, agents=agents)


@dataclass
class Lived:
    """One place of a row: what was seen, done and earned, and how it went on."""

    obs: float
    action: int = 0
    reward: float = 0.0
    kind: int = STEP


class World:
    """Random lives of some rows: rollouts for a Replay, and a list of places for each row."""

    def __init__(self, actor, rows, horizon, seed, can_die=True, masks=False, fixed=False):
        self.rng, self.rows, self.horizon = np.random.default_rng(seed), rows, horizon
        self.rollout = Rollout(
            actor, horizon, rows, has_dead_rows=can_die, mask_size=actor.head.choices if masks else 0
        )
        if fixed:  # as on a GPU: one place for each row, which is cut off at most once in a rollout
            self.rollout.truncations.reserve(horizon)
        self.can_die, self.lives = can_die, [[] for _ in range(rows)]
        self.tells_masks = bool(seed % 2) and not fixed  # whether the masks of last observations are known
        self.last_masks = {}  # of observations of kind LAST
        self.alive = np.ones(rows, bool)
        self.number = 0.0
        self.now = [self.fresh() for _ in range(rows)]

    def fresh(self):
        self.number += 1.0
        return self.number

    def play(self):
        """One rollout."""
        r, rng = self.rollout, self.rng
        truncations = r.truncations
        truncations.clear()
        if truncations.is_fixed:
            truncations.fixed_flags.zero_()
        was_cut = set()
        for t in range(self.horizon):
            cut_rows, cut_obs = [], []
            for row in range(self.rows):
                r.obs[0][t, row] = self.now[row]
                if r.alive is not None:
                    r.alive[t, row] = bool(self.alive[row])
                if r.masks is not None:
                    r.masks[t, row] = mask_of(self.now[row])
                reward, action = float(rng.integers(-9, 10)), int(rng.integers(3))
                over, cut = rng.random() < 0.15, rng.random() < 0.15
                if truncations.is_fixed and row in was_cut:
                    cut = False
                if not self.alive[row]:  # its zeros mean nothing
                    back = rng.random() < 0.4
                    r.rewards[t, row], r.dones[t, row], r.actions[t, row, 0] = 77.0, back, 2
                    if back:
                        self.alive[row], self.now[row] = True, self.fresh()
                    continue
                cut = cut and not over
                r.rewards[t, row], r.dones[t, row], r.actions[t, row, 0] = reward, over or cut, action
                kind = END if over else replays.TRUNCATED if cut else STEP
                self.lives[row].append(Lived(self.now[row], action, reward, kind))
                self.now[row] = self.fresh()
                if cut:
                    was_cut.add(row)
                    told = self.now[row] if self.tells_masks else self.lives[row][-1].obs
                    self.last_masks[self.now[row]] = mask_of(told)
                    self.lives[row].append(Lived(self.now[row], kind=LAST))
                    cut_rows.append(row)
                    cut_obs.append(self.now[row])
                    if truncations.is_fixed:
                        truncations.fixed_flags[t, row] = True
                        truncations.obs[0][0, row] = self.now[row]
                    self.now[row] = self.fresh()
                if (over or cut) and self.can_die and rng.random() < 0.5:
                    self.alive[row], self.now[row] = False, 0.0
            if cut_rows and not truncations.is_fixed:
                last = torch.tensor(cut_obs).unsqueeze(1).expand(-1, 2).clone()
                masks = torch.stack([self.last_masks[one] for one in cut_obs]) if self.tells_masks else None
                truncations.add(t, torch.tensor(cut_rows), [last], (), masks)
        for row in range(self.rows):
            r.obs[0][self.horizon, row] = self.now[row]
            if r.alive is not None:
                r.alive[self.horizon, row] = bool(self.alive[row])
            if r.masks is not None:
                r.masks[self.horizon, row] = mask_of(self.now[row])

    def begin_anew(self):
        """The envs were lost, and new ones begin."""
        for row, life in enumerate(self.lives):
            if life and life[-1].kind == STEP:
                life[-1].kind = replays.TRUNCATED
                life.append(Lived(self.now[row], kind=LAST))
            self.alive[row], self.now[row] = True, self.fresh()

    def window(self, row, k, n, gamma):
        """(return, next observation, its discount) of at most n steps from place k of a row, step by step."""
        life, total, weight = self.lives[row], 0.0, 1.0
        for i in range(k, min(k + n, len(life))):
            total += weight * life[i].reward
            weight *= gamma
            if life[i].kind == END:
                return total, None, 0.0
            after = life[i + 1].obs if i + 1 < len(life) else self.now[row]
            if life[i].kind == replays.TRUNCATED:
                break
        return total, after, weight


def mask_of(number):
    """Some mask that follows from an observation."""
    return torch.tensor([1, int(number) % 2, int(number) // 2 % 2], dtype=torch.int8)

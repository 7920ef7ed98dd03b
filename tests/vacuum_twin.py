"""The rules of vacuum once more, slowly and plainly, for one env: what shoal/envs/vacuum.h must agree with to the bit.

All numbers of the game are float32, as in C. The library's part (time limit, autoreset, returns, stats) is here too.
"""

from __future__ import annotations

from typing import Any

import numpy as np

F = np.float32
STEPS = [(-1, 0), (1, 0), (0, -1), (0, 1), (0, 0)]  # up, down, left, right, stay as (dy, dx)
STAY = 4
STATS = [f"kills_{k}" for k in range(8)]
STATS += "hits_on_charger hits_off_charger deaths_by_robot deaths_by_wall deaths_by_hunger".split()
STATS += "charges occupancy dust_taken pursuit".split()
ROBOTS = "learner stay random safe-random seek flee opportunistic hunt".split()


class Rng:
    """xoshiro128++, seeded by SplitMix64, as in core/env.h."""

    def __init__(self, seed: int) -> None:
        words = []
        for k in (1, 2):
            x = (seed + k * 0x9E3779B97F4A7C15) % 2**64
            x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9 % 2**64
            x = (x ^ (x >> 27)) * 0x94D049BB133111EB % 2**64
            x ^= x >> 31
            words += [x % 2**32, x >> 32]
        self.s = words

    def int(self, n: int) -> int:
        s = self.s
        total = (s[0] + s[3]) % 2**32
        result = ((total << 7 | total >> 25) + s[0]) % 2**32
        t = s[1] << 9 & 0xFFFFFFFF
        s[2] ^= s[0]
        s[3] ^= s[1]
        s[1] ^= s[2]
        s[0] ^= s[3]
        s[2] ^= t
        s[3] = (s[3] << 11 | s[3] >> 21) & 0xFFFFFFFF
        return result * n >> 32


class Robot:
    def __init__(self, number: int, params: dict[str, Any]) -> None:
        self.number = number
        self.start = F(params[f"energy_{number}"])
        self.attack = F(params[f"attack_{number}"])
        self.speed, self.stuns, self.dock_turns = (params[f"{name}_{number}"] for name in ("speed", "stun", "dock"))
        self.plays = ROBOTS[params[f"robot_{number}"]]
        self.is_allied = bool(params["alliance"] >> number & 1)
        self.energy = self.start
        self.place = (0, 0)
        self.is_out = False
        self.stun = self.docked = 0
        self.reward = self.before = F(0)

    def distance(self, place: tuple[int, int]) -> int:
        return abs(self.place[0] - place[0]) + abs(self.place[1] - place[1])


class Twin:
    def __init__(self, consts: dict[str, int], params: dict[str, Any], seed: int) -> None:
        self.consts, self.params, self.rng = consts, params, Rng(seed)
        self.side = consts["side"]
        self.reset()

    # ---- episodes ----

    def reset(self) -> None:
        params, side, count = self.params, self.side, self.consts["chargers"]
        self.robots = [Robot(k, params) for k in range(self.consts["robots"])]
        corners = [(0, 0), (0, side - 1), (side - 1, 0), (side - 1, side - 1)]
        usual = [(side // 2, side // 2)] if count == 1 else corners
        self.chargers = []
        for k in range(count):
            y, x = params[f"charger_y_{k}"], params[f"charger_x_{k}"]
            self.chargers.append((usual[k][0] if y < 0 else y, usual[k][1] if x < 0 else x))
        middles = [(0, side // 2), (side // 2, 0), (side // 2, side - 1), (side - 1, side // 2)]
        start = ["corner", "random", "thief"][params["start"]]
        free = [(y, x) for y in range(side) for x in range(side)]
        waiting = list(self.robots)
        if start == "thief":
            self.robots[-1].place = self.chargers[0]
            free.remove(self.chargers[0])
            waiting.pop()
        for robot in waiting:
            robot.place = (corners + middles)[robot.number] if start == "corner" else free.pop(self.rng.int(len(free)))
        self.dust = {(y, x): F(0) for y in range(side) for x in range(side)}
        self.order = list(self.robots)
        self.shuffle()
        self.tick = self.tries = self.nearer = 0
        self.on_turn, self.sub = self.order[0], 0
        self.was_alive = [True] * len(self.robots)
        self.returns = [F(0)] * len(self.robots)
        self.totals: dict[str, Any] = {}

    def shuffle(self) -> None:
        if not self.params["order"]:
            return
        for k in range(len(self.order) - 1, 0, -1):
            pick = self.rng.int(k + 1)
            self.order[k], self.order[pick] = self.order[pick], self.order[k]

    def step(self, actions: list[int]) -> dict[str, Any]:
        """Everything that the library shows of this env after the step; resets it if the episode is over."""
        self.stats: dict[str, Any] = dict.fromkeys(STATS, F(0))
        for robot in self.robots:
            robot.reward, robot.before = F(0), robot.energy
        round_is_over = False
        while True:
            self.sub_move(self.on_turn, self.choice(self.on_turn, actions))
            round_is_over = self.pass_turn()
            if self.params["semantics"] or round_is_over:
                break
        self.tick += 1
        for robot in self.robots:
            robot.reward += F(self.params["reward_energy"]) * (robot.energy - robot.before)
            self.stats["occupancy"] += F(not robot.is_out and self.charger_of(robot) is not None)
        self.stats["pursuit"] = F(self.nearer) / F(max(self.tries, 1))
        return self.show()

    def show(self) -> dict[str, Any]:
        for name, value in self.stats.items():
            self.totals[name] = value if name == "pursuit" else self.totals.get(name, F(0)) + value
        timeout = 0 < self.params["max_steps"] <= self.tick
        rewards = [r.reward if was else F(0) for r, was in zip(self.robots, self.was_alive)]
        terminated = [was and r.is_out for r, was in zip(self.robots, self.was_alive)]
        truncated = [timeout and not r.is_out for r in self.robots]
        done = [a or b for a, b in zip(terminated, truncated)]
        self.returns = [total + reward for total, reward in zip(self.returns, rewards)]
        shown: dict[str, Any] = {"rewards": rewards, "terminated": terminated, "truncated": truncated}
        shown["final"] = {
            k: (self.observe(self.robots[k]), self.returns[k], self.tick) for k, ended in enumerate(done) if ended
        }
        shown["stats"] = None
        if timeout or all(r.is_out for r in self.robots):
            shown["stats"] = {**self.totals, "occupancy": self.totals["occupancy"] / F(self.tick)}
            self.reset()
        else:
            self.was_alive = [not r.is_out for r in self.robots]
        return {**shown, **self.view()}

    def view(self) -> dict[str, Any]:
        nothing = np.zeros_like(self.observe(self.robots[0]))
        size = 5 ** self.consts["moves"]
        return {
            "obs": [self.observe(r) if alive else nothing for r, alive in zip(self.robots, self.was_alive)],
            "alive": self.was_alive,
            "masks": [
                [1] * size if not alive or self.may_act(r) else [0] * (size - 1) + [1]
                for r, alive in zip(self.robots, self.was_alive)
            ],
        }

    # ---- turns ----

    def may_act(self, robot: Robot) -> bool:
        waits = self.params["semantics"] and robot is not self.on_turn
        return not waits and robot.stun == 0 and robot.plays == "learner"

    def choice(self, robot: Robot, actions: list[int]) -> int:
        if robot.plays != "learner":
            return self.scripted(robot)
        which = 0 if self.params["semantics"] else min(self.sub, self.consts["moves"] - 1)
        return actions[robot.number] // 5**which % 5

    def pass_turn(self) -> bool:
        self.sub += 1
        if not self.on_turn.is_out and self.sub < self.on_turn.speed:
            return False
        self.sub = 0
        if all(robot.is_out for robot in self.robots):
            return True
        place = self.order.index(self.on_turn)
        later = [robot for robot in self.order[place + 1 :] if not robot.is_out]
        if later:
            self.on_turn = later[0]
            return False
        self.grow_dust()
        self.shuffle()
        self.on_turn = next(robot for robot in self.order if not robot.is_out)
        return True

    def grow_dust(self) -> None:
        for place, amount in self.dust.items():
            rate, most = (F(0.25), F(3)) if place in self.chargers else (F(0.5), F(10))
            if self.consts["dust"]:
                self.dust[place] = amount + rate * (amount + F(0.5)) * (F(1) - amount / most)

    # ---- one sub-move ----

    def sub_move(self, robot: Robot, move: int) -> None:
        params, is_last = self.params, self.sub == robot.speed - 1
        if robot.stun:
            move = STAY
        if is_last:
            robot.energy -= F(params["e_decay"])
        if move != STAY and not params["e_move_always"]:
            robot.energy -= F(params["e_move"])
        cause = "wall" if robot.energy > 0 and move != STAY else "hunger"
        if not self.go(robot, move):
            cause = "hunger"
        if robot.energy > 0 and is_last:
            self.charge(robot)
            if params["e_move_always"]:
                robot.energy -= F(params["e_move"])
            cause = "hunger"
        if robot.energy <= 0:
            self.remove(robot)
            self.stats[f"deaths_by_{cause}"] += F(1)
        elif is_last:
            self.end_turn(robot)

    def end_turn(self, robot: Robot) -> None:
        if self.consts["dust"]:
            taken = self.dust[robot.place]
            robot.reward += F(self.params["reward_dust"]) * taken
            self.stats["dust_taken"] += taken
            self.dust[robot.place] = F(0)
        most = [self.top, robot.start, F(np.inf)][self.params["cap"]]
        if robot.energy > most:
            if self.params["before_cap"]:
                robot.before -= robot.energy - most
            robot.energy = most
        robot.stun = max(robot.stun - 1, 0)

    @property
    def top(self) -> Any:
        return max(robot.start for robot in self.robots)

    def inside(self, place: tuple[int, int]) -> bool:
        return 0 <= place[0] < self.side and 0 <= place[1] < self.side

    def robot_at(self, place: tuple[int, int]) -> Robot | None:
        return next((robot for robot in self.robots if not robot.is_out and robot.place == place), None)

    def go(self, robot: Robot, move: int) -> bool:
        """Whether it ran into the wall."""
        if move == STAY:
            return False
        prey = self.nearest_opponent(robot) if robot.number == 0 else None
        was, target = prey and robot.distance(prey.place), ahead(robot.place, move)
        victim = self.robot_at(target)
        if not self.inside(target):
            robot.energy -= F(self.params["e_boundary"])
        elif victim is None:
            robot.place = target
        else:
            self.hit(robot, victim, move)
        if prey:
            self.tries += 1
            self.nearer += victim is prey or robot.distance(prey.place) < was
        return not self.inside(target)

    def hit(self, robot: Robot, victim: Robot, move: int) -> None:
        if robot.is_allied and victim.is_allied:
            if robot.energy > 0:
                robot.energy = victim.energy = F(0.5) * (robot.energy + victim.energy)
            return
        self.stats["hits_off_charger" if self.charger_of(victim) is None else "hits_on_charger"] += F(1)
        victim.energy -= robot.attack
        victim.stun = max(victim.stun, robot.stuns)
        victim.docked = 0
        behind = ahead(victim.place, move)
        if self.inside(behind) and self.robot_at(behind) is None:
            robot.place, victim.place = victim.place, behind
        if victim.energy <= 0:
            self.remove(victim)
            self.stats[f"kills_{robot.number}"] += F(1)
            self.stats["deaths_by_robot"] += F(1)

    def remove(self, robot: Robot) -> None:
        robot.energy, robot.is_out = F(0), True
        robot.reward += F(self.params["reward_death"])

    def reaches(self, charger: tuple[int, int], robot: Robot) -> bool:
        far = max(abs(charger[0] - robot.place[0]), abs(charger[1] - robot.place[1]))
        return far <= self.params["charger_range"]

    def charger_of(self, robot: Robot) -> tuple[int, int] | None:
        return next((charger for charger in self.chargers if self.reaches(charger, robot)), None)

    def charge(self, robot: Robot) -> None:
        charger = self.charger_of(robot)
        if charger is None:
            robot.docked = 0
        elif robot.docked < robot.dock_turns:
            robot.docked += 1
        else:
            sharing = [r for r in self.robots if not r.is_out and self.reaches(charger, r)]
            if len(sharing) == 1 or not self.params["exclusive"]:
                robot.energy += F(self.params["e_charge"]) / F(len(sharing))
                robot.reward += F(self.params["reward_charge"])
                self.stats["charges"] += F(1)

    # ---- scripted robots ----

    def nearest_opponent(self, robot: Robot) -> Robot | None:
        others = [r for r in self.robots if r is not robot and not r.is_out and not (r.is_allied and robot.is_allied)]
        return min(others, key=lambda other: robot.distance(other.place), default=None)

    def scripted(self, robot: Robot) -> int:
        if robot.plays == "random":
            return self.rng.int(5)
        if robot.plays == "safe-random":
            safe = [move for move in range(5) if self.inside(ahead(robot.place, move))]
            return safe[self.rng.int(len(safe))]
        if robot.plays == "seek":
            return self.seek(robot)
        enemy = self.nearest_opponent(robot)
        if robot.plays == "hunt" and enemy:
            return toward(robot.place, enemy.place)
        if robot.plays == "flee" and enemy:
            return self.flee(robot, enemy)
        if robot.plays == "opportunistic":
            return self.flee(robot, enemy) if enemy and robot.distance(enemy.place) <= 2 else self.seek(robot)
        return STAY

    def seek(self, robot: Robot) -> int:
        if self.charger_of(robot) is not None:
            return STAY
        return toward(robot.place, min(self.chargers, key=robot.distance))

    def flee(self, robot: Robot, enemy: Robot) -> int:
        moves = [m for m in range(4) if self.inside(ahead(robot.place, m)) and not self.robot_at(ahead(robot.place, m))]
        return max([STAY, *moves], key=lambda move: enemy.distance(ahead(robot.place, move)))

    # ---- what a robot sees ----

    def observe(self, robot: Robot) -> Any:
        cell, share = F(1) / F(self.side - 1), F(1) / self.top
        others = [other for other in self.robots if other is not robot]
        own = [cell * F(robot.place[1]), cell * F(robot.place[0]), share * robot.energy]
        free, walls, seen = [], [], []
        for move in range(4):
            there = ahead(robot.place, move)
            walls.append(F(not self.inside(there)))
            free.append(F(self.inside(there) and self.robot_at(there) is None))
        for other in others:
            seen += [F(0)] * 3 if other.is_out else [*self.way(robot, other.place), share * other.energy]
        for charger in self.chargers:
            seen += self.way(robot, charger)
        obs = own + walls + seen if self.params["layout"] else own + seen + free
        if self.consts["timers"]:
            obs += [F(0.1) * F(robot.stun), F(0.1) * F(robot.docked)]
            for other in others:
                obs += [F(0)] * 2 if other.is_out else [F(0.1) * F(other.stun), F(0.1) * F(other.docked)]
            limit = self.params["max_steps"]
            obs.append(F(self.tick) / F(limit) if limit else F(0))
        if self.consts["see_dust"]:
            obs += [F(0.1) * self.dust[place] for place in sorted(self.dust)]
        return np.array(obs, F)

    def way(self, robot: Robot, place: tuple[int, int]) -> list[Any]:
        cell = F(1) / F(self.side - 1)
        return [cell * F(place[1] - robot.place[1]), cell * F(place[0] - robot.place[0])]


def ahead(place: tuple[int, int], move: int) -> tuple[int, int]:
    return place[0] + STEPS[move][0], place[1] + STEPS[move][1]


def toward(place: tuple[int, int], goal: tuple[int, int]) -> int:
    """Along the longer way first; along the row where both are as long."""
    dy, dx = goal[0] - place[0], goal[1] - place[1]
    if abs(dy) > abs(dx):
        return 0 if dy < 0 else 1
    return 2 if dx < 0 else 3 if dx > 0 else STAY

// turns.h: two agents that take turns: who begins, who plays a seat, and how a game ends.
//
// A header includes it after core/env.h. It has the params `first`, `robot_0` and `robot_1`, the stats `wins_0`,
// `wins_1` and `wins_first`, and defines LAST_ROBOT, the last choice of `robot_*`.
#ifndef SHOAL_BOARD_TURNS_H
#define SHOAL_BOARD_TURNS_H

enum { LEARNER, RANDOM };  // the first choices of `robot_*`

// Who plays an agent: a robot, or LEARNER.
ENV_FN int32_t robot_of(const Params *p, int32_t agent) {
    int32_t who = agent ? p->robot_1 : p->robot_0;
    return who >= RANDOM && who <= LAST_ROBOT ? who : LEARNER;
}

// The agent that begins. Every game draws one number for it.
ENV_FN int32_t first_agent(const Params *p, Rng *rng) {
    int32_t drawn = rng_int(rng, 2);
    return p->first == 1 ? 0 : p->first == 2 ? 1 : drawn;
}

// The game is over; `winner` is -1 if nobody won.
ENV_FN void end_turns(int32_t winner, int32_t first, Step *out) {
    for (int32_t agent = 0; agent < 2; agent++) {
        out->rewards[agent] = winner < 0 ? 0.0f : winner == agent ? 1.0f : -1.0f;
        out->terminations[agent] = 1;
    }
    out->stats.wins_0 = (float)(winner == 0);
    out->stats.wins_1 = (float)(winner == 1);
    out->stats.wins_first = (float)(winner == first);
}

#endif

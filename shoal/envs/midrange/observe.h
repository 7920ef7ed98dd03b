// observe.h: the 49 floats that a side sees. All of it is relative to its own aircraft.

// Time to cover `range` at `closing`, as a share of 40 s; 1 if it takes longer, or for ever.
ENV_FN float time_share(float range, float closing) {
    return closing > 1.0f ? m_min(range / (40.0f * closing), 1.0f) : 1.0f;
}

ENV_FN float time_left(const State *s, const Params *p) {
    if (p->time_limit <= 0.0f) return 1.0f;
    return m_clamp(1.0f - (float)s->t * decision_time(p) / p->time_limit, 0.0f, 1.0f);
}

ENV_FN void observe_enemy(const State *s, const Params *p, int32_t side, Obs *obs) {
    const Body *own = &s->body[side];
    Track track = track_of(s, p, side);
    if (!is_remembered(p, track.age)) {
        for (int32_t k = 0; k < 8; k++) obs[k] = 0.0f;
        return;
    }
    Sight enemy = look(own, track);
    float speed = m_sqrt(track.vx * track.vx + track.vy * track.vy), per_speed = 1.0f / m_max(speed, 1e-3f);
    obs[0] = enemy.range * (1.0f / 50000.0f);
    obs[1] = enemy.left;
    obs[2] = enemy.ahead;
    obs[3] = (own->dx * track.vy - own->dy * track.vx) * per_speed;
    obs[4] = (own->dx * track.vx + own->dy * track.vy) * per_speed;
    obs[5] = speed * (1.0f / 500.0f);
    obs[6] = -enemy.closing * (1.0f / 1500.0f);
    obs[7] = p->sensors ? 1.0f - track.age / (p->memory + 1e-3f) : 1.0f;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    const Body *own = &s->body[agent];
    Nearest mine = nearest_missiles(s, p, agent, &s->body[1 - agent], 0);
    Nearest theirs = nearest_missiles(s, p, 1 - agent, own, 1);
    obs[0] = own->speed * (1.0f / 500.0f);
    obs[1] = own->rudder;
    obs[2] = s->throttle[agent];
    obs[3] = (float)s->ammo[agent] * (1.0f / 6.0f);
    obs[4] = s->cooldown[agent];
    obs[5] = (float)mine.count * (1.0f / (float)channels);
    obs[6] = time_left(s, p);
    observe_enemy(s, p, agent, obs + 7);
    obs += 15;
    for (int32_t j = 0; j < 2; j++, obs += 7) {
        int32_t k = theirs.at[j];
        for (int32_t i = 0; i < 7; i++) obs[i] = 0.0f;
        if (k < 0) continue;
        Sight missile = look(own, truth(&s->body[k]));
        obs[0] = 1.0f;
        obs[1] = missile.range * (1.0f / 30000.0f);
        obs[2] = missile.left;
        obs[3] = missile.ahead;
        obs[4] = s->body[k].speed * (1.0f / 1500.0f);
        obs[5] = missile.closing * (1.0f / 2000.0f);
        obs[6] = time_share(missile.range, missile.closing);
    }
    for (int32_t j = 0; j < 2; j++, obs += 5) {
        int32_t k = mine.at[j];
        for (int32_t i = 0; i < 5; i++) obs[i] = 0.0f;
        if (k < 0) continue;
        Sight target = look(&s->body[k], track_of(s, p, k));
        obs[0] = 1.0f;
        obs[1] = target.range * (1.0f / 30000.0f);
        obs[2] = s->body[k].speed * (1.0f / 1500.0f);
        obs[3] = (float)(s->age[k] < p->missile_burn);
        obs[4] = time_share(target.range, target.closing);
    }
    for (int32_t i = 0; i < 10; i++) obs[i] = 0.0f;
    if (p->space_time) stg_features(s, p, agent, obs);
}

// minatar_invaders.h: shoot down waves of aliens that march down the board and shoot back.
//
// MinAtar's Space Invaders (Young & Tian 2019, arXiv 1903.03176), from its published description; what that leaves open
// was checked against the package `minatar` 1.0.15, by what it shows. A wave is 4 rows of 6 aliens. They march
// sideways; at the edge they step down instead and turn. They move every `move_interval` frames; of fewer aliens than
// that, every as many frames as there are aliens. Every `shot_interval` frames the alien nearest to the cannon's column
// (the left one of two) shoots, the lowest of its column. Bullets fly one cell a frame. When a wave is shot, the next
// one stands there at once; with `ramping`, each moves one frame more often, down to every 6 frames.
//
// obs: 10 x 10 cells with 6 channels: cannon, alien, alien that moves left, alien that moves right, own bullet, bullet
// of an alien. action: 0 stay, 1 left, 2 up, 3 right, 4 down, 5 fire; up and down do nothing here. With probability
// `sticky` the last action is repeated. After a shot the cannon cools for `cooldown` frames. reward: 1 for each alien.
// The episode ends when a bullet or an alien meets the cannon, or the aliens leave the bottom. Random play earns
// 2.8, a script that dodges and aims 63, Pgx's PPO after 20M frames 145.
#define ENV_OBS OBS_U8(10, 10, 6)
#define ENV_PARAMS(X)                                                                                                  \
    X(float, sticky, 0.1f, "probability that the last action is repeated")                                             \
    X(int, ramping, 1, "1: later waves are faster; 0: all are alike")                                                  \
    X(int, move_interval, 12, "frames from one move of the first wave to the next, at most")                           \
    X(int, shot_interval, 10, "frames between two shots of aliens")                                                    \
    X(int, cooldown, 5, "frames from one shot of the cannon to the next")
#define ENV_LIMITS(X)                                                                                                  \
    X("sticky", 0, 1)                                                                                                  \
    X("ramping", 0, 1)                                                                                                 \
    X("*_interval", 1, 1000)                                                                                           \
    X("cooldown", 1, 1000)
#define ENV_STATS(X)                                                                                                   \
    X(sum, shot, "aliens shot")                                                                                        \
    X(sum, bullets, "bullets fired")                                                                                   \
    X(last, waves, "waves shot down")
#include "minatar/board.h"

enum { CANNON, ALIEN, TO_LEFT, TO_RIGHT, BULLET, ENEMY_BULLET };  // channels
enum { WAVE_ROWS = 4, WAVE = 0xfc, FASTEST = 6, ROW = (1 << SIDE) - 1 };

typedef struct {
    int32_t x;                                                  // the cannon
    int32_t direction;                                          // of the aliens: -1 left, 1 right
    int32_t move_interval;                                      // of this wave
    int32_t move_timer, shot_timer, cooldown;                   // frames left
    int32_t points, waves;                                      // in this episode
    uint16_t aliens[SIDE], bullets[SIDE], enemy_bullets[SIDE];  // a row each; bit x
    uint8_t last;                                               // the action that was played
} State;

ENV_FN void start_wave(State *s) {
    for (int32_t y = 0; y < SIDE; y++) s->aliens[y] = y < WAVE_ROWS ? WAVE : 0;
}

ENV_FN void env_reset(State *s, const Params *p, Rng *rng) {
    (void)rng;
    s->x = 5;
    s->direction = -1;
    s->move_interval = s->move_timer = p->move_interval;
    s->shot_timer = p->shot_interval;
    s->cooldown = s->points = s->waves = 0;
    for (int32_t y = 0; y < SIDE; y++) s->bullets[y] = s->enemy_bullets[y] = 0;
    start_wave(s);
    s->last = 0;
}

ENV_FN int32_t count_bits(uint32_t row) {  // of 10 bits
    row -= row >> 1 & 0x5555;
    row = (row & 0x3333) + (row >> 2 & 0x3333);
    row = (row + (row >> 4)) & 0x0f0f;
    return (int32_t)((row + (row >> 8)) & 31);
}

ENV_FN int32_t count_aliens(const State *s) {
    int32_t count = 0;
    for (int32_t y = 0; y < SIDE; y++) count += count_bits(s->aliens[y]);
    return count;
}

// The columns that have aliens; bit x.
ENV_FN uint32_t alien_columns(const State *s) {
    uint32_t columns = 0;
    for (int32_t y = 0; y < SIDE; y++) columns |= s->aliens[y];
    return columns;
}

// One cell sideways, or one down where the edge is. Returns whether the aliens left the bottom of the board.
ENV_FN int32_t march(State *s) {
    uint32_t edge = s->direction < 0 ? 1u : 1u << EDGE;
    if (alien_columns(s) & edge) {
        int32_t landed = s->aliens[EDGE] != 0;
        uint16_t bottom = s->aliens[EDGE];
        for (int32_t y = EDGE; y > 0; y--) s->aliens[y] = s->aliens[y - 1];
        s->aliens[0] = bottom;
        s->direction = -s->direction;
        return landed;
    }
    for (int32_t y = 0; y < SIDE; y++) {
        s->aliens[y] = (uint16_t)(s->direction < 0 ? s->aliens[y] >> 1 : s->aliens[y] << 1);
    }
    return 0;
}

ENV_FN void shoot_back(State *s) {
    uint32_t columns = alien_columns(s);
    for (int32_t k = 0; k < 2 * SIDE; k++) {
        int32_t x = s->x + (k & 1 ? (k + 1) / 2 : -(k / 2));  // x, x + 1, x - 1, x + 2, …
        if (!is_inside(x) || !(columns >> x & 1)) continue;
        int32_t other = 2 * s->x - x;  // as far away; of the two the left one shoots
        x = other < x && other >= 0 && columns >> other & 1 ? other : x;
        int32_t y = EDGE;
        while (y > 0 && !(s->aliens[y] >> x & 1)) y--;
        s->enemy_bullets[y] |= (uint16_t)(1 << x);
        return;
    }
}

ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    int32_t action = stick(&s->last, p->sticky, *a, rng);
    int32_t fires = action == FIRE && s->cooldown == 0;
    s->x = i_clamp(s->x + (action == RIGHT) - (action == LEFT), 0, EDGE);
    s->cooldown = fires ? p->cooldown : s->cooldown;
    for (int32_t y = 0; y < EDGE; y++) s->bullets[y] = s->bullets[y + 1];
    s->bullets[EDGE] = 0;
    s->bullets[EDGE - 1] |= (uint16_t)(fires << s->x);
    for (int32_t y = EDGE; y > 0; y--) s->enemy_bullets[y] = s->enemy_bullets[y - 1];
    s->enemy_bullets[0] = 0;

    int32_t died = (s->enemy_bullets[EDGE] | s->aliens[EDGE]) >> s->x & 1;
    if (s->move_timer <= 0) {
        s->move_timer = i_min(count_aliens(s), s->move_interval);
        died |= march(s);
        died |= s->aliens[EDGE] >> s->x & 1;
    }
    if (s->shot_timer <= 0) {
        s->shot_timer = p->shot_interval;
        shoot_back(s);
    }
    int32_t shot = 0;
    for (int32_t y = 0; y < SIDE; y++) {
        uint16_t both = s->aliens[y] & s->bullets[y];
        s->aliens[y] ^= both;
        s->bullets[y] ^= both;
        shot += count_bits(both);
    }
    s->points += shot;
    s->cooldown -= s->cooldown > 0;
    s->move_timer--;
    s->shot_timer--;
    if (alien_columns(s) == 0) {
        s->move_interval -= p->ramping && s->move_interval > FASTEST;
        s->waves++;
        start_wave(s);
    }
    out->reward = (float)shot;
    out->terminated = died;
    out->stats.shot = (float)shot;
    out->stats.bullets = (float)fires;
    out->stats.waves = (float)s->waves;
}

ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) {
    (void)p, (void)agent;
    clear_planes(obs);
    mark(obs, s->x, EDGE, CANNON);
    int32_t turned = s->direction < 0 ? TO_LEFT : TO_RIGHT;
    for (int32_t y = 0; y < SIDE; y++) {
        if (!(s->aliens[y] | s->bullets[y] | s->enemy_bullets[y])) continue;
        for (int32_t x = 0; x < SIDE; x++) {
            Obs *cell = &obs[(y * SIDE + x) * CHANNELS];
            cell[ALIEN] = cell[turned] = s->aliens[y] >> x & 1;
            cell[BULLET] = s->bullets[y] >> x & 1;
            cell[ENEMY_BULLET] = s->enemy_bullets[y] >> x & 1;
        }
    }
}

ENV_FN int env_check(const State *s, const Params *p) {
    (void)p;
    uint32_t rows = 0;
    for (int32_t y = 0; y < SIDE; y++) rows |= s->aliens[y] | s->bullets[y] | s->enemy_bullets[y];
    return rows <= ROW && is_inside(s->x) && (s->direction == -1 || s->direction == 1) && is_small(s->cooldown) &&
           is_small(s->move_timer) && is_small(s->shot_timer) && is_small(s->move_interval) && is_small(s->points) &&
           is_small(s->waves);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    const uint32_t colors[] = {RED, ORANGE, 0x7bd389, TEAL};
    draw_board(d, 0x080d18);
    for (int32_t k = 0; k < SIDE * SIDE; k++) {
        int32_t y = k / SIDE;
        float left = (float)(k % SIDE), top = (float)y;
        if (s->aliens[y] >> (k % SIDE) & 1) {
            uint32_t color = colors[y & 3];
            draw_rect(d, left + 0.25f, top + 0.2f, 0.5f, 0.45f, color);
            draw_rect(d, left + 0.1f, top + 0.35f, 0.8f, 0.2f, color);
            draw_rect(d, left + 0.2f, top + 0.65f, 0.15f, 0.15f, color);
            draw_rect(d, left + 0.65f, top + 0.65f, 0.15f, 0.15f, color);
            draw_rect(d, left + 0.33f, top + 0.32f, 0.1f, 0.12f, 0x080d18);
            draw_rect(d, left + 0.57f, top + 0.32f, 0.1f, 0.12f, 0x080d18);
        }
        if (s->bullets[y] >> (k % SIDE) & 1) draw_rect(d, left + 0.44f, top + 0.2f, 0.12f, 0.6f, WHITE);
        if (s->enemy_bullets[y] >> (k % SIDE) & 1) draw_rect(d, left + 0.4f, top + 0.2f, 0.2f, 0.6f, 0xffd75e);
    }
    draw_rect(d, (float)s->x + 0.05f, 9.5f, 0.9f, 0.4f, WHITE);
    draw_rect(d, (float)s->x + 0.4f, 9.15f, 0.2f, 0.4f, WHITE);
    draw_score(d, 0.0f, "SCORE ", s->points);
    draw_score(d, 6.0f, "WAVE ", s->waves + 1);
}

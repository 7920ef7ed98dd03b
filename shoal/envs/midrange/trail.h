// trail.h: where the aircraft have been, for the picture: a place every 2 s, the last 32 s.

enum { TRAIL_POINTS = 16, TRAIL_EVERY_S = 2 };
#define TRAIL_UNIT 10.0f  // m: 16 bits reach 327 km

typedef struct {
    int32_t count;  // places kept since the start; place n is in slot n % TRAIL_POINTS
    int16_t x[2][TRAIL_POINTS], y[2][TRAIL_POINTS];
} Trail;

ENV_FN int16_t trail_place(float meters) {
    return (int16_t)m_floor(m_clamp(meters * (1.0f / TRAIL_UNIT), -32000.0f, 32000.0f) + 0.5f);
}

// Keeps the places of both aircraft if it is time to.
ENV_FN void trail_keep(Trail *trail, const Body *aircraft, float seconds) {
    if ((int32_t)(m_min(seconds, 1e6f) * (1.0f / (float)TRAIL_EVERY_S)) < trail->count) return;
    uint32_t slot = (uint32_t)trail->count % TRAIL_POINTS;
    for (int32_t side = 0; side < 2; side++) {
        trail->x[side][slot] = trail_place(aircraft[side].x);
        trail->y[side][slot] = trail_place(aircraft[side].y);
    }
    trail->count++;
}

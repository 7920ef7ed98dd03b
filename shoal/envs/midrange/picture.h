// picture.h: draws a game of midrange.

// ---- drawing ----

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, -60.0f, 60.0f, 60.0f, -60.0f, 0x0e1726);
    for (int32_t k = 0; k < bodies; k++) {
        if (!s->flies[k]) continue;
        float size = k < 2 ? 1.5f : 0.6f;
        draw_circle(d, 0.001f * s->body[k].x, 0.001f * s->body[k].y, size, side_of(k) ? 0xe2556d : 0x37c2b3);
    }
}

// picture.h: the picture of a game. Left the plane from above, right the space-time graph of one side.
//
// The plane: trails, missiles (white below Mach 1), labels with Mach number and load, an arrow at the edge for whatever
// is out of sight. The graph in perspective, from behind the own aircraft and `draw_yaw` degrees to its right: the
// plane lies flat and time goes down, from now on top to 30 s later. In the enemy's color: where a missile that it
// fires now can be. Yellow: the escapes. In the own color: the present course. Orange or light blue: incoming missiles.
// Width 200, height 112, y down.

#define SKY 0x0b1522
#define FAINT 0x1d2f45
#define DIM 0x54708f
#define LIGHT 0xd7e3f0
#define WHITE 0xffffff
#define BLUE 0x58a6ff
#define RED 0xff5c57
#define YELLOW 0xffd84a
#define ORANGE 0xff9f45
#define MACH 340.0f      // m/s
#define BOX 25.0f        // km from the own aircraft to the edges of the graph's grids
#define KM_PER_S 1.1f    // how far down a second goes
#define CAMERA 74.0f     // km from the middle of the graph's box
enum { SPAN_MAX = 50 };  // km that the plane shows at most

ENV_FN uint32_t side_color(int32_t side) { return side == 0 ? BLUE : RED; }
ENV_FN uint32_t missile_color(int32_t side) { return side == 0 ? 0x9fd0ff : ORANGE; }

// ---- text ----

typedef struct {
    char text[64];
    int32_t length;
} Label;

ENV_FN void label_add(Label *label, const char *text) {
    for (int32_t k = 0; k < 63 && text[k] && label->length < 63; k++) label->text[label->length++] = text[k];
    label->text[label->length] = 0;
}

// A number with 0 or 1 decimals.
ENV_FN void label_number(Label *label, float value, int32_t decimals) {
    char digits[12];
    int32_t count = 0, scaled = (int32_t)(m_min(m_abs(value), 1e6f) * (decimals ? 10.0f : 1.0f) + 0.5f);
    if (value < 0.0f && scaled > 0) label_add(label, "-");
    if (decimals) {
        digits[count++] = (char)('0' + scaled % 10);
        digits[count++] = '.';
        scaled /= 10;
    }
    do {
        digits[count++] = (char)('0' + scaled % 10);
        scaled /= 10;
    } while (scaled && count < 11);
    while (count) {
        char digit[2] = {digits[--count], 0};
        label_add(label, digit);
    }
}

// ---- panels ----

typedef struct {
    float left, top, right, bottom;
} Panel;

ENV_FN int32_t is_inside(const Panel *panel, float x, float y) {
    return x >= panel->left && x <= panel->right && y >= panel->top && y <= panel->bottom;
}

// The part of a line that is in the panel (Liang & Barsky 1984).
ENV_FN void draw_clipped(Draw *d, const Panel *panel, float x0, float y0, float x1, float y1, float width,
                         uint32_t color) {
    float dx = x1 - x0, dy = y1 - y0, from = 0.0f, to = 1.0f;
    const float step[4] = {-dx, dx, -dy, dy};
    const float room[4] = {x0 - panel->left, panel->right - x0, y0 - panel->top, panel->bottom - y0};
    for (int32_t k = 0; k < 4; k++) {
        if (step[k] == 0.0f) {
            if (room[k] < 0.0f) return;
            continue;
        }
        float at = room[k] / step[k];
        if (step[k] < 0.0f) {
            from = m_max(from, at);
        } else {
            to = m_min(to, at);
        }
    }
    if (!(from <= to)) return;
    draw_line(d, x0 + from * dx, y0 + from * dy, x0 + to * dx, y0 + to * dy, width, color);
}

// ---- the plane from above ----

typedef struct {
    Panel panel;
    float x, y, scale;  // the point of the plane in the panel's middle, m; panel units per m
} Plane;

ENV_FN float plane_x(const Plane *v, float x) {
    return 0.5f * (v->panel.left + v->panel.right) + (x - v->x) * v->scale;
}
ENV_FN float plane_y(const Plane *v, float y) {
    return 0.5f * (v->panel.top + v->panel.bottom) - (y - v->y) * v->scale;
}

// Shows both aircraft if they are close enough, else the side whose graph is shown.
ENV_FN Plane plane_of(const State *s, int32_t side) {
    const Body *own = &s->body[side], *enemy = &s->body[1 - side];
    float dx = enemy->x - own->x, dy = enemy->y - own->y, wide = 0.001f * m_max(m_abs(dx), m_abs(dy));
    Plane v = {{0.0f, 0.0f, 99.0f, 100.0f}, own->x + 0.5f * dx, own->y + 0.5f * dy, 0.0f};
    float span = 10.0f * m_floor(0.1f * (1.25f * wide + 2.0f)) + 10.0f;  // in steps: the scale changes rarely
    if (span > (float)SPAN_MAX) {
        span = (float)SPAN_MAX;
        v.x = own->x;
        v.y = own->y;
    }
    v.scale = 99.0f / (1000.0f * span);
    return v;
}

ENV_FN void draw_grid(Draw *d, const Plane *v) {
    float span = 99.0f / v->scale, spacing = span < 15000.0f ? 1000.0f : 5000.0f;
    float first_x = spacing * (m_floor((v->x - 0.5f * span) / spacing) + 1.0f);
    float first_y = spacing * (m_floor((v->y - 0.51f * span) / spacing) + 1.0f);
    for (int32_t k = 0; k < 16; k++) {
        float x = plane_x(v, first_x + (float)k * spacing), y = plane_y(v, first_y + (float)k * spacing);
        draw_clipped(d, &v->panel, x, 0.0f, x, 100.0f, 0.25f, FAINT);
        draw_clipped(d, &v->panel, 0.0f, y, 99.0f, y, 0.25f, FAINT);
    }
    draw_text(d, 2.0f, 97.0f, 2.6f, spacing < 2000.0f ? "grid 1 km" : "grid 5 km", DIM);
}

ENV_DATA float aircraft_shape[] = {2.6f, 0.0f,  -0.4f, 0.55f, -1.6f, 2.0f,  -1.3f, 0.4f,  -2.2f,
                                   0.9f, -2.2f, -0.9f, -1.3f, -0.4f, -1.6f, -2.0f, -0.4f, -0.55f};
ENV_DATA float arrow_shape[] = {2.0f, 0.0f, -1.4f, 1.4f, -0.6f, 0.0f, -1.4f, -1.4f};

// An arrow at the edge of the panel that points to what is out of sight.
ENV_FN void draw_pointer(Draw *d, const Plane *v, float x, float y, float size, uint32_t color) {
    float middle_x = 0.5f * (v->panel.left + v->panel.right), middle_y = 0.5f * (v->panel.top + v->panel.bottom);
    float dx = x - middle_x, dy = y - middle_y;
    float share = m_min(46.0f / m_max(m_abs(dx), 1e-3f), 46.5f / m_max(m_abs(dy), 1e-3f));
    draw_shape(d, arrow_shape, 4, middle_x + share * dx, middle_y + share * dy, m_atan2(dy, dx), size, color);
}

ENV_FN void draw_trail(Draw *d, const State *s, const Plane *v, int32_t side) {
    float x = plane_x(v, s->body[side].x), y = plane_y(v, s->body[side].y);
    int32_t count = i_clamp(s->trail.count, 0, TRAIL_POINTS);
    for (int32_t k = 0; k < count; k++) {
        int32_t at = (s->trail.count - 1 - k) % TRAIL_POINTS;
        float to_x = plane_x(v, TRAIL_UNIT * (float)s->trail.x[side][at]);
        float to_y = plane_y(v, TRAIL_UNIT * (float)s->trail.y[side][at]);
        uint32_t faded = side == 0 ? (k < 8 ? 0x2f5c8c : 0x203c5c) : (k < 8 ? 0x8c3a3a : 0x5c2a2e);
        draw_clipped(d, &v->panel, x, y, to_x, to_y, 0.5f, faded);
        x = to_x;
        y = to_y;
    }
}

ENV_FN void draw_aircraft(Draw *d, const State *s, const Params *p, const Plane *v, int32_t side) {
    const Body *own = &s->body[side];
    float x = plane_x(v, own->x), y = plane_y(v, own->y);
    uint32_t color = side_color(side);
    if (!is_inside(&v->panel, x, y)) {
        draw_pointer(d, v, x, y, 1.4f, color);
        return;
    }
    if (!s->flies[side]) {
        draw_line(d, x - 2.0f, y - 2.0f, x + 2.0f, y + 2.0f, 0.8f, color);
        draw_line(d, x - 2.0f, y + 2.0f, x + 2.0f, y - 2.0f, 0.8f, color);
        return;
    }
    draw_shape(d, aircraft_shape, 9, x, y, m_atan2(-own->dy, own->dx), 1.0f, color);
    const Airframe frame = airframe_of(s, p, 0);
    Label label = {{0}, 0};
    label_add(&label, "M");
    label_number(&label, own->speed / MACH, 1);
    label_add(&label, " ");
    label_number(&label, m_abs(own->rudder) * own->speed * own->speed * frame.turn / 9.8f, 1);
    label_add(&label, "G");
    float width = draw_text_width(2.6f, label.text);
    float beside = x + 3.2f + width < 98.0f ? x + 3.2f : x - 3.2f - width;
    draw_text(d, beside, m_clamp(y + (own->dy > 0.0f ? 3.6f : -3.6f), 2.0f, 93.0f), 2.6f, label.text, color);
}

ENV_FN void draw_missile(Draw *d, const State *s, const Plane *v, int32_t k) {
    const Body *missile = &s->body[k];
    float x = plane_x(v, missile->x), y = plane_y(v, missile->y);
    int32_t side = side_of(k);
    uint32_t color = missile->speed < MACH ? WHITE : missile_color(side);
    if (!is_inside(&v->panel, x, y)) {
        draw_pointer(d, v, x, y, 0.8f, color);
        return;
    }
    float tail = m_max(2.0f * missile->speed * v->scale, 1.5f);  // 2 s of flight
    draw_clipped(d, &v->panel, x - tail * missile->dx, y + tail * missile->dy, x, y, 0.45f, side_color(side));
    draw_shape(d, arrow_shape, 4, x, y, m_atan2(-missile->dy, missile->dx), 0.7f, color);
}

ENV_FN void draw_plane(Draw *d, const State *s, const Params *p, int32_t side) {
    Plane v = plane_of(s, side);
    draw_grid(d, &v);
    for (int32_t k = 0; k < 2; k++) draw_trail(d, s, &v, k);
    for (int32_t k = 2; k < bodies; k++) {
        if (s->flies[k]) draw_missile(d, s, &v, k);
    }
    for (int32_t k = 0; k < 2; k++) draw_aircraft(d, s, p, &v, k);
}

// ---- the space-time graph ----

typedef struct {
    Panel panel;
    float x, y;    // m, the own aircraft
    float dx, dy;  // the direction into the picture
} GraphView;

// The place in the picture of a point (right, ahead, s from now), in km. Returns 0 behind the camera.
ENV_FN int32_t project(const GraphView *v, float right, float ahead, float t, float *x, float *y) {
    const float cos_pitch = 0.8660254f, sin_pitch = 0.5f, zoom = 1.7320508f;  // pitch 30 degrees, field of view 60
    float up = -KM_PER_S * t + KM_PER_S * 0.5f * (float)GRAPH_SECONDS - CAMERA * sin_pitch;
    float deep = ahead + CAMERA * cos_pitch;
    float depth = deep * cos_pitch - up * sin_pitch;
    if (depth < 1.0f) return 0;
    float half = 0.5f * (v->panel.right - v->panel.left);
    *x = 0.5f * (v->panel.left + v->panel.right) + half * zoom * right / depth;
    *y = 0.5f * (v->panel.top + v->panel.bottom) - half * zoom * (deep * sin_pitch + up * cos_pitch) / depth;
    return 1;
}

ENV_FN int32_t project_point(const GraphView *v, GraphPoint point, float *x, float *y) {
    float dx = 0.001f * (point.x - v->x), dy = 0.001f * (point.y - v->y);
    return project(v, dx * v->dy - dy * v->dx, dx * v->dx + dy * v->dy, point.t, x, y);
}

ENV_FN void draw_3d(Draw *d, const GraphView *v, float right_0, float ahead_0, float t_0, float right_1, float ahead_1,
                    float t_1, float width, uint32_t color) {
    float x0 = 0.0f, y0 = 0.0f, x1 = 0.0f, y1 = 0.0f;
    if (!project(v, right_0, ahead_0, t_0, &x0, &y0) || !project(v, right_1, ahead_1, t_1, &x1, &y1)) return;
    draw_clipped(d, &v->panel, x0, y0, x1, y1, width, color);
}

ENV_FN void draw_segment(Draw *d, const GraphView *v, GraphPoint from, GraphPoint to, float width, uint32_t color) {
    float x0 = 0.0f, y0 = 0.0f, x1 = 0.0f, y1 = 0.0f;
    if (!project_point(v, from, &x0, &y0) || !project_point(v, to, &x1, &y1)) return;
    draw_clipped(d, &v->panel, x0, y0, x1, y1, width, color);
}

// slow_color: where it is slower than Mach 1.
ENV_FN void draw_curve(Draw *d, const GraphView *v, const GraphPoint *points, float width, uint32_t color,
                       uint32_t slow_color) {
    for (int32_t k = 1; k < GRAPH_POINTS; k++) {
        draw_segment(d, v, points[k - 1], points[k], width, points[k].v < MACH ? slow_color : color);
    }
}

ENV_FN void draw_dot(Draw *d, const GraphView *v, GraphPoint point, float radius, uint32_t color) {
    float x = 0.0f, y = 0.0f;
    if (project_point(v, point, &x, &y) && is_inside(&v->panel, x, y)) draw_circle(d, x, y, radius, color);
}

// Grids of 5 km at every 10 s, the edges of the box, and its times.
ENV_FN void draw_box(Draw *d, const GraphView *v) {
    for (int32_t layer = GRAPH_SECONDS; layer >= 0; layer -= 5) {
        float t = (float)layer;
        int32_t is_main = layer == 0 || layer == GRAPH_SECONDS;
        for (int32_t k = -5; k <= 5; k++) {
            float at = 5.0f * (float)k;
            if (!is_main && k != -5 && k != 5) continue;
            uint32_t color = layer == 0 ? 0x2a4059 : FAINT;
            draw_3d(d, v, at, -BOX, t, at, BOX, t, 0.25f, color);
            draw_3d(d, v, -BOX, at, t, BOX, at, t, 0.25f, color);
        }
        float x = 0.0f, y = 0.0f;
        if (project(v, BOX, -BOX, t, &x, &y)) {
            Label label = {{0}, 0};
            label_number(&label, t, 0);
            label_add(&label, " s");
            float at = m_min(x + 0.8f, v->panel.right - draw_text_width(2.4f, label.text) - 0.5f);
            draw_text(d, at, y, 2.4f, layer ? label.text : "now", DIM);
        }
    }
    draw_3d(d, v, 0.0f, 0.0f, 0.0f, 0.0f, 0.0f, (float)GRAPH_SECONDS, 0.25f, 0x2a4059);
    for (int32_t k = 0; k < 4; k++) {
        float right = k & 1 ? BOX : -BOX, ahead = k & 2 ? BOX : -BOX;
        draw_3d(d, v, right, ahead, 0.0f, right, ahead, (float)GRAPH_SECONDS, 0.25f, FAINT);
    }
}

ENV_FN void draw_graph(Draw *d, const State *s, const Params *p, int32_t side) {
    const Body *own = &s->body[side];
    float yaw = m_clamp(p->draw_yaw, -180.0f, 180.0f) * (M_PI_F / 180.0f), c = m_cos(yaw), sine = m_sin(yaw);
    GraphView v = {
        {101.0f, 0.0f, 200.0f, 100.0f}, own->x, own->y, own->dx * c - own->dy * sine, own->dy * c + own->dx * sine};
    Graph graph;
    graph_fill(s, p, side, &graph);
    draw_box(d, &v);
    const Track track = track_of(s, p, side);
    int32_t knows_enemy = is_remembered(p, track.age);
    uint32_t faded = side == 0 ? 0xb5443f : 0x3f78b5;
    for (int32_t t = GRAPH_SECONDS; knows_enemy && t > 0; t -= 5) {  // the fronts, from the last to the first
        for (int32_t k = 1; k < GRAPH_TURNS; k++) {
            GraphPoint from = graph.threat[k - 1][t], to = graph.threat[k][t];
            uint32_t color = to.v < MACH ? LIGHT : t == GRAPH_SECONDS ? side_color(1 - side) : faded;
            draw_segment(d, &v, from, to, t == GRAPH_SECONDS ? 0.6f : 0.4f, color);
        }
    }
    for (int32_t k = 0; knows_enemy && k < GRAPH_TURNS; k += (GRAPH_TURNS - 1) / 2) {
        draw_curve(d, &v, graph.threat[k], 0.5f, side_color(1 - side), LIGHT);
    }
    draw_curve(d, &v, graph.course[0], 0.7f, side_color(side), side_color(side));
    for (int32_t k = 0; knows_enemy && k < 2; k++) {
        draw_curve(d, &v, graph.escape[k], 0.8f, YELLOW, YELLOW);
        for (int32_t t = 10; t <= GRAPH_SECONDS; t += 10) draw_dot(d, &v, graph.escape[k][t], 0.8f, YELLOW);
    }
    for (int32_t k = 0; k < GRAPH_INCOMING; k++)
        draw_curve(d, &v, graph.incoming[k], 0.7f, missile_color(1 - side), WHITE);
    const GraphPoint own_now = {own->x, own->y, 0.0f, own->speed}, enemy_now = {track.x, track.y, 0.0f, 0.0f};
    if (knows_enemy) draw_dot(d, &v, enemy_now, 1.3f, side_color(1 - side));
    draw_dot(d, &v, own_now, 1.3f, side_color(side));
    draw_text(d, 103.0f, 4.0f, 2.6f, side == 0 ? "space-time graph of blue" : "space-time graph of red", DIM);
}

// ---- all of it ----

ENV_FN void label_miss(Label *label, const Params *p, float miss) {
    if (miss < p->kill_radius) {
        label_add(label, "hits");
        return;
    }
    label_number(label, 0.001f * miss, 1);
    label_add(label, " km off");
}

// What the graph says: of the nearest missile in flight, or of one that would be fired now.
ENV_FN void draw_verdict(Draw *d, const State *s, const Params *p, int32_t side, Pose here, Pose there) {
    Label verdict = {{0}, 0};
    int32_t missile = graph_incoming(s, p, side, 0), is_safe = 0;
    if (missile >= 0) {
        float miss[GRAPH_CHASES];
        graph_chase(s, p, side, miss, 0);
        float best = m_max(miss[1], miss[2]);
        label_add(&verdict, "missile ");
        label_miss(&verdict, p, miss[0]);
        label_add(&verdict, ", escape ");
        label_miss(&verdict, p, best);
        is_safe = best >= p->kill_radius;
    } else {
        float left = graph_escape_margin(p, here, there, 1.0f), right = graph_escape_margin(p, here, there, -1.0f);
        is_safe = m_max(left, right) > 0.0f;
        label_add(&verdict, is_safe ? "safe: margin left " : "too late: margin left ");
        label_number(&verdict, 0.001f * left, 1);
        label_add(&verdict, ", right ");
        label_number(&verdict, 0.001f * right, 1);
        label_add(&verdict, " km");
    }
    draw_text(d, 102.0f, 108.5f, 2.6f, verdict.text, is_safe ? 0x7bd389 : YELLOW);
}

ENV_FN void draw_status(Draw *d, const State *s, const Params *p, int32_t side) {
    draw_rect(d, 0.0f, 100.0f, 200.0f, 12.0f, 0x13233a);
    for (int32_t k = 0; k < 2; k++) {
        int32_t in_flight = 0;
        for (int32_t m = first_missile(k); m < first_missile(k) + channels; m++) in_flight += s->flies[m] != 0;
        Label label = {{0}, 0};
        label_add(&label, k == 0 ? "blue  " : "red   ");
        label_number(&label, (float)s->ammo[k], 0);
        label_add(&label, " missiles, ");
        label_number(&label, (float)in_flight, 0);
        label_add(&label, s->flies[k] ? " in flight" : " in flight, down");
        draw_text(d, 2.0f, 103.5f + 5.0f * (float)k, 3.0f, label.text, side_color(k));
    }
    float dx = s->body[1].x - s->body[0].x, dy = s->body[1].y - s->body[0].y;
    Label label = {{0}, 0};
    label_number(&label, (float)s->t * decision_time(p), 0);
    label_add(&label, " s   range ");
    label_number(&label, 0.001f * m_sqrt(dx * dx + dy * dy), 1);
    label_add(&label, " km");
    draw_text(d, 102.0f, 103.5f, 3.0f, label.text, LIGHT);
    const Track track = track_of(s, p, side);
    const Pose here = pose_of(&s->body[side]), there = pose_of_track(track);
    if (!is_remembered(p, track.age) && graph_incoming(s, p, side, 0) < 0) {
        draw_text(d, 102.0f, 108.5f, 3.0f, "no track of the enemy", DIM);
        return;
    }
    draw_verdict(d, s, p, side, here, there);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    int32_t side = p->draw_side == 1;
    draw_view(d, 0.0f, 0.0f, 200.0f, 112.0f, SKY);
    draw_plane(d, s, p, side);
    draw_graph(d, s, p, side);
    draw_rect(d, 99.0f, 0.0f, 2.0f, 100.0f, 0x13233a);
    draw_status(d, s, p, side);
}

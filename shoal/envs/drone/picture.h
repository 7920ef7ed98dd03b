// picture.h: the picture of drone.h, in perspective: a hall seen from above one corner.

// Where the viewer is and looks, for a hall of any size.
typedef struct {
    float eye[3], right[3], up[3], ahead[3];
} Camera;

ENV_FN void normalize3(float *v) {
    float length = m_max(m_sqrt(dot3(v, v)), 1e-6f);
    for (int32_t k = 0; k < 3; k++) v[k] /= length;
}

ENV_FN Camera camera_of(const Params *p) {
    Camera c;
    float hall = p->hall, height = p->hall_height;
    c.eye[0] = -1.35f * hall;
    c.eye[1] = -2.5f * hall;
    c.eye[2] = 0.75f * height + 0.75f * hall;
    c.ahead[0] = -c.eye[0];
    c.ahead[1] = -c.eye[1];
    c.ahead[2] = 0.3f * height - c.eye[2];
    normalize3(c.ahead);
    c.right[0] = c.ahead[1];
    c.right[1] = -c.ahead[0];
    c.right[2] = 0.0f;
    normalize3(c.right);
    c.up[0] = c.right[1] * c.ahead[2];
    c.up[1] = -c.right[0] * c.ahead[2];
    c.up[2] = c.right[0] * c.ahead[1] - c.right[1] * c.ahead[0];
    return c;
}

// Writes where a point of the hall is in the picture; returns how large a metre is there.
ENV_FN float project(const Camera *c, float x, float y, float z, float *out) {
    const float way[3] = {x - c->eye[0], y - c->eye[1], z - c->eye[2]};
    float scale = 1.0f / m_max(dot3(way, c->ahead), 0.1f);
    out[0] = scale * dot3(way, c->right);
    out[1] = scale * dot3(way, c->up);
    return scale;
}

ENV_FN void draw_line_3d(Draw *d, const Camera *c, const float *from, const float *to, float width, uint32_t color) {
    float a[2], b[2], near = project(c, from[0], from[1], from[2], a), far = project(c, to[0], to[1], to[2], b);
    draw_line(d, a[0], a[1], b[0], b[1], 0.5f * width * (near + far), color);
}

// A disc around a point, spanned by two axes of unit length.
ENV_FN void draw_disc(Draw *d, const Camera *c, const float *at, const float *u, const float *v, float radius,
                      uint32_t color) {
    enum { CORNERS = 16 };
    float points[2 * CORNERS];
    for (int32_t k = 0; k < CORNERS; k++) {
        float angle = 6.2831853f * (float)k / (float)CORNERS, x = radius * m_cos(angle), y = radius * m_sin(angle);
        project(c, at[0] + x * u[0] + y * v[0], at[1] + x * u[1] + y * v[1], at[2] + x * u[2] + y * v[2],
                points + 2 * k);
    }
    draw_polygon(d, points, CORNERS, color);
}

ENV_FN void draw_hall(Draw *d, const Camera *c, const Params *p) {
    float hall = p->hall, top = p->hall_height, floor[8];
    project(c, -hall, -hall, 0.0f, floor);
    project(c, hall, -hall, 0.0f, floor + 2);
    project(c, hall, hall, 0.0f, floor + 4);
    project(c, -hall, hall, 0.0f, floor + 6);
    draw_polygon(d, floor, 4, 0x16233a);
    for (int32_t k = 0; k <= 10; k++) {
        float at = hall * (0.2f * (float)k - 1.0f);
        const float a[] = {at, -hall, 0.0f}, b[] = {at, hall, 0.0f}, e[] = {-hall, at, 0.0f}, f[] = {hall, at, 0.0f};
        draw_line_3d(d, c, a, b, 0.02f, 0x24334d);
        draw_line_3d(d, c, e, f, 0.02f, 0x24334d);
    }
    for (int32_t k = 1; k < 4; k++) {  // the posts at the back, and the edge of the ceiling between them
        float x = k == 1 ? hall : k == 2 ? hall : -hall, y = k == 1 ? -hall : hall;
        const float foot[] = {x, y, 0.0f}, head[] = {x, y, top};
        draw_line_3d(d, c, foot, head, 0.04f, 0x24334d);
    }
    const float a[] = {hall, -hall, top}, b[] = {hall, hall, top}, e[] = {-hall, hall, top};
    draw_line_3d(d, c, a, b, 0.04f, 0x24334d);
    draw_line_3d(d, c, b, e, 0.04f, 0x24334d);
}

ENV_FN uint32_t drone_color(int32_t i) {
    const uint32_t colors[] = {0xf2a65a, 0x37c2b3, 0xe2556d, 0x8f7be0, 0x7bd389, 0xf2e86d};
    return colors[i % 6];
}

// The waypoint as a ball over its place on the floor; the next one as a small dot.
ENV_FN void draw_goals(Draw *d, const Camera *c, const Params *p, const Drone *drone, uint32_t color) {
    float radius = m_max(p->goal_radius, 0.05f), at[2];
    const float *goal = drone->goals[0], foot[] = {goal[0], goal[1], 0.0f};
    draw_line_3d(d, c, foot, goal, 0.03f, 0x4a5b78);
    float scale = project(c, goal[0], goal[1], goal[2], at);
    draw_circle(d, at[0], at[1], radius * scale, color);
    draw_circle(d, at[0], at[1], 0.72f * radius * scale, 0x0e1726);
    draw_circle(d, at[0], at[1], 0.25f * radius * scale, color);
    scale = project(c, drone->goals[1][0], drone->goals[1][1], drone->goals[1][2], at);
    draw_circle(d, at[0], at[1], 0.3f * radius * scale, color);
}

ENV_FN void draw_drone(Draw *d, const Camera *c, const Params *p, const Drone *drone, uint32_t color) {
    const float *at = drone->body + AT, x_axis[] = {1.0f, 0.0f, 0.0f}, y_axis[] = {0.0f, 1.0f, 0.0f};
    const float shadow[] = {at[0], at[1], 0.0f};
    float axes[3][3], u[3], v[3], w[3], lever = 0.70710678f * p->arm, zoom = 3.0f;  // larger than life, to be seen
    draw_disc(d, c, shadow, x_axis, y_axis, 1.2f * zoom * p->arm, 0x080d18);
    axes_of(drone->body + TURN, axes);
    for (int32_t k = 0; k < 3; k++) {
        u[k] = axes[k][0];
        v[k] = axes[k][1];
        w[k] = axes[k][2];
    }
    for (int32_t pass = 0; pass < 2; pass++) {  // arms first, then rotors above them
        for (int32_t rotor = 0; rotor < 4; rotor++) {
            float x = zoom * (rotor == 0 || rotor == 3 ? lever : -lever), y = zoom * (rotor < 2 ? lever : -lever);
            float tip[3], hub[3];
            for (int32_t k = 0; k < 3; k++) {
                tip[k] = at[k] + x * u[k] + y * v[k];
                hub[k] = tip[k] + 0.3f * zoom * p->arm * w[k];
            }
            if (pass == 0) {
                draw_line_3d(d, c, at, tip, 0.24f * zoom * p->arm, 0xd8dee9);
                draw_line_3d(d, c, tip, hub, 0.16f * zoom * p->arm, 0xd8dee9);
            } else {
                draw_disc(d, c, hub, u, v, 0.55f * zoom * p->arm, rotor == 0 || rotor == 3 ? color : 0x9aa5b8);
            }
        }
    }
    float centre[2], scale = project(c, at[0], at[1], at[2], centre);
    draw_circle(d, centre[0], centre[1], 0.34f * zoom * p->arm * scale, color);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    Camera camera = camera_of(p);
    int32_t is_drawn[drones];
    draw_view(d, -0.6f, 0.45f, 0.6f, -0.45f, 0x0e1726);
    draw_hall(d, &camera, p);
    for (int32_t i = 0; i < drones; i++) {
        is_drawn[i] = s->drone[i].is_out;
        if (!is_drawn[i]) draw_goals(d, &camera, p, &s->drone[i], drone_color(i));
    }
    for (int32_t turn = 0; turn < drones; turn++) {  // the farthest drone first
        float farthest = -1.0f;
        int32_t chosen = -1;
        for (int32_t i = 0; i < drones; i++) {
            float distance = distance3(camera.eye, s->drone[i].body + AT);
            if (is_drawn[i] || !(distance > farthest)) continue;
            farthest = distance;
            chosen = i;
        }
        if (chosen < 0) break;
        is_drawn[chosen] = 1;
        draw_drone(d, &camera, p, &s->drone[chosen], drone_color(chosen));
    }
    for (int32_t i = 0; i < drones && i < 6; i++) {
        uint32_t color = s->drone[i].is_out ? 0x4a5b78 : drone_color(i);
        draw_value(d, -0.57f + 0.1f * (float)i, 0.41f, 0.04f, "", s->drone[i].count, color);
    }
}

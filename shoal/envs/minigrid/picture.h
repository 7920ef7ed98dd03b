// picture.h: the grid as MiniGrid paints it. Cells that the agent sees are lighter; what it carries is on its back.
#ifndef MINIGRID_PICTURE_H
#define MINIGRID_PICTURE_H

ENV_FN uint32_t paint(int32_t color) {
    const uint32_t paints[] = {0xff4d4d, 0x3ddc5a, 0x4d6dff, 0x9b5de5, 0xffd83d, 0x8a93a3};
    return paints[color < 6 ? color : 0];
}

// The same color, darker: num / 8 of each channel.
ENV_FN uint32_t shade(uint32_t color, uint32_t num) {
    uint32_t r = (color >> 16) * num / 8, g = (color >> 8 & 255) * num / 8, b = (color & 255) * num / 8;
    return r << 16 | g << 8 | b;
}

ENV_FN void draw_door(Draw *d, float x, float y, int32_t kind, uint32_t color) {
    if (kind == DOOR) {
        draw_rect(d, x + 0.86f, y, 0.14f, 1.0f, color);
        return;
    }
    draw_rect(d, x, y, 1.0f, 1.0f, color);
    if (kind == LOCKED) {
        draw_rect(d, x + 0.08f, y + 0.08f, 0.84f, 0.84f, shade(color, 4));
        draw_circle(d, x + 0.68f, y + 0.45f, 0.1f, color);
        draw_rect(d, x + 0.64f, y + 0.45f, 0.08f, 0.25f, color);
        return;
    }
    draw_rect(d, x + 0.06f, y + 0.06f, 0.88f, 0.88f, 0x0b0f16);
    draw_rect(d, x + 0.12f, y + 0.12f, 0.76f, 0.76f, color);
    draw_rect(d, x + 0.18f, y + 0.18f, 0.64f, 0.64f, 0x0b0f16);
    draw_circle(d, x + 0.7f, y + 0.5f, 0.08f, color);
}

ENV_FN void draw_key(Draw *d, float x, float y, float scale, uint32_t color) {
    draw_circle(d, x + 0.5f * scale, y + 0.28f * scale, 0.2f * scale, color);
    draw_circle(d, x + 0.5f * scale, y + 0.28f * scale, 0.08f * scale, 0x0b0f16);
    draw_rect(d, x + 0.44f * scale, y + 0.44f * scale, 0.12f * scale, 0.44f * scale, color);
    draw_rect(d, x + 0.3f * scale, y + 0.6f * scale, 0.16f * scale, 0.08f * scale, color);
    draw_rect(d, x + 0.3f * scale, y + 0.8f * scale, 0.16f * scale, 0.08f * scale, color);
}

ENV_FN void draw_cell(Draw *d, float x, float y, int32_t cell) {
    int32_t kind = kind_of(cell);
    uint32_t color = paint(color_of(cell));
    if (kind == WALL) draw_rect(d, x, y, 1.0f, 1.0f, shade(color, 5));
    if (kind == GOAL) draw_rect(d, x + 0.02f, y + 0.02f, 0.96f, 0.96f, color);
    if (kind == DOOR || kind == CLOSED || kind == LOCKED) draw_door(d, x, y, kind, color);
    if (kind == KEY) draw_key(d, x, y, 1.0f, color);
    if (kind == BALL) draw_circle(d, x + 0.5f, y + 0.5f, 0.32f, color);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    uint8_t view[view_cells];
    float wide = (float)width, high = (float)height;
    draw_view(d, 0.0f, 0.0f, wide, high, 0x0b0f16);
    look_around(s, view);
    int32_t ahead_x = toward_x(s->facing), ahead_y = toward_y(s->facing);
    for (int32_t k = 0; k < view_cells; k++) {
        int32_t right = k / view_side - view_side / 2, far = view_side - 1 - k % view_side;
        int32_t x = s->x + ahead_x * far - ahead_y * right, y = s->y + ahead_y * far + ahead_x * right;
        if (view[k] == UNSEEN || (uint32_t)x >= (uint32_t)width || (uint32_t)y >= (uint32_t)height) continue;
        draw_rect(d, (float)x, (float)y, 1.0f, 1.0f, 0x2a3242);
    }
    for (int32_t x = 0; x <= width; x++) draw_line(d, (float)x, 0.0f, (float)x, high, 0.03f, 0x3a4354);
    for (int32_t y = 0; y <= height; y++) draw_line(d, 0.0f, (float)y, wide, (float)y, 0.03f, 0x3a4354);
    for (int32_t k = 0; k < width * height; k++) {
        draw_cell(d, (float)(k % width), (float)(k / width), s->cells[k]);
    }
    const float nose[] = {0.38f, 0.0f, -0.32f, 0.33f, -0.32f, -0.33f};
    float x = (float)s->x + 0.5f, y = (float)s->y + 0.5f;
    draw_shape(d, nose, 3, x, y, 0.5f * M_PI_F * (float)s->facing, 1.0f, 0xff3b30);
    float back_x = x - 0.1f * (float)ahead_x, back_y = y - 0.1f * (float)ahead_y;
    if (s->carried != EMPTY) draw_circle(d, back_x, back_y, 0.27f, 0x0b0f16);
    if (kind_of(s->carried) == KEY) draw_key(d, back_x - 0.25f, back_y - 0.25f, 0.5f, paint(color_of(s->carried)));
    if (kind_of(s->carried) == BALL) draw_circle(d, back_x, back_y, 0.16f, paint(color_of(s->carried)));
}

#endif

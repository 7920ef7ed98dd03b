// picture.h: left what the player sees, darker at night, over its vitals and inventory; right the whole map.
//
// Width 16.6, height 9.2, in cells of the view; y down.
ENV_DATA uint32_t block_colors[] = {0x000000, 0x0b0f16, 0x5b9a3c, 0x2f6fd0, 0x7d8087, 0x3f7a2c,
                                    0x8a6238, 0xb9a07a, 0x7d8087, 0x7d8087, 0x7d8087, 0x8a5a2b,
                                    0x5a5d63, 0xe3d494, 0xe0621c, 0x5b9a3c, 0x5b9a3c};
enum { MAP_LEFT = 10 };

// Mixes a color with the blue of night; light 1 leaves it as it is.
ENV_FN uint32_t at_light(uint32_t color, float light) {
    float keep = 0.35f + 0.65f * m_clamp(light, 0.0f, 1.0f);
    uint32_t red = (uint32_t)(int32_t)((float)(int32_t)(color >> 16 & 255) * keep);
    uint32_t green = (uint32_t)(int32_t)((float)(int32_t)(color >> 8 & 255) * keep);
    uint32_t blue = (uint32_t)(int32_t)((float)(int32_t)(color & 255) * keep + 30.0f * (1.0f - keep));
    return red << 16 | green << 8 | blue;
}

ENV_FN void draw_spots(Draw *d, float x, float y, uint32_t color) {
    draw_rect(d, x + 0.18f, y + 0.2f, 0.2f, 0.2f, color);
    draw_rect(d, x + 0.6f, y + 0.3f, 0.22f, 0.2f, color);
    draw_rect(d, x + 0.3f, y + 0.62f, 0.24f, 0.2f, color);
}

ENV_FN void draw_block(Draw *d, int32_t block, float x, float y, float light) {
    uint32_t base = at_light(block_colors[block], light);
    draw_rect(d, x, y, 1.01f, 1.01f, base);
    if (block == TREE) {
        draw_rect(d, x, y, 1.01f, 1.01f, at_light(block_colors[GRASS], light));
        draw_rect(d, x + 0.42f, y + 0.6f, 0.16f, 0.36f, at_light(0x6b4524, light));
        draw_circle(d, x + 0.5f, y + 0.4f, 0.38f, at_light(0x2c5c20, light));
        draw_circle(d, x + 0.42f, y + 0.34f, 0.2f, at_light(0x3f7a2c, light));
    } else if (block == STONE) {
        draw_line(d, x + 0.12f, y + 0.35f, x + 0.5f, y + 0.28f, 0.05f, at_light(0x63666c, light));
        draw_line(d, x + 0.45f, y + 0.72f, x + 0.85f, y + 0.66f, 0.05f, at_light(0x63666c, light));
    } else if (block == WATER) {
        draw_line(d, x + 0.15f, y + 0.3f, x + 0.5f, y + 0.3f, 0.06f, at_light(0x5b93e6, light));
        draw_line(d, x + 0.45f, y + 0.7f, x + 0.85f, y + 0.7f, 0.06f, at_light(0x5b93e6, light));
    } else if (block == COAL) {
        draw_spots(d, x, y, at_light(0x1b1c1f, light));
    } else if (block == IRON) {
        draw_spots(d, x, y, at_light(0xe0a878, light));
    } else if (block == DIAMOND) {
        draw_spots(d, x, y, at_light(0x7ef0f2, light));
    } else if (block == TABLE) {
        draw_rect(d, x + 0.08f, y + 0.08f, 0.84f, 0.84f, at_light(0xb98246, light));
        draw_line(d, x + 0.25f, y + 0.3f, x + 0.75f, y + 0.7f, 0.09f, at_light(0x5a3a1c, light));
        draw_line(d, x + 0.25f, y + 0.7f, x + 0.75f, y + 0.3f, 0.09f, at_light(0xd8dade, light));
    } else if (block == FURNACE) {
        draw_rect(d, x + 0.06f, y + 0.06f, 0.88f, 0.88f, at_light(0x8b8f96, light));
        draw_rect(d, x + 0.25f, y + 0.45f, 0.5f, 0.4f, 0x26221f);
        draw_rect(d, x + 0.33f, y + 0.62f, 0.34f, 0.23f, 0xf28a2c);
    } else if (block == LAVA) {
        draw_rect(d, x, y, 1.01f, 1.01f, block_colors[LAVA]);
        draw_line(d, x + 0.15f, y + 0.35f, x + 0.55f, y + 0.3f, 0.1f, 0xffc23d);
        draw_line(d, x + 0.45f, y + 0.72f, x + 0.85f, y + 0.68f, 0.1f, 0xffc23d);
    } else if (block == PLANT || block == RIPE) {
        draw_line(d, x + 0.5f, y + 0.9f, x + 0.5f, y + 0.4f, 0.08f, at_light(0x2c5c20, light));
        draw_line(d, x + 0.5f, y + 0.65f, x + 0.28f, y + 0.48f, 0.1f, at_light(0x2c5c20, light));
        draw_line(d, x + 0.5f, y + 0.6f, x + 0.72f, y + 0.42f, 0.1f, at_light(0x2c5c20, light));
        if (block == RIPE) draw_circle(d, x + 0.5f, y + 0.32f, 0.17f, 0xe2556d);
    }
}

ENV_FN void draw_zombie(Draw *d, float x, float y) {
    draw_rect(d, x + 0.3f, y + 0.12f, 0.4f, 0.32f, 0x3f8f4a);
    draw_rect(d, x + 0.26f, y + 0.44f, 0.48f, 0.3f, 0x2b6d7a);
    draw_rect(d, x + 0.1f, y + 0.46f, 0.2f, 0.1f, 0x3f8f4a);
    draw_rect(d, x + 0.3f, y + 0.74f, 0.16f, 0.2f, 0x2e3350);
    draw_rect(d, x + 0.54f, y + 0.74f, 0.16f, 0.2f, 0x2e3350);
    draw_rect(d, x + 0.37f, y + 0.22f, 0.08f, 0.08f, 0x10141c);
    draw_rect(d, x + 0.55f, y + 0.22f, 0.08f, 0.08f, 0x10141c);
}
ENV_FN void draw_cow(Draw *d, float x, float y) {
    draw_rect(d, x + 0.12f, y + 0.36f, 0.6f, 0.36f, 0xf1ece4);
    draw_rect(d, x + 0.24f, y + 0.4f, 0.18f, 0.16f, 0x4a3426);
    draw_rect(d, x + 0.48f, y + 0.52f, 0.16f, 0.16f, 0x4a3426);
    draw_rect(d, x + 0.66f, y + 0.24f, 0.24f, 0.28f, 0x4a3426);
    draw_rect(d, x + 0.78f, y + 0.42f, 0.14f, 0.1f, 0xe9a7a0);
    draw_rect(d, x + 0.16f, y + 0.72f, 0.1f, 0.18f, 0x4a3426);
    draw_rect(d, x + 0.58f, y + 0.72f, 0.1f, 0.18f, 0x4a3426);
}
ENV_FN void draw_skeleton(Draw *d, float x, float y) {
    draw_rect(d, x + 0.32f, y + 0.1f, 0.36f, 0.3f, 0xe6e6e0);
    draw_rect(d, x + 0.38f, y + 0.2f, 0.09f, 0.09f, 0x10141c);
    draw_rect(d, x + 0.53f, y + 0.2f, 0.09f, 0.09f, 0x10141c);
    draw_rect(d, x + 0.46f, y + 0.4f, 0.08f, 0.36f, 0xe6e6e0);
    draw_line(d, x + 0.3f, y + 0.48f, x + 0.7f, y + 0.48f, 0.06f, 0xe6e6e0);
    draw_line(d, x + 0.34f, y + 0.6f, x + 0.66f, y + 0.6f, 0.05f, 0xe6e6e0);
    draw_line(d, x + 0.48f, y + 0.74f, x + 0.36f, y + 0.94f, 0.07f, 0xe6e6e0);
    draw_line(d, x + 0.52f, y + 0.74f, x + 0.64f, y + 0.94f, 0.07f, 0xe6e6e0);
}
ENV_FN void draw_arrow(Draw *d, float x, float y, int32_t way) {
    float dx = (float)col_step(way), dy = (float)row_step(way), tip_x = x + 0.5f + 0.4f * dx,
          tip_y = y + 0.5f + 0.4f * dy;
    draw_line(d, x + 0.5f - 0.4f * dx, y + 0.5f - 0.4f * dy, tip_x, tip_y, 0.07f, 0x6b4524);
    draw_circle(d, tip_x, tip_y, 0.1f, 0xe6e6e0);
}
ENV_FN void draw_player(Draw *d, const State *s, float x, float y) {
    float dx = (float)col_step(s->facing), dy = (float)row_step(s->facing);
    if (s->asleep) {
        draw_rect(d, x + 0.08f, y + 0.4f, 0.84f, 0.4f, 0xf5f0e6);
        draw_rect(d, x + 0.34f, y + 0.44f, 0.56f, 0.34f, 0xc0392b);
        draw_circle(d, x + 0.22f, y + 0.58f, 0.15f, 0xf0c8a0);
        draw_text(d, x + 0.5f, y + 0.2f, 0.3f, "zz", 0xffffff);
        return;
    }
    draw_rect(d, x + 0.3f, y + 0.4f, 0.4f, 0.34f, 0xf2a65a);
    draw_rect(d, x + 0.32f, y + 0.72f, 0.15f, 0.2f, 0x2e3350);
    draw_rect(d, x + 0.53f, y + 0.72f, 0.15f, 0.2f, 0x2e3350);
    draw_rect(d, x + 0.31f, y + 0.1f, 0.38f, 0.32f, s->facing == UP ? 0x5a3a1c : 0xf0c8a0);
    draw_rect(d, x + 0.31f, y + 0.07f, 0.38f, 0.1f, 0x5a3a1c);
    if (s->facing != UP && s->facing != RIGHT) draw_rect(d, x + 0.38f, y + 0.22f, 0.07f, 0.08f, 0x10141c);
    if (s->facing != UP && s->facing != LEFT) draw_rect(d, x + 0.55f, y + 0.22f, 0.07f, 0.08f, 0x10141c);
    draw_triangle(d, x + 0.5f + 0.56f * dx, y + 0.5f + 0.56f * dy, x + 0.5f + 0.44f * dx + 0.1f * dy,
                  y + 0.5f + 0.44f * dy + 0.1f * dx, x + 0.5f + 0.44f * dx - 0.1f * dy,
                  y + 0.5f + 0.44f * dy - 0.1f * dx, 0xffffff);
}

// Vitals, then what is carried: an item's sign and its number.
ENV_FN void draw_inventory(Draw *d, const State *s) {
    const uint32_t vital_colors[] = {0xe2556d, 0xf2a65a, 0x58a6ff, 0xffd84a};
    const uint32_t colors[] = {0x8a6238, 0x7d8087, 0x1b1c1f, 0xe0a878, 0x7ef0f2, 0x5b9a3c};
    const uint32_t tools[] = {0x8a6238, 0x9a9da4, 0xe6e9ee};
    const int8_t vitals[] = {s->health, s->food, s->drink, s->energy};
    const char *names[] = {"health", "food", "drink", "energy"};
    for (int32_t k = 0; k < 4; k++) {
        float x = 0.15f + 2.25f * (float)k, full = 1.95f * (float)i_clamp(vitals[k], 0, 9) / 9.0f;
        draw_text(d, x, 7.3f, 0.2f, names[k], 0xd7e3f0);
        draw_rect(d, x, 7.45f, 1.95f, 0.22f, 0x24334d);
        draw_rect(d, x, 7.45f, full, 0.22f, vital_colors[k]);
    }
    int32_t shown = 0;
    for (int32_t k = 0; k < ITEMS; k++) {
        if (!s->items[k]) continue;
        float x = 0.15f + 1.5f * (float)(shown % 6), y = 7.85f + 0.65f * (float)(shown / 6);
        shown++;
        if (k < I_PICKAXE) {
            draw_rect(d, x, y, 0.5f, 0.5f, 0x54708f);
            draw_rect(d, x + 0.08f, y + 0.08f, 0.34f, 0.34f, colors[k]);
        } else if (k < I_SWORD) {
            draw_line(d, x + 0.1f, y + 0.45f, x + 0.4f, y + 0.12f, 0.07f, 0x6b4524);
            draw_line(d, x + 0.15f, y + 0.08f, x + 0.45f, y + 0.35f, 0.1f, tools[k - I_PICKAXE]);
        } else {
            draw_line(d, x + 0.18f, y + 0.34f, x + 0.44f, y + 0.06f, 0.1f, tools[k - I_SWORD]);
            draw_line(d, x + 0.08f, y + 0.25f, x + 0.28f, y + 0.44f, 0.06f, 0x6b4524);
        }
        draw_value(d, x + 0.6f, y + 0.27f, 0.3f, "", s->items[k], 0xffffff);
    }
}

// Cells of one color in a row are one rectangle.
ENV_FN void draw_map(Draw *d, const State *s) {
    const float cell = 6.4f / (float)side;
    const uint32_t spots[] = {0x1b1c1f, 0xe0a878, 0x7ef0f2};
    for (int32_t row = 0; row < side; row++) {
        int32_t from = 0;
        for (int32_t col = 1; col <= side; col++) {
            int32_t block = s->map[at(row, from)] & BLOCK;
            if (col < side && (s->map[at(row, col)] & BLOCK) == block) continue;
            uint32_t color = block >= COAL && block <= DIAMOND ? spots[block - COAL] : block_colors[block];
            draw_rect(d, (float)MAP_LEFT + cell * (float)from, 0.2f + cell * (float)row,
                      cell * (float)(col - from) + 0.01f, cell + 0.01f, color);
            from = col;
        }
    }
    float x = (float)MAP_LEFT + cell * ((float)s->col - 4.0f), y = 0.2f + cell * ((float)s->row - 3.0f);
    float right = x + 9.0f * cell, bottom = y + 7.0f * cell;
    draw_line(d, x, y, right, y, 0.05f, 0xffffff);
    draw_line(d, x, bottom, right, bottom, 0.05f, 0xffffff);
    draw_line(d, x, y, x, bottom, 0.05f, 0xffffff);
    draw_line(d, right, y, right, bottom, 0.05f, 0xffffff);
    draw_rect(d, x + 4.0f * cell, y + 3.0f * cell, cell, cell, 0xff2f2f);
}

ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    float light = light_of(s, p);
    draw_view(d, -0.2f, -0.2f, 16.6f, 9.2f, 0x0e1726);
    for (int32_t k = 0; k < view_rows * view_cols; k++) {
        int32_t row = s->row - view_rows / 2 + k / view_cols, col = s->col - view_cols / 2 + k % view_cols;
        int32_t block = is_inside(row, col) ? s->map[at(row, col)] & BLOCK : BEYOND;
        draw_block(d, block, (float)(k % view_cols), (float)(k / view_cols), light);
    }
    for (int32_t k = 0; k < MOBS; k++) {
        const Mob *mob = &s->mobs[k];
        int32_t row = mob->row - s->row + view_rows / 2, col = mob->col - s->col + view_cols / 2;
        if (!mob->alive || row < 0 || row >= view_rows || col < 0 || col >= view_cols) continue;
        float x = (float)col, y = (float)row;
        if (kind_of(k) == 0) draw_zombie(d, x, y);
        if (kind_of(k) == 1) draw_cow(d, x, y);
        if (kind_of(k) == 2) draw_skeleton(d, x, y);
        if (kind_of(k) == 3) draw_arrow(d, x, y, mob->way);
    }
    draw_player(d, s, (float)(view_cols / 2), (float)(view_rows / 2));
    draw_inventory(d, s);
    draw_map(d, s);
    int32_t done = 0;
    for (int32_t k = 0; k < ACHIEVEMENTS; k++) done += (int32_t)(s->achieved >> k & 1);
    draw_value(d, (float)MAP_LEFT, 7.3f, 0.3f, "unlocked ", done, 0xffd84a);
    draw_value(d, (float)MAP_LEFT, 7.9f, 0.3f, "step ", (int32_t)(s->clock % 1000000u), 0xd7e3f0);
    draw_value(d, (float)MAP_LEFT, 8.5f, 0.3f, "light % ", (int32_t)(100.0f * light), 0xd7e3f0);
}

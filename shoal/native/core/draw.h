// draw.h: the display list that env_draw fills. Envs link no graphics library.
//
// An env sets its coordinates with draw_view and adds shapes from back to front; raster.c turns the list into pixels.
#ifndef SHOAL_DRAW_H
#define SHOAL_DRAW_H

enum { DRAW_RECT, DRAW_CIRCLE, DRAW_LINE, DRAW_TEXT, DRAW_POLYGON };
enum { DRAW_TEXT_MAX = 24, DRAW_POINTS_MAX = 256 };  // bytes of a text item, its final 0 included; points of a polygon

// RECT: corner (x, y), size (a, b). CIRCLE: centre, radius a. LINE: (x, y) to (a, b), width c.
// TEXT: (x, y) is the left end of the letters' middle line, a their height.
// POLYGON: b points, of which (x, y) is the first; they start at point a of Draw.points. Filled by the nonzero rule, as
// a browser's canvas does.
typedef struct {
    int32_t kind;
    uint32_t color;  // 0xRRGGBB
    float x, y, a, b, c;
    char text[DRAW_TEXT_MAX];
} DrawItem;

typedef struct {
    float left, top, right, bottom;  // the part of the world that fills the picture
    uint32_t background;
    int32_t count, capacity;  // a count above capacity: the last shapes were dropped
    DrawItem *items;
    float *points;                        // (point_capacity, 2) the corners of all polygons
    int32_t point_count, point_capacity;  // a count above capacity: the last polygons were dropped
} Draw;

// A top that is larger than bottom makes y point up.
ENV_FN void draw_view(Draw *d, float left, float top, float right, float bottom, uint32_t background) {
    d->left = left;
    d->top = top;
    d->right = right;
    d->bottom = bottom;
    d->background = background;
}

ENV_FN DrawItem *draw_add(Draw *d, int32_t kind, uint32_t color, float x, float y, float a, float b, float c) {
    int32_t at = d->count++;
    if (at >= d->capacity) return 0;
    DrawItem *item = &d->items[at];
    item->kind = kind;  // a line for each field: C++17 and CUDA C++ have no compound literals
    item->color = color;
    item->x = x;
    item->y = y;
    item->a = a;
    item->b = b;
    item->c = c;
    for (int32_t k = 0; k < DRAW_TEXT_MAX; k++) item->text[k] = 0;
    return item;
}

ENV_FN void draw_rect(Draw *d, float x, float y, float width, float height, uint32_t color) {
    draw_add(d, DRAW_RECT, color, x, y, width, height, 0.0f);
}
ENV_FN void draw_circle(Draw *d, float x, float y, float radius, uint32_t color) {
    draw_add(d, DRAW_CIRCLE, color, x, y, radius, 0.0f, 0.0f);
}
ENV_FN void draw_line(Draw *d, float x0, float y0, float x1, float y1, float width, uint32_t color) {
    draw_add(d, DRAW_LINE, color, x0, y0, x1, y1, width);
}
// A filled polygon of `count` points (3 to DRAW_POINTS_MAX): x0, y0, x1, y1, … It may be concave.
ENV_FN void draw_polygon(Draw *d, const float *points, int32_t count, uint32_t color) {
    if (count < 3 || count > DRAW_POINTS_MAX) return;
    int32_t first = d->point_count;
    d->point_count += count;
    if (d->point_count > d->point_capacity) {
        d->point_count = d->point_capacity + 1;  // full: all later polygons are dropped too
        return;
    }
    DrawItem *item = draw_add(d, DRAW_POLYGON, color, points[0], points[1], (float)first, (float)count, 0.0f);
    for (int32_t k = 0; item && k < 2 * count; k++) d->points[2 * first + k] = points[k];
}
ENV_FN void draw_triangle(Draw *d, float x0, float y0, float x1, float y1, float x2, float y2, uint32_t color) {
    const float points[] = {x0, y0, x1, y1, x2, y2};
    draw_polygon(d, points, 3, color);
}
// A polygon given around (0, 0): scaled, turned by `angle` (radians, from the x axis to the y axis), moved to (x, y).
ENV_FN void draw_shape(Draw *d, const float *points, int32_t count, float x, float y, float angle, float scale,
                       uint32_t color) {
    float placed[2 * DRAW_POINTS_MAX], c = scale * m_cos(angle), s = scale * m_sin(angle);
    if (count < 3 || count > DRAW_POINTS_MAX) return;
    for (int32_t k = 0; k < count; k++) {
        placed[2 * k] = x + c * points[2 * k] - s * points[2 * k + 1];
        placed[2 * k + 1] = y + s * points[2 * k] + c * points[2 * k + 1];
    }
    draw_polygon(d, placed, count, color);
}

// A letter is 5/7 of its height wide, and 1/7 is left free after it.
ENV_FN float draw_text_width(float height, const char *text) {
    int32_t count = 0;
    while (count < 1024 && text[count]) count++;  // without a limit, compilers make a call of strlen of it
    return count ? height * (float)(6 * count - 1) / 7.0f : 0.0f;
}
// Text from (x, y), the left end of the letters' middle line. Printable ASCII; a text that is longer than an item can
// hold becomes several items.
ENV_FN void draw_text(Draw *d, float x, float y, float height, const char *text, uint32_t color) {
    float right = d->right < d->left ? -1.0f : 1.0f;  // where the reader's right is
    do {
        DrawItem *item = draw_add(d, DRAW_TEXT, color, x, y, height, 0.0f, 0.0f);
        int32_t length = 0;
        for (; length < DRAW_TEXT_MAX - 1 && text[length]; length++) {
            if (item) item->text[length] = text[length];
        }
        text += length;
        x += right * height * (float)(6 * length) / 7.0f;
    } while (*text);
}
ENV_FN void draw_text_centered(Draw *d, float x, float y, float height, const char *text, uint32_t color) {
    float half = 0.5f * draw_text_width(height, text);
    draw_text(d, d->right < d->left ? x + half : x - half, y, height, text, color);
}

// Draws "label value", for scores: env headers have no printf.
ENV_FN void draw_value(Draw *d, float x, float y, float height, const char *label, int32_t value, uint32_t color) {
    char text[DRAW_TEXT_MAX], digits[12];
    int32_t at = 0, count = 0, rest = value < 0 ? -value : value;
    while (at < DRAW_TEXT_MAX - 13 && label[at]) {
        text[at] = label[at];
        at++;
    }
    do {
        digits[count++] = (char)('0' + rest % 10);
        rest /= 10;
    } while (rest && count < 11);
    if (value < 0) text[at++] = '-';
    while (count) text[at++] = digits[--count];
    text[at] = 0;
    draw_text(d, x, y, height, text, color);
}

#endif

// draw.h: the display list that env_draw fills. Envs link no graphics library.
//
// An env sets its coordinates with draw_view and adds shapes from back to front; raster.c turns the list into pixels.
#ifndef SHOAL_DRAW_H
#define SHOAL_DRAW_H

enum { DRAW_RECT, DRAW_CIRCLE, DRAW_LINE, DRAW_TEXT };
enum { DRAW_TEXT_MAX = 24 };

// RECT: corner (x, y), size (a, b). CIRCLE: centre, radius a. LINE: (x, y) to (a, b), width c.
// TEXT: (x, y) is the left end of the letters' middle line, a their height.
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
ENV_FN void draw_text(Draw *d, float x, float y, float height, const char *text, uint32_t color) {
    DrawItem *item = draw_add(d, DRAW_TEXT, color, x, y, height, 0.0f, 0.0f);
    for (int32_t k = 0; item && k < DRAW_TEXT_MAX - 1 && text[k]; k++) item->text[k] = text[k];
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

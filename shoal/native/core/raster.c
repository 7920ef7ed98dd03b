// raster.c: draws a display list (draw.h) into pixels, in software, with antialiased edges.
#include <math.h>

#include "math.h"
#define ENV_FN static inline __attribute__((unused))
#include "draw.h"

#define SHOAL_API __attribute__((visibility("default")))

typedef struct {
    uint8_t *rgb;
    int32_t width, height;
    float left, top, scale_x, scale_y;
} Canvas;

// Letters of 5 x 7 dots, one byte per column, lowest bit on top; ASCII 32 to 126.
static const uint8_t font[95][5] = {
    {0x00, 0x00, 0x00, 0x00, 0x00}, {0x00, 0x00, 0x5f, 0x00, 0x00}, {0x00, 0x07, 0x00, 0x07, 0x00},
    {0x14, 0x7f, 0x14, 0x7f, 0x14}, {0x24, 0x2a, 0x7f, 0x2a, 0x12}, {0x23, 0x13, 0x08, 0x64, 0x62},
    {0x36, 0x49, 0x55, 0x22, 0x50}, {0x00, 0x05, 0x03, 0x00, 0x00}, {0x00, 0x1c, 0x22, 0x41, 0x00},
    {0x00, 0x41, 0x22, 0x1c, 0x00}, {0x14, 0x08, 0x3e, 0x08, 0x14}, {0x08, 0x08, 0x3e, 0x08, 0x08},
    {0x00, 0x50, 0x30, 0x00, 0x00}, {0x08, 0x08, 0x08, 0x08, 0x08}, {0x00, 0x60, 0x60, 0x00, 0x00},
    {0x20, 0x10, 0x08, 0x04, 0x02}, {0x3e, 0x51, 0x49, 0x45, 0x3e}, {0x00, 0x42, 0x7f, 0x40, 0x00},
    {0x42, 0x61, 0x51, 0x49, 0x46}, {0x21, 0x41, 0x45, 0x4b, 0x31}, {0x18, 0x14, 0x12, 0x7f, 0x10},
    {0x27, 0x45, 0x45, 0x45, 0x39}, {0x3c, 0x4a, 0x49, 0x49, 0x30}, {0x01, 0x71, 0x09, 0x05, 0x03},
    {0x36, 0x49, 0x49, 0x49, 0x36}, {0x06, 0x49, 0x49, 0x29, 0x1e}, {0x00, 0x36, 0x36, 0x00, 0x00},
    {0x00, 0x56, 0x36, 0x00, 0x00}, {0x08, 0x14, 0x22, 0x41, 0x00}, {0x14, 0x14, 0x14, 0x14, 0x14},
    {0x00, 0x41, 0x22, 0x14, 0x08}, {0x02, 0x01, 0x51, 0x09, 0x06}, {0x32, 0x49, 0x79, 0x41, 0x3e},
    {0x7e, 0x11, 0x11, 0x11, 0x7e}, {0x7f, 0x49, 0x49, 0x49, 0x36}, {0x3e, 0x41, 0x41, 0x41, 0x22},
    {0x7f, 0x41, 0x41, 0x22, 0x1c}, {0x7f, 0x49, 0x49, 0x49, 0x41}, {0x7f, 0x09, 0x09, 0x09, 0x01},
    {0x3e, 0x41, 0x49, 0x49, 0x7a}, {0x7f, 0x08, 0x08, 0x08, 0x7f}, {0x00, 0x41, 0x7f, 0x41, 0x00},
    {0x20, 0x40, 0x41, 0x3f, 0x01}, {0x7f, 0x08, 0x14, 0x22, 0x41}, {0x7f, 0x40, 0x40, 0x40, 0x40},
    {0x7f, 0x02, 0x0c, 0x02, 0x7f}, {0x7f, 0x04, 0x08, 0x10, 0x7f}, {0x3e, 0x41, 0x41, 0x41, 0x3e},
    {0x7f, 0x09, 0x09, 0x09, 0x06}, {0x3e, 0x41, 0x51, 0x21, 0x5e}, {0x7f, 0x09, 0x19, 0x29, 0x46},
    {0x46, 0x49, 0x49, 0x49, 0x31}, {0x01, 0x01, 0x7f, 0x01, 0x01}, {0x3f, 0x40, 0x40, 0x40, 0x3f},
    {0x1f, 0x20, 0x40, 0x20, 0x1f}, {0x3f, 0x40, 0x38, 0x40, 0x3f}, {0x63, 0x14, 0x08, 0x14, 0x63},
    {0x07, 0x08, 0x70, 0x08, 0x07}, {0x61, 0x51, 0x49, 0x45, 0x43}, {0x00, 0x7f, 0x41, 0x41, 0x00},
    {0x02, 0x04, 0x08, 0x10, 0x20}, {0x00, 0x41, 0x41, 0x7f, 0x00}, {0x04, 0x02, 0x01, 0x02, 0x04},
    {0x40, 0x40, 0x40, 0x40, 0x40}, {0x00, 0x01, 0x02, 0x04, 0x00}, {0x20, 0x54, 0x54, 0x54, 0x78},
    {0x7f, 0x48, 0x44, 0x44, 0x38}, {0x38, 0x44, 0x44, 0x44, 0x20}, {0x38, 0x44, 0x44, 0x48, 0x7f},
    {0x38, 0x54, 0x54, 0x54, 0x18}, {0x08, 0x7e, 0x09, 0x01, 0x02}, {0x0c, 0x52, 0x52, 0x52, 0x3e},
    {0x7f, 0x08, 0x04, 0x04, 0x78}, {0x00, 0x44, 0x7d, 0x40, 0x00}, {0x20, 0x40, 0x44, 0x3d, 0x00},
    {0x7f, 0x10, 0x28, 0x44, 0x00}, {0x00, 0x41, 0x7f, 0x40, 0x00}, {0x7c, 0x04, 0x18, 0x04, 0x78},
    {0x7c, 0x08, 0x04, 0x04, 0x78}, {0x38, 0x44, 0x44, 0x44, 0x38}, {0x7c, 0x14, 0x14, 0x14, 0x08},
    {0x08, 0x14, 0x14, 0x18, 0x7c}, {0x7c, 0x08, 0x04, 0x04, 0x08}, {0x48, 0x54, 0x54, 0x54, 0x20},
    {0x04, 0x3f, 0x44, 0x40, 0x20}, {0x3c, 0x40, 0x40, 0x20, 0x7c}, {0x1c, 0x20, 0x40, 0x20, 0x1c},
    {0x3c, 0x40, 0x30, 0x40, 0x3c}, {0x44, 0x28, 0x10, 0x28, 0x44}, {0x0c, 0x50, 0x50, 0x50, 0x3c},
    {0x44, 0x64, 0x54, 0x4c, 0x44}, {0x00, 0x08, 0x36, 0x41, 0x00}, {0x00, 0x00, 0x7f, 0x00, 0x00},
    {0x00, 0x41, 0x36, 0x08, 0x00}, {0x08, 0x04, 0x08, 0x10, 0x08},
};

static float clamp01(float x) { return x < 0.0f ? 0.0f : x > 1.0f ? 1.0f : x; }

static void blend(Canvas *c, int32_t x, int32_t y, float cover, uint32_t color) {
    uint8_t *pixel = c->rgb + 3 * ((int64_t)y * c->width + x);
    for (int32_t k = 0; k < 3; k++) {
        float to = (float)((color >> (16 - 8 * k)) & 0xff);
        pixel[k] = (uint8_t)((float)pixel[k] + ((float)to - (float)pixel[k]) * cover + 0.5f);
    }
}

// The pixels that a shape with these bounds can touch; NaN and far-off shapes touch none.
static int bounds(const Canvas *c, float x0, float y0, float x1, float y1, int32_t box[4]) {
    if (!(x1 >= 0.0f && y1 >= 0.0f && x0 <= (float)c->width && y0 <= (float)c->height)) return 0;
    box[0] = x0 < 0.0f ? 0 : (int32_t)x0;
    box[1] = y0 < 0.0f ? 0 : (int32_t)y0;
    box[2] = x1 >= (float)c->width ? c->width - 1 : (int32_t)x1;
    box[3] = y1 >= (float)c->height ? c->height - 1 : (int32_t)y1;
    return 1;
}

static void fill_rect(Canvas *c, float x0, float y0, float x1, float y1, uint32_t color) {
    int32_t box[4];
    if (!bounds(c, x0, y0, x1, y1, box)) return;
    for (int32_t y = box[1]; y <= box[3]; y++) {
        float cover_y = fminf(y1, (float)y + 1.0f) - fmaxf(y0, (float)y);
        for (int32_t x = box[0]; x <= box[2]; x++) {
            float cover_x = fminf(x1, (float)x + 1.0f) - fmaxf(x0, (float)x);
            blend(c, x, y, clamp01(cover_x) * clamp01(cover_y), color);
        }
    }
}

// All points within `radius` of a segment: a line with round ends, or a circle where both ends are the same point.
static void fill_capsule(Canvas *c, float x0, float y0, float x1, float y1, float radius, uint32_t color) {
    int32_t box[4];
    float grow = radius + 1.0f;
    if (!bounds(c, fminf(x0, x1) - grow, fminf(y0, y1) - grow, fmaxf(x0, x1) + grow, fmaxf(y0, y1) + grow, box)) return;
    float dx = x1 - x0, dy = y1 - y0, length2 = dx * dx + dy * dy;
    for (int32_t y = box[1]; y <= box[3]; y++) {
        for (int32_t x = box[0]; x <= box[2]; x++) {
            float px = (float)x + 0.5f - x0, py = (float)y + 0.5f - y0;
            float t = length2 > 0.0f ? clamp01((px * dx + py * dy) / length2) : 0.0f;
            float ex = px - t * dx, ey = py - t * dy;
            blend(c, x, y, clamp01(radius + 0.5f - sqrtf(ex * ex + ey * ey)), color);
        }
    }
}

// Where the edges of a polygon cross the horizontal line at y: sorted by x, with the direction of each edge.
typedef struct {
    double x;
    int32_t direction;
} Crossing;

static int32_t find_crossings(const double *points, int32_t count, double y, Crossing *crossings) {
    int32_t found = 0;
    for (int32_t k = 0; k < count; k++) {
        const double *from = points + 2 * k, *to = points + 2 * ((k + 1) % count);
        if ((from[1] <= y) == (to[1] <= y)) continue;
        double x = from[0] + (y - from[1]) * (to[0] - from[0]) / (to[1] - from[1]);
        int32_t at = found++;
        for (; at > 0 && crossings[at - 1].x > x; at--) crossings[at] = crossings[at - 1];
        crossings[at].x = x;
        crossings[at].direction = from[1] < to[1] ? 1 : -1;
    }
    return found;
}

enum { POLYGON_LINES = 8, POLYGON_STRIP = 1024 };  // lines per row of pixels; pixels whose cover is summed at a time

// Each row of pixels is cut by POLYGON_LINES lines; on a line the cover is exact.
static void fill_polygon(Canvas *c, const float *world, int32_t count, uint32_t color) {
    double points[2 * DRAW_POINTS_MAX];
    float x0 = INFINITY, y0 = INFINITY, x1 = -INFINITY, y1 = -INFINITY;
    for (int32_t k = 0; k < count; k++) {
        float x = c->left + world[2 * k] * c->scale_x, y = c->top + world[2 * k + 1] * c->scale_y;
        if (!(fabsf(x) < 1e9f && fabsf(y) < 1e9f)) return;  // NaN too
        points[2 * k] = (double)x;
        points[2 * k + 1] = (double)y;
        x0 = fminf(x0, x), y0 = fminf(y0, y), x1 = fmaxf(x1, x), y1 = fmaxf(y1, y);
    }
    int32_t box[4];
    if (!bounds(c, x0, y0, x1, y1, box)) return;
    Crossing crossings[DRAW_POINTS_MAX];
    float cover[POLYGON_STRIP];
    for (int32_t left = box[0]; left <= box[2]; left += POLYGON_STRIP) {
        int32_t right = left + POLYGON_STRIP - 1 < box[2] ? left + POLYGON_STRIP - 1 : box[2];
        for (int32_t y = box[1]; y <= box[3]; y++) {
            memset(cover, 0, sizeof cover);
            for (int32_t line = 0; line < POLYGON_LINES; line++) {
                double at = (double)y + ((double)line + 0.5) / POLYGON_LINES;
                int32_t found = find_crossings(points, count, at, crossings), winding = 0;
                for (int32_t k = 0; k + 1 < found; k++) {
                    winding += crossings[k].direction;
                    if (!winding) continue;
                    double from = fmax(crossings[k].x, (double)left),
                           to = fmin(crossings[k + 1].x, (double)right + 1.0);
                    for (int32_t x = (int32_t)from; from < to && x <= right && (double)x < to; x++) {
                        cover[x - left] += (float)(fmin(to, (double)x + 1.0) - fmax(from, (double)x)) / POLYGON_LINES;
                    }
                }
            }
            for (int32_t x = left; x <= right; x++) blend(c, x, y, clamp01(cover[x - left]), color);
        }
    }
}

static void fill_text(Canvas *c, const DrawItem *item, float x, float y) {
    float dot = item->a * fabsf(c->scale_y) / 7.0f;
    for (int32_t k = 0; k < DRAW_TEXT_MAX && item->text[k]; k++) {
        uint8_t letter = (uint8_t)item->text[k];
        const uint8_t *columns = font[letter >= 32 && letter < 127 ? letter - 32 : '?' - 32];
        for (int32_t column = 0; column < 5; column++) {
            for (int32_t row = 0; row < 7; row++) {
                if (!(columns[column] >> row & 1)) continue;
                float left = x + dot * (float)(6 * k + column), top = y + dot * ((float)row - 3.5f);
                fill_rect(c, left, top, left + dot, top + dot, item->color);
            }
        }
    }
}

// Draws the list into rgb (height, width, 3). The world keeps its proportions and is centred.
SHOAL_API void shoal_raster(const Draw *d, uint8_t *rgb, int32_t width, int32_t height) {
    float world_x = d->right - d->left, world_y = d->bottom - d->top;
    float scale = fminf((float)width / fabsf(world_x), (float)height / fabsf(world_y));
    Canvas c = {rgb, width, height, 0.0f, 0.0f, copysignf(scale, world_x), copysignf(scale, world_y)};
    c.left = 0.5f * ((float)width - world_x * c.scale_x) - d->left * c.scale_x;
    c.top = 0.5f * ((float)height - world_y * c.scale_y) - d->top * c.scale_y;
    for (int64_t k = 0; k < (int64_t)width * height; k++) {
        for (int32_t channel = 0; channel < 3; channel++) {
            rgb[3 * k + channel] = (uint8_t)(d->background >> (16 - 8 * channel));
        }
    }
    int32_t count = d->count < d->capacity ? d->count : d->capacity;
    for (int32_t k = 0; k < count; k++) {
        const DrawItem *item = &d->items[k];
        float x = c.left + item->x * c.scale_x, y = c.top + item->y * c.scale_y;
        if (item->kind == DRAW_RECT) {
            float x1 = x + item->a * c.scale_x, y1 = y + item->b * c.scale_y;
            fill_rect(&c, fminf(x, x1), fminf(y, y1), fmaxf(x, x1), fmaxf(y, y1), item->color);
        } else if (item->kind == DRAW_CIRCLE) {
            fill_capsule(&c, x, y, x, y, item->a * scale, item->color);
        } else if (item->kind == DRAW_LINE) {
            float x1 = c.left + item->a * c.scale_x, y1 = c.top + item->b * c.scale_y;
            fill_capsule(&c, x, y, x1, y1, 0.5f * item->c * scale, item->color);
        } else if (item->kind == DRAW_TEXT) {
            fill_text(&c, item, x, y);
        } else if (item->kind == DRAW_POLYGON) {
            int32_t first = (int32_t)item->a, points = (int32_t)item->b;
            int is_safe = first >= 0 && points >= 3 && points <= DRAW_POINTS_MAX && first <= d->point_capacity - points;
            if (is_safe) fill_polygon(&c, d->points + 2 * first, points, item->color);
        }
    }
}

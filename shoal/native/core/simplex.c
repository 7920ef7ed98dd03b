// simplex.c: OpenSimplex noise in three dimensions, for worlds of Crafter (integrations/crafter_worlds.py).
// The algorithm of Kurt Spencer's OpenSimplex, in public domain, as the Python package opensimplex has it.
#include <math.h>
#include <stdint.h>

#define SHOAL_API __attribute__((visibility("default")))
#define STRETCH (-1.0 / 6.0)
#define SQUISH (1.0 / 3.0)
#define NORM 103.0

typedef struct {
    int x, y, z;
} Corner;

typedef struct {
    const int64_t *perm, *starts;  // 256 each: a permutation, and where the gradient of each of its numbers starts
    int64_t xb, yb, zb;            // the origin of the cell
    double dx, dy, dz;             // the place relative to it
} Cell;

static const int8_t gradients[72] = {
    -11, 4,  4,  -4, 11,  4,  -4, 4,  11,  11, 4,  4,  4, 11,  4,  4, 4,  11,   //
    -11, -4, 4,  -4, -11, 4,  -4, -4, 11,  11, -4, 4,  4, -11, 4,  4, -4, 11,   //
    -11, 4,  -4, -4, 11,  -4, -4, 4,  -11, 11, 4,  -4, 4, 11,  -4, 4, 4,  -11,  //
    -11, -4, -4, -4, -11, -4, -4, -4, -11, 11, -4, -4, 4, -11, -4, 4, -4, -11,
};

// What a corner of the lattice adds to the noise.
static double from_corner(const Cell *cell, Corner at) {
    double squish = (at.x + at.y + at.z) * SQUISH;
    double dx = cell->dx - at.x - squish, dy = cell->dy - at.y - squish, dz = cell->dz - at.z - squish;
    double weight = 2.0 - dx * dx - dy * dy - dz * dz;
    if (weight <= 0.0) return 0.0;
    int64_t index = cell->perm[(cell->xb + at.x) & 0xff];
    index = cell->perm[(index + cell->yb + at.y) & 0xff];
    const int8_t *g = gradients + cell->starts[(index + cell->zb + at.z) & 0xff];
    weight *= weight;
    return weight * weight * (g[0] * dx + g[1] * dy + g[2] * dz);
}

// The corner that is `away` on the axis of the lowest bit of `bits`, or on z, and `others` on the two other axes.
static Corner on_axis(int bits, int away, int others) {
    int axis = bits & 1 ? 0 : bits & 2 ? 1 : 2;
    return (Corner){axis == 0 ? away : others, axis == 1 ? away : others, axis == 2 ? away : others};
}

static double noise_at(const int64_t *perm, const int64_t *starts, double x, double y, double z) {
    double stretch = (x + y + z) * STRETCH;
    double xs = x + stretch, ys = y + stretch, zs = z + stretch;
    Cell cell = {perm, starts, (int64_t)floor(xs), (int64_t)floor(ys), (int64_t)floor(zs), 0.0, 0.0, 0.0};
    double squish = (double)(cell.xb + cell.yb + cell.zb) * SQUISH;
    double xi = xs - (double)cell.xb, yi = ys - (double)cell.yb, zi = zs - (double)cell.zb, sum = xi + yi + zi;
    cell.dx = x - ((double)cell.xb + squish);
    cell.dy = y - ((double)cell.yb + squish);
    cell.dz = z - ((double)cell.zb + squish);
    static const Corner low[] = {{0, 0, 0}, {1, 0, 0}, {0, 1, 0}, {0, 0, 1}};
    static const Corner high[] = {{1, 1, 0}, {1, 0, 1}, {0, 1, 1}, {1, 1, 1}};
    static const Corner middle[] = {{1, 0, 0}, {0, 1, 0}, {0, 0, 1}, {1, 1, 0}, {1, 0, 1}, {0, 1, 1}};
    const Corner *corners = middle;
    int count = 6;
    Corner one, two;   // beyond those of the cell
    if (sum <= 1.0) {  // the tetrahedron at (0, 0, 0)
        corners = low, count = 4;
        int a = 1, b = 2;
        double a_score = xi, b_score = yi, rest = 1.0 - sum;
        if (a_score >= b_score && zi > b_score) {
            b_score = zi, b = 4;
        } else if (a_score < b_score && zi > a_score) {
            a_score = zi, a = 4;
        }
        if (rest > a_score || rest > b_score) {
            int c = b_score > a_score ? b : a;
            one = (Corner){c & 1 ? 1 : -1, c & 2 ? 1 : c & 1 ? -1 : 0, c & 4 ? 1 : 0};
            two = (Corner){c & 1 ? 1 : 0, c & 2 ? 1 : c & 1 ? 0 : -1, c & 4 ? 1 : -1};
        } else {
            int c = a | b;
            one = (Corner){c & 1 ? 1 : 0, c & 2 ? 1 : 0, c & 4 ? 1 : 0};
            two = (Corner){c & 1 ? 1 : -1, c & 2 ? 1 : -1, c & 4 ? 1 : -1};
        }
    } else if (sum >= 2.0) {  // the tetrahedron at (1, 1, 1)
        corners = high, count = 4;
        int a = 6, b = 5;
        double a_score = xi, b_score = yi, rest = 3.0 - sum;
        if (a_score <= b_score && zi < b_score) {
            b_score = zi, b = 3;
        } else if (a_score > b_score && zi < a_score) {
            a_score = zi, a = 3;
        }
        if (rest < a_score || rest < b_score) {
            int c = b_score < a_score ? b : a;
            one = (Corner){c & 1 ? 2 : 0, c & 2 ? (c & 1 ? 1 : 2) : 0, c & 4 ? 1 : 0};
            two = (Corner){c & 1 ? 1 : 0, c & 2 ? (c & 1 ? 2 : 1) : 0, c & 4 ? 2 : 0};
        } else {
            int c = a & b;
            one = (Corner){c & 1 ? 1 : 0, c & 2 ? 1 : 0, c & 4 ? 1 : 0};
            two = (Corner){c & 1 ? 2 : 0, c & 2 ? 2 : 0, c & 4 ? 2 : 0};
        }
    } else {  // the octahedron between them
        double p1 = xi + yi, p2 = xi + zi, p3 = yi + zi;
        int a_is_far = p1 > 1.0, b_is_far = p2 > 1.0, c_is_far = p3 > 1.0;
        double a_score = a_is_far ? p1 - 1.0 : 1.0 - p1, b_score = b_is_far ? p2 - 1.0 : 1.0 - p2;
        double score = c_is_far ? p3 - 1.0 : 1.0 - p3;
        int a = a_is_far ? 3 : 4, b = b_is_far ? 5 : 2;
        if (a_score <= b_score && a_score < score) {
            a = c_is_far ? 6 : 1, a_is_far = c_is_far;
        } else if (a_score > b_score && b_score < score) {
            b = c_is_far ? 6 : 1, b_is_far = c_is_far;
        }
        if (a_is_far && b_is_far) {
            one = (Corner){1, 1, 1};
            two = on_axis(a & b, 2, 0);
        } else if (!a_is_far && !b_is_far) {
            one = (Corner){0, 0, 0};
            two = on_axis(~(a | b), -1, 1);
        } else {
            one = on_axis(~(a_is_far ? a : b), -1, 1);
            two = on_axis(a_is_far ? b : a, 2, 0);
        }
    }
    double value = 0.0;
    for (int k = 0; k < count; k++) value += from_corner(&cell, corners[k]);
    return (value + from_corner(&cell, one) + from_corner(&cell, two)) / NORM;
}

// The noise of `count` places. perm, starts: those of opensimplex.OpenSimplex.
SHOAL_API void shoal_simplex(const int64_t *perm, const int64_t *starts, const double *x, const double *y, double z,
                             int64_t count, double *out) {
    for (int64_t k = 0; k < count; k++) out[k] = noise_at(perm, starts, x[k], y[k], z);
}

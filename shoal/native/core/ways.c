// ways.c: the shortest ways on a map that is known in part, for NetHack's compass (integrations/nethack_compass.py).
#include <stdint.h>
#include <string.h>

#define SHOAL_API __attribute__((visibility("default")))

enum {
    MAX_CELLS = 2048,
    CLOSED = 1,      // cannot be entered
    STRAIGHT = 2,    // a door: not entered and not left diagonally
    UNSEEN = 4,      // nobody knows what is there
    VISITED = 8,     // the player has stood there
    BARRED = 16,     // no way leads on from here, but one may end here: a locked door
    FIRST_KIND = 5,  // bits from here on are kinds of places
};

// The steps of a king: north, east, south, west, and between them.
static const int8_t down[8] = {-1, 0, 1, 0, -1, 1, 1, -1}, right[8] = {0, 1, 0, -1, 1, 1, -1, -1};

typedef struct {
    const uint16_t *cells;
    int32_t height, width;
} Map;

// The cell that step k leads to; -1 outside the map.
static int32_t next_to(const Map *map, int32_t cell, int k) {
    int32_t row = cell / map->width + down[k], column = cell % map->width + right[k];
    int is_inside = row >= 0 && row < map->height && column >= 0 && column < map->width;
    return is_inside ? row * map->width + column : -1;
}

// Whether it may show more of the map to stand there.
static int is_edge(const Map *map, int32_t cell) {
    int count = map->cells[cell] & STRAIGHT ? 4 : 8;
    for (int k = 0; k < count; k++) {
        int32_t next = next_to(map, cell, k);
        if (next >= 0 && map->cells[next] & UNSEEN) return 1;
    }
    return 0;
}

// The kinds of places that a cell is, one bit each: an edge of what was seen, a cell not visited, those of the caller.
static uint32_t kinds_of(const Map *map, int32_t cell) {
    uint32_t kinds = (uint32_t)(map->cells[cell] >> FIRST_KIND) << 2;
    if (!(map->cells[cell] & (VISITED | BARRED))) kinds |= 2u | (uint32_t)is_edge(map, cell);
    return kinds;
}

// For each kind of place: how many steps away the nearest is (-1: no way is known), and the first of them (-1: none).
// Of two places that are equally near, the one whose way begins with the earlier direction.
SHOAL_API void shoal_ways(const uint16_t *cells, int32_t height, int32_t width, int32_t start, int32_t kinds,
                          int16_t *steps, int8_t *first) {
    int16_t distance[MAX_CELLS], queue[MAX_CELLS];
    int8_t way[MAX_CELLS];
    Map map = {cells, height, width};
    int32_t read = 0, written = 0, missing = kinds;
    memset(distance, -1, sizeof distance);
    for (int k = 0; k < kinds; k++) steps[k] = -1, first[k] = -1;
    if (height * width > MAX_CELLS) return;
    distance[start] = 0, way[start] = -1, queue[written++] = (int16_t)start;
    while (read < written && missing > 0) {
        int32_t cell = queue[read++];
        uint32_t found = kinds_of(&map, cell);
        for (int k = 0; k < kinds; k++) {
            if (steps[k] >= 0 || !(found >> k & 1)) continue;
            steps[k] = distance[cell], first[k] = way[cell], missing--;
        }
        if (cells[cell] & BARRED && cell != start) continue;
        for (int k = 0; k < 8; k++) {
            int32_t next = next_to(&map, cell, k);
            if (next < 0 || distance[next] >= 0 || cells[next] & (CLOSED | UNSEEN)) continue;
            if (k >= 4 && (cells[cell] | cells[next]) & STRAIGHT) continue;
            distance[next] = (int16_t)(distance[cell] + 1), way[next] = cell == start ? (int8_t)k : way[cell];
            queue[written++] = (int16_t)next;
        }
    }
}

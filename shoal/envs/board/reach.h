// reach.h: what is connected on a board of go.h or hex.h. The header defines `beside`, the points beside those of a
// set.
#ifndef SHOAL_BOARD_REACH_H
#define SHOAL_BOARD_REACH_H

// What can be reached from some points over points of `through`, the start included where it is part of it.
ENV_FN Set reach(Set from, Set through) {
    Set found = set_and(from, through);
    for (int32_t grows = 1; grows;) {
        Set next = set_or(found, set_and(beside(found), through));
        grows = !set_equal(next, found);
        found = next;
    }
    return found;
}

#endif

"""The display list and the rasterizer: shapes land where they should, for every env and for shapes of our own."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError
from shoal.native import lib
from shoal.vector.play import play


def raster(items, view=(0, 0, 10, 10), background=0x000000, width=100, height=100, points=()):
    corners = (ctypes.c_float * (2 * len(points)))(*(number for point in points for number in point))
    array = (lib.DrawItem * len(items))(*(lib.DrawItem(**item) for item in items))
    left, top, right, bottom = view
    drawn = lib.Draw(
        left=left, top=top, right=right, bottom=bottom, background=background,
        count=len(items), capacity=len(items), items=array,
        points=corners, point_count=len(points), point_capacity=len(points),
    )  # fmt: skip
    pixels = np.empty((height, width, 3), np.uint8)
    lib.load_core().raster(ctypes.byref(drawn), pixels.ctypes.data, width, height)
    return pixels


RECT, CIRCLE, LINE, TEXT, POLYGON = range(5)


def test_rect_fills_exactly_its_pixels():
    pixels = raster([{"kind": RECT, "color": 0xFF8000, "x": 2, "y": 3, "a": 4, "b": 1}])
    inside = np.zeros((100, 100), bool)
    inside[30:40, 20:60] = True
    assert (pixels[inside] == [255, 128, 0]).all()
    assert (pixels[~inside] == 0).all()


def test_y_may_point_up():
    pixels = raster([{"kind": RECT, "color": 0xFFFFFF, "x": 0, "y": 0, "a": 1, "b": 1}], view=(0, 10, 10, 0))
    assert (pixels[90:, :10] == 255).all()
    assert pixels[:90].max() == 0


def test_circle_area_and_soft_edge():
    pixels = raster([{"kind": CIRCLE, "color": 0xFFFFFF, "x": 5, "y": 5, "a": 3}])[..., 0] / 255
    assert pixels.sum() == pytest.approx(np.pi * 30**2, rel=0.01)
    assert ((pixels > 0) & (pixels < 1)).any()


def test_line_width():
    pixels = raster([{"kind": LINE, "color": 0xFFFFFF, "x": 1, "y": 5, "a": 9, "b": 5, "c": 2}])[..., 0] / 255
    assert pixels[:, 50].sum() == pytest.approx(20, abs=0.5)


def test_text_has_ink_where_it_stands():
    pixels = raster([{"kind": TEXT, "color": 0xFFFFFF, "x": 1, "y": 5, "a": 2, "text": b"Shoal 42"}])[..., 0]
    assert pixels[40:60, 10:].any()
    assert not pixels[:38].any()
    assert not pixels[62:].any()


def polygon(*points, color=0xFFFFFF, **options):
    """A picture of one polygon, as cover from 0 to 1."""
    item = {"kind": POLYGON, "color": color, "x": points[0][0], "y": points[0][1], "a": 0, "b": len(points)}
    return raster([item], points=points, **options)[..., 0] / 255


def area(*points):
    """The shoelace formula."""
    x, y = np.array(points).T
    return abs(x @ np.roll(y, -1) - y @ np.roll(x, -1)) / 2


TRIANGLE = ((1.0, 1.0), (9.0, 2.0), (3.0, 8.5))
ARROW = ((1.0, 5.0), (9.0, 1.0), (6.0, 5.0), (9.0, 9.0))  # concave
STAR = tuple((5 + 4 * np.sin(4 * np.pi * k / 5), 5 - 4 * np.cos(4 * np.pi * k / 5)) for k in range(5))


@pytest.mark.parametrize("points", [TRIANGLE, ARROW, TRIANGLE[::-1], ARROW[::-1]])
def test_a_polygon_covers_its_area(points):
    cover = polygon(*points)
    assert cover.sum() == pytest.approx(100 * area(*points), rel=0.005)
    assert ((cover > 0) & (cover < 1)).any(), "soft edges"


def test_a_polygon_of_whole_pixels_has_sharp_edges():
    cover = polygon((2, 3), (6, 3), (6, 4), (2, 4))
    inside = np.zeros((100, 100), bool)
    inside[30:40, 20:60] = True
    assert (cover[inside] == 1).all()
    assert (cover[~inside] == 0).all()


def test_a_concave_polygon_leaves_its_notch_open():
    cover = polygon(*ARROW)
    assert cover[50, 75] == 0  # between the barbs
    assert cover[50, 40] == 1


def test_the_middle_of_a_star_is_filled():
    """The nonzero rule, as on a browser's canvas; even-odd would leave a hole."""
    assert polygon(*STAR)[50, 50] == 1


def test_polygons_wider_than_a_strip_and_beyond_the_picture():
    cover = polygon((-50, -50), (60, -50), (60, 5), (-50, 5), width=2100, height=2100)
    assert (cover[:1050] == 1).all()
    assert (cover[1050:] == 0).all()


def test_a_small_picture_to_the_pixel():
    """A polygon, a line of text and a rect in 24 x 12 pixels."""
    items = [
        {"kind": POLYGON, "color": 0xFFFFFF, "a": 0, "b": 4},
        {"kind": TEXT, "color": 0xFFFFFF, "x": 12, "y": 4.5, "a": 7, "text": b"Hi"},
        {"kind": RECT, "color": 0xFFFFFF, "x": 12, "y": 10, "a": 11, "b": 1},
    ]
    corners = ((6, 0), (11, 5.5), (6, 11), (1, 5.5))
    picture = raster(items, view=(0, 0, 24, 12), width=24, height=12, points=corners)[..., 0]
    assert ["".join(".+#"[int(value > 85) + int(value > 170)] for value in row) for row in picture] == GOLDEN.split()


GOLDEN = """
.....++.................
....+##+....#...#...#...
....####....#...#.......
...######...#...#..##...
..########..#####...#...
.##########.#...#...#...
..########..#...#...#...
...######...#...#..###..
....####................
....+##+................
.....++.....###########.
........................
"""

SHAPES = """// shapes.h: draws shapes.
#define ENV_OBS OBS_F32(1)
#define ENV_ACTION ACT_DISCRETE(2)
#define ENV_STATE(X) X(float, x)
#include "core/env.h"
ENV_DATA float square[] = {-1.0f, -1.0f, 1.0f, -1.0f, 1.0f, 1.0f, -1.0f, 1.0f};
ENV_FN void env_reset(State *s, const Params *p, Rng *rng) { (void)p, (void)rng, s->x = 5.0f; }
ENV_FN void env_step(State *s, const Params *p, const Action *a, Step *out, Rng *rng) {
    (void)s, (void)p, (void)a, (void)rng, (void)out;
}
ENV_FN void env_observe(const State *s, const Params *p, int agent, Obs *obs) { (void)p, (void)agent, obs[0] = s->x; }
ENV_FN void env_draw(const State *s, const Params *p, Draw *d) {
    (void)p;
    draw_view(d, 0.0f, 10.0f, 10.0f, 0.0f, 0x000000);
    draw_shape(d, square, 4, s->x, 5.0f, 0.25f * M_PI_F, 2.0f, 0x0000ff);
    draw_triangle(d, 0.0f, 0.0f, 1.0f, 0.0f, 0.0f, 1.0f, 0x00ff00);
    draw_polygon(d, square, 2, 0xff0000);
    draw_text_centered(d, 5.0f, 9.0f, 0.7f, "seven x", 0xffffff);
    draw_text(d, 0.0f, 1.0f, 0.07f, "a text of forty letters, which is longer", 0xffffff);
    for (int k = 0; k < 20000; k++) draw_polygon(d, square, 4, 0x222222);
}
"""


def test_shapes_from_a_header(tmp_path):
    (tmp_path / "shapes.h").write_text(SHAPES)
    vec = shoal.make(tmp_path / "shapes.h")
    vec.reset(seed=0)
    shape, triangle, centred, start, rest, *many = vec.draw(0)["items"]
    diagonal = 2 * 2**0.5
    expected = [[5, 5 - diagonal], [5 + diagonal, 5], [5, 5 + diagonal], [5 - diagonal, 5]]
    assert (shape["kind"], shape["color"]) == ("polygon", "#0000ff")
    assert np.allclose(shape["points"], expected, atol=1e-5)
    assert triangle["points"] == [[0, 0], [1, 0], [0, 1]]  # the polygon of two points is none
    assert centred["x"] == pytest.approx(5 - 0.5 * (6 * 7 - 1) * 0.1)
    assert start["text"] + rest["text"] == "a text of forty letters, which is longer"
    assert rest["x"] == pytest.approx(0.06 * len(start["text"]), rel=1e-5)
    assert {item["kind"] for item in many} == {"polygon"}
    assert all(len(item["points"]) == 4 for item in many)  # those beyond the memory were dropped
    assert len(many) < 4096
    frame = vec.frame(0, width=200)
    assert frame[100, 100].tolist() == [34, 34, 34] or frame[100, 100, 2] == 255


def test_a_forged_polygon_reads_no_foreign_memory():
    for first, count in ((0, 300), (-1, 3), (2, 3), (1e9, 3), (0, 1e9), (np.nan, 3)):
        item = {"kind": POLYGON, "color": 0xFFFFFF, "a": first, "b": count}
        assert raster([item], points=TRIANGLE).max() == 0


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e30])
def test_wild_numbers_draw_nothing_bad(number):
    for kind in (RECT, CIRCLE, LINE, TEXT):
        for place in "xyabc":
            item = {"kind": kind, "color": 0xFFFFFF, "x": 1.0, "y": 1.0, "a": 1.0, "b": 1.0, "c": 1.0, "text": b"hi"}
            raster([{**item, place: number}], width=32, height=32)
    corners = [(1.0, 1.0), (9.0, 2.0), (number, 8.0)]
    raster([{"kind": POLYGON, "color": 0xFFFFFF, "a": 0, "b": 3}], points=corners, width=32, height=32)


def test_every_env_draws_itself(every_env):
    vec = shoal.make(every_env, 2, seed=0, render_mode="rgb_array")
    vec.reset()
    play(vec, 10)
    drawn, frames = vec.draw(1), vec.render()
    assert len(frames) == 2
    assert frames[0].dtype == np.uint8
    assert frames[0].shape[1:] == (480, 3)
    assert len(drawn["items"]) < 4096
    assert len(np.unique(frames[0] @ np.array([1 << 16, 1 << 8, 1]))) > 3, "more than a background"
    wide = vec.frame(0, width=800)
    assert wide.shape[1] == 800
    assert wide.shape[0] % 2 == 0
    with pytest.raises(ConfigError, match="env=2 must be one of 0 .. 1"):
        vec.frame(2)

"""The display list and the rasterizer: shapes land where they should, for every env and for shapes of our own."""

from __future__ import annotations

import ctypes

import numpy as np
import pytest

import shoal
from shoal.errors import ConfigError
from shoal.native import lib
from shoal.vector.play import play


def raster(items, view=(0, 0, 10, 10), background=0x000000, width=100, height=100):
    array = (lib.DrawItem * len(items))(*(lib.DrawItem(**item) for item in items))
    left, top, right, bottom = view
    drawn = lib.Draw(
        left=left, top=top, right=right, bottom=bottom, background=background,
        count=len(items), capacity=len(items), items=array,
    )  # fmt: skip
    pixels = np.empty((height, width, 3), np.uint8)
    lib.load_core().raster(ctypes.byref(drawn), pixels.ctypes.data, width, height)
    return pixels


RECT, CIRCLE, LINE, TEXT = range(4)


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


@pytest.mark.parametrize("number", [np.nan, np.inf, -np.inf, 1e30])
def test_wild_numbers_draw_nothing_bad(number):
    for kind in (RECT, CIRCLE, LINE, TEXT):
        for place in "xyabc":
            item = {"kind": kind, "color": 0xFFFFFF, "x": 1.0, "y": 1.0, "a": 1.0, "b": 1.0, "c": 1.0, "text": b"hi"}
            raster([{**item, place: number}], width=32, height=32)


def test_every_env_draws_itself(env):
    vec = shoal.make(env, 2, seed=0, render_mode="rgb_array")
    vec.reset()
    play(vec, 10)
    drawn, frames = vec.draw(1), vec.render()
    assert len(frames) == 2
    assert frames[0].dtype == np.uint8
    assert frames[0].shape[1:] == (480, 3)
    assert len(drawn["items"]) < 4096
    assert len(np.unique(frames[0].reshape(-1, 3), axis=0)) > 3, "more than a background"
    wide = vec.frame(0, width=800)
    assert wide.shape[1] == 800
    assert wide.shape[0] % 2 == 0
    with pytest.raises(ConfigError, match="env=2 must be one of 0 .. 1"):
        vec.frame(2)

// view.js: draws a display list on a canvas, as native/core/raster.c does on pixels.
"use strict";

const View = (() => {
  const RECT = 0, CIRCLE = 1, LINE = 2, TEXT = 3, POLYGON = 4;
  const FONT = 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace';
  let advance = 0; // of a letter, in units of the font's size
  const css = (color) => `#${color.toString(16).padStart(6, "0")}`;

  // Where a world of {view} lies in width x height: it keeps its proportions and is centred. `crop`: a part of it.
  function place(view, width, height, crop = null) {
    const [left, top, right, bottom] = crop ?? view;
    const scale = Math.min(width / Math.abs(right - left), height / Math.abs(bottom - top));
    const [sx, sy] = [scale * Math.sign(right - left), scale * Math.sign(bottom - top)];
    return { scale, sx, sy, x: width / 2 - (sx * (left + right)) / 2, y: height / 2 - (sy * (top + bottom)) / 2 };
  }

  function paint(canvas, picture, crop = null) {
    const context = canvas.getContext("2d", { alpha: false }), at = place(picture.view, canvas.width, canvas.height, crop);
    const X = (x) => at.x + x * at.sx, Y = (y) => at.y + y * at.sy;
    context.fillStyle = css(picture.background);
    context.fillRect(0, 0, canvas.width, canvas.height);
    if (crop) {
      context.save();
      context.beginPath();
      context.rect(X(crop[0]), Y(crop[1]), (crop[2] - crop[0]) * at.sx, (crop[3] - crop[1]) * at.sy);
      context.clip();
    }
    context.lineCap = "round";
    context.textBaseline = "middle";
    for (const item of picture.items) {
      const color = css(item.color), x = X(item.x), y = Y(item.y);
      context.fillStyle = context.strokeStyle = color;
      if (item.kind === RECT) {
        const [w, h] = [item.a * at.sx, item.b * at.sy];
        context.fillRect(Math.min(x, x + w), Math.min(y, y + h), Math.abs(w), Math.abs(h));
      } else if (item.kind === CIRCLE) {
        context.beginPath();
        context.arc(x, y, Math.max(0, item.a * at.scale), 0, 2 * Math.PI);
        context.fill();
      } else if (item.kind === LINE) {
        context.lineWidth = item.c * at.scale;
        context.beginPath();
        context.moveTo(x, y);
        context.lineTo(X(item.a), Y(item.b));
        context.stroke();
      } else if (item.kind === TEXT) { // a letter is 6/7 of its height wide, as in raster.c
        if (!advance) {
          context.font = `600 100px ${FONT}`;
          advance = context.measureText("M").width / 100;
        }
        context.font = `600 ${((6 / 7) * item.a * at.scale) / advance}px ${FONT}`;
        context.fillText(item.text, x, y);
      } else if (item.kind === POLYGON) {
        context.beginPath();
        for (let k = 0; k < item.points.length; k += 2) context.lineTo(X(item.points[k]), Y(item.points[k + 1]));
        context.fill();
      }
    }
    if (crop) context.restore();
  }

  return { place, paint };
})();

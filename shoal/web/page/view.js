// view.js: draws a display list on a canvas, as native/core/raster.c does on pixels.
"use strict";

const View = (() => {
  const RECT = 0, CIRCLE = 1, LINE = 2, TEXT = 3, POLYGON = 4;
  const FONT = 'ui-monospace, Menlo, Consolas, "DejaVu Sans Mono", monospace';
  const MUCH = 0.7; // of a canvas: drawn as a whole, which lets the browser drop the picture before
  let advance = 0; // of a letter, in units of the font's size
  const css = (color) => `#${color.toString(16).padStart(6, "0")}`;

  // Where a world of {view} lies in width x height: it keeps its proportions and is centred. `crop`: a part of it.
  function place(view, width, height, crop = null) {
    const [left, top, right, bottom] = crop ?? view;
    const scale = Math.min(width / Math.abs(right - left), height / Math.abs(bottom - top));
    const [sx, sy] = [scale * Math.sign(right - left), scale * Math.sign(bottom - top)];
    return { scale, sx, sy, x: width / 2 - (sx * (left + right)) / 2, y: height / 2 - (sy * (top + bottom)) / 2 };
  }

  // The pixels that an item may touch: [left, top, right, bottom]. Kept while `at` is the same object.
  function bounds(item, at) {
    const known = at.boxes.get(item);
    if (known) return known;
    const x = at.x + item.x * at.sx, y = at.y + item.y * at.sy, size = item.a * at.scale, xs = [x], ys = [y];
    let rim = 2; // of soft edges
    if (item.kind === RECT) { xs.push(x + item.a * at.sx); ys.push(y + item.b * at.sy); }
    else if (item.kind === CIRCLE) rim += Math.abs(size);
    else if (item.kind === LINE) { xs.push(at.x + item.a * at.sx); ys.push(at.y + item.b * at.sy); rim += item.c * at.scale; }
    else if (item.kind === TEXT) { xs.push(x + size * item.text.length); rim += Math.abs(size); }
    else item.points.forEach((value, k) => (k % 2 ? ys.push(at.y + value * at.sy) : xs.push(at.x + value * at.sx)));
    const box = [Math.floor(Math.min(...xs) - rim), Math.floor(Math.min(...ys) - rim), Math.ceil(Math.max(...xs) + rim), Math.ceil(Math.max(...ys) + rim)];
    at.boxes.set(item, box);
    return box;
  }

  // The box of what differs from the picture that the canvas shows; null: nothing does. The whole canvas if much does.
  function changed(canvas, picture, at) {
    const { shown } = canvas, whole = [0, 0, canvas.width, canvas.height];
    if (shown?.at !== at || shown.background !== picture.background) return whole;
    let box = null;
    for (let k = 0; k < Math.max(shown.items.length, picture.items.length); k++) {
      const items = [shown.items[k], picture.items[k]];
      if (items[0] === items[1]) continue;
      for (const item of items) {
        if (!item) continue;
        const [left, top, right, bottom] = bounds(item, at);
        box = box ? [Math.min(box[0], left), Math.min(box[1], top), Math.max(box[2], right), Math.max(box[3], bottom)] : [left, top, right, bottom];
      }
    }
    return box && !((box[2] - box[0]) * (box[3] - box[1]) < MUCH * canvas.width * canvas.height) ? whole : box; // also NaN
  }

  // Draws a picture where it differs from the one that the canvas shows: the browser then copies that part of it alone.
  function paint(canvas, picture, crop = null) {
    const context = canvas.getContext("2d", { alpha: false }), now = place(picture.view, canvas.width, canvas.height, crop);
    const old = canvas.shown?.at, at = old && Object.keys(now).every((key) => now[key] === old[key]) ? old : Object.assign(now, { boxes: new WeakMap() });
    const X = (x) => at.x + x * at.sx, Y = (y) => at.y + y * at.sy, box = changed(canvas, picture, at);
    canvas.shown = { at, background: picture.background, items: picture.items };
    if (!box) return;
    const [left, top, right, bottom] = box, isPart = right - left < canvas.width || bottom - top < canvas.height;
    const clip = (x, y, width, height) => { context.beginPath(); context.rect(x, y, width, height); context.clip(); };
    context.save();
    if (isPart) clip(left, top, right - left, bottom - top); // whole pixels: the rim is as in a picture drawn at once
    context.fillStyle = css(picture.background);
    context.fillRect(left, top, right - left, bottom - top);
    if (crop) clip(X(crop[0]), Y(crop[1]), (crop[2] - crop[0]) * at.sx, (crop[3] - crop[1]) * at.sy);
    context.lineCap = "round";
    context.textBaseline = "middle";
    for (const item of picture.items) {
      if (isPart) {
        const its = bounds(item, at);
        if (its[0] >= right || its[1] >= bottom || its[2] <= left || its[3] <= top) continue;
      }
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
        context.lineWidth = Math.max(item.c * at.scale, 1e-6); // 0 would be the width of the line before
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
    context.restore();
  }

  return { place, paint };
})();

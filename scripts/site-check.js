// What scripts/site-check asks of a page in the browser.

// Visible text whose contrast is below the limits. Text over pictures and gradients is left out.
window.contrasts = (ofLarge, ofSmall) => {
  const pen = document.createElement("canvas").getContext("2d", { willReadFrequently: true });
  const rgba = (text) => {
    pen.clearRect(0, 0, 1, 1);
    pen.fillStyle = text;
    pen.fillRect(0, 0, 1, 1);
    const [r, g, b, a] = pen.getImageData(0, 0, 1, 1).data;
    return [r, g, b, a / 255];
  };
  const linear = (v) => (v <= 0.03928 ? v / 12.92 : ((v + 0.055) / 1.055) ** 2.4);
  const luminance = ([r, g, b]) => 0.2126 * linear(r / 255) + 0.7152 * linear(g / 255) + 0.0722 * linear(b / 255);
  const over = (top, below) => [0, 1, 2].map((k) => top[k] * top[3] + below[k] * (1 - top[3]));
  const behind = (node) => {
    const layers = [];
    for (let at = node; at; at = at.parentElement) {
      const style = getComputedStyle(at);
      if (style.backgroundImage !== "none") return null;
      const colour = rgba(style.backgroundColor);
      if (colour[3] > 0) layers.push(colour);
      if (colour[3] === 1) break;
    }
    return layers.reverse().reduce((below, layer) => over(layer, below), [255, 255, 255]);
  };
  const found = new Map();
  const walker = document.createTreeWalker(document.body, NodeFilter.SHOW_TEXT);
  while (walker.nextNode()) {
    const node = walker.currentNode.parentElement, text = walker.currentNode.data.trim();
    if (!text || ["SCRIPT", "STYLE", "NOSCRIPT"].includes(node.tagName)) continue;
    const box = node.getBoundingClientRect(), style = getComputedStyle(node);
    if (!box.width || !box.height || !node.checkVisibility({ opacityProperty: true, visibilityProperty: true })) continue;
    const below = behind(node);
    if (!below) continue;
    let opacity = 1;
    for (let at = node; at; at = at.parentElement) opacity *= Number(getComputedStyle(at).opacity);
    const [r, g, b, a] = rgba(style.color);
    const front = over([r, g, b, a * opacity], below);
    const [high, low] = [luminance(front), luminance(below)].sort((x, y) => y - x);
    const ratio = (high + 0.05) / (low + 0.05), size = parseFloat(style.fontSize);
    const isLarge = size >= 24 || (size >= 18.66 && Number(style.fontWeight) >= 700);
    if (ratio < (isLarge ? ofLarge : ofSmall)) {
      const colours = `${front.map(Math.round)} on ${below.map(Math.round)}`;
      const key = `${node.tagName.toLowerCase()}.${node.className} ${colours}`;
      if (!found.has(key)) found.set(key, `${key}: ${ratio.toFixed(2)}, "${text.slice(0, 30)}"`);
    }
  }
  return [...found.values()];
};

// The element with the focus, and whether that can be seen: by an outline, or by another look than without it.
window.focused = () => {
  const node = document.activeElement;
  if (!node || node === document.body) return null;
  if (node.tagName === "IFRAME") return { name: "", seen: true }; // the focus is inside: its page is looked at by itself
  // a hidden switch is seen by the button of its form that is shown
  const beside = node.classList.contains("md-option") ? node.form.querySelectorAll("label") : node.labels || [];
  const nodes = [node, ...beside], styles = nodes.map((one) => getComputedStyle(one));
  const look = () =>
    styles.map((s) => [s.boxShadow, s.color, s.backgroundColor, s.borderColor, s.opacity, s.textDecoration]).join();
  const isOutlined = styles.some((s) => s.outlineStyle !== "none" && parseFloat(s.outlineWidth) > 0);
  const withFocus = look();
  node.blur();
  const without = look();
  node.focus({ preventScroll: true });
  const text = (node.textContent || node.title || "").trim().slice(0, 30);
  return { name: `${node.tagName.toLowerCase()}.${node.className} ${text}`, seen: isOutlined || withFocus !== without };
};

// packed.js: bytes as text in a page: in base 85, and compressed. It runs first: the other scripts may be packed, too.
"use strict";

const Packed = (() => {
  const LETTERS = "0123456789ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz!#$%&()*+-;,=>?@^_`{|}~"; // of web/facts.py
  const digits = new Uint8Array(128);
  for (let k = 0; k < 85; k++) digits[LETTERS.charCodeAt(k)] = k;

  // Five letters are four bytes; the last ones may be fewer.
  function bytesOf(text) {
    const words = new DataView(new ArrayBuffer(4 * Math.ceil(text.length / 5)));
    for (let at = 0; at < text.length; at += 5) {
      let word = 0;
      for (let k = at; k < at + 5; k++) word = 85 * word + (k < text.length ? digits[text.charCodeAt(k)] : 84);
      words.setUint32((4 * at) / 5, word);
    }
    return new Uint8Array(words.buffer, 0, Math.floor((4 * text.length) / 5));
  }

  async function unpacked(text) {
    const stream = new Blob([bytesOf(text)]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Uint8Array(await new Response(stream).arrayBuffer());
  }

  // Runs the scripts that an element of the page holds.
  async function run(element) {
    const script = document.createElement("script");
    script.textContent = new TextDecoder().decode(await unpacked(element.textContent));
    document.body.append(script);
  }

  return { bytesOf, unpacked, run };
})();

if (typeof module !== "undefined") module.exports = Packed;
